//! Walsh-Hadamard transforms with signs, for rows of f32 that stay in L1.
//!
//! A transform has one pass for the four levels inside a vector, each a lane swap and a fused multiply-add with 1 or -1
//! (which rounds as an addition does), and then a pass for every two levels between vectors: for blocks of 1,024 about 24
//! instructions a vector, somewhat more than to quantise it.

use crate::cpu::{buffer::Buffer, lanes::Lanes};

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
    transform::<L, true>(r, x, y);
}

/// Undoes the transform in a row of a table, padded with zeros to whole vectors.
#[inline(always)]
pub(crate) unsafe fn undo<L: Lanes>(r: &Rotation, row: &mut [f32]) {
    let (padded, x) = (r.width.next_multiple_of(16), row.as_mut_ptr());
    debug_assert!(row.len() >= padded, "rows must be padded to whole vectors");
    transform::<L, false>(r, x, x);
    for i in (0..padded).step_by(16) {
        L::store(x.add(i), L::mul(L::load(x.add(i)), L::load(r.signs.as_ptr().add(i))));
    }
}

/// Transforms `x`, after a multiplication by the signs if `SIGNED`, into `y`, which may equal `x`.
#[inline(always)]
unsafe fn transform<L: Lanes, const SIGNED: bool>(r: &Rotation, x: *const f32, y: *mut f32) {
    let padded = r.width.next_multiple_of(16);
    let (signs, scale) = (r.signs.as_ptr(), L::splat(r.scale));
    for i in (0..padded).step_by(16) {
        let mut v = L::load(x.add(i));
        if SIGNED {
            v = L::mul(v, L::load(signs.add(i)));
        }
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
        L::store(y.add(i), if r.block > 16 { v } else { L::mul(v, scale) });
    }
    let mut apart = 16;
    while apart < r.block {
        let span = if 4 * apart <= r.block { 4 * apart } else { 2 * apart };
        // The last pass also scales.
        if span == r.block {
            pass::<L, true>(y, padded, apart, span, scale);
        } else {
            pass::<L, false>(y, padded, apart, span, scale);
        }
        apart = span;
    }
}

/// The level of values `apart` from each other, and the next one if `span` is four times as long.
#[inline(always)]
unsafe fn pass<L: Lanes, const SCALED: bool>(
    x: *mut f32,
    padded: usize,
    apart: usize,
    span: usize,
    scale: L::F,
) {
    for first in (0..padded).step_by(span) {
        for i in (first..first + apart).step_by(16) {
            let p = x.wrapping_add(i);
            if span == 4 * apart {
                two_levels::<L, SCALED>(p, apart, scale);
            } else {
                one_level::<L, SCALED>(p, apart, scale);
            }
        }
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
unsafe fn one_level<L: Lanes, const SCALED: bool>(x: *mut f32, apart: usize, scale: L::F) {
    let [a, b] = [L::load(x), L::load(x.add(apart))];
    put::<L, SCALED>(x, L::add(a, b), scale);
    put::<L, SCALED>(x.add(apart), L::sub(a, b), scale);
}

#[inline(always)]
unsafe fn two_levels<L: Lanes, const SCALED: bool>(x: *mut f32, apart: usize, scale: L::F) {
    let [a, b] = [L::load(x), L::load(x.add(apart))];
    let [c, d] = [L::load(x.add(2 * apart)), L::load(x.add(3 * apart))];
    let ([a, b], [c, d]) = ([L::add(a, b), L::sub(a, b)], [L::add(c, d), L::sub(c, d)]);
    put::<L, SCALED>(x, L::add(a, c), scale);
    put::<L, SCALED>(x.add(apart), L::add(b, d), scale);
    put::<L, SCALED>(x.add(2 * apart), L::sub(a, c), scale);
    put::<L, SCALED>(x.add(3 * apart), L::sub(b, d), scale);
}

#[inline(always)]
unsafe fn put<L: Lanes, const SCALED: bool>(to: *mut f32, x: L::F, scale: L::F) {
    L::store(to, if SCALED { L::mul(x, scale) } else { x });
}
