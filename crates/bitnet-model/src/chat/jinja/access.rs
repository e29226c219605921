//! Attributes, items and slices, as jinja2's immutable sandbox gives them.

use num_traits::ToPrimitive;

use super::{
    error::{Error, Kind, Result},
    meter::Meter,
    value::key::{Key, Number, number},
    value::{Items, Loop, Range, Value},
};

const STR: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
const MUTATORS: [&str; 11] = [
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "remove",
    "reverse",
    "sort",
    "popitem",
    "setdefault",
    "update",
];

/// Methods that Python has and that are not supported; a template that calls one is refused when it is compiled.
pub(super) const UNSUPPORTED: [&str; 3] = ["encode", "maketrans", "translate"];

/// Python's methods of a value's class.
fn methods(value: &Value) -> &'static [&'static str] {
    match value {
        Value::Str(_) | Value::Safe(_) => &STR,
        Value::List(_) => &["copy", "count", "index"],
        Value::Tuple(_) | Value::Group(_) | Value::Range(_) => &["count", "index"],
        Value::Dict(_) => &["copy", "fromkeys", "get", "items", "keys", "values"],
        Value::Int(_) | Value::Big(_) | Value::Bool(_) => &["bit_count", "bit_length", "conjugate"],
        Value::Float(_) => &["conjugate", "is_integer"],
        Value::Loop(_) => &["changed", "cycle"],
        Value::Cycler(_) => &["next", "reset"],
        _ => &[],
    }
}

/// `value.name`: the attribute of Python's object, else the item.
pub(super) fn attribute(value: &Value, name: &str) -> Result<Value> {
    value.defined()?;
    if let Some(found) = own(value, name) {
        return Ok(found);
    }
    Ok(subscript(value, &Value::str(name)).unwrap_or_else(|| missing(value, &Value::str(name))))
}

/// `value[key]`: the item, else the attribute of Python's object.
pub(super) fn item(value: &Value, key: &Value, meter: &Meter) -> Result<Value> {
    value.defined()?;
    if let Some(text) = value.text() {
        meter.spend(text.len() / 16)?;
    }
    if let Some(found) = subscript(value, key) {
        return Ok(found);
    }
    let attribute = key.text().and_then(|name| own(value, name));
    Ok(attribute.unwrap_or_else(|| missing(value, key)))
}

/// The attribute of this name that the value's class has.
fn own(value: &Value, name: &str) -> Option<Value> {
    if methods(value).contains(&name) {
        return Some(Value::Method(std::rc::Rc::new((value.clone(), name.into()))));
    }
    let mutable = matches!(value, Value::List(_) | Value::Dict(_)) && MUTATORS.contains(&name);
    if mutable || matches!(name, "__class__" | "__init__" | "__doc__" | "__dict__" | "__module__") {
        return Some(Value::unsafe_attribute(value, name));
    }
    match (value, name) {
        (Value::Loop(of), _) => loop_attribute(of, name),
        (Value::Namespace(namespace), _) => namespace.map.borrow().get(name).cloned(),
        (Value::Group(items), "grouper") => items.items.first().cloned(),
        (Value::Group(items), "list") => items.items.get(1).cloned(),
        (Value::Macro(of), "name") => Some(Value::Str(of.name.clone())),
        (Value::Cycler(cycler), "current") => cycler.items.items.get(cycler.at.get()).cloned(),
        (Value::Range(range), "start") => Some(Value::Int(range.start)),
        (Value::Range(range), "stop") => Some(Value::Int(range.stop)),
        (Value::Range(range), "step") => Some(Value::Int(range.step)),
        (Value::Int(_) | Value::Big(_), "real" | "numerator") => Some(value.clone()),
        (Value::Float(_), "real") => Some(value.clone()),
        _ => None,
    }
}

fn loop_attribute(of: &Loop, name: &str) -> Option<Value> {
    let (index, length) = (of.index.get(), of.items.items.len());
    let neighbour = |at: Option<usize>, problem: &str| {
        at.and_then(|at| of.items.items.get(at)).cloned().unwrap_or_else(|| Value::undefined(problem))
    };
    Some(match name {
        "index" => (index + 1).into(),
        "index0" => index.into(),
        "revindex" => (length - index).into(),
        "revindex0" => (length - index - 1).into(),
        "first" => (index == 0).into(),
        "last" => (index + 1 == length).into(),
        "length" => length.into(),
        "depth" => (of.depth + 1).into(),
        "depth0" => of.depth.into(),
        "previtem" => neighbour(index.checked_sub(1), "there is no previous item"),
        "nextitem" => neighbour(Some(index + 1), "there is no next item"),
        _ => return None,
    })
}

