//! Loads, stores, atomics, fences and asynchronous copies.

use super::{Args, Result};
use crate::inst::{AtomOp, LoadDst, Op, Strength};
use crate::operand::Operand;
use crate::types::Type;

/// Claims `.global` or `.shared`; without either an address would be generic, which the dialect does not use.
fn is_shared(args: &mut Args<'_>) -> Result<bool> {
    if args.take("shared") || args.take("shared::cta") {
        return Ok(true);
    }
    args.need("global").map(|()| false)
}

/// Cache hints change no result.
fn ignore_hints(args: &mut Args<'_>, operators: &[&str]) {
    let hint = |m: &str| {
        let level = [
            "L1::evict_first",
            "L1::evict_last",
            "L1::evict_unchanged",
            "L1::evict_normal",
            "L1::no_allocate",
        ];
        let prefetch = ["L2::64B", "L2::128B", "L2::256B"];
        (operators.contains(&m) || level.contains(&m) || prefetch.contains(&m)).then_some(())
    };
    while args.pick(hint).is_some() {}
}

/// `.weak`, `.volatile`, or one of `strong` with a scope.
fn strength(args: &mut Args<'_>, strong: &str) -> Result<Strength> {
    if args.take("volatile") {
        return Ok(Strength { atomic: true, gpu: true, ..Strength::PLAIN });
    }
    let (relaxed, ordered) = (args.take("relaxed"), args.take(strong));
    if !relaxed && !ordered {
        args.take("weak");
        return Ok(Strength::PLAIN);
    }
    let gpu = scope(args).ok_or(args.unsupported())?;
    let (acquire, release) = (ordered && strong == "acquire", ordered && strong == "release");
    Ok(Strength { atomic: true, acquire, release, gpu, read_only: false })
}

/// Whether the scope is wider than the block.
fn scope(args: &mut Args<'_>) -> Option<bool> {
    args.pick(|m| match m {
        "cta" => Some(false),
        "gpu" | "sys" | "gl" => Some(true),
        _ => None,
    })
}

/// Claims `.v2` or `.v4`, and the type.
fn vector_type(args: &mut Args<'_>) -> Result<(usize, Type)> {
    let len = if args.take("v2") {
        2
    } else if args.take("v4") {
        4
    } else {
        1
    };
    let ty = args.ty()?;
    if ty == Type::Pred || len * ty.bytes() > 16 {
        return Err(args.unsupported());
    }
    Ok((len, ty))
}

pub(super) fn load(args: &mut Args<'_>) -> Result<Op> {
    let param = args.take("param");
    let shared = !param && is_shared(args)?;
    let read_only = !param && !shared && args.take("nc");
    let strength = match param || read_only {
        true => Strength { read_only, ..Strength::PLAIN },
        false => strength(args, "acquire")?,
    };
    if !param {
        ignore_hints(args, &["ca", "cg", "cs", "lu", "cv"]);
    }
    let (len, ty) = vector_type(args)?;
    args.count(2)?;
    let dest = |part: &Operand| -> Result<LoadDst> {
        match part {
            Operand::Sink => Ok(None),
            _ => args.wide_reg(0, part, ty).map(|(reg, bytes)| Some((reg, bytes as u8))),
        }
    };
    let d: Result<Box<[LoadDst]>> = args.vector(0, len)?.iter().map(dest).collect();
    if !param {
        return Ok(Op::Load { shared, d: d?, at: args.addr(1, shared)?, ty, strength });
    }
    match args.operand(1)? {
        Operand::Param { at, room } if room >= len * ty.bytes() && at.is_multiple_of(ty.bytes()) => {
            Ok(Op::LoadParam { d: d?, at, ty })
        }
        other => Err(args.wrong(1, format!("a parameter with room for .{}", ty.name()), &other)),
    }
}

pub(super) fn store(args: &mut Args<'_>) -> Result<Op> {
    let shared = is_shared(args)?;
    let strength = strength(args, "release")?;
    ignore_hints(args, &["wb", "cg", "cs", "wt"]);
    let (len, ty) = vector_type(args)?;
    args.count(2)?;
    let mut s = Vec::new();
    for part in args.vector(1, len)? {
        s.push(match part {
            Operand::Reg(..) => args.wide_reg(1, &part, ty)?.0,
            _ => args.source_of(1, &part, ty)?,
        });
    }
    Ok(Op::Store { shared, at: args.addr(0, shared)?, s: s.into(), ty, strength })
}

