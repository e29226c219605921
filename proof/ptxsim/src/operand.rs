//! Operands: resolves the names and numbers in a kernel's instructions.

use std::collections::HashMap;

use crate::error::ParseErrorKind;
use crate::inst::{Addr, CONSTANT, Lanes, Pred, PredRef, Reg, Special, WARP};
use crate::lexer::Token;
use crate::types::Type;

#[derive(Debug, Clone)]
pub(crate) enum Operand {
    Reg(Reg, Type),
    Pred(PredRef),
    Int(i128),
    /// Bits of an `f32`.
    Float(u32),
    /// The constant that holds the address of a shared array.
    Symbol(Reg),
    Special(Special),
    /// With the base register's type, or `None` for a symbol.
    Address(Addr, Option<Type>),
    Param {
        at: usize,
        room: usize,
    },
    Vector(Vec<Operand>),
    Pair(Box<Operand>, Box<Operand>),
}

impl Operand {
    pub(crate) fn describe(&self) -> String {
        match self {
            Operand::Reg(_, ty) => format!("a .{} register", ty.name()),
            Operand::Pred(_) => "a predicate".into(),
            Operand::Int(value) => format!("the number {value}"),
            Operand::Float(bits) => format!("the number {}", f32::from_bits(*bits)),
            Operand::Symbol(_) => "the name of a shared array".into(),
            Operand::Special(_) => "a special register".into(),
            Operand::Address(..) | Operand::Param { .. } => "an address".into(),
            Operand::Vector(parts) => format!("a vector of {}", parts.len()),
            Operand::Pair(..) => "a pair".into(),
        }
    }
}

/// Reads tokens one after the other: those of a file or of a statement.
pub(crate) struct Cursor<'t> {
    tokens: &'t [Token<'t>],
    pub(crate) at: usize,
    /// Stands in errors for the token after the last.
    end: &'static str,
}

impl<'t> Cursor<'t> {
    pub(crate) fn file(tokens: &'t [Token<'t>]) -> Cursor<'t> {
        Cursor { tokens, at: 0, end: "end of file" }
    }

    pub(crate) fn statement(tokens: &'t [Token<'t>]) -> Cursor<'t> {
        Cursor { tokens, at: 0, end: "end of statement" }
    }

    /// The tokens that are left.
    pub(crate) fn rest(&self) -> &'t [Token<'t>] {
        self.tokens.get(self.at..).unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    /// Line of the next token, or of the last one at the end.
    pub(crate) fn line(&self) -> u32 {
        let token = self.rest().first().or(self.tokens.last());
        token.map_or(1, |token| token.line)
    }

    pub(crate) fn peek(&self) -> &'t str {
        self.rest().first().map_or(self.end, |token| token.text)
    }

    pub(crate) fn next(&mut self) -> &'t str {
        let text = self.peek();
        self.at += 1;
        text
    }

    pub(crate) fn take(&mut self, text: &str) -> bool {
        let found = self.peek() == text;
        self.at += usize::from(found);
        found
    }

    pub(crate) fn expect(&mut self, text: &'static str) -> Result<(), ParseErrorKind> {
        if self.take(text) { Ok(()) } else { Err(self.expected(text)) }
    }

    pub(crate) fn expected(&self, expected: &'static str) -> ParseErrorKind {
        ParseErrorKind::Expected { expected, found: self.peek().into() }
    }

    pub(crate) fn word(&mut self, expected: &'static str) -> Result<&'t str, ParseErrorKind> {
        match self.rest().first() {
            Some(token) if token.is_word() => Ok(self.next()),
            _ => Err(self.expected(expected)),
        }
    }

    pub(crate) fn number(&mut self) -> Result<i128, ParseErrorKind> {
        let negative = self.take("-");
        let value = integer(self.peek()).ok_or_else(|| self.expected("a number"))?;
        self.next();
        Ok(if negative { -value } else { value })
    }

    /// Takes a type that `allowed` accepts.
    pub(crate) fn ty(
        &mut self,
        expected: &'static str,
        allowed: impl Fn(Type) -> bool,
    ) -> Result<Type, ParseErrorKind> {
        let ty = self.peek().strip_prefix('.').and_then(Type::parse).filter(|&ty| allowed(ty));
        let ty = ty.ok_or_else(|| self.expected(expected))?;
        self.next();
        Ok(ty)
    }
}

fn integer(word: &str) -> Option<i128> {
    let digits = word.strip_suffix('U').unwrap_or(word);
    let (digits, radix) = digits.strip_prefix("0x").map_or((digits, 10), |hex| (hex, 16));
    u64::from_str_radix(digits, radix).ok().map(i128::from)
}

/// A `.b32` float such as `0f3F800000`. With a decimal point it would be an `f64`.
fn float(word: &str) -> Option<u32> {
    let hex = word.strip_prefix("0f").or(word.strip_prefix("0F"))?;
    u32::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 8)
}

/// The names declared in a kernel.
#[derive(Default)]
pub(crate) struct Scope {
    names: HashMap<String, Name>,
    pub(crate) regs: Vec<String>,
    pub(crate) preds: Vec<String>,
    pub(crate) constants: Vec<Lanes>,
    constant_of: HashMap<u64, Reg>,
}

#[derive(Clone, Copy)]
enum Name {
    Reg(Reg, Type),
    Pred(Pred),
    Symbol(Reg),
    Param { at: usize, bytes: usize },
    Label,
}

impl Scope {
    fn declare(&mut self, name: &str, what: Name) -> Result<(), ParseErrorKind> {
        match self.names.insert(name.into(), what) {
            Some(_) => Err(ParseErrorKind::Duplicate { name: name.into() }),
            None => Ok(()),
        }
    }

