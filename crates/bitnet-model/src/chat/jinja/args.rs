//! The arguments of a call, by position and by name.

use std::sync::Arc;

use num_bigint::BigInt;
use num_traits::{FromPrimitive, ToPrimitive};

use super::{
    error::{Error, Result},
    value::Value,
    value::key::{Number, number},
};

/// The arguments of a call.
#[derive(Default, Clone)]
pub(super) struct Args {
    pub positional: Vec<Value>,
    pub named: Vec<(Arc<str>, Value)>,
}

impl Args {
    /// Assigns the arguments to parameters of these names, of which the first `required` must be given.
    pub fn bind<const N: usize>(
        &self,
        what: &str,
        names: [&str; N],
        required: usize,
    ) -> Result<[Option<Value>; N]> {
        let mut bound = [const { None }; N];
        let count = self.positional.len();
        if count > N {
            return Err(Error::of_type(format!("{what}() takes at most {N} arguments ({count} given)")));
        }
        for (place, value) in bound.iter_mut().zip(&self.positional) {
            *place = Some(value.clone());
        }
        for (name, value) in &self.named {
            let Some(at) = names.iter().position(|known| **known == **name) else {
                return Err(Error::of_type(format!("{what}() got an unexpected keyword argument '{name}'")));
            };
            if bound[at].is_some() {
                return Err(Error::of_type(format!("{what}() got multiple values for argument '{name}'")));
            }
            bound[at] = Some(value.clone());
        }
        match bound[..required].iter().position(Option::is_none) {
            Some(at) => Err(Error::of_type(format!(
                "{what}() missing 1 required positional argument: '{}'",
                names[at]
            ))),
            None => Ok(bound),
        }
    }

    /// The arguments of a function that takes none by name.
    pub fn plain<const N: usize>(&self, what: &str, required: usize) -> Result<[Option<Value>; N]> {
        if !self.named.is_empty() {
            return Err(Error::of_type(format!("{what}() takes no keyword arguments")));
        }
        self.bind(what, [""; N], required)
    }
}

/// An integer argument; floats are refused, as in Python.
pub(super) fn integer(value: &Value) -> Result<i64> {
    match number(value.defined()?) {
        Some(Number::Int(number)) => {
            number.to_i64().ok_or_else(|| Error::value("Python int too large to convert to C ssize_t"))
        }
        _ => {
            let class = value.class();
            Err(Error::of_type(format!("'{class}' object cannot be interpreted as an integer")))
        }
    }
}

/// An optional integer argument.
pub(super) fn integer_or(value: &Option<Value>, default: i64) -> Result<i64> {
    value.as_ref().map_or(Ok(default), integer)
}

/// The truth of an optional argument.
pub(super) fn flag(value: &Option<Value>) -> bool {
    value.as_ref().is_some_and(Value::is_true)
}

/// A text argument.
pub(super) fn text<'v>(value: &'v Value, what: &str) -> Result<&'v Arc<str>> {
    value
        .defined()?
        .text()
        .ok_or_else(|| Error::of_type(format!("{what} must be str, not {}", value.class())))
}

/// `int(text, base)`.
pub(super) fn parsed_integer(text: &str, base: u32) -> Option<BigInt> {
    let text = text.trim_matches(super::lexer::is_space);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefixed = [(2, "0b"), (8, "0o"), (16, "0x")]
        .into_iter()
        .find(|(of, prefix)| (base == *of || base == 0) && lower.starts_with(prefix));
    let (base, digits) = match prefixed {
        Some((of, _)) => (of, lower[2..].strip_prefix('_').unwrap_or(&lower[2..])),
        None if base == 0
            && lower.len() > 1
            && lower.starts_with('0')
            && !lower.trim_matches('0').is_empty() =>
        {
            return None;
        }
        None => (if base == 0 { 10 } else { base }, &lower[..]),
    };
    let joined = digits.split('_').all(|part| !part.is_empty() && part.chars().all(|c| c.is_digit(base)));
    if !joined || digits.len() > 4300 {
        return None;
    }
    let number = BigInt::parse_bytes(digits.replace('_', "").as_bytes(), base)?;
    Some(if negative { -number } else { number })
}

/// `float(text)`.
pub(super) fn parsed_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(super::lexer::is_space).to_ascii_lowercase();
    let unsigned = text.trim_start_matches(['+', '-']);
    if matches!(unsigned, "inf" | "infinity" | "nan") {
        return text.parse().ok();
    }
    let grouped = text.contains("__") || text.starts_with('_') || text.ends_with('_');
    let is_number = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    if grouped || !is_number { None } else { text.replace('_', "").parse().ok() }
}

/// `int(number)` of a float.
pub(super) fn truncated(number: f64) -> Option<BigInt> {
    BigInt::from_f64(number.trunc())
}
