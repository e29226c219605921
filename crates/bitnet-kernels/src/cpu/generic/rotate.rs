//! Walsh-Hadamard transforms with signs, for rows of f32 that stay in L1.
//!
//! A transform has one pass for the four levels inside a vector, each a lane swap and a fused multiply-add with 1 or -1
//! (which rounds as an addition does), and then a pass for every two levels between vectors. A row of 5,120 takes about 25
//! instructions for 16 values, less than to quantise it.

use crate::cpu::{lanes::Lanes, memory::Buffer};

/// A Walsh-Hadamard transform with signs.
pub struct Rotation {
    pub(crate) width: usize,
    /// Columns that are transformed together.
    pub(crate) block: usize,
    /// 1 or -1 for every column, padded to whole vectors.
    pub(crate) signs: Buffer<f32>,
    /// `1 / sqrt(block)`
    pub(crate) scale: f32,
    /// Key heads, and value heads per key head, if columns come in the tiled order and are needed in the grouped.
    pub(crate) grouped: Option<(usize, usize)>,
}

/// Transforms the input of a matrix: from `x` to `y`, which are apart and padded with zeros to whole vectors.
#[inline(always)]
pub(crate) unsafe fn apply<L: Lanes>(r: &Rotation, mut x: *const f32, y: *mut f32) {
    let padded = r.width.next_multiple_of(16);
    if let Some((key_heads, per_key)) = r.grouped {
        let dim = r.width / (key_heads * per_key);
        for head in 0..key_heads * per_key {
            let from = head % per_key * key_heads + head / per_key;
            std::ptr::copy_nonoverlapping(x.add(from * dim), y.add(head * dim), dim);
        }
        y.add(r.width).write_bytes(0, padded - r.width);
        x = y;
    }
    let signs = r.signs.as_ptr();
    for i in (0..padded).step_by(16) {
        L::store(y.add(i), L::mul(L::load(x.add(i)), L::load(signs.add(i))));
    }
    transform::<L>(r, y);
}

/// Undoes the transform in a row of a table, padded with zeros to whole vectors.
#[inline(always)]
pub(crate) unsafe fn undo<L: Lanes>(r: &Rotation, row: &mut [f32]) {
    let (padded, x) = (r.width.next_multiple_of(16), row.as_mut_ptr());
    debug_assert!(row.len() >= padded, "rows must be padded to whole vectors");
    transform::<L>(r, x);
    for i in (0..padded).step_by(16) {
        L::store(x.add(i), L::mul(L::load(x.add(i)), L::load(r.signs.as_ptr().add(i))));
    }
}

#[inline(always)]
unsafe fn transform<L: Lanes>(r: &Rotation, x: *mut f32) {
    let padded = r.width.next_multiple_of(16);
    let scale = L::splat(r.scale);
    for i in (0..padded).step_by(16) {
        let mut v = L::load(x.add(i));
        if r.block > 1 {
            v = level::<L, 1>(v);
        }
        if r.block > 2 {
            v = level::<L, 2>(v);
        }
        if r.block > 4 {
            v = level::<L, 4>(v);
        }
        if r.block > 8 {
            v = level::<L, 8>(v);
        }
        L::store(x.add(i), if r.block > 16 { v } else { L::mul(v, scale) });
    }
    let mut apart = 16;
    while apart < r.block {
        let two = 4 * apart <= r.block;
        let span = if two { 4 * apart } else { 2 * apart };
        // The last level also scales.
        let factor = if span == r.block { scale } else { L::splat(1.0) };
        for first in (0..padded).step_by(span) {
            for i in (first..first + apart).step_by(16) {
                let p = x.wrapping_add(i);
                if two { two_levels::<L>(p, apart, factor) } else { one_level::<L>(p, apart, factor) }
            }
        }
        apart = span;
    }
}

/// Lanes `APART` from each other become sum and difference.
#[inline(always)]
unsafe fn level<L: Lanes, const APART: usize>(x: L::F) -> L::F {
    const { assert!(APART.is_power_of_two() && APART < 16, "the lanes must be in one vector") };
    let mut ones = [1.0f32; 16];
    for (i, one) in ones.iter_mut().enumerate() {
        if i & APART != 0 {
            *one = -1.0;
        }
    }
    L::fma(x, L::load(ones.as_ptr()), L::swap::<APART>(x))
}

#[inline(always)]
unsafe fn one_level<L: Lanes>(x: *mut f32, apart: usize, factor: L::F) {
    let [a, b] = [L::load(x), L::load(x.add(apart))];
    L::store(x, L::mul(L::add(a, b), factor));
    L::store(x.add(apart), L::mul(L::sub(a, b), factor));
}

#[inline(always)]
unsafe fn two_levels<L: Lanes>(x: *mut f32, apart: usize, factor: L::F) {
    let [a, b] = [L::load(x), L::load(x.add(apart))];
    let [c, d] = [L::load(x.add(2 * apart)), L::load(x.add(3 * apart))];
    let ([a, b], [c, d]) = ([L::add(a, b), L::sub(a, b)], [L::add(c, d), L::sub(c, d)]);
    L::store(x, L::mul(L::add(a, c), factor));
    L::store(x.add(apart), L::mul(L::add(b, d), factor));
    L::store(x.add(2 * apart), L::mul(L::sub(a, c), factor));
    L::store(x.add(3 * apart), L::mul(L::sub(b, d), factor));
}
