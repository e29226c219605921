//! JSON to values, and the filter `tojson` of transformers (`json.dumps`).

use indexmap::IndexMap;
use num_bigint::BigInt;

use super::{
    error::{Error, Result},
    meter::{Meter, Text},
    repr::{digits, float},
    value::Value,
    value::key::Key,
};

/// Maximum depth of JSON, as in serde_json.
const MAX_DEPTH: usize = 128;

/// Reads JSON, with integers of any size and the order of keys kept, as `json.loads` does.
pub(in crate::chat) fn read(json: &str) -> Result<Value> {
    let mut reader = Reader { text: json, depth: 0 };
    let value = reader.value()?;
    reader.space();
    if reader.text.is_empty() { Ok(value) } else { reader.fail() }
}

struct Reader<'t> {
    text: &'t str,
    depth: usize,
}

impl Reader<'_> {
    fn fail<T>(&self) -> Result<T> {
        let near: String = self.text.chars().take(20).collect();
        Err(Error::value(format!("it is not JSON at {near:?}")))
    }

    fn space(&mut self) {
        self.text = self.text.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    fn skip(&mut self, mark: &str) -> bool {
        let rest = self.text.strip_prefix(mark);
        self.text = rest.unwrap_or(self.text);
        rest.is_some()
    }

    fn value(&mut self) -> Result<Value> {
        self.space();
        let literals = [
            ("null", Value::None),
            ("true", Value::Bool(true)),
            ("false", Value::Bool(false)),
            ("NaN", Value::Float(f64::NAN)),
            ("Infinity", Value::Float(f64::INFINITY)),
            ("-Infinity", Value::Float(f64::NEG_INFINITY)),
        ];
        match self.text.as_bytes().first() {
            Some(b'"') => self.string().map(Value::from),
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::array),
            _ => match literals.into_iter().find(|(mark, _)| self.skip(mark)) {
                Some((_, value)) => Ok(value),
                None => self.number(),
            },
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Value>) -> Result<Value> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Error::value("the JSON nests too deeply"));
        }
        let value = read(self);
        self.depth -= 1;
        value
    }

    fn object(&mut self) -> Result<Value> {
        self.skip("{");
        let mut map = IndexMap::new();
        self.space();
        while !self.skip("}") {
            self.space();
            let key = self.string()?;
            self.space();
            if !self.skip(":") {
                return self.fail();
            }
            map.insert(Key::text(&key), self.value()?);
            self.space();
            if !self.skip(",") && !self.text.starts_with('}') {
                return self.fail();
            }
        }
        Value::dict(map)
    }

    fn array(&mut self) -> Result<Value> {
        self.skip("[");
        let mut items = Vec::new();
        self.space();
        while !self.skip("]") {
            items.push(self.value()?);
            self.space();
            if !self.skip(",") && !self.text.starts_with(']') {
                return self.fail();
            }
        }
        Value::list(items)
    }

    fn string(&mut self) -> Result<String> {
        let mut escaped = false;
        let end = self.text.char_indices().skip(1).find_map(|(at, c)| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends.then_some(at + 1)
        });
        let Some((text, rest)) = end.map(|end| self.text.split_at(end)) else { return self.fail() };
        match serde_json::from_str(text) {
            Ok(string) => {
                self.text = rest;
                Ok(string)
            }
            Err(_) => self.fail(),
        }
    }

    fn number(&mut self) -> Result<Value> {
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
        let (text, rest) = self.text.split_at(self.text.find(|c| !is_part(c)).unwrap_or(self.text.len()));
        let number = if text.contains(['.', 'e', 'E']) {
            text.parse().ok().map(Value::Float)
        } else if text.len() > 4300 {
            None
        } else {
            text.parse::<BigInt>().ok().filter(|_| !text.starts_with('+')).map(Value::big)
        };
        match number {
            Some(number) => {
                self.text = rest;
                Ok(number)
            }
            None => self.fail(),
        }
    }
}

/// How `json.dumps` writes.
pub(super) struct Style {
    pub ascii: bool,
    /// The text of one level, if there are lines.
    pub indent: Option<String>,
    pub item: String,
    pub key: String,
    pub sort: bool,
}

