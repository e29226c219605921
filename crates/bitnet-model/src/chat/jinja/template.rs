//! `str.format`: fields in braces, with Python's format specifications.

use std::sync::Arc;

use num_bigint::BigInt;
use num_traits::Signed;

use super::{
    access,
    error::{Error, Kind, Result},
    float::{self, Style},
    meter::{Meter, Text},
    repr::{digits, float as shortest, repr, string},
    value::Value,
    value::key::{Number, number},
};

/// Fields in a specification of a field may not have fields of their own.
const MAX_DEPTH: usize = 2;

/// `template.format(*positional, **named)`.
pub(super) fn format(
    template: &str,
    positional: &[Value],
    named: &[(Arc<str>, Value)],
    meter: &Meter,
) -> Result<String> {
    let mut writer = Writer { positional, named, meter, automatic: 0, numbered: false };
    writer.write(template, 0)
}

struct Writer<'a> {
    positional: &'a [Value],
    named: &'a [(Arc<str>, Value)],
    meter: &'a Meter,
    /// The next field without a name.
    automatic: usize,
    numbered: bool,
}

impl Writer<'_> {
    fn write(&mut self, template: &str, depth: usize) -> Result<String> {
        if depth >= MAX_DEPTH {
            return Err(Error::value("Max string recursion exceeded"));
        }
        let mut out = Text::new(self.meter);
        let mut rest = template;
        while let Some(at) = rest.find(['{', '}']) {
            out.push(&rest[..at])?;
            let brace = &rest[at..at + 1];
            let after = &rest[at + 1..];
            if after.starts_with(brace) {
                out.push(brace)?;
                rest = &after[1..];
                continue;
            }
            if brace == "}" {
                return Err(Error::value("Single '}' encountered in format string"));
            }
            let end = closing(after).ok_or_else(|| Error::value("expected '}' before end of string"))?;
            let field = &after[..end];
            rest = &after[end + 1..];
            let text = self.field(field, depth)?;
            out.push(&text)?;
        }
        out.push(rest)?;
        Ok(out.finish())
    }

    fn field(&mut self, field: &str, depth: usize) -> Result<String> {
        // A colon or an exclamation mark inside brackets belongs to the key.
        let mut inside = false;
        let split = field.find(|c| {
            inside = (inside || c == '[') && c != ']';
            !inside && matches!(c, ':' | '!')
        });
        let (name, rest) = field.split_at(split.unwrap_or(field.len()));
        let (conversion, spec) = match rest.strip_prefix('!') {
            Some(rest) => {
                let (conversion, spec) = rest.split_once(':').unwrap_or((rest, ""));
                (Some(conversion), spec)
            }
            None => (None, rest.strip_prefix(':').unwrap_or("")),
        };
        let value = self.value(name)?;
        let spec = if spec.contains('{') { self.write(spec, depth + 1)? } else { spec.to_owned() };
        let value = match conversion {
            None => value,
            Some("s") => string(&value, self.meter)?.as_ref().into(),
            Some("r" | "a") => {
                let mut text = Text::new(self.meter);
                repr(&mut text, &value)?;
                text.finish().into()
            }
            Some(other) => return Err(Error::value(format!("Unknown conversion specifier {other}"))),
        };
        specified(&value, &spec, self.meter)
    }

    fn value(&mut self, name: &str) -> Result<Value> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let number = match first {
            "" => {
                if self.numbered {
                    return Err(Error::value(
                        "cannot switch from manual field specification to automatic field numbering",
                    ));
                }
                self.automatic += 1;
                Some(self.automatic - 1)
            }
            _ => first.parse::<usize>().ok(),
        };
        if !first.is_empty() && number.is_some() {
            if self.automatic > 0 {
                return Err(Error::value(
                    "cannot switch from automatic field numbering to manual field specification",
                ));
            }
            self.numbered = true;
        }
        let mut value = match number {
            Some(number) => self
                .positional
                .get(number)
                .cloned()
                .ok_or_else(|| absent("Replacement index out of range for positional args tuple"))?,
            None => {
                let found = self.named.iter().find(|(known, _)| **known == *first);
                found.map(|(_, value)| value.clone()).ok_or_else(|| absent(&format!("'{first}'")))?
            }
        };
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                value = access::attribute(&value, &after[..end])?;
                rest = &after[end..];
            } else {
                let (key, after) =
                    rest[1..].split_once(']').ok_or_else(|| Error::value("Missing ']' in format string"))?;
                let key = key.parse::<i64>().map_or_else(|_| key.into(), Value::Int);
                value = access::item(&value, &key, self.meter)?;
                rest = after;
            }
        }
        Ok(value)
    }
}

