//! Arithmetic, conversion, comparison and selection.

use super::{Args, Result};
use crate::inst::Op;
use crate::operand::Operand;
use crate::ops::{Shape, compare, convert, float, int};
use crate::types::Type;

/// Any instruction that computes a register from up to three others.
pub(super) fn alu(args: &mut Args<'_>, name: &str) -> Result<Op> {
    if name == "dp4a" {
        let shape = int::dp4a(args.ty()?, args.ty()?).ok_or(args.unsupported())?;
        return build(args, &shape);
    }
    let ty = args.ty()?;
    // These modifiers are part of the name: `mul.wide`, `add.rn`.
    let how = args.pick(|m| ["lo", "hi", "wide", "rn", "NaN"].into_iter().find(|known| *known == m));
    let full = how.map_or(name.to_owned(), |how| format!("{name}.{how}"));
    let shape = match ty {
        Type::F32 => float::single(&full),
        Type::F64 => float::double(&full),
        Type::Bf16x2 => float::halves(&full),
        ty => int::plain(&full, ty),
    };
    let shape = shape.ok_or(args.unsupported())?;
    if name == "bfe" {
        for at in 2..4 {
            args.literal(at, "a number, 0 to 255", |n| (0..256).contains(&n))?;
        }
    }
    let op = build(args, &shape)?;
    Ok(match op {
        Op::Alu { f, d, s, n, .. } if matches!(&full[..], "div" | "rem") => {
            Op::Alu { f, d, s, n, divisor: true }
        }
        other => other,
    })
}

pub(super) fn build(args: &mut Args<'_>, shape: &Shape) -> Result<Op> {
    args.count(shape.s.len() + 1)?;
    let d = args.dest(0, shape.d)?;
    let first = args.source(1, shape.s[0])?;
    let mut s = [first; 3];
    for (i, &ty) in shape.s.iter().enumerate().skip(1) {
        s[i] = args.source(i + 1, ty)?;
    }
    Ok(Op::Alu { f: shape.f, d, s, n: shape.s.len() as u8, divisor: false })
}

/// `cvt{.rnd}.to.from d, a{, b}` and `cvt.pack.sat.s8.s32.b32 d, a, b, c`
pub(super) fn cvt(args: &mut Args<'_>) -> Result<Op> {
    if args.take("pack") {
        for fixed in ["sat", "s8", "s32", "b32"] {
            args.need(fixed)?;
        }
        return build(args, &convert::pack());
    }
    let (to, from) = (args.ty()?, args.ty()?);
    let round = args.pick(|m| ["rn", "rni", "rzi", "rpi"].into_iter().find(|known| *known == m));
    let shape = convert::conversion(round.unwrap_or(""), to, from).ok_or(args.unsupported())?;
    build(args, &shape)
}

/// `setp.cmp{.bool}.type p, a, b{, {!}c}`
pub(super) fn setp(args: &mut Args<'_>) -> Result<Op> {
    let ty = args.ty()?;
    let f = args.pick(|m| compare::comparison(m, ty)).ok_or(args.unsupported())?;
    let combine = args.pick(compare::logic);
    args.count(3 + usize::from(combine.is_some()))?;
    let d = args.pred_dest_of(0, &args.operand(0)?)?;
    let with = match combine {
        Some(combine) => Some((combine, args.pred(3)?)),
        None => None,
    };
    Ok(Op::Setp { f, d, a: args.source(1, ty)?, b: args.source(2, ty)?, with })
}

/// `selp.type d, a, b, p`
pub(super) fn selp(args: &mut Args<'_>) -> Result<Op> {
    let ty = args.ty()?;
    args.count(4)?;
    if !matches!(ty, Type::B16 | Type::B32 | Type::F32) {
        return Err(args.unsupported());
    }
    Ok(Op::Selp { d: args.dest(0, ty)?, a: args.source(1, ty)?, b: args.source(2, ty)?, p: args.pred(3)? })
}

/// `mov.type d, a`, `mov.b64 d, {a, b}` and `mov.b64 {a, b}, s`
pub(super) fn mov(args: &mut Args<'_>) -> Result<Op> {
    let ty = args.ty()?;
    args.count(2)?;
    if !matches!(ty, Type::B32 | Type::B64 | Type::U32 | Type::U64 | Type::F32) {
        return Err(args.unsupported());
    }
    match (args.operand(0)?, args.operand(1)?) {
        (_, Operand::Special(what)) if ty == Type::U32 => Ok(Op::ReadSpecial { d: args.dest(0, ty)?, what }),
        (_, Operand::Vector(_)) if ty == Type::B64 => {
            Ok(Op::Pack { d: args.dest(0, ty)?, parts: args.sources(1, Type::B32)? })
        }
        (Operand::Vector(_), _) if ty == Type::B64 => {
            let parts = args.dests(0, 2, Type::B32)?;
            Ok(Op::Unpack { parts: [parts[0], parts[1]], s: args.source(1, ty)? })
        }
        (_, Operand::Symbol(slot)) if ty != Type::F32 => Ok(Op::Move { d: args.dest(0, ty)?, s: slot }),
        _ => Ok(Op::Move { d: args.dest(0, ty)?, s: args.source(1, ty)? }),
    }
}
