//! `str()` and `repr()`.

use std::sync::Arc;

use super::{
    error::{Error, Result},
    meter::{Meter, Text},
    value::{Function, Value, View},
};

/// Maximum number of digits of an integer as text, as in Python.
const MAX_DIGITS: u64 = 4300;

/// `str(value)`.
pub(super) fn string(value: &Value, meter: &Meter) -> Result<Arc<str>> {
    match value {
        Value::Str(text) | Value::Safe(text) => Ok(text.clone()),
        _ => {
            let mut text = Text::new(meter);
            write(&mut text, value)?;
            Ok(text.finish().into())
        }
    }
}

/// A text with the characters replaced that HTML reserves, unless it is safe.
pub(super) fn escaped(value: &Value, meter: &Meter) -> Result<Value> {
    if let Value::Safe(_) = value {
        return Ok(value.clone());
    }
    let mut out = Text::new(meter);
    for c in string(value, meter)?.chars() {
        match c {
            '&' => out.push("&amp;")?,
            '<' => out.push("&lt;")?,
            '>' => out.push("&gt;")?,
            '\'' => out.push("&#39;")?,
            '"' => out.push("&#34;")?,
            c => out.push_char(c)?,
        }
    }
    Ok(Value::Safe(out.finish().into()))
}

/// Writes `str(value)`.
pub(super) fn write(out: &mut Text<'_>, value: &Value) -> Result<()> {
    match value {
        Value::Str(text) | Value::Safe(text) => out.push(text),
        Value::Undefined(_) => Ok(()),
        _ => repr(out, value),
    }
}

/// Writes `repr(value)`.
pub(super) fn repr(out: &mut Text<'_>, value: &Value) -> Result<()> {
    match value {
        Value::Undefined(_) => out.push("Undefined"),
        Value::None => out.push("None"),
        Value::Bool(true) => out.push("True"),
        Value::Bool(false) => out.push("False"),
        Value::Int(number) => out.push(&number.to_string()),
        Value::Big(number) => out.push(&digits(number)?),
        Value::Float(number) => out.push(&float(*number)),
        Value::Str(text) => quoted(out, text),
        Value::Safe(text) => {
            out.push("Markup(")?;
            quoted(out, text)?;
            out.push(")")
        }
        Value::List(items) => listed(out, "[", &items.items, "]"),
        Value::Tuple(items) | Value::Group(items) => match &items.items[..] {
            [only] => listed(out, "(", std::slice::from_ref(only), ",)"),
            several => listed(out, "(", several, ")"),
        },
        Value::Dict(dict) => pairs(out, "{", dict.map.iter().map(|(key, value)| (key.get(), value)), "}"),
        Value::Range(range) => match range.step {
            1 => out.push(&format!("range({}, {})", range.start, range.stop)),
            step => out.push(&format!("range({}, {}, {step})", range.start, range.stop)),
        },
        Value::View(kind, _) => {
            let items = value.iterate(out.meter())?;
            let name = match kind {
                View::Keys => "dict_keys([",
                View::Values => "dict_values([",
                View::Items => "dict_items([",
            };
            listed(out, name, &items, "])")
        }
        Value::Namespace(namespace) => {
            let map: Vec<(Value, Value)> = namespace
                .map
                .borrow()
                .iter()
                .map(|(key, value)| (Value::Str(key.clone()), value.clone()))
                .collect();
            out.meter().spend_items(map.len())?;
            out.meter().nested(|| pairs(out, "<Namespace {", map.iter().map(|(k, v)| (k, v)), "}>"))
        }
        Value::Loop(of) => {
            out.push(&format!("<LoopContext {}/{}>", of.index.get() + 1, of.items.items.len()))
        }
        Value::Macro(of) => {
            out.push("<Macro ")?;
            quoted(out, &of.name)?;
            out.push(">")
        }
        Value::Function(Function::Range) => out.push("<class 'range'>"),
        // Python writes an address here, which no two renderings share.
        Value::Iterator(_) | Value::Cycler(_) | Value::Joiner(_) | Value::Function(_) | Value::Method(_) => {
            Err(Error::of_type(format!("a '{}' object is written where a text is expected", value.class())))
        }
    }
}

fn listed(out: &mut Text<'_>, open: &str, items: &[Value], close: &str) -> Result<()> {
    out.push(open)?;
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push(", ")?;
        }
        repr(out, item)?;
    }
    out.push(close)
}

fn pairs<'a>(
    out: &mut Text<'_>,
    open: &str,
    items: impl Iterator<Item = (&'a Value, &'a Value)>,
    close: &str,
) -> Result<()> {
    out.push(open)?;
    for (i, (key, value)) in items.enumerate() {
        if i > 0 {
            out.push(", ")?;
        }
        repr(out, key)?;
        out.push(": ")?;
        repr(out, value)?;
    }
    out.push(close)
}

/// The digits of an integer, up to as many as Python writes.
pub(super) fn digits(number: &num_bigint::BigInt) -> Result<String> {
    // A digit has more than three bits.
    if number.bits() > MAX_DIGITS * 7 / 2 {
        return Err(Error::value(format!(
            "Exceeds the limit ({MAX_DIGITS} digits) for integer string conversion"
        )));
    }
    Ok(number.to_string())
}

/// `repr(number)`: the shortest digits that give the number back, with an exponent below 1e-4 and from 1e16.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.into();
    }
    let shortest = format!("{number:e}");
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{number}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Writes a text in quotes: single ones, unless the text has these and no double ones.
fn quoted(out: &mut Text<'_>, text: &str) -> Result<()> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            '\\' => out.push("\\\\")?,
            c if c == quote => {
                out.push("\\")?;
                out.push_char(c)?;
            }
            ' '..='~' => out.push_char(c)?,
            c if printable(c) => out.push_char(c)?,
            c => match c as u32 {
                n @ 0..=0xff => out.push(&format!("\\x{n:02x}"))?,
                n @ 0x100..=0xffff => out.push(&format!("\\u{n:04x}"))?,
                n => out.push(&format!("\\U{n:08x}"))?,
            },
        }
    }
    out.push_char(quote)
}

/// Whether `repr` writes a character as it is, like `str.isprintable`. Rust escapes the same classes, and marks that
/// extend the character before them, which Python writes.
pub(super) fn printable(c: char) -> bool {
    match c {
        ' ' => true,
        c if c.is_whitespace() => false,
        '"' | '\'' | '\\' => true,
        c => {
            c.escape_debug().len() == 1 || {
                // Behind another character, an extending mark is written as it is.
                let marked: String = ['a', c].iter().collect();
                marked.escape_debug().count() == 2
            }
        }
    }
}
