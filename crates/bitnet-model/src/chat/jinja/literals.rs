//! Numbers and strings in a template's text.

use num_bigint::BigInt;
use num_traits::Num;

use super::{
    error::{Error, Kind, Result},
    token::Token,
};

fn fail<T>(problem: impl Into<String>) -> Result<T> {
    Err(Error::new(Kind::Syntax, problem))
}

type IsDigit = fn(&char) -> bool;

/// The number at the beginning of a text, and its width.
pub(super) fn number(text: &str, after_dot: bool) -> Option<(Result<Token>, usize)> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let digits = |text: &str, is_digit: IsDigit| {
        let mut width = 0;
        let mut chars = text.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            let joined = c == '_' && at > 0 && chars.peek().is_some_and(|(_, next)| is_digit(next));
            if !is_digit(&c) && !joined {
                break;
            }
            width = at + 1;
        }
        width
    };
    let decimal: IsDigit = |c| c.is_ascii_digit();
    let whole = digits(text, decimal);
    if !after_dot {
        let mut width = whole;
        if let Some(fraction) = text[width..].strip_prefix('.') {
            let fraction = digits(fraction, decimal);
            width += if fraction > 0 { 1 + fraction } else { 0 };
        }
        if let Some(exponent) = text[width..].strip_prefix(['e', 'E']) {
            let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            let exponent_digits = digits(unsigned, decimal);
            if exponent_digits > 0 {
                width += 1 + (exponent.len() - unsigned.len()) + exponent_digits;
            }
        }
        if width > whole {
            let float = text[..width].replace('_', "").parse();
            return Some((float.map(Token::Float).or_else(|_| fail("invalid number")), width));
        }
    }
    let based: [(&str, u32, IsDigit); 3] = [
        ("0b", 2, |c| matches!(c, '0' | '1')),
        ("0o", 8, |c| c.is_digit(8)),
        ("0x", 16, char::is_ascii_hexdigit),
    ];
    for (prefix, base, is_digit) in based {
        if text.len() > 2 && text.is_char_boundary(2) && text[..2].eq_ignore_ascii_case(prefix) {
            let skipped = usize::from(text[2..].starts_with('_'));
            let width = digits(&text[2 + skipped..], is_digit);
            if width > 0 {
                let width = 2 + skipped + width;
                let number = BigInt::from_str_radix(&text[2..width].replace('_', ""), base);
                return Some((number.map(Token::Int).or_else(|_| fail("invalid number")), width));
            }
        }
    }
    // Only zeros may follow a zero at the beginning.
    let width = if text.starts_with('0') { digits(text, |c| *c == '0') } else { whole };
    let number = BigInt::from_str_radix(&text[..width].replace('_', ""), 10);
    Some((number.map(Token::Int).or_else(|_| fail("invalid number")), width))
}

/// The width of a string with its quotes.
pub(super) fn string_width(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().skip(1).find_map(|(at, c)| {
        let ends = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(at + 1)
    })
}

/// The text of a string, with Python's escapes replaced.
pub(super) fn unescaped(text: &str) -> Result<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let Some(c) = after.chars().next() else { return fail("\\ at end of string") };
        let mut width = c.len_utf8();
        let hex = |width: usize| -> Result<(char, usize)> {
            let digits = after.get(1..1 + width).filter(|d| d.chars().all(|c| c.is_ascii_hexdigit()));
            let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
            let c = code.and_then(char::from_u32);
            c.map(|c| (c, 1 + width)).map_or_else(|| fail(format!("invalid escape \\{c:?}")), Ok)
        };
        match c {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(c),
            'a' => out.push('\x07'),
            'b' => out.push('\x08'),
            'f' => out.push('\x0c'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\x0b'),
            '0'..='7' => {
                width = after.bytes().take(3).take_while(|b| matches!(b, b'0'..=b'7')).count();
                let code = u32::from_str_radix(&after[..width], 8).unwrap_or(0);
                out.extend(char::from_u32(code));
            }
            'x' | 'u' | 'U' => {
                let (decoded, read) = hex(match c {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                })?;
                out.push(decoded);
                width = read;
            }
            'N' => return fail("\\N{...} in a string is not supported: write the character"),
            other => out.extend(['\\', other]),
        }
        rest = &after[width..];
    }
    out.push_str(rest);
    Ok(out)
}
