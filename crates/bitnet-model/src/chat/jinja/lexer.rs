//! Text to tokens, as jinja2's lexer does with `trim_blocks` and `lstrip_blocks`.

use super::{
    error::{Error, Kind, Result},
    literals::{number, string_width, unescaped},
    token::Token,
};

/// Longest first.
const OPERATORS: [&str; 24] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|",
];

/// White space in Python's sense.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// The tokens of a template, each with its line.
pub(super) fn tokens(source: &str) -> Result<Vec<(Token, usize)>> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer = Lexer { source: &source, at: 0, line: 1, tokens: Vec::new(), line_starts: true };
    lexer.run().map_err(|error| error.at(lexer.line))?;
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    line: usize,
    tokens: Vec<(Token, usize)>,
    /// Whether the last tag ended with a new line.
    line_starts: bool,
}

/// What a tag opens.
#[derive(Clone, Copy, PartialEq)]
enum Tag {
    Variable,
    Block,
    Comment,
    Raw,
}

fn fail<T>(problem: impl Into<String>) -> Result<T> {
    Err(Error::new(Kind::Syntax, problem))
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn take(&mut self, bytes: usize) {
        self.line += self.source[self.at..self.at + bytes].matches('\n').count();
        self.at += bytes;
        self.line_starts = self.source[..self.at].ends_with('\n');
    }

    fn push(&mut self, token: Token) {
        self.tokens.push((token, self.line));
    }

    fn run(&mut self) -> Result<()> {
        while let Some((start, tag)) = self.next_tag() {
            let rest = self.rest();
            let sign = rest[start + 2..].chars().next().filter(|c| matches!(c, '-' | '+'));
            self.data(&rest[..start], tag, sign);
            self.take(start + 2 + sign.map_or(0, char::len_utf8));
            match tag {
                Tag::Comment => self.comment()?,
                Tag::Raw => self.raw()?,
                Tag::Variable => self.inside(Token::VariableBegin, "}}", Token::VariableEnd)?,
                Tag::Block => self.inside(Token::BlockBegin, "%}", Token::BlockEnd)?,
            }
        }
        let rest = self.rest();
        self.push(Token::Data(rest.into()));
        Ok(())
    }

    /// Where the next tag begins.
    fn next_tag(&self) -> Option<(usize, Tag)> {
        let rest = self.rest();
        let starts = rest.match_indices('{').find_map(|(at, _)| match rest.as_bytes().get(at + 1)? {
            b'{' => Some((at, Tag::Variable)),
            b'%' => Some((at, Tag::Block)),
            b'#' => Some((at, Tag::Comment)),
            _ => None,
        });
        starts.map(|(at, tag)| {
            if tag == Tag::Block && raw_begin(&rest[at + 2..]).is_some() { (at, Tag::Raw) } else { (at, tag) }
        })
    }

    /// Adds the text before a tag, without the white space that the tag removes.
    fn data(&mut self, text: &str, tag: Tag, sign: Option<char>) {
        let line = text.rfind('\n').map_or(0, |at| at + 1);
        let blank = line < text.len() && text[line..].chars().all(is_space);
        let kept = match sign {
            Some('-') => text.trim_end_matches(is_space),
            None if tag != Tag::Variable && blank && (line > 0 || self.line_starts) => &text[..line],
            _ => text,
        };
        if !kept.is_empty() {
            self.push(Token::Data(kept.into()));
        }
    }

    /// Consumes the end of a tag, and the white space after it that the tag removes. `trims` is whether the new line
    /// after the tag goes too.
    fn end(&mut self, mark: &str, trims: bool) -> bool {
        let rest = self.rest();
        let signed = |sign: &str| rest.strip_prefix(sign).is_some_and(|rest| rest.starts_with(mark));
        let width = if signed("-") {
            let after = &rest[1 + mark.len()..];
            1 + mark.len() + (after.len() - after.trim_start_matches(is_space).len())
        } else if trims && signed("+") {
            1 + mark.len()
        } else if let Some(after) = rest.strip_prefix(mark) {
            mark.len() + usize::from(trims && after.starts_with('\n'))
        } else {
            return false;
        };
        self.take(width);
        true
    }

    fn comment(&mut self) -> Result<()> {
        let begin = self.at;
        loop {
            if self.end("#}", true) {
                return Ok(());
            }
            match self.rest().chars().next() {
                Some(c) => self.take(c.len_utf8()),
                // jinja2 looks for the end in a text that is left, not at its end.
                None if begin == self.at => return Ok(()),
                None => return fail("Missing end of comment tag"),
            }
        }
    }

    /// The text between `{% raw %}` and `{% endraw %}`; the sign of the first tag is consumed already.
    fn raw(&mut self) -> Result<()> {
        let begin = raw_begin(self.rest()).unwrap_or(0);
        self.take(begin);
        let rest = self.rest();
        let found = rest.match_indices("{%").find_map(|(at, _)| {
            let inner = &rest[at + 2..];
            let sign = inner.chars().next().filter(|c| matches!(c, '-' | '+'));
            let name = inner[sign.map_or(0, char::len_utf8)..]
                .trim_start_matches(is_space)
                .strip_prefix("endraw")?;
            let end = name.trim_start_matches(is_space);
            let ends = ["%}", "-%}", "+%}"].iter().any(|mark| end.starts_with(mark));
            ends.then_some((at, sign, rest.len() - end.len()))
        });
        let Some((at, sign, end)) = found else {
            return if rest.is_empty() { Ok(()) } else { fail("Missing end of raw directive") };
        };
        self.data(&rest[..at], Tag::Block, sign);
        self.take(end);
        self.end("%}", true);
        Ok(())
    }

    /// The tokens of a tag up to its end.
    fn inside(&mut self, begin: Token, mark: &str, end: Token) -> Result<()> {
        self.push(begin);
        let mut open: Vec<&'static str> = Vec::new();
        loop {
            let line = self.line;
            if open.is_empty() && self.end(mark, mark == "%}") {
                self.tokens.push((end, line));
                return Ok(());
            }
            let rest = self.rest();
            let Some(c) = rest.chars().next() else { return fail("unexpected end of template") };
            if is_space(c) {
                self.take(c.len_utf8());
            } else if let Some((number, width)) = number(rest, self.source[..self.at].ends_with('.')) {
                self.push(number?);
                self.take(width);
            } else if c == '_' || c.is_alphanumeric() {
                let width = rest.find(|c: char| !(c == '_' || c.is_alphanumeric())).unwrap_or(rest.len());
                if c.is_numeric() {
                    return fail("Invalid character in identifier");
                }
                self.push(Token::Name(rest[..width].into()));
                self.take(width);
            } else if c == '\'' || c == '"' {
                let width =
                    string_width(rest, c).map_or_else(|| fail(format!("unexpected char {c:?}")), Ok)?;
                self.push(Token::Str(unescaped(&rest[1..width - 1])?));
                self.take(width);
            } else {
                let operator = match c {
                    ',' => Some(","),
                    ';' => Some(";"),
                    _ => OPERATORS.into_iter().find(|operator| rest.starts_with(operator)),
                };
                let Some(operator) = operator else { return fail(format!("unexpected char {c:?}")) };
                match operator {
                    "(" | "[" | "{" => open.push(operator),
                    ")" | "]" | "}" => {
                        let pair =
                            ["()", "[]", "{}"].iter().find(|pair| pair.ends_with(operator)).map(|p| &p[..1]);
                        if open.pop() != pair {
                            return fail(format!("unexpected '{operator}'"));
                        }
                    }
                    _ => {}
                }
                self.push(Token::Operator(operator));
                self.take(operator.len());
            }
        }
    }
}

/// The width of the rest of a tag `{% raw %}` behind `{%` and its sign, or with the sign.
fn raw_begin(text: &str) -> Option<usize> {
    let inner = text.strip_prefix(['-', '+']).unwrap_or(text);
    let end = inner.trim_start_matches(is_space).strip_prefix("raw")?.trim_start_matches(is_space);
    match end.strip_prefix("-%}") {
        Some(after) => Some(text.len() - after.trim_start_matches(is_space).len()),
        None => Some(text.len() - end.strip_prefix("%}")?.len()),
    }
}
