//! jinja2's filters on texts and numbers, and those that choose among values; `sequences.rs` has those on lists.

use indexmap::IndexSet;
use num_bigint::BigInt;
use num_traits::Signed;

use super::{
    access,
    args::{self, Args, flag, integer, integer_or},
    ast::Operator,
    error::{Error, Result},
    json,
    meter::{Meter, Text},
    number as arithmetic, percent,
    repr::{self, string},
    sequences, strings,
    value::Value,
    value::key::{Key, Number, number},
};

const NAMES: [&str; 51] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
    "wordwrap",
    "pprint",
];
/// Filters of jinja2 that are not supported: prompts have no use for HTML or for chance.
const UNSUPPORTED: [&str; 3] = ["random", "urlize", "xmlattr"];

/// Whether there is a filter of this name; an error for one that only jinja2 has.
pub(super) fn is_known(name: &str) -> Result<bool> {
    match UNSUPPORTED.contains(&name) {
        true => Err(Error::value(format!("the filter '{name}' is not supported"))),
        false => Ok(NAMES.contains(&name)),
    }
}

/// Applies a filter.
pub(super) fn apply(name: &str, value: &Value, args: &Args, meter: &Meter) -> Result<Value> {
    meter.step()?;
    if let Some(text) = value.text() {
        meter.spend(text.len() / 8)?;
    }
    let text = || string(value, meter);
    let safely =
        |text: String| if let Value::Safe(_) = value { Value::Safe(text.into()) } else { text.into() };
    let none = |what: &str| args.bind::<0>(what, [], 0);
    Ok(match name {
        "default" | "d" => {
            let [default, boolean] = args.bind(name, ["default_value", "boolean"], 0)?;
            match value.is_undefined() || flag(&boolean) && !value.is_true() {
                true => default.unwrap_or_else(|| "".into()),
                false => value.clone(),
            }
        }
        "string" => {
            none(name)?;
            if let Value::Safe(_) = value { value.clone() } else { Value::Str(text()?) }
        }
        "safe" => Value::Safe(text()?),
        "e" | "escape" => repr::escaped(value, meter)?,
        "forceescape" => repr::escaped(&Value::Str(text()?), meter)?,
        "upper" | "lower" | "title" | "capitalize" => {
            none(name)?;
            let text = text()?;
            meter.spend(2 * text.len())?;
            safely(match name {
                "upper" => text.to_uppercase(),
                "lower" => text.to_lowercase(),
                "title" => titled(&text),
                _ => strings::capitalized(&text),
            })
        }
        "trim" => {
            let [chars] = args.bind(name, ["chars"], 0)?;
            let text = text()?;
            meter.spend(text.len())?;
            safely(strings::stripped(&text, &chars, true, true)?.to_owned())
        }
        "replace" => {
            let [old, new, count] = args.bind("do_replace", ["old", "new", "count"], 2)?;
            let (old, new) = (old.unwrap_or(Value::None), new.unwrap_or(Value::None));
            let count = if let Some(Value::None) = count { None } else { count };
            let (old, new) = (string(&old, meter)?, string(&new, meter)?);
            strings::replaced(&text()?, &old, &new, integer_or(&count, -1)?, meter)?.into()
        }
        "format" => {
            if !args.positional.is_empty() && !args.named.is_empty() {
                return Err(Error::value("can't handle positional and keyword arguments at the same time"));
            }
            let given = match args.named.is_empty() {
                true => Value::tuple(args.positional.clone())?,
                false => Value::dict(args.named.iter().map(|(k, v)| (Key::text(k), v.clone())).collect())?,
            };
            let template = if let Value::Safe(_) = value { value.clone() } else { Value::Str(text()?) };
            percent::format(&template, &given, meter)?
        }
        "indent" => indent(value, args, meter)?,
        "center" => {
            let [width] = args.bind(name, ["width"], 0)?;
            let args = Args { positional: vec![width.unwrap_or(Value::Int(80))], named: Vec::new() };
            strings::call(&Value::Str(text()?), "center", &args, meter)?
        }
        "truncate" => truncate(&text()?, args, meter)?,
        "wordcount" => {
            none(name)?;
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            text()?.split(|c| !is_word(c)).filter(|word| !word.is_empty()).count().into()
        }
        "wordwrap" => wordwrap(&text()?, args, meter)?,
        "striptags" => striptags(&text()?, meter)?.into(),
        "urlencode" => urlencode(value, meter)?.into(),
        "filesizeformat" => filesize(value, args)?.into(),
        "tojson" => tojson(value, args, meter)?,
        "pprint" => {
            let mut out = Text::new(meter);
            repr::repr(&mut out, value)?;
            let text = out.finish();
            if text.len() > 78 {
                return Err(Error::value("the filter 'pprint' is not supported for long values"));
            }
            text.into()
        }
        "int" => to_int(value, args)?,
        "float" => to_float(value, args)?,
        "abs" => match number(value.defined()?) {
            Some(Number::Int(number)) => Value::big(number.abs()),
            Some(Number::Float(number)) => Value::Float(number.abs()),
            None => {
                let class = value.class();
                return Err(Error::of_type(format!("bad operand type for abs(): '{class}'")));
            }
        },
        "round" => round(value, args)?,
        "attr" => {
            let [name] = args.bind("do_attr", ["name"], 1)?;
            let name = name.unwrap_or(Value::None);
            match value {
                // Only attributes, not keys: a dictionary has methods.
                Value::Dict(_) => match access::attribute(value, args::text(&name, "attribute name")?)? {
                    method @ Value::Method(_) => method,
                    _ => Value::undefined(format!(
                        "'dict object' has no attribute '{}'",
                        string(&name, meter)?
                    )),
                },
                _ => access::attribute(value, args::text(&name, "attribute name")?)?,
            }
        }
        "map" => map(value, args, meter)?,
        _ => return sequences::apply(name, value, args, meter),
    })
}

