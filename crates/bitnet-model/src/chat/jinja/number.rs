//! Python's operators on values.

use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::{Pow, Signed, ToPrimitive, Zero};

use super::{
    ast::Operator,
    error::{Error, Kind, Result},
    meter::{Meter, Text},
    percent,
    repr::{escaped, string},
    value::Value,
    value::key::{Number, number},
};

/// Maximum size in bits of an integer that a template computes.
const MAX_BITS: u64 = 1 << 16;

fn unsupported(symbol: &str, a: &Value, b: &Value) -> Error {
    let (a, b) = (a.class(), b.class());
    Error::of_type(format!("unsupported operand type(s) for {symbol}: '{a}' and '{b}'"))
}

/// The value of a binary operator.
pub(super) fn binary(operator: Operator, a: &Value, b: &Value, meter: &Meter) -> Result<Value> {
    a.defined()?;
    // A format writes an undefined value as nothing.
    if operator != Operator::Modulo || a.text().is_none() {
        b.defined()?;
    }
    if let (Value::Int(x), Value::Int(y)) = (a, b) {
        let small = match operator {
            Operator::Add => x.checked_add(*y),
            Operator::Subtract => x.checked_sub(*y),
            Operator::Multiply => x.checked_mul(*y),
            _ => None,
        };
        if let Some(number) = small {
            return Ok(Value::Int(number));
        }
    }
    if let (Some(a), Some(b)) = (number(a), number(b)) {
        return arithmetic(operator, a, b, meter);
    }
    match operator {
        Operator::Add => add(a, b, meter),
        Operator::Multiply => multiply(a, b, meter),
        Operator::Modulo if a.text().is_some() => percent::format(a, b, meter),
        Operator::Subtract => match (a, b) {
            (Value::View(..), Value::View(..)) => Err(Error::of_type("sets are not supported")),
            _ => Err(unsupported("-", a, b)),
        },
        Operator::Divide => Err(unsupported("/", a, b)),
        Operator::FloorDivide => Err(unsupported("//", a, b)),
        Operator::Modulo => Err(unsupported("%", a, b)),
        Operator::Power => Err(unsupported("** or pow()", a, b)),
    }
}

fn add(a: &Value, b: &Value, meter: &Meter) -> Result<Value> {
    match (a, b) {
        (Value::Str(_), Value::Str(_)) => joined(a, b, meter).map(Value::from),
        // A safe text escapes what it is joined with.
        (Value::Safe(_), _) if b.text().is_some() => {
            Ok(Value::Safe(joined(a, &escaped(b, meter)?, meter)?.into()))
        }
        (Value::Str(_), Value::Safe(_)) => Ok(Value::Safe(joined(&escaped(a, meter)?, b, meter)?.into())),
        (Value::List(x), Value::List(y)) => {
            meter.spend_items(x.items.len() + y.items.len())?;
            Value::list([&x.items[..], &y.items[..]].concat())
        }
        (Value::Tuple(x) | Value::Group(x), Value::Tuple(y) | Value::Group(y)) => {
            meter.spend_items(x.items.len() + y.items.len())?;
            Value::tuple([&x.items[..], &y.items[..]].concat())
        }
        (Value::Str(_), _) => {
            Err(Error::of_type(format!("can only concatenate str (not \"{}\") to str", b.class())))
        }
        (Value::List(_), _) => {
            Err(Error::of_type(format!("can only concatenate list (not \"{}\") to list", b.class())))
        }
        (Value::Tuple(_), _) => {
            Err(Error::of_type(format!("can only concatenate tuple (not \"{}\") to tuple", b.class())))
        }
        _ => Err(unsupported("+", a, b)),
    }
}

fn joined(a: &Value, b: &Value, meter: &Meter) -> Result<String> {
    let mut out = Text::new(meter);
    out.push(&string(a, meter)?)?;
    out.push(&string(b, meter)?)?;
    Ok(out.finish())
}

fn multiply(a: &Value, b: &Value, meter: &Meter) -> Result<Value> {
    let (many, times) = if number(a).is_some() { (b, a) } else { (a, b) };
    let times = match number(times) {
        Some(Number::Int(times)) => times.max(0.into()).to_usize().unwrap_or(usize::MAX),
        _ if many.text().is_some() || many.sequence().is_some() => {
            let class = times.class();
            return Err(Error::of_type(format!("can't multiply sequence by non-int of type '{class}'")));
        }
        _ => return Err(unsupported("*", a, b)),
    };
    if let Some(text) = many.text() {
        let mut out = Text::new(meter);
        out.repeat(text, times)?;
        let text = out.finish();
        return Ok(if let Value::Safe(_) = many { Value::Safe(text.into()) } else { text.into() });
    }
    let Some(items) = many.sequence() else { return Err(unsupported("*", a, b)) };
    meter.spend_items(items.len().saturating_mul(times))?;
    let count = items.len().saturating_mul(times);
    let repeated = items.iter().cycle().take(count).cloned().collect();
    if let Value::List(_) = many { Value::list(repeated) } else { Value::tuple(repeated) }
}

