//! jinja2's tests.

use std::cmp::Ordering;

use super::{
    args::Args,
    ast::Operator,
    error::{Error, Result},
    meter::Meter,
    number::binary,
    value::Value,
    value::key::{contains, equal, number, order, pay, same},
};

/// The names of all tests.
const NAMES: [&str; 39] = [
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "==",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    ">=",
    "greaterthan",
    "gt",
    ">",
    "in",
    "integer",
    "iterable",
    "le",
    "<=",
    "lessthan",
    "lower",
    "lt",
    "<",
    "mapping",
    "ne",
    "!=",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

/// Whether there is a test of this name.
pub(super) fn is_known(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Whether a value passes a test.
pub(super) fn test(name: &str, value: &Value, args: &Args, meter: &Meter) -> Result<bool> {
    meter.step()?;
    let none = || args.bind::<0>(name, [], 0);
    let other = || -> Result<Value> {
        let [other] = args.bind(name, ["other"], 1)?;
        Ok(other.unwrap_or(Value::None))
    };
    let compared = |operator: &str, wanted: &[Ordering]| -> Result<bool> {
        let other = other()?;
        pay(value, &other, meter)?;
        Ok(order(value, &other, operator)?.is_some_and(|order| wanted.contains(&order)))
    };
    let is_string = value.text().is_some();
    Ok(match name {
        "defined" => none().map(|_| !value.is_undefined())?,
        "undefined" => none().map(|_| value.is_undefined())?,
        "none" => none().map(|_| matches!(value, Value::None))?,
        "boolean" => none().map(|_| matches!(value, Value::Bool(_)))?,
        "true" => none().map(|_| matches!(value, Value::Bool(true)))?,
        "false" => none().map(|_| matches!(value, Value::Bool(false)))?,
        "integer" => none().map(|_| matches!(value, Value::Int(_) | Value::Big(_)))?,
        "float" => none().map(|_| matches!(value, Value::Float(_)))?,
        "number" => none().map(|_| number(value).is_some())?,
        "string" => none().map(|_| is_string)?,
        "mapping" => none().map(|_| matches!(value, Value::Dict(_)))?,
        "sequence" => {
            none()?;
            let has_items = value.sequence().is_some() || is_string;
            has_items || matches!(value, Value::Dict(_) | Value::Range(_) | Value::Undefined(_))
        }
        "iterable" => {
            none()?;
            is_string
                || value.sequence().is_some()
                || matches!(
                    value,
                    Value::Undefined(_)
                        | Value::Dict(_)
                        | Value::Range(_)
                        | Value::View(..)
                        | Value::Iterator(_)
                        | Value::Loop(_)
                )
        }
        "callable" => {
            none()?;
            matches!(
                value,
                // Undefined values have a method that fails when they are called.
                Value::Undefined(_)
                    | Value::Macro(_)
                    | Value::Function(_)
                    | Value::Method(_)
                    | Value::Joiner(_)
                    | Value::Loop(_)
            )
        }
        "escaped" => none().map(|_| matches!(value, Value::Safe(_)))?,
        "lower" | "upper" => {
            none()?;
            let text = super::repr::string(value, meter)?;
            let cased = text.chars().any(|c| c.is_lowercase() || c.is_uppercase());
            cased
                && if name == "lower" {
                    !text.chars().any(char::is_uppercase)
                } else {
                    !text.chars().any(char::is_lowercase)
                }
        }
        "even" | "odd" => {
            none()?;
            let rest = binary(Operator::Modulo, value, &Value::Int(2), meter)?;
            equal(&rest, &Value::Int(i64::from(name == "odd")))
        }
        "divisibleby" => {
            let [by] = args.bind(name, ["num"], 1)?;
            let rest = binary(Operator::Modulo, value, &by.unwrap_or(Value::None), meter)?;
            equal(&rest, &Value::Int(0))
        }
        "eq" | "equalto" | "==" | "ne" | "!=" => {
            let other = other()?;
            pay(value, &other, meter)?;
            equal(value, &other) == !matches!(name, "ne" | "!=")
        }
        "lt" | "lessthan" | "<" => compared("<", &[Ordering::Less])?,
        "le" | "<=" => compared("<=", &[Ordering::Less, Ordering::Equal])?,
        "gt" | "greaterthan" | ">" => compared(">", &[Ordering::Greater])?,
        "ge" | ">=" => compared(">=", &[Ordering::Greater, Ordering::Equal])?,
        "sameas" => same(value, &other()?),
        "in" => {
            let [within] = args.bind(name, ["seq"], 1)?;
            contains(&within.unwrap_or(Value::None), value, meter)?
        }
        // Whether a filter exists is for `filters.rs` to say.
        "filter" => return Err(Error::value("the test 'filter' is not supported")),
        "test" => value.text().is_some_and(|name| is_known(name)),
        other => return Err(Error::value(format!("No test named '{other}'."))),
    })
}
