//! The methods of Python's `str`.

use std::sync::Arc;

use super::{
    args::{Args, flag, integer, integer_or, text},
    error::{Error, Result},
    lexer::is_space,
    meter::{Meter, Text},
    repr::{printable, string},
    template, text as python,
    value::Value,
};

/// Calls a method of a text.
pub(super) fn call(subject: &Value, name: &str, args: &Args, meter: &Meter) -> Result<Value> {
    let own = string(subject, meter)?;
    // Each method reads its text a few times at most.
    meter.spend(own.len() / 8)?;
    let built = build(subject, &own, name, args, meter)?;
    match (subject, built) {
        // Methods of a safe text give safe texts.
        (Value::Safe(_), Value::Str(text)) => Ok(Value::Safe(text)),
        (_, value) => Ok(value),
    }
}

fn build(subject: &Value, own: &Arc<str>, name: &str, args: &Args, meter: &Meter) -> Result<Value> {
    let none = || args.plain::<0>(name, 0);
    let each = |f: &dyn Fn(char) -> bool| -> Result<Value> {
        none()?;
        Ok((!own.is_empty() && own.chars().all(f)).into())
    };
    let mapped = |text: String| -> Result<Value> {
        none()?;
        meter.spend(text.len())?;
        Ok(text.into())
    };
    match name {
        "upper" => mapped(own.to_uppercase()),
        "lower" => mapped(own.to_lowercase()),
        "casefold" => mapped(own.to_uppercase().to_lowercase().replace('ς', "σ")),
        "capitalize" => mapped(python::capitalized(own)),
        "title" => mapped(python::titled(own)),
        "swapcase" => mapped(own.chars().map(python::swapped).collect()),
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.plain(name, 0)?;
            Ok(python::stripped(own, &chars, name != "rstrip", name != "lstrip")?.into())
        }
        "split" | "rsplit" => split(own, name == "rsplit", args, meter),
        "splitlines" => {
            let [keep] = args.bind(name, ["keepends"], 0)?;
            meter.spend_items(python::line_ends(own) + 1)?;
            let lines = python::lines(own, flag(&keep));
            Value::list(lines.into_iter().map(Value::from).collect())
        }
        "partition" | "rpartition" => {
            let [separator] = args.plain(name, 1)?;
            let separator = separator.unwrap_or(Value::None);
            let separator = text(&separator, "separator")?;
            if separator.is_empty() {
                return Err(Error::value("empty separator"));
            }
            let found = if name == "partition" { own.find(&**separator) } else { own.rfind(&**separator) };
            meter.spend(own.len())?;
            let parts = match found {
                Some(at) => [&own[..at], separator, &own[at + separator.len()..]],
                None if name == "partition" => [own, "", ""],
                None => ["", "", own],
            };
            Value::tuple(parts.into_iter().map(Value::from).collect())
        }
        "join" => {
            let [items] = args.plain(name, 1)?;
            let mut out = Text::new(meter);
            for (i, item) in items.unwrap_or(Value::None).defined()?.iterate(meter)?.iter().enumerate() {
                if i > 0 {
                    out.push(own)?;
                }
                let Some(text) = item.text() else {
                    let class = item.class();
                    return Err(Error::of_type(format!(
                        "sequence item {i}: expected str instance, {class} found"
                    )));
                };
                out.push(text)?;
            }
            Ok(out.finish().into())
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"], 2)?;
            let (old, new) = (old.unwrap_or(Value::None), new.unwrap_or(Value::None));
            let count = integer_or(&count, -1)?;
            python::replaced(
                own,
                text(&old, "replace() argument 1")?,
                text(&new, "replace() argument 2")?,
                count,
                meter,
            )
            .map(Value::from)
        }
        "startswith" | "endswith" => {
            let [part, start, end] = args.plain(name, 1)?;
            let part = part.unwrap_or(Value::None);
            let Some(within) = range(own, &start, &end)? else { return Ok(false.into()) };
            let within = &own[within];
            let fits = |part: &Value| -> Result<bool> {
                let part = text(part, &format!("{name} first arg"))?;
                Ok(if name == "startswith" { within.starts_with(&**part) } else { within.ends_with(&**part) })
            };
            match part.defined()? {
                Value::Tuple(parts) => {
                    for part in &parts.items {
                        if fits(part)? {
                            return Ok(true.into());
                        }
                    }
                    Ok(false.into())
                }
                part => fits(part).map(Value::from),
            }
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let [part, start, end] = args.plain(name, 1)?;
            let part = part.unwrap_or(Value::None);
            let part = text(&part, "argument")?;
            let within = range(own, &start, &end)?;
            if name == "count" {
                let Some(within) = within else { return Ok(0usize.into()) };
                let count = if part.is_empty() {
                    own[within].chars().count() + 1
                } else {
                    own[within].matches(&**part).count()
                };
                return Ok(count.into());
            }
            let found = within.and_then(|within| {
                let found = if name.starts_with('r') {
                    own[within.clone()].rfind(&**part)
                } else {
                    own[within.clone()].find(&**part)
                };
                found.map(|at| own[..within.start + at].chars().count())
            });
            match found {
                Some(at) => Ok(at.into()),
                None if name.ends_with("find") => Ok(Value::Int(-1)),
                None => Err(Error::value("substring not found")),
            }
        }
        "removeprefix" | "removesuffix" => {
            let [part] = args.plain(name, 1)?;
            let part = part.unwrap_or(Value::None);
            let part = text(&part, &format!("{name}() argument"))?;
            let rest =
                if name == "removeprefix" { own.strip_prefix(&**part) } else { own.strip_suffix(&**part) };
            Ok(rest.unwrap_or(own).into())
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            let [width, fill] = args.plain(name, 1)?;
            let width = integer(&width.unwrap_or(Value::None))?;
            let fill = match &fill {
                Some(fill) => text(fill, "The fill character")?.clone(),
                None => " ".into(),
            };
            if fill.chars().count() != 1 {
                return Err(Error::of_type("The fill character must be exactly one character long"));
            }
            python::justified(own, name, width, &fill, meter).map(Value::from)
        }
        "expandtabs" => {
            let [size] = args.bind(name, ["tabsize"], 0)?;
            python::expanded(own, integer_or(&size, 8)?, meter).map(Value::from)
        }
        "format" => template::format(own, &args.positional, &args.named, meter).map(Value::from),
        "format_map" => {
            let [map] = args.plain(name, 1)?;
            let map = map.unwrap_or(Value::None);
            let Value::Dict(dict) = map.defined()? else {
                return Err(Error::of_type("format_map() argument must be a mapping"));
            };
            let named: Vec<_> = dict
                .map
                .iter()
                .filter_map(|(key, value)| Some((key.get().text()?.clone(), value.clone())))
                .collect();
            template::format(own, &[], &named, meter).map(Value::from)
        }
        "isalnum" => each(&char::is_alphanumeric),
        "isalpha" => each(&char::is_alphabetic),
        "isascii" => none().map(|_| own.is_ascii().into()),
        "isdecimal" => {
            each(&|c| c.is_numeric() && c.to_string().parse::<f64>().is_ok() || c.is_ascii_digit())
        }
        "isdigit" => each(&|c| c.is_ascii_digit() || "²³¹".contains(c)),
        "isnumeric" => each(&char::is_numeric),
        "isspace" => each(&is_space),
        "isprintable" => none().map(|_| own.chars().all(printable).into()),
        "isidentifier" => {
            none()?;
            let starts = own.starts_with(|c: char| c == '_' || c.is_alphabetic());
            Ok((starts && own.chars().all(|c| c == '_' || c.is_alphanumeric())).into())
        }
        "islower" => none().map(|_| python::cased(own, char::is_lowercase, char::is_uppercase).into()),
        "isupper" => none().map(|_| python::cased(own, char::is_uppercase, char::is_lowercase).into()),
        "istitle" => {
            none()?;
            let mut inside = false;
            let mut any = false;
            for c in own.chars() {
                let upper = c.is_uppercase();
                if upper || c.is_lowercase() {
                    if upper == inside {
                        return Ok(false.into());
                    }
                    any = true;
                    inside = true;
                } else {
                    inside = false;
                }
            }
            Ok(any.into())
        }
        other => {
            Err(Error::of_type(format!("the method '{other}' of '{}' is not supported", subject.class())))
        }
    }
}

