//! Decodes an opcode with its modifiers and operands. Anything that no rule accepts is a parse error: the rule of an
//! instruction must claim every modifier.

mod arithmetic;
mod memory;
mod warp;

use crate::error::ParseErrorKind;
use crate::inst::{Addr, Op, Pred, PredRef, Reg};
use crate::operand::{Operand, Scope};
use crate::types::{Class, Type};

type Result<T, E = ParseErrorKind> = std::result::Result<T, E>;

/// Whether an instruction exists only for `.target sm_90`.
pub(crate) fn needs_sm_90(opcode: &str) -> bool {
    opcode.starts_with("griddepcontrol") || opcode.starts_with("cp.async.bulk")
}

pub(crate) fn decode(opcode: &str, operands: Vec<Operand>, scope: &mut Scope) -> Result<Op> {
    let mut parts = opcode.split('.');
    let name = parts.next().unwrap_or_default();
    let mut args = Args { opcode, mods: parts.collect(), operands, scope };
    let op = match name {
        "mov" => arithmetic::mov(&mut args),
        "cvt" => arithmetic::cvt(&mut args),
        "setp" => arithmetic::setp(&mut args),
        "selp" => arithmetic::selp(&mut args),
        "ld" => memory::load(&mut args),
        "st" => memory::store(&mut args),
        "atom" | "red" => memory::atomic(&mut args, name == "atom"),
        "membar" => memory::fence(&mut args),
        "cp" => memory::copy_async(&mut args),
        "bar" => warp::barrier(&mut args),
        "griddepcontrol" => warp::overlap(&mut args),
        "shfl" => warp::shuffle(&mut args),
        "vote" => warp::vote(&mut args),
        "redux" => warp::redux(&mut args),
        "ldmatrix" => warp::load_matrix(&mut args),
        "mma" => warp::mma(&mut args),
        "ret" | "exit" => args.count(0).map(|()| Op::Exit),
        _ => arithmetic::alu(&mut args, name),
    }?;
    match args.mods.first() {
        Some(modifier) => {
            Err(ParseErrorKind::Modifier { instruction: opcode.into(), modifier: (*modifier).into() })
        }
        None => Ok(op),
    }
}

/// The modifiers and operands of an instruction, with methods to claim them.
pub(crate) struct Args<'a> {
    opcode: &'a str,
    mods: Vec<&'a str>,
    operands: Vec<Operand>,
    scope: &'a mut Scope,
}

impl<'a> Args<'a> {
    fn unsupported(&self) -> ParseErrorKind {
        ParseErrorKind::Instruction { instruction: self.opcode.into() }
    }

    /// Claims the modifier `name`, if present.
    fn take(&mut self, name: &str) -> bool {
        let found = self.mods.iter().position(|m| *m == name);
        found.map(|at| self.mods.remove(at)).is_some()
    }

    fn need(&mut self, name: &str) -> Result<()> {
        if self.take(name) { Ok(()) } else { Err(self.unsupported()) }
    }

    /// Claims the first modifier that `known` maps to something.
    fn pick<T>(&mut self, known: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (at, value) = self.mods.iter().enumerate().find_map(|(at, m)| Some((at, known(m)?)))?;
        self.mods.remove(at);
        Some(value)
    }

    /// Claims the next type, in the written order.
    fn ty(&mut self) -> Result<Type> {
        self.pick(Type::parse).ok_or(self.unsupported())
    }

    fn count(&self, expected: usize) -> Result<()> {
        let found = self.operands.len();
        if found == expected {
            return Ok(());
        }
        Err(ParseErrorKind::OperandCount { instruction: self.opcode.into(), expected, found })
    }

    fn wrong(&self, index: usize, expected: impl Into<String>, found: &Operand) -> ParseErrorKind {
        ParseErrorKind::Operand {
            instruction: self.opcode.into(),
            position: index + 1,
            expected: expected.into(),
            found: found.describe(),
        }
    }

    fn operand(&self, index: usize) -> Result<Operand> {
        let found = self.operands.len();
        let missing =
            ParseErrorKind::OperandCount { instruction: self.opcode.into(), expected: index + 1, found };
        self.operands.get(index).cloned().ok_or(missing)
    }

