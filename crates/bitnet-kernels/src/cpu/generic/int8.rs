//! Products with matrices of int8 ([`Int8Matrix`]): the loops of its [`product`](Int8Matrix::product), which the compiler
//! turns into the instructions of each set. A row of weights stays in L1 while all tokens pass over it; one token is
//! bound by memory, at 1.125 bytes a weight.

use std::ops::Range;

use bitnet_tensor::quant::{GROUP, GroupQuant};

use crate::{
    Int8Matrix,
    cpu::{generic::ternary::Output, lanes::Lanes},
};

pub(crate) struct Int8<'a> {
    pub(crate) w: &'a Int8Matrix,
    /// `[n][x_stride]`
    pub(crate) x: &'a [i8],
    pub(crate) x_stride: usize,
    /// `[n][groups]`
    pub(crate) x_groups: &'a [GroupQuant],
    pub(crate) n: usize,
    pub(crate) out: Output<'a>,
}

/// Multiplies all tokens by some rows.
#[inline(always)]
pub(crate) unsafe fn int8<L: Lanes>(a: &Int8<'_>, rows: Range<usize>) {
    let groups = a.w.cols().div_ceil(GROUP);
    for row in rows {
        for t in 0..a.n {
            let y = a.w.product(row, &a.x[t * a.x_stride..], &a.x_groups[t * groups..][..groups]);
            let to = &mut a.out.values.slice(t * a.out.stride + a.out.column + row, 1)[0];
            *to = a.out.add.map_or(y, |factor| *to + factor * y);
        }
    }
}
