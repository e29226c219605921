//! `mov` in its several forms, `cvt`, `cvta`.

use super::{Args, Result, arithmetic};
use crate::inst::{Op, Reg};
use crate::operand::Operand;
use crate::ops::convert::{Convert, ConvertMods, Round};
use crate::ops::{Shape, int, lanes};
use crate::types::Type;

fn copy(ty: Type) -> Shape {
    Shape { f: lanes!(|a: u64| a), d: ty, s: vec![ty] }
}

pub(super) fn mov(args: &mut Args<'_>) -> Result<Op> {
    let ty = args.ty()?;
    args.count(2)?;
    if ty == Type::Pred {
        let d = args.pred_dest_of(0, &args.operand(0)?)?;
        return match args.operand(1)? {
            Operand::Int(value @ 0..=1) => Ok(Op::PredConst { d, value: value == 1 }),
            _ => args.pred(1).map(|a| Op::PredLogic { f: |a, _| a, d, a, b: a }),
        };
    }
    if ty.bytes() < 2 {
        return Err(args.unsupported());
    }
    match (args.operand(0)?, args.operand(1)?) {
        (_, Operand::Special(what)) => {
            if ty.bytes() != 4 {
                return Err(args.unsupported());
            }
            Ok(Op::ReadSpecial { d: args.dest(0, ty)?, what })
        }
        (_, Operand::Vector(parts)) => {
            let part = part_type(args, ty, parts.len())?;
            let regs: Result<Box<[Reg]>> = parts.iter().map(|p| args.source_of(1, p, part)).collect();
            Ok(Op::Pack { d: args.dest(0, ty)?, parts: regs?, bits: 8 * part.bytes() as u32 })
        }
        (Operand::Vector(parts), _) => {
            let part = part_type(args, ty, parts.len())?;
            let dest = |p: &Operand| match p {
                Operand::Sink => Ok(None),
                other => args.dest_of(0, other, part).map(Some),
            };
            let regs: Result<Box<[Option<Reg>]>> = parts.iter().map(dest).collect();
            Ok(Op::Unpack { parts: regs?, s: args.source(1, ty)?, bits: 8 * part.bytes() as u32 })
        }
        _ => arithmetic::build(args, &copy(ty), false, false, false),
    }
}

/// The type of one of `parts` equal parts of a `.b32` or `.b64`.
fn part_type(args: &Args<'_>, whole: Type, parts: usize) -> Result<Type> {
    match (whole, parts) {
        (Type::B64, 2) => Ok(Type::B32),
        (Type::B64, 4) | (Type::B32, 2) => Ok(Type::B16),
        _ => Err(args.unsupported()),
    }
}

/// `cvt{.rnd}{.ftz}{.sat}{.relu}.to.from d, a{, b}` and `cvt.pack.sat.to.s32{.b32} d, a, b{, c}`
pub(super) fn cvt(args: &mut Args<'_>) -> Result<Op> {
    if args.take("pack") {
        args.need("sat")?;
        let shape = int::pack(args.ty()?).ok_or(args.unsupported())?;
        args.need("s32")?;
        if shape.s.len() == 3 {
            args.need("b32")?;
        }
        return arithmetic::build(args, &shape, false, false, false);
    }
    let (to, from) = (args.ty()?, args.ty()?);
    let round = args.pick(|m| {
        Some(match m {
            "rn" => (Round::Nearest, false),
            "rz" => (Round::Zero, false),
            "rni" => (Round::Nearest, true),
            "rzi" => (Round::Zero, true),
            "rmi" => (Round::Down, true),
            "rpi" => (Round::Up, true),
            _ => return None,
        })
    });
    let mods = ConvertMods {
        round: round.map(|r| r.0),
        whole: round.is_some_and(|r| r.1),
        sat: args.take("sat"),
        relu: args.take("relu"),
        ftz: args.take("ftz"),
    };
    let mut how = Convert::new(to, from, mods).ok_or(args.unsupported())?;
    args.count(how.sources() + 1)?;
    let (d, register) = args.wide_reg(0, &args.operand(0)?, to)?;
    how.register = register;
    let mut s = [0; 2];
    for (i, s) in s.iter_mut().enumerate().take(how.sources()) {
        // A source register may be wider too: its low bits are taken.
        *s = match args.operand(i + 1)? {
            reg @ Operand::Reg(..) => args.wide_reg(i + 1, &reg, from)?.0,
            _ => args.source(i + 1, from)?,
        };
    }
    if how.sources() == 1 {
        s[1] = s[0];
    }
    Ok(Op::Convert { how, d, s })
}

/// Global addresses are generic addresses here, so `cvta.to.global` changes nothing.
pub(super) fn cvta(args: &mut Args<'_>) -> Result<Op> {
    args.need("to")?;
    args.need("global")?;
    args.need("u64")?;
    arithmetic::build(args, &copy(Type::U64), false, false, false)
}
