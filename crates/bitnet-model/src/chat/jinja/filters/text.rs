//! Filters that build texts.

use super::super::{
    args::{Args, flag, integer_or},
    error::{Error, Result},
    lexer::is_space,
    meter::{Meter, Text},
    repr::string,
    text as python,
    value::{Value, View},
};

pub(super) fn titled(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut starts = true;
    for c in text.chars() {
        let splits = is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
        if starts && !splits {
            out.extend(c.to_uppercase())
        } else {
            out.extend(c.to_lowercase())
        }
        starts = splits;
    }
    out
}

pub(super) fn indent(value: &Value, args: &Args, meter: &Meter) -> Result<Value> {
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
    meter.spend(text.len() + 16 * python::line_ends(text))?;
    let with_end = format!("{text}\n");
    let lines = python::lines(&with_end, false);
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

pub(super) fn truncate(text: &str, args: &Args, meter: &Meter) -> Result<Value> {
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
pub(super) fn wordwrap(text: &str, args: &Args, meter: &Meter) -> Result<Value> {
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
    for (i, line) in python::lines(text, false).into_iter().enumerate() {
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

pub(super) fn striptags(text: &str, meter: &Meter) -> Result<String> {
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
    let words: Vec<&str> = plain.split(is_space).filter(|word| !word.is_empty()).collect();
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

pub(super) fn urlencode(value: &Value, meter: &Meter) -> Result<String> {
    let pairs = match value {
        Value::Dict(dict) => Value::View(View::Items, dict.clone()).iterate(meter)?,
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
