//! Filters that give numbers, or texts of numbers.

use num_bigint::BigInt;

use super::super::{
    args::{self, Args, flag, integer_or},
    ast::Operator,
    error::{Error, Result},
    meter::{Limits, Meter},
    number as arithmetic,
    value::{
        Value,
        key::{Number, number},
    },
};

pub(super) fn filesize(value: &Value, args: &Args) -> Result<String> {
    let [binary] = args.bind("do_filesizeformat", ["binary"], 0)?;
    let bytes = match (number(value.defined()?), value.text()) {
        (Some(number), _) => number.float()?,
        (None, text) => text
            .and_then(|text| args::parsed_float(text))
            .ok_or_else(|| Error::value(format!("could not convert {} to float", value.class())))?,
    };
    let (base, prefixes) = if flag(&binary) {
        (1024.0, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"])
    } else {
        (1000.0, ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"])
    };
    if bytes == 1.0 {
        return Ok("1 Byte".into());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", bytes.trunc() + 0.0));
    }
    let mut unit = base;
    for prefix in prefixes {
        if bytes < unit * base {
            return Ok(format!("{:.1} {prefix}", bytes / unit));
        }
        unit *= base;
    }
    Ok(format!("{:.1} {}", base * bytes / unit, prefixes[7]))
}

pub(super) fn to_int(value: &Value, args: &Args) -> Result<Value> {
    let [default, base] = args.bind("do_int", ["default", "base"], 0)?;
    let base = u32::try_from(integer_or(&base, 10)?).ok().filter(|b| (2..=36).contains(b) || *b == 0);
    let base = base.ok_or_else(|| Error::value("int() base must be >= 2 and <= 36, or 0"))?;
    let of_float = |number: f64| args::truncated(number).map(Value::big);
    let default = default.unwrap_or(Value::Int(0));
    Ok(match (number(value), value.text()) {
        (Some(Number::Int(number)), _) => Value::big(number),
        (Some(Number::Float(number)), _) => match of_float(number) {
            Some(number) => number,
            // Python raises an OverflowError for infinity, which the filter does not catch.
            None if number.is_infinite() => {
                return Err(Error::value("cannot convert float infinity to integer"));
            }
            None => default,
        },
        (None, Some(text)) => {
            let whole: Option<BigInt> = args::parsed_integer(text, base);
            whole.map(Value::big).or_else(|| args::parsed_float(text).and_then(of_float)).unwrap_or(default)
        }
        (None, None) => {
            value.defined()?;
            default
        }
    })
}

pub(super) fn to_float(value: &Value, args: &Args) -> Result<Value> {
    let [default] = args.bind("do_float", ["default"], 0)?;
    let found = match (number(value), value.text()) {
        (Some(number), _) => Some(number.float()?),
        (None, Some(text)) => args::parsed_float(text),
        (None, None) => {
            value.defined()?;
            None
        }
    };
    Ok(found.map(Value::Float).or(default).unwrap_or(Value::Float(0.0)))
}

pub(super) fn round(value: &Value, args: &Args) -> Result<Value> {
    let [precision, method] = args.bind("do_round", ["precision", "method"], 0)?;
    let precision = integer_or(&precision, 0)?;
    let method = method.unwrap_or_else(|| "common".into());
    let method = method.text().map_or("", |text| text).to_owned();
    let Some(number) = number(value.defined()?) else {
        return Err(Error::of_type(format!("type {} doesn't define __round__ method", value.class())));
    };
    let digits = precision.clamp(-400, 400) as i32;
    match (&*method, number) {
        ("common", Number::Int(number)) => {
            if digits >= 0 {
                return Ok(Value::big(number));
            }
            let unit = num_traits::Pow::pow(BigInt::from(10), digits.unsigned_abs());
            let (quotient, rest) = num_integer::Integer::div_mod_floor(&number, &unit);
            let twice = rest * 2;
            let is_odd = num_integer::Integer::is_odd(&quotient);
            let up = twice > unit || twice == unit && is_odd;
            Ok(Value::big((quotient + i32::from(up)) * unit))
        }
        ("common", Number::Float(number)) => Ok(Value::Float(rounded(number, digits))),
        ("ceil" | "floor", number) => {
            // As jinja2 computes it: `func(value * 10**precision) / 10**precision`.
            let scale = match digits {
                0.. => Value::big(num_traits::Pow::pow(BigInt::from(10), digits as u32)),
                _ => Value::Float(10f64.powi(digits)),
            };
            let value = match number {
                Number::Int(number) => Value::big(number),
                Number::Float(number) => Value::Float(number),
            };
            let meter = Meter::new(Limits { bytes: 1 << 16, steps: 16, nesting: 16 });
            let scaled = arithmetic::binary(Operator::Multiply, &value, &scale, &meter)?;
            let whole = match scaled {
                Value::Float(scaled) => {
                    let whole = if method == "ceil" { scaled.ceil() } else { scaled.floor() };
                    Value::big(
                        args::truncated(whole)
                            .ok_or_else(|| Error::value("cannot convert float to integer"))?,
                    )
                }
                whole => whole,
            };
            arithmetic::binary(Operator::Divide, &whole, &scale, &meter)
        }
        _ => Err(Error::value("method must be common, ceil or floor")),
    }
}

/// `round(number, digits)`: correctly rounded from the exact decimal value, ties to even.
fn rounded(number: f64, digits: i32) -> f64 {
    if !number.is_finite() || digits > 330 {
        return number;
    }
    if digits >= 0 {
        // Rust formats the exact value, with ties to even.
        return format!("{number:.*}", digits as usize).parse().unwrap_or(number);
    }
    let unit = 10f64.powi(-digits);
    if unit.is_infinite() { 0f64.copysign(number) } else { (number / unit).round_ties_even() * unit }
}
