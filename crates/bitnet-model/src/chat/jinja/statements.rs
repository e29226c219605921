//! Tokens to statements.

use std::sync::Arc;

use super::{
    ast::{Constant, Expression, For, Kind as Node, MacroBody, Name, Statement, Target},
    error::Result,
    parser::{Parser, Reads, fail},
    token::Token,
};

impl Parser {
    /// Statements up to one of these words, which is returned; with none, up to the end of the template.
    pub(super) fn statements(&mut self, ends: &[&str]) -> Result<(Vec<Statement>, String)> {
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
                if matches!(token, Token::VariableBegin | Token::BlockBegin) {
                    parser.check_tag()?;
                }
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
                if !matches!(on, Expression::Constant(Constant::Bool(false))) {
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
        if self.skip_operator(".") {
            Ok(Target::Attribute(number, self.expect_name()?.into()))
        } else {
            Ok(Target::Name(number))
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

    fn macro_body(&mut self, name: Arc<str>, ends: &[&str]) -> Result<usize> {
        let outer = std::mem::take(&mut self.reads);
        let (parameters, defaults) = self.signature()?;
        let inner = std::mem::replace(&mut self.reads, outer);
        self.macro_of(name, parameters, defaults, inner, ends)
    }

    fn macro_of(
        &mut self,
        name: Arc<str>,
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
}