pub(super) fn atomic(args: &mut Args<'_>, returns: bool) -> Result<Op> {
    let shared = is_shared(args)?;
    let (acquire, release) = match args.pick(|m| match m {
        "relaxed" => Some((false, false)),
        "acquire" => Some((true, false)),
        "release" => Some((false, true)),
        "acq_rel" => Some((true, true)),
        _ => None,
    }) {
        // `red` learns nothing, so it cannot acquire.
        Some((true, _)) if !returns => return Err(args.unsupported()),
        order => order.unwrap_or_default(),
    };
    let gpu = scope(args).unwrap_or(true);
    let name = args.pick(atomic_name).ok_or(args.unsupported())?;
    let ty = args.ty()?;
    let op = match (name, ty) {
        (AtomOp::Add, Type::F32) => AtomOp::AddF32,
        (AtomOp::Add, Type::U32 | Type::S32 | Type::U64) => name,
        (AtomOp::Min | AtomOp::Max, _) if ty.is_int() && ty.bytes() >= 4 => name,
        (AtomOp::Inc | AtomOp::Dec, Type::U32) => name,
        (AtomOp::And | AtomOp::Or | AtomOp::Xor, Type::B32 | Type::B64) => name,
        (AtomOp::Exch | AtomOp::Cas, Type::B32 | Type::B64) if returns => name,
        _ => return Err(args.unsupported()),
    };
    let first = usize::from(returns);
    let is_cas = matches!(op, AtomOp::Cas);
    args.count(first + 2 + usize::from(is_cas))?;
    let d = match args.operand(0)? {
        Operand::Sink => None,
        _ if returns => Some(args.dest(0, ty)?),
        _ => None,
    };
    let b = args.source(first + 1, ty)?;
    let c = if is_cas { args.source(first + 2, ty)? } else { b };
    let strength = Strength { atomic: true, acquire, release, gpu, read_only: false };
    Ok(Op::Atomic { shared, op, ty, d, at: args.addr(first, shared)?, b, c, strength })
}

fn atomic_name(name: &str) -> Option<AtomOp> {
    Some(match name {
        "add" => AtomOp::Add,
        "and" => AtomOp::And,
        "or" => AtomOp::Or,
        "xor" => AtomOp::Xor,
        "exch" => AtomOp::Exch,
        "cas" => AtomOp::Cas,
        "min" => AtomOp::Min,
        "max" => AtomOp::Max,
        "inc" => AtomOp::Inc,
        "dec" => AtomOp::Dec,
        _ => return None,
    })
}

/// `fence.acq_rel.scope`, `fence.sc.scope`, `membar.level`
pub(super) fn fence(args: &mut Args<'_>, membar: bool) -> Result<Op> {
    if !membar && !args.take("acq_rel") {
        args.need("sc")?;
    }
    args.count(0)?;
    Ok(Op::Fence { gpu: scope(args).ok_or(args.unsupported())? })
}

/// `cp.async.ca/cg.shared.global [dst], [src], size{, src_size}` and its commits and waits
pub(super) fn copy_async(args: &mut Args<'_>) -> Result<Op> {
    args.need("async")?;
    if args.take("commit_group") {
        return args.count(0).map(|()| Op::CopyCommit);
    }
    if args.take("wait_all") {
        return args.count(0).map(|()| Op::CopyWait { keep: None });
    }
    if args.take("wait_group") {
        args.count(1)?;
        let keep = args.literal(0, "a number of groups", |n| (0..1 << 16).contains(&n))?;
        return Ok(Op::CopyWait { keep: Some(keep as u32) });
    }
    let bypass = args.take("cg");
    if !bypass {
        args.need("ca")?;
    }
    if !(args.take("shared") || args.take("shared::cta")) {
        return Err(args.unsupported());
    }
    args.need("global")?;
    ignore_hints(args, &[]);
    let sizes: &[i128] = if bypass { &[16] } else { &[4, 8, 16] };
    let size = args.literal(2, if bypass { "16" } else { "4, 8 or 16" }, |n| sizes.contains(&n))?;
    let src_size = if args.operands.len() == 4 { Some(args.source(3, Type::U32)?) } else { None };
    args.count(3 + usize::from(src_size.is_some()))?;
    Ok(Op::CopyAsync { dst: args.addr(0, true)?, src: args.addr(1, false)?, size: size as usize, src_size })
}