/// The bytes between two indices of characters; `None` if the first is behind the text or the second.
fn range(own: &str, start: &Option<Value>, end: &Option<Value>) -> Result<Option<std::ops::Range<usize>>> {
    let length = own.chars().count() as i64;
    let index = |value: &Option<Value>, default: i64| -> Result<i64> {
        let at = match value {
            None | Some(Value::None) => default,
            Some(value) => integer(value)?,
        };
        Ok(if at < 0 { (at + length).max(0) } else { at })
    };
    let (start, end) = (index(start, 0)?, index(end, length)?.min(length));
    if start > end {
        return Ok(None);
    }
    let byte = |at: i64| {
        if own.is_ascii() {
            own.len().min(at as usize)
        } else {
            own.char_indices().nth(at as usize).map_or(own.len(), |(byte, _)| byte)
        }
    };
    Ok(Some(byte(start)..byte(end)))
}

fn split(own: &str, from_right: bool, args: &Args, meter: &Meter) -> Result<Value> {
    let [separator, most] = args.bind("split", ["sep", "maxsplit"], 0)?;
    let most = usize::try_from(integer_or(&most, -1)?).unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = Vec::new();
    match separator {
        None | Some(Value::None) => {
            let mut rest = own;
            let trim = |text: &'_ str| -> usize { text.len() - text.trim_start_matches(is_space).len() };
            if from_right {
                rest = rest.trim_end_matches(is_space);
                while !rest.is_empty() {
                    meter.spend_items(1)?;
                    let Some(at) = rest.rfind(is_space).filter(|_| parts.len() < most) else { break };
                    let after = at + rest[at..].chars().next().map_or(1, char::len_utf8);
                    parts.push(&rest[after..]);
                    rest = rest[..at].trim_end_matches(is_space);
                }
                if !rest.is_empty() {
                    parts.push(rest);
                }
                parts.reverse();
            } else {
                rest = &rest[trim(rest)..];
                while !rest.is_empty() {
                    meter.spend_items(1)?;
                    let Some(at) = rest.find(is_space).filter(|_| parts.len() < most) else { break };
                    parts.push(&rest[..at]);
                    rest = &rest[at..];
                    rest = &rest[trim(rest)..];
                }
                if !rest.is_empty() {
                    parts.push(rest);
                }
            }
        }
        Some(separator) => {
            let separator = text(&separator, "sep")?;
            if separator.is_empty() {
                return Err(Error::value("empty separator"));
            }
            meter.spend_items(own.matches(&**separator).count().min(most) + 1)?;
            let pieces = most.saturating_add(1);
            if from_right {
                parts = own.rsplitn(pieces, &**separator).collect();
                parts.reverse();
            } else {
                parts = own.splitn(pieces, &**separator).collect();
            }
        }
    }
    meter.spend(own.len())?;
    Value::list(parts.into_iter().map(Value::from).collect())
}