fn missing(value: &Value, key: &Value) -> Value {
    let class = match value {
        Value::None => "None".to_owned(),
        _ => format!("{} object", value.class()),
    };
    match key.text() {
        Some(name) => Value::undefined(format!("'{class}' has no attribute '{name}'")),
        None => {
            let number = number(key).and_then(|n| if let Number::Int(n) = n { Some(n) } else { None });
            let key = number.map_or_else(|| key.class().to_owned(), |number| number.to_string());
            Value::undefined(format!("{class} has no element {key}"))
        }
    }
}

/// Python's `value[key]`, or `None` where that raises.
fn subscript(value: &Value, key: &Value) -> Option<Value> {
    if let Value::Dict(dict) = value {
        return dict.map.get(&Key::new(key.clone()).ok()?).cloned();
    }
    let Some(Number::Int(index)) = number(key) else { return None };
    let index = index.to_i64()?;
    let place = |length: usize| {
        let at = if index < 0 { index + length as i64 } else { index };
        usize::try_from(at).ok().filter(|&at| at < length)
    };
    match value {
        Value::Str(text) | Value::Safe(text) => {
            let c = match index {
                _ if text.is_ascii() => place(text.len()).map(|at| char::from(text.as_bytes()[at])),
                0.. => text.chars().nth(index as usize),
                _ => text.chars().nth_back(usize::try_from(-(index + 1)).ok()?),
            }?;
            let c: std::sync::Arc<str> = (c.encode_utf8(&mut [0; 4]) as &str).into();
            Some(if let Value::Safe(_) = value { Value::Safe(c) } else { Value::Str(c) })
        }
        Value::Range(range) => place(range.len()).map(|at| Value::Int(range.at(at))),
        _ => {
            let items = value.sequence()?;
            place(items.len()).map(|at| items[at].clone())
        }
    }
}

/// `value[start:stop:step]`.
pub(super) fn slice(value: &Value, parts: [&Value; 3], meter: &Meter) -> Result<Value> {
    value.defined()?;
    let mut bounds = [None; 3];
    for (bound, part) in bounds.iter_mut().zip(parts) {
        *bound = match (number(part.defined()?), part) {
            (_, Value::None) => None,
            (Some(Number::Int(number)), _) => {
                let far = if number.sign() == num_bigint::Sign::Minus { i64::MIN } else { i64::MAX };
                Some(number.to_i64().unwrap_or(far))
            }
            _ => {
                return Err(Error::of_type(
                    "slice indices must be integers or None or have an __index__ method",
                ));
            }
        };
    }
    let step = bounds[2].unwrap_or(1);
    if step == 0 {
        return Err(Error::new(Kind::Value, "slice step cannot be zero"));
    }
    let indices = |length: usize| {
        let length = length as i64;
        let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
        let clamp = |at: i64| if at < 0 { at.saturating_add(length).max(low) } else { at.min(high) };
        let start = bounds[0].map_or(if step > 0 { low } else { high }, clamp);
        let stop = bounds[1].map_or(if step > 0 { high } else { low }, clamp);
        Range { start, stop, step }
    };
    match value {
        Value::Str(text) | Value::Safe(text) => {
            meter.spend(text.len())?;
            let sliced: String = match step {
                1 if text.is_ascii() => {
                    let range = indices(text.len());
                    text.get(range.start as usize..(range.stop.max(range.start)) as usize)
                        .unwrap_or("")
                        .into()
                }
                _ => {
                    meter.spend(4 * text.len())?;
                    let chars: Vec<char> = text.chars().collect();
                    let range = indices(chars.len());
                    (0..range.len()).map(|i| chars[range.at(i) as usize]).collect()
                }
            };
            Ok(if let Value::Safe(_) = value { Value::Safe(sliced.into()) } else { sliced.into() })
        }
        Value::Range(of) => {
            let range = indices(of.len());
            let at = |index: i64| of.start + index * of.step;
            let (start, stop) = (at(range.start), at(range.stop));
            Ok(Value::Range(Range { start, stop, step: of.step * range.step }))
        }
        _ => {
            let Some(items) = value.sequence() else {
                return Err(Error::of_type(format!("'{}' object is not subscriptable", value.class())));
            };
            let range = indices(items.len());
            meter.spend_items(range.len())?;
            let sliced = Items::new((0..range.len()).map(|i| items[range.at(i) as usize].clone()).collect())?;
            Ok(if let Value::List(_) = value { Value::List(sliced) } else { Value::Tuple(sliced) })
        }
    }
}