fn titled(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut starts = true;
    for c in text.chars() {
        let splits = super::lexer::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
        match starts && !splits {
            true => out.extend(c.to_uppercase()),
            false => out.extend(c.to_lowercase()),
        }
        starts = splits;
    }
    out
}

fn indent(value: &Value, args: &Args, meter: &Meter) -> Result<Value> {
    let [width, first, blank] = args.bind("do_indent", ["width", "first", "blank"], 0)?;
    let width = match &width {
        Some(width) if width.text().is_some() => string(width, meter)?.to_string(),
        width => {
            let width = usize::try_from(integer_or(width, 4)?).unwrap_or(0);
            meter.spend(width)?;
            " ".repeat(width)
        }
    };
    let Some(text) = value.defined()?.text() else {
        let class = value.class();
        return Err(Error::of_type(format!("unsupported operand type(s) for +=: '{class}' and 'str'")));
    };
    meter.spend(text.len() + 16 * strings::line_ends(text))?;
    let with_end = format!("{text}\n");
    let lines = strings::lines(&with_end, false);
    let mut out = Text::new(meter);
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            out.push("\n")?;
        }
        let indented = if i == 0 { flag(&first) } else { flag(&blank) || !line.is_empty() };
        if indented {
            out.push(&width)?;
        }
        out.push(line)?;
    }
    let text = out.finish();
    Ok(if let Value::Safe(_) = value { Value::Safe(text.into()) } else { text.into() })
}

fn truncate(text: &str, args: &Args, meter: &Meter) -> Result<Value> {
    let names = ["length", "killwords", "end", "leeway"];
    let [length, kill, end, leeway] = args.bind("do_truncate", names, 0)?;
    let length = usize::try_from(integer_or(&length, 255)?).unwrap_or(0);
    let end = end.map_or_else(|| Ok("...".into()), |end| string(&end, meter))?;
    let leeway = if let Some(Value::None) = leeway { None } else { leeway };
    let leeway =
        usize::try_from(integer_or(&leeway, 5)?).map_err(|_| Error::value("expected leeway >= 0"))?;
    let Some(kept) = length.checked_sub(end.chars().count()) else {
        return Err(Error::value(format!("expected length >= {}, got {length}", end.chars().count())));
    };
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text.into());
    }
    let cut: String = text.chars().take(kept).collect();
    let cut =
        if flag(&kill) { &cut[..] } else { cut.rsplit_once(' ').map_or(&cut[..], |(before, _)| before) };
    let mut out = Text::new(meter);
    out.push(cut)?;
    out.push(&end)?;
    Ok(out.finish().into())
}