/// `json.dumps(value)`.
pub(super) fn dumps(value: &Value, style: &Style, meter: &Meter) -> Result<String> {
    let mut out = Text::new(meter);
    write(&mut out, value, style, 0)?;
    Ok(out.finish())
}

fn write(out: &mut Text<'_>, value: &Value, style: &Style, level: usize) -> Result<()> {
    match value {
        Value::None => out.push("null"),
        Value::Bool(value) => out.push(if *value { "true" } else { "false" }),
        Value::Int(number) => out.push(&number.to_string()),
        Value::Big(number) => out.push(&digits(number)?),
        Value::Float(number) => out.push(&json_float(*number)),
        Value::Str(text) | Value::Safe(text) => string(out, text, style.ascii),
        Value::List(items) | Value::Tuple(items) | Value::Group(items) => {
            container(out, style, level, ["[", "]"], items.items.len(), |out, i| {
                write(out, &items.items[i], style, level + 1)
            })
        }
        Value::Dict(dict) => {
            let mut entries: Vec<(&Value, &Value)> = dict.map.iter().map(|(k, v)| (k.get(), v)).collect();
            if style.sort {
                sort(&mut entries)?;
            }
            container(out, style, level, ["{", "}"], entries.len(), |out, i| {
                let (name, value) = entries[i];
                string(out, &key(name)?, style.ascii)?;
                out.push(&style.key)?;
                write(out, value, style, level + 1)
            })
        }
        _ => Err(Error::of_type(format!("Object of type {} is not JSON serializable", value.class()))),
    }
}

fn sort(entries: &mut [(&Value, &Value)]) -> Result<()> {
    let mut problem = None;
    entries.sort_by(|a, b| match super::value::key::order(a.0, b.0, "<") {
        Ok(order) => order.unwrap_or(std::cmp::Ordering::Equal),
        Err(error) => {
            problem.get_or_insert(error);
            std::cmp::Ordering::Equal
        }
    });
    problem.map_or(Ok(()), Err)
}

fn container(
    out: &mut Text<'_>,
    style: &Style,
    level: usize,
    [open, close]: [&str; 2],
    count: usize,
    mut item: impl FnMut(&mut Text<'_>, usize) -> Result<()>,
) -> Result<()> {
    let line = |out: &mut Text<'_>, level: usize| match &style.indent {
        Some(indent) if count > 0 => {
            out.push("\n")?;
            out.repeat(indent, level)
        }
        _ => Ok(()),
    };
    out.push(open)?;
    for i in 0..count {
        if i > 0 {
            out.push(&style.item)?;
        }
        line(out, level + 1)?;
        item(out, i)?;
    }
    line(out, level)?;
    out.push(close)
}

fn json_float(number: f64) -> String {
    match number {
        n if n.is_nan() => "NaN".into(),
        n if n.is_infinite() => if n > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        n => float(n),
    }
}

/// The text of a key.
fn key(key: &Value) -> Result<String> {
    Ok(match key {
        Value::Str(text) | Value::Safe(text) => text.to_string(),
        Value::None => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Big(number) => digits(number)?,
        Value::Float(number) => json_float(*number),
        other => {
            let class = other.class();
            return Err(Error::of_type(format!("keys must be str, int, float, bool or None, not {class}")));
        }
    })
}

fn string(out: &mut Text<'_>, text: &str, ascii: bool) -> Result<()> {
    out.push("\"")?;
    let mut plain = 0;
    for (at, c) in text.char_indices() {
        let escaped = match c {
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            '\t' => "\\t".to_owned(),
            '\x08' => "\\b".to_owned(),
            '\x0c' => "\\f".to_owned(),
            c if c < ' ' => format!("\\u{:04x}", c as u32),
            // Python escapes this one in ASCII only.
            c if ascii && (c > '~') => {
                c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
            }
            _ => continue,
        };
        out.push(&text[plain..at])?;
        out.push(&escaped)?;
        plain = at + c.len_utf8();
    }
    out.push(&text[plain..])?;
    out.push("\"")
}