/// A lookup that Python raises as `KeyError` or `IndexError`.
fn absent(what: &str) -> Error {
    Error::new(Kind::Lookup, what)
}

/// Where the brace is that closes a field.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().find_map(|(at, c)| match c {
        '{' => {
            depth += 1;
            None
        }
        '}' if depth == 0 => Some(at),
        '}' => {
            depth -= 1;
            None
        }
        _ => None,
    })
}

/// `format(value, spec)`.
fn specified(value: &Value, spec: &str, meter: &Meter) -> Result<String> {
    if spec.is_empty() {
        return Ok(string(value, meter)?.to_string());
    }
    let parsed = Spec::parse(spec)?;
    value.defined()?;
    if let Value::Bool(truth) = value
        && matches!(parsed.kind, None | Some('s'))
    {
        return parsed.padded("", if *truth { "True" } else { "False" }, '<', meter);
    }
    match number(value) {
        Some(Number::Int(number)) => match parsed.kind {
            Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => {
                parsed.float(Number::Int(number).float()?, meter)
            }
            _ => parsed.integer(&number, meter),
        },
        Some(Number::Float(number)) => parsed.float(number, meter),
        None => match (value.text(), parsed.kind) {
            (Some(text), None | Some('s')) => {
                let text: String = text.chars().take(parsed.precision.unwrap_or(usize::MAX)).collect();
                parsed.padded("", &text, '<', meter)
            }
            (Some(_), Some(kind)) => {
                Err(Error::value(format!("Unknown format code '{kind}' for object of type 'str'")))
            }
            _ => {
                let class = value.class();
                Err(Error::of_type(format!("unsupported format string passed to {class}.__format__")))
            }
        },
    }
}