/// `textwrap.wrap` of each line, without breaks at hyphens inside words that Python would add.
fn wordwrap(text: &str, args: &Args, meter: &Meter) -> Result<Value> {
    let names = ["width", "break_long_words", "wrapstring", "break_on_hyphens"];
    let [width, long, wrap, hyphens] = args.bind("do_wordwrap", names, 0)?;
    let width = usize::try_from(integer_or(&width, 79)?).ok().filter(|&w| w > 0);
    let width = width.ok_or_else(|| Error::value("invalid width"))?;
    let breaks = long.as_ref().is_none_or(Value::is_true);
    if text.contains('-') && hyphens.as_ref().is_none_or(Value::is_true) {
        return Err(Error::value("the filter 'wordwrap' is not supported for texts with hyphens"));
    }
    let between = match wrap {
        None | Some(Value::None) => "\n".into(),
        Some(wrap) => string(&wrap, meter)?,
    };
    meter.spend(text.len().saturating_mul(64))?;
    let mut out = Text::new(meter);
    for (i, line) in strings::lines(text, false).into_iter().enumerate() {
        if i > 0 {
            out.push(&between)?;
        }
        for (j, wrapped) in wrapped(line, width, breaks).into_iter().enumerate() {
            if j > 0 {
                out.push(&between)?;
            }
            out.push(&wrapped)?;
        }
    }
    Ok(out.finish().into())
}

fn wrapped(line: &str, width: usize, breaks: bool) -> Vec<String> {
    // Words and the white space between them.
    let mut chunks: Vec<Vec<char>> = Vec::new();
    for c in line.chars() {
        match chunks.last_mut() {
            Some(last) if last[0].is_ascii_whitespace() == c.is_ascii_whitespace() => last.push(c),
            _ => chunks.push(vec![c]),
        }
    }
    chunks.reverse();
    let mut lines = Vec::new();
    while !chunks.is_empty() {
        let (mut current, mut length) = (Vec::new(), 0);
        if !lines.is_empty() && chunks.last().is_some_and(|chunk| chunk[0].is_ascii_whitespace()) {
            chunks.pop();
        }
        while let Some(chunk) = chunks.pop_if(|chunk| length + chunk.len() <= width) {
            length += chunk.len();
            current.push(chunk);
        }
        if let Some(long) = chunks.last_mut().filter(|chunk| chunk.len() > width) {
            if breaks {
                let rest = long.split_off(width - length);
                current.push(std::mem::replace(long, rest));
            } else if current.is_empty() {
                current.extend(chunks.pop());
            }
        }
        if current.last().is_some_and(|chunk| chunk.first().is_some_and(char::is_ascii_whitespace)) {
            current.pop();
        }
        if !current.is_empty() {
            lines.push(current.into_iter().flatten().collect());
        }
    }
    lines
}

fn striptags(text: &str, meter: &Meter) -> Result<String> {
    meter.spend(2 * text.len())?;
    let mut rest = text;
    let mut plain = String::new();
    while let Some(at) = rest.find('<') {
        let (end, skip) = if rest[at..].starts_with("<!--") { ("-->", 3) } else { (">", 1) };
        let Some(close) = rest[at..].find(end) else { break };
        plain.push_str(&rest[..at]);
        rest = &rest[at + close + skip..];
    }
    plain.push_str(rest);
    let words: Vec<&str> = plain.split(super::lexer::is_space).filter(|word| !word.is_empty()).collect();
    let entities =
        [("&lt;", "<"), ("&gt;", ">"), ("&#39;", "'"), ("&#34;", "\""), ("&quot;", "\""), ("&amp;", "&")];
    Ok(entities.into_iter().fold(words.join(" "), |text, (from, to)| text.replace(from, to)))
}

fn quoted(value: &Value, query: bool, meter: &Meter) -> Result<String> {
    let mut out = Text::new(meter);
    for byte in string(value, meter)?.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push_char(byte as char)?
            }
            b'/' if !query => out.push("/")?,
            b' ' if query => out.push("+")?,
            _ => out.push(&format!("%{byte:02X}"))?,
        }
    }
    Ok(out.finish())
}

