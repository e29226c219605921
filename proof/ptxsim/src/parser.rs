//! Parses the structure of a PTX file: directives, entries, declarations, labels and statements.

use std::collections::HashMap;

use crate::decode;
use crate::error::{ParseError, ParseErrorKind};
use crate::inst::{Entry, Inst, Op, Reg, SharedArrays};
use crate::lexer::{Token, tokens};
use crate::operand::{Cursor, Scope};

/// A parsed PTX file. Several threads can launch it, each with its own memory.
#[derive(Debug)]
pub struct Module {
    pub(crate) file: String,
    entries: Vec<Entry>,
}

impl Module {
    /// Parses `text`; `file` is its name in faults and errors.
    pub fn parse(file: &str, text: &str) -> Result<Module, ParseError> {
        let tokens = tokens(file, text)?;
        let mut parser = Parser { text, cursor: Cursor::file(&tokens), dynamic: None, newer: false };
        match parser.module() {
            Ok(entries) => Ok(Module { file: file.into(), entries }),
            Err(kind) => Err(ParseError { file: file.into(), line: parser.cursor.line(), kind }),
        }
    }

    /// Names of the entries, in the order of the file.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// Sizes of an entry's parameters, in bytes.
    pub fn params(&self, entry: &str) -> Option<Vec<usize>> {
        Some(self.entry(entry)?.params.iter().map(|&(_, bytes)| bytes).collect())
    }

    pub(crate) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

type Result<T, E = ParseErrorKind> = std::result::Result<T, E>;

struct Parser<'t> {
    text: &'t str,
    cursor: Cursor<'t>,
    /// The module's `.extern .shared` array: name and alignment.
    dynamic: Option<(&'t str, usize)>,
    /// Whether the target is sm_90, which has more instructions.
    newer: bool,
}

/// An entry while its body is being parsed.
struct Body {
    scope: Scope,
    entry: Entry,
    labels: HashMap<String, usize>,
    /// Branches whose targets are not known yet: instruction, label, line's token.
    branches: Vec<(usize, String, usize)>,
}

impl<'t> Parser<'t> {
    fn number(&mut self) -> Result<u64> {
        let expected = self.cursor.expected("a number");
        u64::try_from(self.cursor.number()?).map_err(|_| expected)
    }

    /// Takes the tokens up to the next semicolon, and skips it.
    fn statement(&mut self) -> Result<&'t [Token<'t>]> {
        let rest = self.cursor.rest();
        let end = rest.iter().position(|token| token.text == ";");
        let end = end.ok_or(ParseErrorKind::Expected { expected: ";", found: "end of file".into() })?;
        self.cursor.at += end + 1;
        Ok(&rest[..end])
    }

    fn module(&mut self) -> Result<Vec<Entry>> {
        let mut entries: Vec<Entry> = Vec::new();
        let (mut version, mut target) = (false, false);
        while !self.cursor.is_empty() {
            match self.cursor.next() {
                ".version" => {
                    self.newer = self.cursor.peek() == "8.0";
                    version = self.only(".version", |v| ["7.4", "8.0"].contains(&v))?;
                }
                ".target" => {
                    let wanted = if self.newer { "sm_90" } else { "sm_80" };
                    target = self.only(".target", |t| version && t == wanted)?;
                }
                ".address_size" => _ = self.only(".address_size", |size| size == "64")?,
                ".extern" => self.dynamic_shared()?,
                ".visible" => {
                    self.cursor.expect(".entry")?;
                    if !(version && target) {
                        return Err(self.cursor.expected(".version and .target before the first entry"));
                    }
                    let entry = self.entry()?;
                    if entries.iter().any(|other| other.name == entry.name) {
                        return Err(ParseErrorKind::Duplicate { name: entry.name });
                    }
                    entries.push(entry);
                }
                other => {
                    self.cursor.at -= 1;
                    return Err(ParseErrorKind::Directive { directive: other.into() });
                }
            }
        }
        Ok(entries)
    }

    fn only(&mut self, directive: &str, known: impl Fn(&str) -> bool) -> Result<bool> {
        let value = self.cursor.peek();
        if !known(value) {
            return Err(ParseErrorKind::Directive { directive: format!("{directive} {value}") });
        }
        self.cursor.at += 1;
        Ok(true)
    }

