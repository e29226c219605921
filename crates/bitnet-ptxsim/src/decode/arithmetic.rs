//! Arithmetic, comparison and selection.

use super::{Args, Result};
use crate::inst::{Op, PredFn};
use crate::operand::Operand;
use crate::ops::float::Accuracy;
use crate::ops::int::Part;
use crate::ops::{Shape, compare, float, int};
use crate::types::Type;

/// Everything that computes one register from up to four.
pub(super) fn alu(args: &mut Args<'_>, name: &str) -> Result<Op> {
    let (mut ftz, mut sat) = (false, false);
    let shape = match name {
        "dp4a" => int::dp4a(args.ty()?, args.ty()?),
        "shf" => {
            let left = args.take("l") || !args.take("r");
            let wrap = args.take("wrap") || !args.take("clamp");
            args.need("b32")?;
            Some(int::funnel(left, wrap))
        }
        _ => match args.ty()? {
            Type::Pred => return logic(args, name),
            Type::F32 => {
                ftz = args.take("ftz");
                sat = matches!(name, "add" | "sub" | "mul" | "fma" | "mad") && args.take("sat");
                float_shape(args, name)
            }
            Type::F64 => float::double(name, args.pick(|m| (m == "rn").then_some(Accuracy::Rn))),
            ty if matches!(name, "mul" | "mad") => {
                let part = args.pick(|m| match m {
                    "lo" => Some(Part::Lo),
                    "hi" => Some(Part::Hi),
                    "wide" => Some(Part::Wide),
                    _ => None,
                });
                part.and_then(|part| int::multiply(part, ty, name == "mad"))
            }
            ty => int::plain(name, ty),
        },
    };
    let shape = shape.ok_or(args.unsupported())?;
    let divisor = matches!(name, "div" | "rem") && shape.d.is_int();
    if name == "lop3" {
        args.literal(4, "a table of 8 bits", |lut| (0..256).contains(&lut))?;
    }
    build(args, &shape, ftz, sat, divisor)
}

pub(super) fn build(args: &mut Args<'_>, shape: &Shape, ftz: bool, sat: bool, divisor: bool) -> Result<Op> {
    args.count(shape.s.len() + 1)?;
    let d = args.dest(0, shape.d)?;
    let first = args.source(1, shape.s[0])?;
    let mut s = [first; 4];
    for (i, &ty) in shape.s.iter().enumerate().skip(1) {
        s[i] = args.source(i + 1, ty)?;
    }
    Ok(Op::Alu { f: shape.f, d, s, n: shape.s.len() as u8, ftz, sat, divisor })
}

fn float_shape(args: &mut Args<'_>, name: &str) -> Option<Shape> {
    if matches!(name, "min" | "max") && args.take("NaN") {
        return Some(float::nan_min_max(name == "max"));
    }
    let accuracy = args.pick(|m| match m {
        "rn" => Some(Accuracy::Rn),
        "approx" => Some(Accuracy::Approx),
        "full" if name == "div" => Some(Accuracy::Approx),
        _ => None,
    });
    float::arithmetic(name, accuracy)
}

/// `and.pred` and so on.
fn logic(args: &mut Args<'_>, name: &str) -> Result<Op> {
    let f: PredFn = match name {
        "not" => |a, _| !a,
        _ => compare::logic(name).ok_or(args.unsupported())?,
    };
    args.count(if name == "not" { 2 } else { 3 })?;
    let d = args.pred_dest_of(0, &args.operand(0)?)?;
    let a = args.pred(1)?;
    let b = if name == "not" { a } else { args.pred(2)? };
    Ok(Op::PredLogic { f, d, a, b })
}

/// `setp.cmp{.bool}{.ftz}.type p{|q}, a, b{, {!}c}`
pub(super) fn setp(args: &mut Args<'_>) -> Result<Op> {
    let ty = args.ty()?;
    let f = args.pick(|m| compare::comparison(m, ty)).ok_or(args.unsupported())?;
    let combine = args.pick(compare::logic);
    let ftz = ty == Type::F32 && args.take("ftz");
    args.count(3 + usize::from(combine.is_some()))?;
    let dest = |operand: &Operand| match operand {
        Operand::Sink => Ok(None),
        other => args.pred_dest_of(0, other).map(Some),
    };
    let (d, not_d) = match args.operand(0)? {
        Operand::Pair(p, q) => (dest(&p)?, dest(&q)?),
        p => (dest(&p)?, None),
    };
    let with = match combine {
        Some(combine) => Some((combine, args.pred(3)?)),
        None => None,
    };
    Ok(Op::Setp { f, d, not_d, a: args.source(1, ty)?, b: args.source(2, ty)?, ftz, with })
}

/// `selp.type d, a, b, p`
pub(super) fn selp(args: &mut Args<'_>) -> Result<Op> {
    let ty = args.ty()?;
    args.count(4)?;
    if !matches!(ty.bytes(), 2 | 4 | 8) {
        return Err(args.unsupported());
    }
    Ok(Op::Selp { d: args.dest(0, ty)?, a: args.source(1, ty)?, b: args.source(2, ty)?, p: args.pred(3)? })
}
