//! Instructions that a whole warp or block executes together.

use super::{Args, Result};
use crate::inst::{MmaKind, Op, ReduxOp, ShflMode, WARP};
use crate::operand::Operand;
use crate::types::Type;

/// The member mask, which must be the whole warp.
fn whole_warp(args: &Args<'_>, index: usize) -> Result<()> {
    let all = |mask| mask == -1 || mask == i128::from(u32::MAX);
    args.literal(index, "the mask of all lanes", all).map(|_| ())
}

/// `bar.sync a{, threads}` and `bar.warp.sync 0xffffffff`
pub(super) fn barrier(args: &mut Args<'_>) -> Result<Op> {
    let warp = args.take("warp");
    args.need("sync")?;
    if warp {
        args.count(1)?;
        return whole_warp(args, 0).map(|()| Op::WarpSync);
    }
    let mut warps = None;
    if args.operand(1).is_ok() {
        args.count(2)?;
        let whole = |threads| (1..=1024).contains(&threads) && threads % WARP as i128 == 0;
        warps = Some(args.literal(1, "a number of threads in whole warps", whole)? as usize / WARP);
    } else {
        args.count(1)?;
    }
    if matches!(args.operand(0)?, Operand::Int(_)) {
        args.literal(0, "a barrier, 0 to 15", |id| (0..16).contains(&id))?;
    }
    Ok(Op::Barrier { id: args.source(0, Type::U32)?, warps })
}

/// `griddepcontrol.wait` and `griddepcontrol.launch_dependents`
pub(super) fn overlap(args: &mut Args<'_>) -> Result<Op> {
    args.count(0)?;
    if args.take("wait") {
        return Ok(Op::GridWait);
    }
    args.need("launch_dependents").map(|()| Op::LaunchDependents)
}

/// `shfl.sync.mode.b32 d{|p}, a, b, c, 0xffffffff`
pub(super) fn shuffle(args: &mut Args<'_>) -> Result<Op> {
    args.need("sync")?;
    args.need("b32")?;
    let mode = args.pick(|m| match m {
        "up" => Some(ShflMode::Up),
        "bfly" => Some(ShflMode::Bfly),
        "idx" => Some(ShflMode::Idx),
        _ => None,
    });
    let mode = mode.ok_or(args.unsupported())?;
    args.count(5)?;
    whole_warp(args, 4)?;
    let (d, p) = args.dest_and_pred(Type::B32)?;
    let (a, b) = (args.source(1, Type::B32)?, args.source(2, Type::B32)?);
    Ok(Op::Shuffle { mode, d, p, a, b, c: args.source(3, Type::B32)? })
}

/// `vote.sync.ballot.b32 d, {!}a, 0xffffffff`
pub(super) fn vote(args: &mut Args<'_>) -> Result<Op> {
    for fixed in ["sync", "ballot", "b32"] {
        args.need(fixed)?;
    }
    args.count(3)?;
    whole_warp(args, 2)?;
    Ok(Op::Ballot { d: args.dest(0, Type::B32)?, p: args.pred(1)? })
}

/// `redux.sync.op.type d, a, 0xffffffff`
pub(super) fn redux(args: &mut Args<'_>) -> Result<Op> {
    args.need("sync")?;
    let ty = args.ty()?;
    let op = args.pick(|m| match (m, ty) {
        ("add", Type::S32) => Some(ReduxOp::Add),
        ("min", Type::U32) => Some(ReduxOp::Min),
        ("max", Type::U32) => Some(ReduxOp::Max),
        _ => None,
    });
    let op = op.ok_or(args.unsupported())?;
    args.count(3)?;
    whole_warp(args, 2)?;
    Ok(Op::Redux { op, d: args.dest(0, ty)?, a: args.source(1, ty)? })
}

/// `ldmatrix.sync.aligned.m8n8.x4{.trans}.shared.b16 {...}, [address]`
pub(super) fn load_matrix(args: &mut Args<'_>) -> Result<Op> {
    for fixed in ["sync", "aligned", "m8n8", "x4", "shared", "b16"] {
        args.need(fixed)?;
    }
    let transposed = args.take("trans");
    args.count(2)?;
    let d = args.dests(0, 4, Type::B32)?.into();
    Ok(Op::LoadMatrix { d, at: args.addr(1, true)?, transposed })
}

/// `mma.sync.aligned.shape.row.col.d.a.b.c d, a, b, c`
pub(super) fn mma(args: &mut Args<'_>) -> Result<Op> {
    for fixed in ["sync", "aligned", "row", "col"] {
        args.need(fixed)?;
    }
    let (k16, k32) = (args.take("m16n8k16"), args.take("m16n8k32"));
    let types = [args.ty()?, args.ty()?, args.ty()?, args.ty()?];
    let kind = match types {
        [Type::S32, a @ (Type::U8 | Type::S8), Type::S8, Type::S32] if k32 => {
            MmaKind::Int { signed: a == Type::S8 }
        }
        [Type::F32, Type::Bf16, Type::Bf16, Type::F32] if k16 => MmaKind::Bf16,
        _ => return Err(args.unsupported()),
    };
    args.count(4)?;
    let mut d = [0; 4];
    d.copy_from_slice(&args.dests(0, 4, types[0])?);
    let (a, b) = (args.sources(1, Type::B32)?, args.sources(2, Type::B32)?);
    Ok(Op::Mma { kind, d, a, b, c: args.sources(3, types[0])? })
}