    fn source(&mut self, index: usize, ty: Type) -> Result<Reg> {
        let operand = self.operand(index)?;
        self.source_of(index, &operand, ty)
    }

    fn source_of(&mut self, index: usize, operand: &Operand, ty: Type) -> Result<Reg> {
        let bits = 8 * ty.bytes() as u32;
        match *operand {
            Operand::Reg(reg, have) if have.fits(ty) => Ok(reg),
            Operand::Float(value) if bits == 32 && !ty.is_int() => Ok(self.scope.constant(value.into())),
            Operand::Int(value) if ty.class() != Class::Float => {
                let range = -(1i128 << (bits - 1))..1i128 << bits;
                if !range.contains(&value) {
                    return Err(self.wrong(index, format!("a number of {bits} bits"), operand));
                }
                Ok(self.scope.constant(value as u64 & (u64::MAX >> (64 - bits))))
            }
            _ => Err(self.wrong(index, format!("a .{} value", ty.name()), operand)),
        }
    }

    fn dest(&self, index: usize, ty: Type) -> Result<Reg> {
        self.dest_of(index, &self.operand(index)?, ty)
    }

    fn dest_of(&self, index: usize, operand: &Operand, ty: Type) -> Result<Reg> {
        match *operand {
            Operand::Reg(reg, have) if have.fits(ty) => Ok(reg),
            _ => Err(self.wrong(index, format!("a .{} register", ty.name()), operand)),
        }
    }

    fn pred(&self, index: usize) -> Result<PredRef> {
        match self.operand(index)? {
            Operand::Pred(pred) => Ok(pred),
            other => Err(self.wrong(index, "a predicate", &other)),
        }
    }

    fn pred_dest_of(&self, index: usize, operand: &Operand) -> Result<Pred> {
        match operand {
            Operand::Pred(PredRef { index, negated: false }) => Ok(*index),
            other => Err(self.wrong(index, "a predicate", other)),
        }
    }

    /// `d` or `d|p`.
    fn dest_and_pred(&self, ty: Type) -> Result<(Reg, Option<Pred>)> {
        match self.operand(0)? {
            Operand::Pair(d, p) => Ok((self.dest_of(0, &d, ty)?, Some(self.pred_dest_of(0, &p)?))),
            d => Ok((self.dest_of(0, &d, ty)?, None)),
        }
    }

    /// Global addresses are 64 bits wide, shared ones 32 or 64.
    fn addr(&self, index: usize, shared: bool) -> Result<Addr> {
        let operand = self.operand(index)?;
        let wanted = if shared { "a shared address" } else { "a 64-bit global address" };
        match operand {
            Operand::Address(addr, None) if shared => Ok(addr),
            Operand::Address(addr, Some(base))
                if base.class() != Class::Float && (base.bytes() == 8 || (shared && base.bytes() == 4)) =>
            {
                Ok(addr)
            }
            other => Err(self.wrong(index, wanted, &other)),
        }
    }

    /// `len` operands in braces, or one without braces.
    fn vector(&self, index: usize, len: usize) -> Result<Vec<Operand>> {
        match self.operand(index)? {
            Operand::Vector(parts) if parts.len() == len => Ok(parts),
            single if len == 1 && !matches!(single, Operand::Vector(_)) => Ok(vec![single]),
            other => Err(self.wrong(index, format!("a vector of {len}"), &other)),
        }
    }

    fn sources<const N: usize>(&mut self, index: usize, ty: Type) -> Result<[Reg; N]> {
        let mut regs = [0; N];
        for (reg, part) in regs.iter_mut().zip(self.vector(index, N)?) {
            *reg = self.source_of(index, &part, ty)?;
        }
        Ok(regs)
    }

    fn dests(&self, index: usize, len: usize, ty: Type) -> Result<Vec<Reg>> {
        self.vector(index, len)?.iter().map(|part| self.dest_of(index, part, ty)).collect()
    }

    /// An operand that must be a literal number.
    fn literal(&self, index: usize, expected: &str, allowed: impl Fn(i128) -> bool) -> Result<i128> {
        match self.operand(index)? {
            Operand::Int(value) if allowed(value) => Ok(value),
            other => Err(self.wrong(index, expected, &other)),
        }
    }
}
