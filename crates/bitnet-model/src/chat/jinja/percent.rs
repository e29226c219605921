//! `%`: printf's formats, as Python has them.

use num_bigint::BigInt;
use num_traits::{FromPrimitive, Signed, ToPrimitive};

use super::{
    error::{Error, Result},
    float::{self, Style},
    meter::{Meter, Text},
    repr::{digits, repr, string},
    value::Value,
    value::key::{Key, Number, number},
};

/// The parts of a format between `%` and its letter.
#[derive(Default)]
struct Spec {
    left: bool,
    sign: Option<char>,
    zeros: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
}

/// `template % arguments`.
pub(super) fn format(template: &Value, arguments: &Value, meter: &Meter) -> Result<Value> {
    let text = string(template, meter)?;
    let mut out = Text::new(meter);
    let mut taken = 0;
    let positional = match arguments {
        Value::Tuple(items) | Value::Group(items) => &items.items[..],
        one => std::slice::from_ref(one),
    };
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push_char(c)?;
            continue;
        }
        let mut next = || {
            taken += 1;
            positional
                .get(taken - 1)
                .cloned()
                .ok_or_else(|| Error::of_type("not enough arguments for format string"))
        };
        let mut key = None;
        if chars.next_if_eq(&'(').is_some() {
            let mut name = String::new();
            let mut open = 1;
            loop {
                let c = chars.next().ok_or_else(|| Error::value("incomplete format key"))?;
                open += i32::from(c == '(') - i32::from(c == ')');
                if open == 0 {
                    break;
                }
                name.push(c);
            }
            let Value::Dict(dict) = arguments else {
                return Err(Error::of_type("format requires a mapping"));
            };
            let found = dict.map.get(&Key::text(&name));
            key = Some(
                found.cloned().ok_or_else(|| Error::new(super::error::Kind::Lookup, format!("'{name}'")))?,
            );
        }
        let mut spec = Spec::default();
        while let Some(flag) = chars.next_if(|c| matches!(c, '-' | '+' | ' ' | '#' | '0')) {
            match flag {
                '-' => spec.left = true,
                '+' => spec.sign = Some('+'),
                ' ' => spec.sign = spec.sign.or(Some(' ')),
                '#' => spec.alternate = true,
                _ => spec.zeros = true,
            }
        }
        if chars.next_if_eq(&'*').is_some() {
            let width = integer(&next()?)?.to_i64().unwrap_or(i64::MAX);
            spec.left |= width < 0;
            spec.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
        }
        while let Some(digit) = chars.next_if(char::is_ascii_digit) {
            spec.width = spec.width.saturating_mul(10).saturating_add(digit as usize - '0' as usize);
        }
        if chars.next_if_eq(&'.').is_some() {
            let mut precision = 0usize;
            if chars.next_if_eq(&'*').is_some() {
                precision = integer(&next()?)?.to_usize().unwrap_or(0);
            }
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                precision = precision.saturating_mul(10).saturating_add(digit as usize - '0' as usize);
            }
            spec.precision = Some(precision);
        }
        while chars.next_if(|c| matches!(c, 'h' | 'l' | 'L')).is_some() {}
        let letter = chars.next().ok_or_else(|| Error::value("incomplete format"))?;
        if letter == '%' {
            out.push("%")?;
            continue;
        }
        let mut value = key.map_or_else(&mut next, Ok)?;
        if let (Value::Safe(_), None) = (template, number(&value)) {
            value = super::repr::escaped(&value, meter)?;
        }
        one(&mut out, letter, &spec, &value)?;
    }
    // Python takes everything with items for a mapping, of which not all keys need to be used.
    let is_mapping = matches!(arguments, Value::Dict(_) | Value::List(_) | Value::Range(_));
    if taken < positional.len() && !is_mapping {
        return Err(Error::of_type("not all arguments converted during string formatting"));
    }
    let text = out.finish();
    Ok(if let Value::Safe(_) = template { Value::Safe(text.into()) } else { text.into() })
}