/// `[[fill]align][sign][#][0][width][grouping][.precision][type]`.
#[derive(Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    zeros: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Spec {
    fn parse(text: &str) -> Result<Spec> {
        let invalid = || Error::value("Invalid format specifier");
        let mut spec = Spec::default();
        let chars: Vec<char> = text.chars().collect();
        let is_align = |c: &char| matches!(c, '<' | '>' | '=' | '^');
        let mut at = 0;
        if chars.get(1).is_some_and(is_align) {
            (spec.fill, spec.align, at) = (Some(chars[0]), Some(chars[1]), 2);
        } else if chars.first().is_some_and(is_align) {
            (spec.align, at) = (Some(chars[0]), 1);
        }
        let take = |at: &mut usize, wanted: &[char]| {
            let found = chars.get(*at).copied().filter(|c| wanted.contains(c));
            *at += usize::from(found.is_some());
            found
        };
        spec.sign = take(&mut at, &['+', '-', ' ']);
        spec.alternate = take(&mut at, &['#']).is_some();
        spec.zeros = take(&mut at, &['0']).is_some();
        let number = |at: &mut usize| -> Result<Option<usize>> {
            let start = *at;
            while chars.get(*at).is_some_and(char::is_ascii_digit) {
                *at += 1;
            }
            if *at == start {
                Ok(None)
            } else {
                let digits: String = chars[start..*at].iter().collect();
                digits.parse().map(Some).map_err(|_| Error::value("Too many decimal digits in format string"))
            }
        };
        spec.width = number(&mut at)?.unwrap_or(0);
        spec.grouping = take(&mut at, &[',', '_']);
        if take(&mut at, &['.']).is_some() {
            spec.precision =
                Some(number(&mut at)?.ok_or_else(|| Error::value("Format specifier missing precision"))?);
        }
        spec.kind = chars.get(at).copied();
        if chars.len() > at + 1 {
            return Err(invalid());
        }
        Ok(spec)
    }

    fn sign_of(&self, negative: bool) -> &'static str {
        match (negative, self.sign) {
            (true, _) => "-",
            (false, Some('+')) => "+",
            (false, Some(' ')) => " ",
            _ => "",
        }
    }

    fn integer(&self, number: &BigInt, meter: &Meter) -> Result<String> {
        if self.precision.is_some() {
            return Err(Error::value("Precision not allowed in integer format specifier"));
        }
        let magnitude = number.abs();
        let (prefix, body, group) = match self.kind {
            None | Some('d' | 'n') => ("", digits(&magnitude)?, 3),
            Some('b') => ("0b", magnitude.to_str_radix(2), 4),
            Some('o') => ("0o", magnitude.to_str_radix(8), 4),
            Some('x') => ("0x", magnitude.to_str_radix(16), 4),
            Some('X') => ("0X", magnitude.to_str_radix(16).to_uppercase(), 4),
            Some('c') => {
                let code = magnitude.iter_u32_digits().next().unwrap_or(0);
                let c = char::from_u32(code).ok_or_else(|| Error::value("%c arg not in range(0x110000)"))?;
                return self.padded("", &c.to_string(), '<', meter);
            }
            Some(kind) => {
                return Err(Error::value(format!("Unknown format code '{kind}' for object of type 'int'")));
            }
        };
        let prefix = if self.alternate { prefix } else { "" };
        let sign = self.sign_of(number.is_negative());
        self.padded(&format!("{sign}{prefix}"), &self.grouped(&body, group), '>', meter)
    }

    fn float(&self, number: f64, meter: &Meter) -> Result<String> {
        let magnitude = number.abs();
        let kind = self.kind.unwrap_or(' ');
        let text = match (kind, self.precision) {
            (' ', None) => shortest(magnitude),
            (' ', Some(precision)) => {
                let text = float::format(magnitude, Style::General, precision, self.alternate);
                let is_whole = magnitude.is_finite() && !text.contains(['.', 'e']);
                if is_whole { text + ".0" } else { text }
            }
            ('e' | 'E', precision) => {
                float::format(magnitude, Style::Exponent, precision.unwrap_or(6), self.alternate)
            }
            ('f' | 'F', precision) => {
                float::format(magnitude, Style::Fixed, precision.unwrap_or(6), self.alternate)
            }
            ('g' | 'G' | 'n', precision) => {
                float::format(magnitude, Style::General, precision.unwrap_or(6), self.alternate)
            }
            ('%', precision) => {
                float::format(magnitude * 100.0, Style::Fixed, precision.unwrap_or(6), self.alternate) + "%"
            }
            (kind, _) => {
                return Err(Error::value(format!("Unknown format code '{kind}' for object of type 'float'")));
            }
        };
        let text = if matches!(kind, 'E' | 'F' | 'G') { text.to_uppercase() } else { text };
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let text = self.grouped(&text[..end], 3) + &text[end..];
        let negative = number.is_sign_negative() && !number.is_nan();
        self.padded(self.sign_of(negative), &text, '>', meter)
    }

    /// Digits with a separator between groups.
    fn grouped(&self, digits: &str, group: usize) -> String {
        let Some(separator) = self.grouping else { return digits.into() };
        let mut out = String::new();
        for (i, digit) in digits.chars().enumerate() {
            if i > 0 && (digits.len() - i).is_multiple_of(group) {
                out.push(separator);
            }
            out.push(digit);
        }
        out
    }

    fn padded(&self, sign: &str, body: &str, default: char, meter: &Meter) -> Result<String> {
        let is_number = default == '>';
        let missing = self.width.saturating_sub(sign.len() + body.chars().count());
        let zeros = self.zeros && self.align.is_none();
        let align = self.align.unwrap_or(if zeros && is_number { '=' } else { default });
        let fill = self.fill.unwrap_or(if self.zeros { '0' } else { ' ' }).to_string();
        let mut out = Text::new(meter);
        let (left, right) = match align {
            '<' => (0, missing),
            '^' => (missing / 2, missing - missing / 2),
            '=' if !is_number => {
                return Err(Error::value("'=' alignment not allowed in string format specifier"));
            }
            '=' => {
                out.push(sign)?;
                out.repeat(&fill, missing)?;
                out.push(body)?;
                return Ok(out.finish());
            }
            _ => (missing, 0),
        };
        out.repeat(&fill, left)?;
        out.push(sign)?;
        out.push(body)?;
        out.repeat(&fill, right)?;
        Ok(out.finish())
    }
}