    /// `.extern .shared .align 16 .b8 name[];`
    fn dynamic_shared(&mut self) -> Result<()> {
        self.cursor.expect(".shared")?;
        let mut cursor = Cursor::statement(self.statement()?);
        let (name, align, bytes) = shared_array(&mut cursor)?;
        if bytes.is_some() {
            return Err(cursor.expected("an array without length"));
        }
        match self.dynamic.replace((name, align)) {
            Some((other, _)) => Err(ParseErrorKind::Duplicate { name: other.into() }),
            None => Ok(()),
        }
    }

    fn entry(&mut self) -> Result<Entry> {
        let name = self.cursor.next().to_string();
        let mut body = Body {
            scope: Scope::default(),
            entry: Entry {
                name,
                params: Vec::new(),
                insts: Vec::new(),
                regs: Vec::new(),
                preds: Vec::new(),
                constants: Vec::new(),
                arrays: SharedArrays::default(),
                dynamic_align: self.dynamic.map(|(_, align)| align),
                max_threads: 1024,
            },
            labels: HashMap::new(),
            branches: Vec::new(),
        };
        self.params(&mut body)?;
        self.bounds(&mut body.entry)?;
        let dynamic = match self.dynamic {
            Some((name, _)) => Some(body.scope.declare_symbol(name, 0)?),
            None => None,
        };
        self.cursor.expect("{")?;
        while !self.cursor.take("}") {
            self.body_item(&mut body)?;
        }
        self.finish(body, dynamic)
    }

    fn params(&mut self, body: &mut Body) -> Result<()> {
        if !self.cursor.take("(") || self.cursor.take(")") {
            return Ok(());
        }
        loop {
            self.cursor.expect(".param")?;
            let ty = self.cursor.ty("a type", |ty| ty.bytes() > 0)?;
            let end = body.entry.params.last().map_or(0, |&(at, bytes)| at + bytes);
            let at = end.next_multiple_of(ty.bytes());
            body.scope.declare_param(self.cursor.peek(), at, ty.bytes())?;
            self.cursor.at += 1;
            body.entry.params.push((at, ty.bytes()));
            if self.cursor.take(")") {
                return Ok(());
            }
            self.cursor.expect(",")?;
        }
    }

    /// `.maxntid` and similar directives, between parameters and body.
    fn bounds(&mut self, entry: &mut Entry) -> Result<()> {
        loop {
            let directive = self.cursor.peek();
            let dims = match directive {
                ".maxntid" | ".minnctapersm" => {
                    self.cursor.next();
                    let mut dims = [1; 3];
                    dims[0] = self.number()?;
                    for dim in &mut dims[1..] {
                        if self.cursor.take(",") {
                            *dim = self.number()?;
                        }
                    }
                    dims
                }
                "{" => return Ok(()),
                _ => return Err(ParseErrorKind::Directive { directive: directive.into() }),
            };
            if directive == ".maxntid" {
                entry.max_threads = dims.iter().product();
            }
        }
    }

    fn body_item(&mut self, body: &mut Body) -> Result<()> {
        let first = self.cursor.peek();
        if self.cursor.rest().get(1).is_some_and(|token| token.text == ":") {
            body.scope.declare_label(first)?;
            body.labels.insert(first.into(), body.entry.insts.len());
            self.cursor.at += 2;
            return Ok(());
        }
        let start = self.cursor.at;
        let statement = self.statement()?;
        let end = std::mem::replace(&mut self.cursor.at, start);
        let mut cursor = Cursor::statement(statement);
        match first {
            ".reg" => declare_regs(&mut cursor, &mut body.scope)?,
            ".shared" => {
                cursor.next();
                let (name, align, bytes) = shared_array(&mut cursor)?;
                let bytes = bytes.ok_or_else(|| cursor.expected("an array with a length"))?;
                let address = body.entry.arrays.place(align, bytes);
                body.scope.declare_symbol(name, address)?;
            }
            _ if first.starts_with('.') => {
                return Err(ParseErrorKind::Directive { directive: first.into() });
            }
            _ => {
                let source = &self.text[self.cursor.rest()[0].at..self.cursor.rest()[end - start - 1].at];
                let text = source.split_whitespace().collect::<Vec<_>>().join(" ");
                self.instruction(&mut cursor, text, body)?;
            }
        }
        self.cursor.at = end;
        Ok(())
    }