fn integer(value: &Value) -> Result<BigInt> {
    match number(value.defined()?) {
        Some(Number::Int(number)) => Ok(number),
        _ => Err(Error::of_type("* wants int")),
    }
}

fn one(out: &mut Text<'_>, letter: char, spec: &Spec, value: &Value) -> Result<()> {
    let meter = out.meter();
    meter.spend(spec.precision.unwrap_or(0))?;
    let (sign, body) = match letter {
        's' | 'r' | 'a' => {
            let text = match letter {
                's' => string(value, meter)?.to_string(),
                _ => {
                    let mut text = Text::new(meter);
                    repr(&mut text, value)?;
                    text.finish()
                }
            };
            ("", text.chars().take(spec.precision.unwrap_or(usize::MAX)).collect())
        }
        'c' => match value.text() {
            Some(text) if text.chars().count() == 1 => ("", text.to_string()),
            Some(_) => return Err(Error::of_type("%c requires int or char")),
            None => {
                let code = integer(value)?.to_u32().and_then(char::from_u32);
                let c = code.ok_or_else(|| Error::value("%c arg not in range(0x110000)"))?;
                ("", c.to_string())
            }
        },
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let number = match (number(value.defined()?), letter) {
                (Some(Number::Int(number)), _) => number,
                (Some(Number::Float(number)), 'd' | 'i' | 'u') => BigInt::from_f64(number.trunc())
                    .ok_or_else(|| Error::value("cannot convert float to integer"))?,
                _ => {
                    let what = if letter == 'd' { "a real number" } else { "an integer" };
                    let class = value.class();
                    return Err(Error::of_type(format!("%{letter} format: {what} is required, not {class}")));
                }
            };
            let magnitude = number.abs();
            let (prefix, text) = match letter {
                'x' => ("0x", magnitude.to_str_radix(16)),
                'X' => ("0X", magnitude.to_str_radix(16).to_uppercase()),
                'o' => ("0o", magnitude.to_str_radix(8)),
                _ => ("", digits(&magnitude)?),
            };
            let zeros = spec.precision.unwrap_or(0).saturating_sub(text.len());
            let prefix = if spec.alternate { prefix } else { "" };
            let sign = if number.is_negative() { "-" } else { plus(spec) };
            return padded(out, spec, &format!("{sign}{prefix}"), &("0".repeat(zeros) + &text), true);
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let number = match number(value.defined()?) {
                Some(number) => number.float()?,
                None => {
                    return Err(Error::of_type(format!("must be real number, not {}", value.class())));
                }
            };
            let style = match letter {
                'e' | 'E' => Style::Exponent,
                'f' | 'F' => Style::Fixed,
                _ => Style::General,
            };
            let text = float::format(number.abs(), style, spec.precision.unwrap_or(6), spec.alternate);
            let text = if letter.is_ascii_uppercase() { text.to_uppercase() } else { text };
            let negative = number.is_sign_negative() && !number.is_nan();
            let sign = if negative { "-" } else { plus(spec) };
            return padded(out, spec, sign, &text, number.is_finite());
        }
        other => {
            return Err(Error::value(format!("unsupported format character '{other}'")));
        }
    };
    padded(out, spec, sign, &body, false)
}

fn plus(spec: &Spec) -> &'static str {
    match spec.sign {
        Some('+') => "+",
        Some(_) => " ",
        None => "",
    }
}

fn padded(out: &mut Text<'_>, spec: &Spec, sign: &str, body: &str, is_number: bool) -> Result<()> {
    let missing = spec.width.saturating_sub(sign.len() + body.chars().count());
    match (spec.left, spec.zeros && is_number) {
        (true, _) => {
            out.push(sign)?;
            out.push(body)?;
            out.repeat(" ", missing)
        }
        (false, true) => {
            out.push(sign)?;
            out.repeat("0", missing)?;
            out.push(body)
        }
        (false, false) => {
            out.repeat(" ", missing)?;
            out.push(sign)?;
            out.push(body)
        }
    }
}
