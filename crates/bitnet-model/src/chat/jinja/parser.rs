//! Tokens to statements; expressions are in `expressions.rs`.

use std::{collections::HashMap, rc::Rc};

use super::{
    ast::{Arguments, Expression, For, Kind as Node, MacroBody, Name, Program, Statement, Target},
    error::{Error, Kind, Result},
    lexer::{Token, tokens},
};

/// Maximum depth of statements and expressions in each other.
const MAX_DEPTH: usize = 500;

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
    reads: Reads,
    numbers: HashMap<Rc<str>, Name>,
    program: Program,
    known: Known,
}

/// Which special names the body of a macro reads.
#[derive(Default, Clone, Copy)]
struct Reads {
    varargs: bool,
    kwargs: bool,
    caller: bool,
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
        match self.skip_operator(operator) {
            true => Ok(()),
            false => {
                let found = described(self.peek());
                fail(format!("expected token '{operator}', got '{found}'"))
            }
        }
    }

    fn expect_word(&mut self, word: &str) -> Result<()> {
        match self.skip_word(word) {
            true => Ok(()),
            false => {
                let found = described(self.peek());
                fail(format!("expected token '{word}', got '{found}'"))
            }
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

    fn expect(&mut self, token: &Token) -> Result<()> {
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
        let (name, number): (Rc<str>, Name) = (name.into(), self.program.names.len() as Name);
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

    /// Statements up to one of these words, which is returned; with none, up to the end of the template.
    fn statements(&mut self, ends: &[&str]) -> Result<(Vec<Statement>, String)> {
        self.nested(|parser| {
            let mut body = Vec::new();
            loop {
                let Some(token) = parser.next() else {
                    return match ends {
                        [] => Ok((body, String::new())),
                        _ => fail(format!("unexpected end of template: expected one of {}", ends.join(", "))),
                    };
                };
                let line = parser.line;
                match token {
                    Token::Data(text) if text.is_empty() => {}
                    Token::Data(text) => body.push(Statement { line, kind: Node::Text(text.into()) }),
                    Token::VariableBegin => {
                        let value = parser.tuple(true, &[])?;
                        parser.expect(&Token::VariableEnd)?;
                        body.push(Statement { line, kind: Node::Print(value) });
                    }
                    Token::BlockBegin => {
                        let word = parser.expect_name()?;
                        if ends.contains(&&*word) {
                            return Ok((body, word));
                        }
                        parser.statement(&word, line, &mut body)?;
                        parser.expect(&Token::BlockEnd)?;
                    }
                    _ => return fail("unexpected token"),
                }
            }
        })
    }

    /// The body of a block: from the end of its first tag up to one of `ends`.
    fn body(&mut self, ends: &[&str]) -> Result<(Vec<Statement>, String)> {
        // jinja2 accepts a colon here, as Python has it.
        self.skip_operator(":");
        self.expect(&Token::BlockEnd)?;
        self.statements(ends)
    }

    fn statement(&mut self, word: &str, line: usize, out: &mut Vec<Statement>) -> Result<()> {
        let kind = match word {
            "for" => self.for_loop()?,
            "if" => self.condition()?,
            "set" => self.set()?,
            "macro" => {
                let name = self.expect_name()?;
                let number = self.number(&name);
                Node::Macro(number, self.macro_body(name.into(), &["endmacro"])?)
            }
            "call" => {
                let outer = std::mem::take(&mut self.reads);
                let (parameters, defaults) =
                    if self.is_operator("(") { self.signature()? } else { Default::default() };
                let inner = std::mem::replace(&mut self.reads, outer);
                let call = self.expression()?;
                if !matches!(call, Expression::Call(..)) {
                    return fail("expected call");
                }
                let body = self.macro_of("caller".into(), parameters, defaults, inner, &["endcall"])?;
                Node::Call { body, call }
            }
            "filter" => {
                let filter = self.filter_chain(None)?;
                Node::Filter(filter, self.body(&["endfilter"])?.0)
            }
            "with" => {
                let mut targets = Vec::new();
                while !matches!(self.peek(), Some(Token::BlockEnd)) {
                    if !targets.is_empty() {
                        self.expect_operator(",")?;
                    }
                    let target = self.target(&[])?;
                    self.expect_operator("=")?;
                    targets.push((target, self.expression()?));
                }
                Node::With(targets, self.body(&["endwith"])?.0)
            }
            "print" => {
                while !matches!(self.peek(), Some(Token::BlockEnd)) {
                    let kind = Node::Print(self.expression()?);
                    out.push(Statement { line, kind });
                    if !matches!(self.peek(), Some(Token::BlockEnd)) {
                        self.expect_operator(",")?;
                    }
                }
                return Ok(());
            }
            "block" => {
                let name = self.expect_name()?;
                self.skip_word("scoped");
                self.skip_word("required");
                let body = self.body(&["endblock"])?.0;
                self.skip_word(&name);
                Node::Scope(body)
            }
            "generation" => Node::Scope(self.body(&["endgeneration"])?.0),
            "autoescape" => {
                let on = self.expression()?;
                if !matches!(on, Expression::Constant(super::value::Value::Bool(false))) {
                    return fail("autoescape is not supported");
                }
                Node::Scope(self.body(&["endautoescape"])?.0)
            }
            "break" => Node::Break,
            "continue" => Node::Continue,
            "include" | "import" | "extends" | "from" => {
                let of = self.expression()?;
                while !matches!(self.peek(), None | Some(Token::BlockEnd)) {
                    self.next();
                }
                Node::Load(of)
            }
            other => return fail(format!("Encountered unknown tag '{other}'.")),
        };
        out.push(Statement { line, kind });
        Ok(())
    }

    fn for_loop(&mut self) -> Result<Node> {
        let target = self.target(&["in"])?;
        if let Target::Name(name) = target
            && self.program.names[name as usize].as_ref() == "loop"
        {
            return fail("Can't assign to special loop variable in for-loop");
        }
        self.expect_word("in")?;
        let over = self.tuple(false, &["recursive"])?;
        let only = if self.skip_word("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_word("recursive");
        let (body, end) = self.body(&["endfor", "else"])?;
        let otherwise = if end == "else" { self.body(&["endfor"])?.0 } else { Vec::new() };
        self.program.loops.push(For { target, over, only, body, otherwise, recursive });
        Ok(Node::For(self.program.loops.len() - 1))
    }

    fn condition(&mut self) -> Result<Node> {
        self.softly(|parser| {
            let (mut branches, mut otherwise) = (Vec::new(), Vec::new());
            loop {
                let test = parser.tuple(false, &[])?;
                let (body, end) = parser.body(&["elif", "else", "endif"])?;
                branches.push((test, body));
                match &*end {
                    "elif" => continue,
                    "else" => otherwise = parser.body(&["endif"])?.0,
                    _ => {}
                }
                return Ok(Node::If { branches, otherwise });
            }
        })
    }

    fn set(&mut self) -> Result<Node> {
        let target = self.target(&[])?;
        if self.skip_operator("=") {
            return Ok(Node::Set(target, self.tuple(true, &[])?));
        }
        let filter = if self.skip_operator("|") { Some(self.filter_chain(None)?) } else { None };
        Ok(Node::SetBlock(target, filter, self.body(&["endset"])?.0))
    }

    /// A target of an assignment: a name, an attribute of a namespace, or a tuple of targets.
    fn target(&mut self, ends: &[&str]) -> Result<Target> {
        let mut targets = Vec::new();
        let mut is_tuple = false;
        loop {
            let ended = match self.peek() {
                Some(Token::Name(name)) => ends.contains(&&**name),
                Some(Token::Operator(operator)) => *operator != "(",
                _ => true,
            };
            if ended && !targets.is_empty() {
                break;
            }
            targets.push(self.nested(Self::single_target)?);
            if !self.skip_operator(",") {
                break;
            }
            is_tuple = true;
        }
        match (is_tuple, targets.pop()) {
            (false, Some(only)) => Ok(only),
            (_, last) => {
                targets.extend(last);
                Ok(Target::Tuple(targets))
            }
        }
    }

    fn single_target(&mut self) -> Result<Target> {
        if self.skip_operator("(") {
            let inner = self.target(&[])?;
            self.expect_operator(")")?;
            return Ok(inner);
        }
        let name = self.expect_name()?;
        if matches!(&*name, "true" | "false" | "True" | "False" | "none" | "None") {
            return fail("can't assign to 'const'");
        }
        let number = self.number(&name);
        match self.skip_operator(".") {
            true => Ok(Target::Attribute(number, self.expect_name()?.into())),
            false => Ok(Target::Name(number)),
        }
    }

    fn signature(&mut self) -> Result<(Vec<Name>, Vec<Expression>)> {
        let (mut parameters, mut defaults) = (Vec::new(), Vec::new());
        self.expect_operator("(")?;
        while !self.is_operator(")") {
            if !parameters.is_empty() {
                self.expect_operator(",")?;
            }
            let name = self.expect_name()?;
            parameters.push(self.number(&name));
            if self.skip_operator("=") {
                defaults.push(self.expression()?);
            } else if !defaults.is_empty() {
                return fail("non-default argument follows default argument");
            }
        }
        self.expect_operator(")")?;
        Ok((parameters, defaults))
    }

    fn macro_body(&mut self, name: Rc<str>, ends: &[&str]) -> Result<usize> {
        let outer = std::mem::take(&mut self.reads);
        let (parameters, defaults) = self.signature()?;
        let inner = std::mem::replace(&mut self.reads, outer);
        self.macro_of(name, parameters, defaults, inner, ends)
    }

    fn macro_of(
        &mut self,
        name: Rc<str>,
        parameters: Vec<Name>,
        defaults: Vec<Expression>,
        reads: Reads,
        ends: &[&str],
    ) -> Result<usize> {
        let outer = std::mem::replace(&mut self.reads, reads);
        let body = self.body(ends)?.0;
        let inner = std::mem::replace(&mut self.reads, outer);
        self.program.macros.push(MacroBody {
            name,
            parameters,
            defaults,
            body,
            reads_varargs: inner.varargs,
            reads_kwargs: inner.kwargs,
            reads_caller: inner.caller,
        });
        Ok(self.program.macros.len() - 1)
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
