//! Loads, stores, atomics, fences and asynchronous copies.

use super::{Args, Result};
use crate::inst::{AtomOp, Op};
use crate::operand::Operand;
use crate::types::Type;

/// Claims `.global` or `.shared`. Without either an address would be generic, which is not supported.
fn is_shared(args: &mut Args<'_>) -> Result<bool> {
    if args.take("shared") { Ok(true) } else { args.need("global").map(|()| false) }
}

/// Claims `.v2` or `.v4`, and the type.
fn vector_type(args: &mut Args<'_>) -> Result<(usize, Type)> {
    let len = args.pick(|m| match m {
        "v2" => Some(2),
        "v4" => Some(4),
        _ => None,
    });
    let (len, ty) = (len.unwrap_or(1), args.ty()?);
    if ty.bytes() < 2 || len * ty.bytes() > 16 { Err(args.unsupported()) } else { Ok((len, ty)) }
}

pub(super) fn load(args: &mut Args<'_>) -> Result<Op> {
    let param = args.take("param");
    let shared = !param && is_shared(args)?;
    let read_only = !param && !shared && args.take("nc");
    if read_only {
        // A hint that changes no result.
        args.take("L1::no_allocate");
    }
    let (len, ty) = vector_type(args)?;
    args.count(2)?;
    let d = args.dests(0, len, ty)?.into();
    if !param {
        return Ok(Op::Load { shared, d, at: args.addr(1, shared)?, ty, read_only });
    }
    match args.operand(1)? {
        Operand::Param { at, room } if room >= len * ty.bytes() && at.is_multiple_of(ty.bytes()) => {
            Ok(Op::LoadParam { d, at, ty })
        }
        other => Err(args.wrong(1, format!("a parameter with room for .{}", ty.name()), &other)),
    }
}

pub(super) fn store(args: &mut Args<'_>) -> Result<Op> {
    let shared = is_shared(args)?;
    // A byte is the low one of a 16-bit register.
    let byte = args.take("b8");
    let (len, register) = if byte { (1, Type::B16) } else { vector_type(args)? };
    args.count(2)?;
    let parts = args.vector(1, len)?;
    let s: Result<Box<[_]>> = parts.iter().map(|part| args.source_of(1, part, register)).collect();
    let ty = if byte { Type::B8 } else { register };
    Ok(Op::Store { shared, at: args.addr(0, shared)?, s: s?, ty })
}

/// `atom` and `red`, of device scope, relaxed: `.inc.u32`, `.add.u32` and `.add.u64`
pub(super) fn atomic(args: &mut Args<'_>, returns: bool) -> Result<Op> {
    let shared = is_shared(args)?;
    let (op, ty) = match (args.take("inc"), args.take("add"), args.ty()?) {
        (true, false, Type::U32) => (AtomOp::Inc, Type::U32),
        (false, true, ty @ (Type::U32 | Type::U64)) => (AtomOp::Add, ty),
        _ => return Err(args.unsupported()),
    };
    let first = usize::from(returns);
    args.count(first + 2)?;
    let d = if returns { Some(args.dest(0, ty)?) } else { None };
    Ok(Op::Atomic { shared, op, ty, d, at: args.addr(first, shared)?, b: args.source(first + 1, ty)? })
}

/// `membar.gl`
pub(super) fn fence(args: &mut Args<'_>) -> Result<Op> {
    args.need("gl")?;
    args.count(0).map(|()| Op::Fence)
}

/// `cp.async.cg.shared.global [dst], [src], 16{, src_size}`, its commits and waits, and
/// `cp.async.bulk.prefetch.L2.global [address], bytes`
pub(super) fn copy_async(args: &mut Args<'_>) -> Result<Op> {
    args.need("async")?;
    if args.take("bulk") {
        for fixed in ["prefetch", "L2", "global"] {
            args.need(fixed)?;
        }
        args.count(2)?;
        return Ok(Op::Prefetch { at: args.addr(0, false)?, bytes: args.source(1, Type::U32)? });
    }
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
    for fixed in ["cg", "shared", "global"] {
        args.need(fixed)?;
    }
    args.take("L2::128B");
    args.literal(2, "16", |n| n == 16)?;
    let src_size = if args.operands.len() == 4 { Some(args.source(3, Type::U32)?) } else { None };
    args.count(3 + usize::from(src_size.is_some()))?;
    Ok(Op::CopyAsync { dst: args.addr(0, true)?, src: args.addr(1, false)?, src_size })
}