    fn instruction(&mut self, cursor: &mut Cursor<'_>, text: String, body: &mut Body) -> Result<()> {
        let guard = if cursor.take("@") {
            let negated = cursor.take("!");
            Some(body.scope.pred(cursor.word("a predicate")?, negated)?)
        } else {
            None
        };
        let opcode = cursor.word("an instruction")?;
        let op = if opcode == "bra" {
            let label = cursor.word("a label")?.to_string();
            body.branches.push((body.entry.insts.len(), label, self.cursor.at));
            Op::Branch { target: 0 }
        } else {
            let mut operands = Vec::new();
            while !cursor.is_empty() {
                if !operands.is_empty() {
                    cursor.expect(",")?;
                }
                operands.push(body.scope.operand(cursor)?);
            }
            if !self.newer && decode::needs_sm_90(opcode) {
                return Err(ParseErrorKind::Instruction { instruction: opcode.into() });
            }
            decode::decode(opcode, operands, &mut body.scope)?
        };
        if !cursor.is_empty() {
            return Err(cursor.expected(";"));
        }
        body.entry.insts.push(Inst { op, guard, line: self.cursor.line(), text });
        Ok(())
    }

    fn finish(&mut self, body: Body, dynamic: Option<Reg>) -> Result<Entry> {
        let Body { mut scope, mut entry, labels, branches } = body;
        for (index, label, at) in branches {
            let Some(&to) = labels.get(&label) else {
                self.cursor.at = at;
                return Err(ParseErrorKind::Undeclared { name: label });
            };
            if let Op::Branch { target } = &mut entry.insts[index].op {
                *target = to;
            }
        }
        let runs_off = entry
            .insts
            .last()
            .is_none_or(|i| i.guard.is_some() || !matches!(i.op, Op::Exit | Op::Branch { .. }));
        if runs_off || labels.values().any(|&to| to == entry.insts.len()) {
            self.cursor.at -= 1;
            return Err(self.cursor.expected("`ret` at the end of the kernel"));
        }
        if let Some(slot) = dynamic {
            scope.set_constant(slot, entry.dynamic_base() as u64);
        }
        (entry.regs, entry.preds, entry.constants) = (scope.regs, scope.preds, scope.constants);
        Ok(entry)
    }
}

/// `.align 16 .b32 name[64]`: name, alignment and bytes, `None` for `[]`.
fn shared_array<'t>(cursor: &mut Cursor<'t>) -> Result<(&'t str, usize, Option<usize>)> {
    let align = if cursor.take(".align") { Some(cursor.number()?) } else { None };
    let ty = cursor.ty("a type", |ty| ty.bytes() > 0)?;
    let align = align.unwrap_or(ty.bytes() as i128);
    if !(1..=1024).contains(&align) || align.count_ones() != 1 {
        let found = align.to_string();
        return Err(ParseErrorKind::Expected {
            expected: "an alignment that is a power of two up to 1024",
            found,
        });
    }
    let name = cursor.word("a name")?;
    let mut bytes = Some(ty.bytes());
    while cursor.take("[") {
        if cursor.take("]") {
            bytes = None;
            break;
        }
        let length = cursor.number()?;
        bytes = bytes.zip(usize::try_from(length).ok()).and_then(|(bytes, n)| bytes.checked_mul(n));
        cursor.expect("]")?;
    }
    if cursor.is_empty() { Ok((name, align as usize, bytes)) } else { Err(cursor.expected(";")) }
}

/// `.reg .b32 a, b, r<40>`
fn declare_regs(cursor: &mut Cursor<'_>, scope: &mut Scope) -> Result<()> {
    cursor.next();
    // Registers of one byte have almost no instructions, so they are not supported.
    let ty = cursor.ty("a register type", |ty| ty.bytes() != 1)?;
    loop {
        let name = cursor.word("a name")?;
        if cursor.take("<") {
            let count = cursor.number()?;
            cursor.expect(">")?;
            for i in 0..count {
                scope.declare_reg(&format!("{name}{i}"), ty)?;
            }
        } else {
            scope.declare_reg(name, ty)?;
        }
        if scope.regs.len() > 4096 {
            return Err(ParseErrorKind::Expected { expected: "at most 4096 registers", found: name.into() });
        }
        if cursor.is_empty() {
            return Ok(());
        }
        cursor.expect(",")?;
    }
}
