//! What Python's methods and jinja2's filters do with texts.

use std::sync::Arc;

use super::{
    args::text,
    error::Result,
    lexer::is_space,
    meter::{Meter, Text},
    value::Value,
};

pub(super) fn cased(text: &str, wanted: fn(char) -> bool, other: fn(char) -> bool) -> bool {
    text.chars().any(wanted) && !text.chars().any(other)
}

pub(super) fn swapped(c: char) -> String {
    if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
}

/// `str.capitalize`.
pub(super) fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(initial).collect();
    first + &chars.as_str().to_lowercase()
}

/// A character as the first of a word: of several capitals, as for `ß`, only the first stays one.
pub(super) fn initial(c: char) -> impl Iterator<Item = char> {
    let mut upper = c.to_uppercase();
    upper.next().into_iter().chain(upper.flat_map(char::to_lowercase))
}

/// `str.title`: a capital after everything that is not a letter.
pub(super) fn titled(text: &str) -> String {
    let mut inside = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase())
        } else {
            out.extend(initial(c))
        }
        inside = c.is_lowercase() || c.is_uppercase();
    }
    out
}

/// `strip`, from the left, the right or both.
pub(super) fn stripped<'t>(own: &'t str, chars: &Option<Value>, left: bool, right: bool) -> Result<&'t str> {
    let set: Option<Arc<str>> = match chars {
        None | Some(Value::None) => None,
        Some(chars) => Some(text(chars, "strip arg")?.clone()),
    };
    let matches = |c: char| set.as_ref().map_or_else(|| is_space(c), |set| set.contains(c));
    let own = if left { own.trim_start_matches(matches) } else { own };
    Ok(if right { own.trim_end_matches(matches) } else { own })
}

/// Whether Python ends a line here.
fn ends_line(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// The number of ends of lines.
pub(super) fn line_ends(own: &str) -> usize {
    own.chars().filter(|&c| ends_line(c)).count()
}

/// `str.splitlines`.
pub(super) fn lines(own: &str, keep: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut start = 0;
    let mut chars = own.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if !ends_line(c) {
            continue;
        }
        let mut end = at + c.len_utf8();
        if c == '\r' && chars.next_if(|(_, next)| *next == '\n').is_some() {
            end += 1;
        }
        lines.push(&own[start..if keep { end } else { at }]);
        start = end;
    }
    if start < own.len() {
        lines.push(&own[start..]);
    }
    lines
}

/// `str.replace`.
pub(super) fn replaced(own: &str, old: &str, new: &str, count: i64, meter: &Meter) -> Result<String> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let found = if old.is_empty() { own.chars().count() + 1 } else { own.matches(old).count() };
    meter.spend(own.len().saturating_add(new.len().saturating_mul(found.min(count))))?;
    Ok(own.replacen(old, new, count))
}

pub(super) fn justified(own: &str, name: &str, width: i64, fill: &str, meter: &Meter) -> Result<String> {
    let length = own.chars().count();
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(length);
    let mut out = Text::new(meter);
    if name == "zfill" {
        let signed = own.starts_with(['+', '-']);
        out.push(&own[..usize::from(signed)])?;
        out.repeat("0", missing)?;
        out.push(&own[usize::from(signed)..])?;
        return Ok(out.finish());
    }
    let left = match name {
        "ljust" => 0,
        "rjust" => missing,
        // As Python rounds it.
        _ => missing / 2 + (missing & width as usize & 1),
    };
    out.repeat(fill, left)?;
    out.push(own)?;
    out.repeat(fill, missing - left)?;
    Ok(out.finish())
}

pub(super) fn expanded(own: &str, size: i64, meter: &Meter) -> Result<String> {
    let size = usize::try_from(size).unwrap_or(0);
    let mut out = Text::new(meter);
    let mut column = 0;
    for c in own.chars() {
        match c {
            '\t' if size == 0 => {}
            '\t' => {
                let spaces = size - column % size;
                out.repeat(" ", spaces)?;
                column += spaces;
            }
            '\n' | '\r' => {
                out.push_char(c)?;
                column = 0;
            }
            c => {
                out.push_char(c)?;
                column += 1;
            }
        }
    }
    Ok(out.finish())
}