fn zero(what: &str) -> Error {
    Error::new(Kind::Arithmetic, what)
}

fn arithmetic(operator: Operator, a: Number, b: Number, meter: &Meter) -> Result<Value> {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => {
            // About the time that a product or a quotient takes.
            meter.spend((a.bits().saturating_mul(b.bits()) >> 12) as usize)?;
            integers(operator, a, b, meter)
        }
        (a, b) => floats(operator, a.float()?, b.float()?).map(Value::Float),
    }
}

fn integers(operator: Operator, a: BigInt, b: BigInt, meter: &Meter) -> Result<Value> {
    let limited = |bits: u64| {
        if bits > MAX_BITS { Err(Error::new(Kind::Limit, "an integer is too large")) } else { Ok(()) }
    };
    Ok(match operator {
        Operator::Add => {
            limited(a.bits().max(b.bits()) + 1)?;
            Value::big(a + b)
        }
        Operator::Subtract => {
            limited(a.bits().max(b.bits()) + 1)?;
            Value::big(a - b)
        }
        Operator::Multiply => {
            limited(a.bits() + b.bits())?;
            Value::big(a * b)
        }
        Operator::Divide if b.is_zero() => return Err(zero("division by zero")),
        Operator::FloorDivide if b.is_zero() => return Err(zero("integer division or modulo by zero")),
        Operator::Modulo if b.is_zero() => return Err(zero("integer modulo by zero")),
        Operator::Divide => Value::Float(Number::Int(a).float()? / Number::Int(b).float()?),
        Operator::FloorDivide => Value::big(a.div_floor(&b)),
        Operator::Modulo => Value::big(a.mod_floor(&b)),
        Operator::Power if b.is_negative() => {
            return floats(operator, Number::Int(a).float()?, Number::Int(b).float()?).map(Value::Float);
        }
        Operator::Power => {
            let exponent = b.to_u64().unwrap_or(u64::MAX);
            if a.bits() > 1 {
                let bits = a.bits().saturating_mul(exponent);
                limited(bits)?;
                meter.spend(((bits * bits) >> 12) as usize)?;
            }
            let exponent =
                if a.bits() > 1 { exponent } else { exponent % 2 + if exponent > 0 { 2 } else { 0 } };
            Value::big(Pow::pow(a, exponent))
        }
    })
}

fn floats(operator: Operator, a: f64, b: f64) -> Result<f64> {
    Ok(match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide if b == 0.0 => return Err(zero("float division by zero")),
        Operator::FloorDivide if b == 0.0 => return Err(zero("float floor division by zero")),
        Operator::Modulo if b == 0.0 => return Err(zero("float modulo")),
        Operator::Divide => a / b,
        Operator::FloorDivide => {
            let remainder = modulo(a, b);
            let quotient = (a - remainder) / b;
            let floor = quotient.floor();
            if quotient - floor > 0.5 { floor + 1.0 } else { floor }
        }
        Operator::Modulo => modulo(a, b),
        Operator::Power => {
            if a == 0.0 && b < 0.0 {
                return Err(zero("0.0 cannot be raised to a negative power"));
            }
            let power = a.powf(b);
            if power.is_infinite() && a.is_finite() && b.is_finite() {
                return Err(Error::new(Kind::Arithmetic, "(34, 'Numerical result out of range')"));
            }
            if power.is_nan() && !a.is_nan() && !b.is_nan() {
                return Err(Error::of_type("complex numbers are not supported"));
            }
            power
        }
    })
}

/// The remainder with the sign of the divisor.
fn modulo(a: f64, b: f64) -> f64 {
    let remainder = a % b;
    if remainder == 0.0 {
        0f64.copysign(b)
    } else if (remainder < 0.0) != (b < 0.0) {
        remainder + b
    } else {
        remainder
    }
}

/// `-value` or `+value`.
pub(super) fn signed(value: &Value, negative: bool) -> Result<Value> {
    value.defined()?;
    let sign = if negative { '-' } else { '+' };
    Ok(match number(value) {
        Some(Number::Int(number)) => Value::big(if negative { -number } else { number }),
        Some(Number::Float(number)) => Value::Float(if negative { -number } else { number }),
        None => {
            let class = value.class();
            return Err(Error::of_type(format!("bad operand type for unary {sign}: '{class}'")));
        }
    })
}
