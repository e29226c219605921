//! Splits PTX text into words and punctuation, each with its line.

use crate::error::{ParseError, ParseErrorKind};

/// A word (a name, a number, or an opcode with all its modifiers) or a punctuation character.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    pub(crate) line: u32,
    /// Byte offset of the token, to quote its statement.
    pub(crate) at: usize,
}

impl Token<'_> {
    pub(crate) fn is_word(&self) -> bool {
        self.text.starts_with(is_word_char)
    }
}

fn is_word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.')
}

/// All tokens of `text`, without comments.
pub(crate) fn tokens<'a>(file: &str, text: &'a str) -> Result<Vec<Token<'a>>, ParseError> {
    let mut out = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first.is_whitespace() {
            first.len_utf8()
        } else if is_word_char(first) {
            let len = word_len(rest);
            out.push(Token { text: &rest[..len], line, at });
            len
        } else if ",;:()[]{}<>+-@!|=".contains(first) {
            out.push(Token { text: &rest[..1], line, at });
            1
        } else {
            let kind = ParseErrorKind::Expected { expected: "PTX in ASCII", found: first.to_string() };
            return Err(ParseError { file: file.into(), line, kind });
        };
        line += rest[..len].matches('\n').count() as u32;
        at += len;
    }
    Ok(out)
}

/// The length of a word. It continues over `::` (as in `L1::no_allocate`) but not over a single colon, which ends a
/// label.
fn word_len(rest: &str) -> usize {
    let mut len = 0;
    loop {
        len += rest[len..].find(|c| !is_word_char(c)).unwrap_or(rest.len() - len);
        if !rest[len..].starts_with("::") {
            return len;
        }
        len += 2;
    }
}
