//! Equality, order and hashes, as Python defines them.

use std::{
    cmp::Ordering,
    hash::{Hash, Hasher},
    rc::Rc,
};

use num_bigint::BigInt;
use num_traits::{FromPrimitive, ToPrimitive};

use super::{
    super::{
        error::{Error, Kind, Result},
        meter::Meter,
    },
    Value, View,
};

/// Maximum size of a tuple that is a key: each lookup reads all of it.
const MAX_TUPLE: usize = 1 << 10;

/// A value that can be the key of a dictionary.
#[derive(Clone)]
pub struct Key(Value);

impl Key {
    /// The key, or an error for values that change, as lists do in Python.
    pub fn new(value: Value) -> Result<Key> {
        let is_tuple = matches!(value, Value::Tuple(_) | Value::Group(_));
        if is_tuple && value.size() > MAX_TUPLE {
            return Err(Error::new(Kind::Limit, "a tuple is too large for a key"));
        }
        check(&value)?;
        Ok(Key(value))
    }

    pub fn text(text: &str) -> Key {
        Key(Value::str(text))
    }

    pub fn value(&self) -> Value {
        self.0.clone()
    }

    pub fn get(&self) -> &Value {
        &self.0
    }
}

fn check(value: &Value) -> Result<()> {
    match value {
        Value::List(_) | Value::Dict(_) | Value::View(..) => {
            Err(Error::of_type(format!("unhashable type: '{}'", value.class())))
        }
        Value::Tuple(items) | Value::Group(items) => items.items.iter().try_for_each(check),
        _ => Ok(()),
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        equal(&self.0, &other.0)
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash(&self.0, state);
    }
}

/// Equal numbers have equal hashes, whatever their classes.
fn hash<H: Hasher>(value: &Value, state: &mut H) {
    match value {
        Value::Str(text) | Value::Safe(text) => text.hash(state),
        Value::Bool(value) => i64::from(*value).hash(state),
        Value::Int(number) => number.hash(state),
        Value::Float(number) => match integral(*number) {
            Some(integer) => match integer.to_i64() {
                Some(small) => small.hash(state),
                None => integer.hash(state),
            },
            None => number.to_bits().hash(state),
        },
        Value::Big(number) => number.hash(state),
        Value::Tuple(items) | Value::Group(items) => items.items.iter().for_each(|item| hash(item, state)),
        _ => value.class().hash(state),
    }
}

/// A float without a fraction as an integer.
fn integral(number: f64) -> Option<BigInt> {
    (number.is_finite() && number.fract() == 0.0).then(|| BigInt::from_f64(number)).flatten()
}

/// A number: an integer or a float.
pub enum Number {
    Int(BigInt),
    Float(f64),
}

impl Number {
    /// The number as a float.
    pub fn float(&self) -> Result<f64> {
        match self {
            Number::Float(number) => Ok(*number),
            Number::Int(number) => {
                let float = number.to_f64().filter(|float| float.is_finite());
                float.ok_or_else(|| Error::new(Kind::Arithmetic, "int too large to convert to float"))
            }
        }
    }
}

/// The number that a value is.
pub fn number(value: &Value) -> Option<Number> {
    Some(match value {
        Value::Bool(value) => Number::Int(i64::from(*value).into()),
        Value::Int(number) => Number::Int((*number).into()),
        Value::Big(number) => Number::Int((**number).clone()),
        Value::Float(number) => Number::Float(*number),
        _ => return None,
    })
}

/// The order of two numbers; `None` if one of them is not a number, or NaN.
fn numeric(a: &Value, b: &Value) -> Option<Ordering> {
    if let (Value::Int(a), Value::Int(b)) = (a, b) {
        return Some(a.cmp(b));
    }
    match (number(a)?, number(b)?) {
        (Number::Int(a), Number::Int(b)) => Some(a.cmp(&b)),
        (Number::Float(a), Number::Float(b)) => a.partial_cmp(&b),
        (Number::Int(a), Number::Float(b)) => mixed(&a, b),
        (Number::Float(a), Number::Int(b)) => mixed(&b, a).map(Ordering::reverse),
    }
}

/// Compares an integer with a float without rounding it.
fn mixed(a: &BigInt, b: f64) -> Option<Ordering> {
    if b.is_nan() {
        return None;
    }
    if b.is_infinite() {
        return Some(if b > 0.0 { Ordering::Less } else { Ordering::Greater });
    }
    let floor = BigInt::from_f64(b.floor())?;
    Some(a.cmp(&floor).then(if b.fract() == 0.0 { Ordering::Equal } else { Ordering::Less }))
}