fn urlencode(value: &Value, meter: &Meter) -> Result<String> {
    let pairs = match value {
        Value::Dict(dict) => Value::View(super::value::View::Items, dict.clone()).iterate(meter)?,
        Value::Str(_) | Value::Safe(_) => return quoted(value, false, meter),
        _ if value.length().is_some() || matches!(value, Value::Iterator(_)) => value.iterate(meter)?,
        _ => return quoted(value, false, meter),
    };
    let pair = |pair: &Value| match &pair.iterate(meter)?[..] {
        [key, value] => Ok(format!("{}={}", quoted(key, true, meter)?, quoted(value, true, meter)?)),
        _ => Err(Error::value("not enough values to unpack (expected 2)")),
    };
    Ok(pairs.iter().map(pair).collect::<Result<Vec<_>>>()?.join("&"))
}

fn filesize(value: &Value, args: &Args) -> Result<String> {
    let [binary] = args.bind("do_filesizeformat", ["binary"], 0)?;
    let bytes = match (number(value.defined()?), value.text()) {
        (Some(number), _) => number.float()?,
        (None, text) => text
            .and_then(|text| args::parsed_float(text))
            .ok_or_else(|| Error::value(format!("could not convert {} to float", value.class())))?,
    };
    let (base, prefixes) = match flag(&binary) {
        true => (1024.0, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"]),
        false => (1000.0, ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"]),
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

fn tojson(value: &Value, args: &Args, meter: &Meter) -> Result<Value> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ascii, indent, separators, sort] = args.bind("tojson", names, 0)?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(text) if text.text().is_some() => Some(string(&text, meter)?.to_string()),
        Some(width) => {
            let width = usize::try_from(integer(&width)?).unwrap_or(0);
            meter.spend(width)?;
            Some(" ".repeat(width))
        }
    };
    let (item, key) = match separators {
        None | Some(Value::None) => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some(pair) => match &pair.iterate(meter)?[..] {
            [item, key] => {
                (args::text(item, "separator")?.to_string(), args::text(key, "separator")?.to_string())
            }
            _ => return Err(Error::value("too many values to unpack (expected 2)")),
        },
    };
    let style = json::Style { ascii: flag(&ascii), indent, item, key, sort: flag(&sort) };
    json::dumps(value, &style, meter).map(Value::from)
}

fn to_int(value: &Value, args: &Args) -> Result<Value> {
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

fn to_float(value: &Value, args: &Args) -> Result<Value> {
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

fn round(value: &Value, args: &Args) -> Result<Value> {
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
            let meter = Meter::new(1 << 16, 16);
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

/// Applies a filter to each item, or takes an attribute of each.
fn map(value: &Value, args: &Args, meter: &Meter) -> Result<Value> {
    if !value.is_true() {
        return Value::iterator(Vec::new());
    }
    let items = value.iterate(meter)?;
    let named = |name: &str| args.named.iter().find(|(known, _)| **known == *name).map(|(_, value)| value);
    let mapped: Vec<Value> = match (args.positional.split_first(), named("attribute")) {
        (None, Some(attribute)) => {
            let known: IndexSet<&str> = ["attribute", "default"].into();
            if let Some((name, _)) = args.named.iter().find(|(name, _)| !known.contains(&**name)) {
                return Err(Error::value(format!("Unexpected keyword argument '{name}'")));
            }
            let default = named("default").filter(|value| !matches!(value, Value::None)).cloned();
            let path = sequences::Path::new(attribute, default);
            items.iter().map(|item| path.get(item, meter)).collect::<Result<_>>()?
        }
        (Some((name, rest)), _) => {
            let name = args::text(name, "filter name")?;
            if !is_known(name)? {
                return Err(Error::value(format!("No filter named '{name}'.")));
            }
            let args = Args { positional: rest.to_vec(), named: args.named.clone() };
            items
                .iter()
                .map(|item| meter.nested(|| apply(name, item, &args, meter)))
                .collect::<Result<_>>()?
        }
        (None, None) => return Err(Error::value("map requires a filter argument")),
    };
    Value::iterator(mapped)
}