    /// Declares a label, which must not have the name of anything else.
    pub(crate) fn declare_label(&mut self, name: &str) -> Result<(), ParseErrorKind> {
        self.declare(name, Name::Label)
    }

    pub(crate) fn declare_reg(&mut self, name: &str, ty: Type) -> Result<(), ParseErrorKind> {
        if ty == Type::Pred {
            self.preds.push(name.into());
            return self.declare(name, Name::Pred(self.preds.len() as Pred - 1));
        }
        self.regs.push(name.into());
        self.declare(name, Name::Reg(self.regs.len() as Reg - 1, ty))
    }

    pub(crate) fn declare_param(
        &mut self,
        name: &str,
        at: usize,
        bytes: usize,
    ) -> Result<(), ParseErrorKind> {
        self.declare(name, Name::Param { at, bytes })
    }

    /// Declares a shared array and returns the constant that holds its address, which can be set later.
    pub(crate) fn declare_symbol(&mut self, name: &str, address: usize) -> Result<Reg, ParseErrorKind> {
        let slot = self.push_constant(address as u64);
        self.declare(name, Name::Symbol(slot))?;
        Ok(slot)
    }

    pub(crate) fn set_constant(&mut self, slot: Reg, value: u64) {
        self.constants[usize::from(slot & !CONSTANT)] = [value; WARP];
    }

    fn push_constant(&mut self, value: u64) -> Reg {
        self.constants.push([value; WARP]);
        (self.constants.len() - 1) as Reg | CONSTANT
    }

    pub(crate) fn constant(&mut self, value: u64) -> Reg {
        if let Some(&slot) = self.constant_of.get(&value) {
            return slot;
        }
        let slot = self.push_constant(value);
        self.constant_of.insert(value, slot);
        slot
    }

    pub(crate) fn pred(&self, name: &str, negated: bool) -> Result<PredRef, ParseErrorKind> {
        match self.names.get(name) {
            Some(&Name::Pred(index)) => Ok(PredRef { index, negated }),
            Some(_) => Err(ParseErrorKind::Expected { expected: "a predicate", found: name.into() }),
            None => Err(ParseErrorKind::Undeclared { name: name.into() }),
        }
    }

    pub(crate) fn operand(&mut self, cursor: &mut Cursor<'_>) -> Result<Operand, ParseErrorKind> {
        let first = self.single(cursor)?;
        if cursor.take("|") {
            return Ok(Operand::Pair(first.into(), self.single(cursor)?.into()));
        }
        Ok(first)
    }

    fn single(&mut self, cursor: &mut Cursor<'_>) -> Result<Operand, ParseErrorKind> {
        if cursor.take("{") {
            let mut parts = vec![self.single(cursor)?];
            while cursor.take(",") {
                parts.push(self.single(cursor)?);
            }
            cursor.expect("}")?;
            return Ok(Operand::Vector(parts));
        }
        if cursor.take("[") {
            return self.address(cursor);
        }
        if cursor.take("!") {
            return Ok(Operand::Pred(self.pred(cursor.word("a predicate")?, true)?));
        }
        if cursor.peek() == "-" || integer(cursor.peek()).is_some() {
            return cursor.number().map(Operand::Int);
        }
        let word = cursor.word("an operand")?;
        match self.names.get(word) {
            Some(&Name::Reg(index, ty)) => Ok(Operand::Reg(index, ty)),
            Some(&Name::Pred(index)) => Ok(Operand::Pred(PredRef { index, negated: false })),
            Some(&Name::Symbol(slot)) => Ok(Operand::Symbol(slot)),
            Some(Name::Param { .. }) => {
                Err(ParseErrorKind::Expected { expected: "brackets around a parameter", found: word.into() })
            }
            Some(Name::Label) => {
                Err(ParseErrorKind::Expected { expected: "an operand, not a label", found: word.into() })
            }
            None => special(word)
                .map(Operand::Special)
                .or(float(word).map(Operand::Float))
                .ok_or(ParseErrorKind::Undeclared { name: word.into() }),
        }
    }

    /// Parses an address after the opening bracket.
    fn address(&mut self, cursor: &mut Cursor<'_>) -> Result<Operand, ParseErrorKind> {
        let word = cursor.word("a base register, array or parameter")?;
        let name = *self.names.get(word).ok_or(ParseErrorKind::Undeclared { name: word.into() })?;
        let mut offset = 0;
        while !cursor.take("]") {
            let sign = if cursor.take("+") { 1 } else { -1 };
            if sign == -1 && cursor.peek() != "-" {
                return Err(cursor.expected("`]`"));
            }
            // Both `+ -4` and `- 4` are valid.
            offset += cursor.number()?;
        }
        let narrow = |value: i128| {
            i64::try_from(value).map_err(|_| ParseErrorKind::Expected {
                expected: "an offset of 64 bits",
                found: value.to_string(),
            })
        };
        match name {
            Name::Reg(base, ty) => Ok(Operand::Address(Addr { base, offset: narrow(offset)? }, Some(ty))),
            Name::Symbol(base) => Ok(Operand::Address(Addr { base, offset: narrow(offset)? }, None)),
            Name::Param { at, bytes } if (0..bytes as i128).contains(&offset) => {
                Ok(Operand::Param { at: at + offset as usize, room: bytes - offset as usize })
            }
            _ => Err(ParseErrorKind::Expected { expected: "an address", found: word.into() }),
        }
    }
}

fn special(word: &str) -> Option<Special> {
    let axis = |prefix: &str| ["x", "y", "z"].iter().position(|a| word.strip_prefix(prefix) == Some(*a));
    None.or(axis("%tid.").map(Special::Tid))
        .or(axis("%ctaid.").map(Special::Ctaid))
        .or(axis("%nctaid.").map(Special::Nctaid))
}