fn is_number(value: &Value) -> bool {
    matches!(value, Value::Bool(_) | Value::Int(_) | Value::Big(_) | Value::Float(_))
}

/// Python's `==`.
pub fn equal(a: &Value, b: &Value) -> bool {
    if is_number(a) && is_number(b) {
        return numeric(a, b) == Some(Ordering::Equal);
    }
    match (a, b) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(a) | Value::Safe(a), Value::Str(b) | Value::Safe(b)) => a == b,
        (Value::List(a), Value::List(b))
        | (Value::Tuple(a) | Value::Group(a), Value::Tuple(b) | Value::Group(b)) => {
            a.items.len() == b.items.len() && a.items.iter().zip(&b.items).all(|(a, b)| equal(a, b))
        }
        (Value::Dict(a), Value::Dict(b)) => {
            Rc::ptr_eq(a, b)
                || a.map.len() == b.map.len()
                    && a.map.iter().all(|(key, a)| b.map.get(key).is_some_and(|b| equal(a, b)))
        }
        (Value::Range(a), Value::Range(b)) => {
            a.len() == b.len() && (a.len() == 0 || a.start == b.start && (a.len() == 1 || a.step == b.step))
        }
        (Value::View(View::Keys, a), Value::View(View::Keys, b)) => {
            a.map.len() == b.map.len() && a.map.keys().all(|key| b.map.contains_key(key))
        }
        (Value::View(View::Items, a), Value::View(View::Items, b)) => {
            a.map.len() == b.map.len()
                && a.map.iter().all(|(key, a)| b.map.get(key).is_some_and(|b| equal(a, b)))
        }
        _ => same(a, b),
    }
}

/// Python's `is`, for values of which there can be several.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Str(a), Value::Str(b)) | (Value::Safe(a), Value::Safe(b)) => a == b,
        (Value::List(a), Value::List(b))
        | (Value::Tuple(a), Value::Tuple(b))
        | (Value::Group(a), Value::Group(b)) => Rc::ptr_eq(a, b),
        (Value::Dict(a), Value::Dict(b)) => Rc::ptr_eq(a, b),
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
        (Value::Macro(a), Value::Macro(b)) => Rc::ptr_eq(a, b),
        (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
        (Value::Iterator(a), Value::Iterator(b)) => Rc::ptr_eq(a, b),
        (Value::Function(a), Value::Function(b)) => a == b,
        _ => false,
    }
}

/// The order of two values for the operator of this name, which the error states.
pub fn order(a: &Value, b: &Value, operator: &str) -> Result<Option<Ordering>> {
    a.defined()?;
    b.defined()?;
    if is_number(a) && is_number(b) {
        return Ok(numeric(a, b));
    }
    match (a, b) {
        (Value::Str(a) | Value::Safe(a), Value::Str(b) | Value::Safe(b)) => Ok(Some(a.cmp(b))),
        (Value::List(a), Value::List(b))
        | (Value::Tuple(a) | Value::Group(a), Value::Tuple(b) | Value::Group(b)) => {
            let differ = a.items.iter().zip(&b.items).find(|(a, b)| !equal(a, b));
            differ.map_or(Ok(Some(a.items.len().cmp(&b.items.len()))), |(a, b)| order(a, b, operator))
        }
        _ => Err(Error::of_type(format!(
            "'{operator}' not supported between instances of '{}' and '{}'",
            a.class(),
            b.class()
        ))),
    }
}

/// Pays for a comparison, which reads at most the smaller value.
pub fn pay(a: &Value, b: &Value, meter: &Meter) -> Result<()> {
    meter.spend(a.size().min(b.size()))
}

/// Whether `value` is in `within`.
pub fn contains(within: &Value, value: &Value, meter: &Meter) -> Result<bool> {
    match within {
        Value::Str(text) | Value::Safe(text) => {
            meter.spend(text.len() / 16)?;
            let Some(part) = value.defined()?.text() else {
                let class = value.class();
                return Err(Error::of_type(format!(
                    "'in <string>' requires string as left operand, not {class}"
                )));
            };
            Ok(text.contains(&**part))
        }
        Value::Dict(dict) | Value::View(View::Keys, dict) => {
            Ok(dict.map.contains_key(&Key::new(value.clone())?))
        }
        Value::Namespace(_)
        | Value::None
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Big(_)
        | Value::Float(_) => {
            Err(Error::of_type(format!("argument of type '{}' is not iterable", within.class())))
        }
        _ => {
            let items = within.iterate(meter)?;
            items.iter().try_for_each(|item| pay(item, value, meter))?;
            Ok(items.iter().any(|item| equal(item, value)))
        }
    }
}
