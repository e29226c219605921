//! Reads tokens; `statements.rs` and `expressions.rs` say which may follow each other.

use std::{collections::HashMap, sync::Arc};

use super::{
    ast::{Arguments, Expression, Name, Program},
    error::{Error, Kind, Result},
    lexer::tokens,
    token::Token,
};

/// Maximum depth of statements and expressions in each other.
const MAX_DEPTH: usize = 500;
/// Maximum number of tokens in a tag, each of which may nest what comes before it.
const MAX_TAG: usize = 2_000;

/// Parses a template. `known` refuses filters, tests and methods that are not supported, by name.
pub(super) fn parse(source: &str, known: Known) -> Result<Program> {
    let mut parser = Parser {
        tokens: tokens(source)?,
        at: 0,
        line: 1,
        depth: 0,
        soft: 0,
        unknown: Vec::new(),
        reads: Reads::default(),
        numbers: HashMap::new(),
        program: Program::default(),
        known,
    };
    let body = parser.statements(&[]).map_err(|error| error.at(parser.line))?.0;
    if let Some(error) = parser.unknown.into_iter().next() {
        return Err(error);
    }
    Ok(Program { body, ..parser.program })
}

/// Whether a word is known; an error if it is known not to be supported.
pub(super) type Known = fn(Word<'_>) -> Result<bool>;

/// A word whose meaning must be known.
#[derive(Clone, Copy)]
pub(super) enum Word<'a> {
    Filter(&'a str),
    Test(&'a str),
    /// The name of a method that is called.
    Method(&'a str),
}

pub(super) struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    pub(super) line: usize,
    depth: usize,
    /// How many conditions are around the current place.
    soft: usize,
    /// Filters and tests outside conditions that nothing knows. Inside a condition they fail when they run.
    unknown: Vec<Error>,
    pub(super) reads: Reads,
    numbers: HashMap<Arc<str>, Name>,
    pub(super) program: Program,
    known: Known,
}

/// Which special names the body of a macro reads.
#[derive(Default, Clone, Copy)]
pub(super) struct Reads {
    pub varargs: bool,
    pub kwargs: bool,
    pub caller: bool,
}

pub(super) fn fail<T>(problem: impl Into<String>) -> Result<T> {
    Err(Error::new(Kind::Syntax, problem))
}

fn described(token: Option<&Token>) -> String {
    match token {
        None => "end of template".into(),
        Some(Token::Data(_)) => "template data / text".into(),
        Some(Token::VariableBegin) => "begin of print statement".into(),
        Some(Token::VariableEnd) => "end of print statement".into(),
        Some(Token::BlockBegin) => "begin of statement block".into(),
        Some(Token::BlockEnd) => "end of statement block".into(),
        Some(Token::Name(name)) => name.clone(),
        Some(Token::Str(_)) => "string".into(),
        Some(Token::Int(_)) => "integer".into(),
        Some(Token::Float(_)) => "float".into(),
        Some(Token::Operator(operator)) => (*operator).into(),
    }
}

impl Parser {
    /// Notes a word that nothing knows.
    pub(super) fn check(&mut self, word: Word<'_>) -> Result<()> {
        let (kind, name) = match word {
            Word::Filter(name) => ("filter", name),
            Word::Test(name) => ("test", name),
            Word::Method(name) => ("method", name),
        };
        if !(self.known)(word)? && self.soft == 0 {
            self.unknown.push(Error::new(Kind::Syntax, format!("No {kind} named '{name}'.")).at(self.line));
        }
        Ok(())
    }

    /// How many unknown words there are, to forget those after them.
    pub(super) fn unknown(&self) -> usize {
        self.unknown.len()
    }

    /// Forgets unknown words but the first ones, because they are in a condition.
    pub(super) fn forget(&mut self, but: usize) {
        self.unknown.truncate(but);
    }

    pub(super) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    pub(super) fn next(&mut self) -> Option<Token> {
        let (token, line) = self.tokens.get(self.at)?;
        self.at += 1;
        self.line = *line;
        Some(token.clone())
    }

    /// Checks the length of the tag that has begun: long chains of operators nest deeply.
    pub(super) fn check_tag(&self) -> Result<()> {
        let ends = |token: &Token| matches!(token, Token::VariableEnd | Token::BlockEnd);
        let inside = self.tokens[self.at..].iter().take(MAX_TAG + 1).take_while(|(token, _)| !ends(token));
        if inside.count() > MAX_TAG { fail("a tag of the template is too long") } else { Ok(()) }
    }

    /// The token after the next one.
    pub(super) fn second(&self) -> Option<&Token> {
        self.tokens.get(self.at + 1).map(|(token, _)| token)
    }

    pub(super) fn unexpected<T>(&self) -> Result<T> {
        let token = described(self.peek());
        fail(format!("unexpected '{token}'"))
    }

    pub(super) fn is_operator(&self, operator: &str) -> bool {
        matches!(self.peek(), Some(Token::Operator(found)) if *found == operator)
    }

    pub(super) fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(found)) if found == word)
    }

    pub(super) fn skip_operator(&mut self, operator: &str) -> bool {
        let found = self.is_operator(operator);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn skip_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn expect_operator(&mut self, operator: &str) -> Result<()> {
        if self.skip_operator(operator) {
            Ok(())
        } else {
            let found = described(self.peek());
            fail(format!("expected token '{operator}', got '{found}'"))
        }
    }

    pub(super) fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.skip_word(word) {
            Ok(())
        } else {
            let found = described(self.peek());
            fail(format!("expected token '{word}', got '{found}'"))
        }
    }

    pub(super) fn expect_name(&mut self) -> Result<String> {
        match self.peek() {
            Some(Token::Name(name)) => {
                let name = name.clone();
                self.next();
                Ok(name)
            }
            found => {
                let found = described(found);
                fail(format!("expected token 'name', got '{found}'"))
            }
        }
    }

    pub(super) fn expect(&mut self, token: &Token) -> Result<()> {
        match self.peek() {
            Some(found) if found == token => {
                self.next();
                Ok(())
            }
            found => {
                let found = described(found);
                fail(format!("expected token '{}', got '{found}'", described(Some(token))))
            }
        }
    }

    /// The number of a name.
    pub(super) fn number(&mut self, name: &str) -> Name {
        match name {
            "varargs" => self.reads.varargs = true,
            "kwargs" => self.reads.kwargs = true,
            "caller" => self.reads.caller = true,
            _ => {}
        }
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let (name, number): (Arc<str>, Name) = (name.into(), self.program.names.len() as Name);
        self.program.names.push(name.clone());
        self.numbers.insert(name, number);
        number
    }

    /// Runs `work` one level deeper.
    pub(super) fn nested<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return fail("the template nests too deeply");
        }
        let result = work(self);
        self.depth -= 1;
        result
    }

    /// Runs `work` as part of a condition.
    pub(super) fn softly<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.soft += 1;
        let result = work(self);
        self.soft -= 1;
        result
    }

    /// Filters that follow each other, applied to `subject`.
    pub(super) fn filter_chain(&mut self, mut subject: Option<Expression>) -> Result<Expression> {
        loop {
            let mut name = self.expect_name()?;
            while self.skip_operator(".") {
                name = format!("{name}.{}", self.expect_name()?);
            }
            self.check(Word::Filter(&name))?;
            let arguments = if self.is_operator("(") { self.arguments()? } else { Arguments::default() };
            let filtered = Expression::Filter(subject.map(Box::new), name.into(), arguments);
            if !self.skip_operator("|") {
                return Ok(filtered);
            }
            subject = Some(filtered);
        }
    }
}
