//! Instructions that a warp or a block executes together.

use super::{Args, Result};
use crate::inst::{MmaKind, Op, ReduxOp, ShflMode, VoteMode};
use crate::types::Type;

/// `bar.sync a{, b}`, `bar.arrive a, b`, `bar.warp.sync mask`, and the same as `barrier...aligned`
pub(super) fn barrier(args: &mut Args<'_>, short: bool) -> Result<Op> {
    if short && args.take("warp") {
        args.need("sync")?;
        args.count(1)?;
        return Ok(Op::WarpSync { mask: args.source(0, Type::B32)? });
    }
    if !short {
        args.need("aligned")?;
    }
    args.take("cta");
    let arrive_only = args.take("arrive");
    if !arrive_only {
        args.need("sync")?;
    }
    let id = args.source(0, Type::U32)?;
    let threads =
        if arrive_only || args.operands.len() == 2 { Some(args.source(1, Type::U32)?) } else { None };
    args.count(1 + usize::from(threads.is_some()))?;
    Ok(Op::Barrier { arrive_only, id, threads })
}

/// `shfl.sync.mode.b32 d{|p}, a, b, c, mask`
pub(super) fn shuffle(args: &mut Args<'_>) -> Result<Op> {
    args.need("sync")?;
    args.need("b32")?;
    let mode = args.pick(|m| {
        Some(match m {
            "up" => ShflMode::Up,
            "down" => ShflMode::Down,
            "bfly" => ShflMode::Bfly,
            "idx" => ShflMode::Idx,
            _ => return None,
        })
    });
    let mode = mode.ok_or(args.unsupported())?;
    args.count(5)?;
    let (d, p) = args.dest_and_pred(Type::B32)?;
    let (a, b) = (args.source(1, Type::B32)?, args.source(2, Type::B32)?);
    Ok(Op::Shuffle { mode, d, p, a, b, c: args.source(3, Type::B32)?, mask: args.source(4, Type::B32)? })
}

/// `vote.sync.mode.pred p, {!}a, mask` and `vote.sync.ballot.b32 d, {!}a, mask`
pub(super) fn vote(args: &mut Args<'_>) -> Result<Op> {
    args.need("sync")?;
    args.count(3)?;
    let (p, mask) = (args.pred(1)?, args.source(2, Type::B32)?);
    if args.take("ballot") {
        args.need("b32")?;
        return Ok(Op::Vote { mode: VoteMode::Ballot, d: args.dest(0, Type::B32)?, p, mask });
    }
    let mode = args.pick(|m| {
        Some(match m {
            "all" => VoteMode::All,
            "any" => VoteMode::Any,
            "uni" => VoteMode::Uni,
            _ => return None,
        })
    });
    let mode = mode.ok_or(args.unsupported())?;
    args.need("pred")?;
    Ok(Op::Vote { mode, d: args.pred_dest_of(0, &args.operand(0)?)?, p, mask })
}

/// `match.any.sync.type d, a, mask` and `match.all.sync.type d{|p}, a, mask`
pub(super) fn matching(args: &mut Args<'_>) -> Result<Op> {
    args.need("sync")?;
    let all = args.take("all");
    if !all {
        args.need("any")?;
    }
    let ty = args.ty()?;
    if !matches!(ty, Type::B32 | Type::B64) {
        return Err(args.unsupported());
    }
    args.count(3)?;
    let (d, p) = args.dest_and_pred(Type::B32)?;
    if p.is_some() && !all {
        return Err(args.unsupported());
    }
    Ok(Op::Match { all, d, p, a: args.source(1, ty)?, mask: args.source(2, Type::B32)? })
}

/// `redux.sync.op.type d, a, mask`
pub(super) fn redux(args: &mut Args<'_>) -> Result<Op> {
    args.need("sync")?;
    let ty = args.ty()?;
    let arithmetic = matches!(ty, Type::U32 | Type::S32);
    let op = args.pick(|m| {
        Some(match m {
            "add" if arithmetic => ReduxOp::Add,
            "min" if arithmetic => ReduxOp::Min,
            "max" if arithmetic => ReduxOp::Max,
            "and" if ty == Type::B32 => ReduxOp::And,
            "or" if ty == Type::B32 => ReduxOp::Or,
            "xor" if ty == Type::B32 => ReduxOp::Xor,
            _ => return None,
        })
    });
    let op = op.ok_or(args.unsupported())?;
    args.count(3)?;
    let (d, a) = (args.dest(0, ty)?, args.source(1, ty)?);
    Ok(Op::Redux { op, signed: ty.is_signed(), d, a, mask: args.source(2, Type::B32)? })
}

pub(super) fn active_mask(args: &mut Args<'_>) -> Result<Op> {
    args.need("b32")?;
    args.count(1)?;
    Ok(Op::ActiveMask { d: args.dest(0, Type::B32)? })
}

/// `ldmatrix.sync.aligned.m8n8.num{.trans}.shared.b16 {...}, [address]`
pub(super) fn load_matrix(args: &mut Args<'_>) -> Result<Op> {
    for fixed in ["sync", "aligned", "m8n8", "b16"] {
        args.need(fixed)?;
    }
    if !(args.take("shared") || args.take("shared::cta")) {
        return Err(args.unsupported());
    }
    let count = args.pick(|m| match m {
        "x1" => Some(1),
        "x2" => Some(2),
        "x4" => Some(4),
        _ => None,
    });
    let count = count.ok_or(args.unsupported())?;
    let transposed = args.take("trans");
    args.count(2)?;
    let d = args.dests(0, count, Type::B32)?.into();
    Ok(Op::LoadMatrix { d, at: args.addr(1, true)?, transposed })
}

/// `mma.sync.aligned.shape.row.col.d.a.b.c d, a, b, c`
pub(super) fn mma(args: &mut Args<'_>) -> Result<Op> {
    for fixed in ["sync", "aligned", "row", "col"] {
        args.need(fixed)?;
    }
    let (k16, k32) = (args.take("m16n8k16"), args.take("m16n8k32"));
    let types = [args.ty()?, args.ty()?, args.ty()?, args.ty()?];
    let byte = |ty: Type| ty.is_int() && ty.bytes() == 1;
    let kind = match types {
        [Type::S32, a, b, Type::S32] if k32 && byte(a) && byte(b) => {
            MmaKind::Int { a_signed: a.is_signed(), b_signed: b.is_signed() }
        }
        [Type::F32, Type::Bf16, Type::Bf16, Type::F32] if k16 => MmaKind::Bf16,
        [Type::F32, Type::F16, Type::F16, Type::F32] if k16 => MmaKind::F16,
        _ => return Err(args.unsupported()),
    };
    args.count(4)?;
    let mut d = [0; 4];
    d.copy_from_slice(&args.dests(0, 4, types[0])?);
    let (a, b) = (args.sources(1, Type::B32)?, args.sources(2, Type::B32)?);
    Ok(Op::Mma { kind, d, a, b, c: args.sources(3, types[0])? })
}
