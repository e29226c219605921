//! Finds the rows of a table that can have one of the highest logits, by bounds from a copy: in int8, half the bytes of
//! bf16 and integer products instead of float ones; of a table of 4 or 6 bits, its own codes in another order
//! ([`nibbles`], [`sixes`]), whose distance from the table is only that of roundings.
//!
//! A row is `w = s q + e` with int8 `q`; an activation is `x = p + d`, where `p` is one plane of int8 or a coarse and a
//! fine one. Hence `w x = s q p + s q d + e x`, where `s q p` is exact in integers, and by the Cauchy-Schwarz
//! inequality `|w x - s q p| <= |s q| |d| + |e| |x|` with `|s q| <= |w| + |e|`. The lengths of `w` and `e` are stored
//! with the copy, those of `x` and `d` are computed with the planes; all are rounded up. In addition there are the
//! rounding errors of the logit itself, a sum of `cols` products in the order of [`crate::order`], and of the bounds:
//! each is at most a multiple of `2^-24 |w| |x|`, and [`Limits::weights`] counts them.
//!
//! A row is ruled out if its upper bound is below what enough other rows reach; the others are computed as usual. The
//! highest logits are therefore the same, bit for bit, as if all had been computed.
//!
//! Layout: [`crate::cpu::head`]. With 512-bit vectors, the pass over the copy takes, for 64 rows by 4 columns by
//! `m` planes, 4 loads, `m` loads of activations and `4 m` dot products of 64 codes each. Up to 8 tokens are bound by
//! memory: the 329 MB of 2B-4T's head are read at full bandwidth. More tokens are bound by the dot products: 32 tokens
//! reach 74 % of the integer peak (Zen 4, two threads). Instruction sets without a dot product of bytes need two or
//! three instructions for 32 codes, and 7-bit activations where a pair of products must fit 16 bits.

#![allow(clippy::needless_range_loop, reason = "tiles of registers are indexed by row group and token")]

use std::ops::Range;

use bitnet_tensor::BitNetTensor;

use crate::cpu::{
    generic::{
        ahead::{Ahead, LINE},
        dense::decode_row,
        nibbles::{self, Planes},
        sixes, store_partial,
        ternary::AHEAD,
    },
    head::copy::{CopyForm, HeadCopy, QUAD_BYTES},
    lanes::Lanes,
    memory::Shared,
    panels::PANEL_ROWS,
    pool::share,
};

/// Returns what pass `pass` of `passes` over a panel prefetches, at each of its quads, or of its lines of nibbles: some of
/// this panel or of the next.
///
/// One or two passes are bound by memory. With wide registers, a pass reads the panel in one stream, which the
/// hardware prefetcher recognises; software prefetching would cost 3 % with one token and 6 % with two (Zen 4).
/// With narrow registers, it reads two row groups at a time; prefetching gains 20 % (AVX2). With more passes, each
/// prefetches its share of the next panel, so that the loads spread over all of them: this gains 10 % with 32
/// tokens, whereas two passes lost as much by it.
fn ahead_of<L: Lanes>(panel: &[u8], quads: usize, pass: usize, passes: usize) -> Ahead {
    let quad = panel.len().div_ceil(quads);
    if passes > 2 {
        let step = quad.div_ceil(passes);
        return Ahead::of(panel.as_ptr_range().end.wrapping_add(quads * pass * step), step);
    }
    if L::WIDE_REGISTERS { Ahead::NOTHING } else { Ahead::of(panel.as_ptr().wrapping_add(AHEAD), quad) }
}

/// Magnitudes within which no sum of squares, scale or product overflows or underflows.
const ORDINARY: Range<f32> = 1e-15..1e15;

/// More than the sum of all products that are too small for f32.
pub(crate) const TINY: f32 = 1e-37;

/// Converts a length to f32, rounding up.
fn rounded_up(length: f64) -> f32 {
    (length * (1.0 + 1e-6)) as f32
}

pub(crate) struct CopyRows<'a> {
    pub(crate) form: CopyForm,
    pub(crate) table: &'a BitNetTensor,
    /// See [`HeadCopy`].
    pub(crate) codes: Shared<'a, u8>,
    pub(crate) scales: Shared<'a, f32>,
    pub(crate) norms: Shared<'a, f32>,
    pub(crate) errors: Shared<'a, f32>,
}

/// Floats of scratch that [`copy_rows`] needs: a row and its codes.
pub(crate) fn scratch(cols: usize) -> usize {
    cols.next_multiple_of(16) / 4 * 5
}

/// Fills one panel of a [`HeadCopy`].
#[inline(always)]
pub(crate) unsafe fn copy_rows<L: Lanes>(a: &CopyRows<'_>, panel: usize, scratch: &mut [f32]) {
    let (rows, cols) = (a.table.rows(), a.table.cols());
    debug_assert!(scratch.len() >= self::scratch(cols), "scratch must hold a row and its codes");
    let (padded, bytes) = (cols.next_multiple_of(16), a.form.panel_bytes(cols));
    let out = a.codes.slice(panel * bytes, bytes);
    let at = |all: Shared<'_, f32>| all.slice(panel * PANEL_ROWS, PANEL_ROWS).as_mut_ptr();
    let (scales, norms, errors) = (at(a.scales), at(a.norms), at(a.errors));
    let (row, codes) = scratch.split_at_mut(padded);
    let codes = codes.as_mut_ptr().cast::<i8>();
    for r in 0..PANEL_ROWS {
        *errors.add(r) = f32::INFINITY;
        if panel * PANEL_ROWS + r >= rows {
            continue;
        }
        decode_row::<L>(a.table, panel * PANEL_ROWS + r, &mut row[..cols]);
        row[cols..].fill(0.0);
        let w = row.as_ptr();
        let (absmax, norm) = size::<L>(w, padded);
        *norms.add(r) = norm;
        // The copy of a row with other magnitudes is zero with infinite error, so that it is never ruled out.
        if absmax != 0.0 && !ORDINARY.contains(&absmax) {
            *norms.add(r) = 0.0;
            continue;
        }
        let copy_row = match a.form {
            CopyForm::Int8 => None,
            CopyForm::Nibbles => Some(nibbles::copy_row as fn(&BitNetTensor, usize, &mut [u8]) -> f64),
            CopyForm::NibblePairs => Some(nibbles::copy_pairs as _),
            CopyForm::Sixes => Some(sixes::copy_row as _),
        };
        if let Some(copy_row) = copy_row {
            *scales.add(r) = 1.0;
            *errors.add(r) = rounded_up(copy_row(a.table, panel * PANEL_ROWS + r, out));
            continue;
        }
        *errors.add(r) = 0.0;
        if absmax == 0.0 {
            continue;
        }
        let scale = absmax / 127.0;
        *scales.add(r) = scale;
        let (_, error) = plane::<L>(w, padded, 127.0, scale, codes, std::ptr::null_mut());
        *errors.add(r) = error;
        for quad in 0..cols.div_ceil(4) {
            let code = codes.add(4 * quad).cast::<u32>().read_unaligned() ^ 0x8080_8080;
            let to = out[quad * QUAD_BYTES + 4 * r..][..4].as_mut_ptr();
            to.cast::<u32>().write_unaligned(code);
        }
    }
}

/// Returns the absolute maximum of a row padded with zeros, and an upper bound on its length.
#[inline(always)]
unsafe fn size<L: Lanes>(x: *const f32, padded: usize) -> (f32, f32) {
    let (mut bits, mut squares) = (L::zero_i(), L::zero_d());
    for i in (0..padded).step_by(16) {
        let v = L::load(x.add(i));
        bits = L::max_abs_bits(bits, v);
        squares = L::add_square(squares, v);
    }
    (f32::from_bits(L::reduce_max_u(bits)), rounded_up(L::reduce_add_d(squares).sqrt()))
}

/// Writes `round(x / scale)` as int8 of magnitude at most `most`, and the remainder of `x` to `rest` unless that is
/// null. Returns the sum of the integers and an upper bound on the length of the remainder.
#[inline(always)]
unsafe fn plane<L: Lanes>(
    x: *const f32,
    padded: usize,
    most: f32,
    scale: f32,
    out: *mut i8,
    rest: *mut f32,
) -> (i32, f32) {
    let (mut sum, mut squares) = (L::zero_i(), L::zero_d());
    let (inverse, minus) = (L::splat(1.0 / scale), L::splat(-scale));
    for i in (0..padded).step_by(16) {
        let v = L::load(x.add(i));
        let scaled = L::mul(v, inverse);
        let scaled = L::max(L::splat(-most), L::min(L::splat(most), scaled));
        sum = L::quantize(out.add(i), scaled, sum);
        let left = L::fma(L::round(scaled), minus, v);
        squares = L::add_square(squares, left);
        if !rest.is_null() {
            L::store(rest.add(i), left);
        }
    }
    (L::reduce_add_i(sum), rounded_up(L::reduce_add_d(squares).sqrt()))
}

/// An activation row as one or two planes of int8.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Value of one step in each plane.
    scales: [f32; 2],
    /// Sum of each plane times [`Lanes::BYTE_OFFSET`]: what the offset of the table's codes adds to a dot product.
    offsets: [i32; 2],
    /// Upper bound on the length of the row.
    norm: f32,
    /// Upper bounds on the length of the remainder after the first plane, and after both.
    rests: [f32; 2],
}

impl Limits {
    /// Whether the first plane alone approximates the row about as well as the copy approximates the table. A second
    /// plane would then cost more than it saves.
    pub(crate) fn is_coarse_enough(&self) -> bool {
        self.rests[0] * 48.0 <= self.norm
    }

    /// Returns `a` and `b` such that a logit differs from `s q p` by at most `a |e| + b |w|`.
    pub(crate) fn weights(&self, planes: usize, cols: usize) -> (f32, f32) {
        // One rounding for each addition of the logit, and for the few of the bounds.
        let roundings = (cols.div_ceil(16) + 64) as f32 * f32::EPSILON / 2.0 * self.norm;
        let left = self.rests[planes - 1] + roundings;
        ((self.norm + left) * 1.0001, left * 1.0001)
    }
}

/// Splits a row padded with zeros to whole vectors into two planes, one in each half of `planes`; `scratch` holds a
/// row. Returns `None` if the absolute maximum is zero, too small, too large or NaN.
#[inline(always)]
pub(crate) unsafe fn make_planes<L: Lanes>(
    x: &[f32],
    planes: &mut [i8],
    scratch: &mut [f32],
) -> Option<Limits> {
    let (padded, stride) = (x.len(), planes.len() / 2);
    let (absmax, norm) = size::<L>(x.as_ptr(), padded);
    if !ORDINARY.contains(&absmax) {
        return None;
    }
    let most = L::MAX_QUANT as f32;
    let coarse = absmax / most;
    let fine = coarse / (2.0 * most);
    let rest = scratch[..padded].as_mut_ptr();
    let (first, second) = planes.split_at_mut(stride);
    let (sum, left) = plane::<L>(x.as_ptr(), padded, most, coarse, first[..padded].as_mut_ptr(), rest);
    let second = second[..padded].as_mut_ptr();
    let (fine_sum, fine_left) = plane::<L>(rest, padded, most, fine, second, std::ptr::null_mut());
    Some(Limits {
        scales: [coarse, fine],
        offsets: [sum, fine_sum].map(|sum| L::BYTE_OFFSET * sum),
        norm,
        // The remainder after the first plane was itself rounded.
        rests: [left, fine_left + 1e-6 * left],
    })
}

pub(crate) struct Bounds<'a> {
    pub(crate) copy: &'a HeadCopy,
    /// Planes used of each token: 1 or 2.
    pub(crate) planes: usize,
    /// `[tokens][2][stride]`, zeros after the last column.
    pub(crate) x: &'a [i8],
    pub(crate) stride: usize,
    /// Sums of groups of the planes, `[tokens][2][..]`, if the copy needs them.
    pub(crate) sums: &'a [f32],
    /// `[tokens]`
    pub(crate) limits: &'a [Limits],
    /// `[tokens]`: row of `out` of each token.
    pub(crate) tokens: &'a [usize],
    /// Upper bounds, `[..][copy.rows]`.
    pub(crate) out: Shared<'a, f32>,
    /// Highest lower bound of each panel, `[tokens][panels]`.
    pub(crate) best: Shared<'a, f32>,
    /// Highest upper bound of each panel, `[tokens][panels]`.
    pub(crate) high: Shared<'a, f32>,
}

/// Bounds the logits of all tokens for the rows of `panels`.
#[inline(always)]
pub(crate) unsafe fn bounds<L: Lanes>(a: &Bounds<'_>, panels: Range<usize>) {
    debug_assert!(panels.end <= a.copy.panels(), "the panels must exist");
    debug_assert!(a.limits.len() == a.tokens.len(), "every token must have planes");
    debug_assert!(a.x.len() >= 2 * a.tokens.len() * a.stride, "every token must have planes");
    let most = if L::WIDE_REGISTERS { L::TILE.1 } else { 2 };
    let tiles = (a.tokens.len() * a.planes).div_ceil(most);
    let lines = a.copy.form.lines(a.copy.cols);
    for panel in panels {
        if a.copy.form == CopyForm::Sixes {
            bound_sixes::<L>(a, panel);
            continue;
        }
        let codes = a.copy.panel(panel);
        for i in 0..tiles {
            let tokens = share(a.tokens.len(), tiles, i);
            let ahead = ahead_of::<L>(codes, lines, i, tiles);
            if L::WIDE_REGISTERS {
                match tokens.len() * a.planes {
                    1 => tile::<L, 4, 1>(a, panel, 0, tokens, ahead),
                    2 => tile::<L, 4, 2>(a, panel, 0, tokens, ahead),
                    3 => tile::<L, 4, 3>(a, panel, 0, tokens, ahead),
                    4 => tile::<L, 4, 4>(a, panel, 0, tokens, ahead),
                    5 => tile::<L, 4, 5>(a, panel, 0, tokens, ahead),
                    _ => tile::<L, 4, 6>(a, panel, 0, tokens, ahead),
                }
                continue;
            }
            for group in (0..PANEL_ROWS / 16).step_by(2) {
                match tokens.len() * a.planes {
                    1 => tile::<L, 2, 1>(a, panel, group, tokens.clone(), ahead),
                    _ => tile::<L, 2, 2>(a, panel, group, tokens.clone(), ahead),
                }
            }
        }
    }
}

/// Bounds the logits of `tokens`, which have `M` planes, for `R` row groups of a panel.
#[inline(always)]
unsafe fn tile<L: Lanes, const R: usize, const M: usize>(
    a: &Bounds<'_>,
    panel: usize,
    group: usize,
    tokens: Range<usize>,
    ahead: Ahead,
) {
    let copy = a.copy;
    assert_eq!(tokens.len() * a.planes, M, "a tile must have whole tokens");
    let x = a.x[2 * tokens.start * a.stride..2 * tokens.end * a.stride].as_ptr();
    let apart = 2 / a.planes;
    let mut sums = [[L::splat(0.0); R]; M];
    match copy.form {
        CopyForm::Int8 => {
            let codes = copy.panel(panel).as_ptr().add(64 * group);
            let integers = dots::<L, R, M>(codes, x, apart * a.stride, copy.cols.div_ceil(4), ahead);
            for m in 0..M {
                let limits = &a.limits[tokens.start + m / a.planes];
                for r in 0..R {
                    let offset = L::splat_i(limits.offsets[m % a.planes]);
                    sums[m][r] = L::to_f32(L::sub_i(integers[m][r], offset));
                }
            }
        }
        form => {
            let planes = planes_of(a, &tokens);
            let panel = copy.panel(panel);
            sums = if form == CopyForm::Nibbles {
                nibbles::dots::<L, R, M>(panel, group, planes, ahead)
            } else {
                nibbles::pair_dots::<L, R, M>(panel, group, planes, ahead)
            };
        }
    }
    write_bounds::<L, R, M>(a, panel, group, tokens, &sums);
}

/// The planes of these tokens, with the sums of their groups.
unsafe fn planes_of(a: &Bounds<'_>, tokens: &Range<usize>) -> Planes {
    let (count, apart) = (a.copy.form.sums(a.copy.cols), 2 / a.planes);
    Planes {
        x: a.x[2 * tokens.start * a.stride..2 * tokens.end * a.stride].as_ptr(),
        stride: apart * a.stride,
        sums: a.sums[2 * tokens.start * count..2 * tokens.end * count].as_ptr(),
        sums_stride: apart * count,
    }
}

/// Bounds the logits of all tokens for a panel of 6-bit codes. Unpacking takes registers and time, so a tile has few row
/// groups and many planes. More than one pass over a panel are bound by arithmetic, and prefetch the next panel together.
#[inline(always)]
unsafe fn bound_sixes<L: Lanes>(a: &Bounds<'_>, panel: usize) {
    let (codes, lines) = (a.copy.panel(panel), a.copy.form.lines(a.copy.cols));
    let all = a.tokens.len() * a.planes;
    let here = Ahead::of(codes.as_ptr().wrapping_add(AHEAD), codes.len().div_ceil(lines));
    match (L::WIDE_REGISTERS, all) {
        (true, 1) => return six_tile::<L, 4, 1>(a, panel, 0, 0..a.tokens.len(), here),
        (true, 2) => return six_tile::<L, 4, 2>(a, panel, 0, 0..a.tokens.len(), here),
        (false, 1) => {
            six_tile::<L, 2, 1>(a, panel, 0, 0..1, here);
            return six_tile::<L, 2, 1>(a, panel, 2, 0..1, here);
        }
        _ => {}
    }
    let tiles = all.div_ceil(if L::WIDE_REGISTERS { 12 } else { 4 });
    let (groups, end) = (PANEL_ROWS / 16, codes.as_ptr_range().end);
    let step = codes.len().div_ceil(lines * groups * tiles);
    for i in 0..tiles {
        let tokens = share(a.tokens.len(), tiles, i);
        for group in 0..groups {
            let ahead = Ahead::of(end.wrapping_add(lines * step * (groups * i + group)), step);
            match tokens.len() * a.planes {
                1 => six_tile::<L, 1, 1>(a, panel, group, tokens.clone(), ahead),
                2 => six_tile::<L, 1, 2>(a, panel, group, tokens.clone(), ahead),
                3 => six_tile::<L, 1, 3>(a, panel, group, tokens.clone(), ahead),
                4 => six_tile::<L, 1, 4>(a, panel, group, tokens.clone(), ahead),
                5 => six_tile::<L, 1, 5>(a, panel, group, tokens.clone(), ahead),
                6 => six_tile::<L, 1, 6>(a, panel, group, tokens.clone(), ahead),
                7 => six_tile::<L, 1, 7>(a, panel, group, tokens.clone(), ahead),
                8 => six_tile::<L, 1, 8>(a, panel, group, tokens.clone(), ahead),
                9 => six_tile::<L, 1, 9>(a, panel, group, tokens.clone(), ahead),
                10 => six_tile::<L, 1, 10>(a, panel, group, tokens.clone(), ahead),
                11 => six_tile::<L, 1, 11>(a, panel, group, tokens.clone(), ahead),
                _ => six_tile::<L, 1, 12>(a, panel, group, tokens.clone(), ahead),
            }
        }
    }
}

#[inline(always)]
unsafe fn six_tile<L: Lanes, const R: usize, const M: usize>(
    a: &Bounds<'_>,
    panel: usize,
    group: usize,
    tokens: Range<usize>,
    ahead: Ahead,
) {
    assert_eq!(tokens.len() * a.planes, M, "a tile must have whole tokens");
    let sums = sixes::dots::<L, R, M>(a.copy.panel(panel), group, planes_of(a, &tokens), ahead);
    write_bounds::<L, R, M>(a, panel, group, tokens, &sums);
}

/// Writes the bounds of `tokens` for `R` row groups of a panel, whose products with the planes these are.
#[inline(always)]
unsafe fn write_bounds<L: Lanes, const R: usize, const M: usize>(
    a: &Bounds<'_>,
    panel: usize,
    group: usize,
    tokens: Range<usize>,
    sums: &[[L::F; R]; M],
) {
    let copy = a.copy;
    for (i, token) in tokens.enumerate() {
        let limits = &a.limits[token];
        let (by_error, by_norm) = limits.weights(a.planes, copy.cols);
        let mut best = L::splat(f32::NEG_INFINITY);
        let mut high = best;
        let mut edge = f32::NEG_INFINITY;
        for r in 0..R {
            let row = panel * PANEL_ROWS + 16 * (group + r);
            let mut logit = L::splat(0.0);
            for p in 0..a.planes {
                logit = L::fma(sums[i * a.planes + p][r], L::splat(limits.scales[p]), logit);
            }
            logit = L::mul(logit, L::load(copy.scales[row..][..16].as_ptr()));
            let error = L::load(copy.errors[row..][..16].as_ptr());
            let norm = L::load(copy.norms[row..][..16].as_ptr());
            let off = L::fma(norm, L::splat(by_norm), L::splat(TINY));
            let off = L::fma(error, L::splat(by_error), off);
            best = L::max(best, L::sub(logit, off));
            let rows = copy.rows.saturating_sub(row).min(16);
            let out = a.out.slice(a.tokens[token] * copy.rows + row.min(copy.rows), rows).as_mut_ptr();
            let upper = L::add(logit, off);
            match rows {
                0 => {}
                16 => {
                    L::store(out, upper);
                    high = L::max(high, upper);
                }
                _ => {
                    store_partial::<L>(out, upper, rows);
                    edge = (0..rows).fold(edge, |edge, i| edge.max(*out.add(i)));
                }
            }
        }
        let at = token * copy.panels() + panel;
        let extremes = [(a.best, L::reduce_max(best)), (a.high, L::reduce_max(high).max(edge))];
        for (all, here) in extremes {
            let highest = &mut all.slice(at, 1)[0];
            *highest = if group == 0 { here } else { highest.max(here) };
        }
    }
}

/// Sums the products of `R` row groups with `M` planes over all quads.
#[inline(always)]
unsafe fn dots<L: Lanes, const R: usize, const M: usize>(
    mut codes: *const u8,
    mut x: *const i8,
    stride: usize,
    quads: usize,
    mut ahead: Ahead,
) -> [[L::I; R]; M] {
    let mut sums = [[L::zero_i(); R]; M];
    for _ in 0..quads {
        let mut v = [L::load_codes(codes); R];
        ahead.prefetch_few::<L, { QUAD_BYTES / LINE }>();
        for r in 0..R {
            v[r] = L::load_codes(codes.add(64 * r));
        }
        for m in 0..M {
            for r in 0..R {
                sums[m][r] = L::dot_bytes(sums[m][r], v[r], x.add(m * stride));
            }
        }
        codes = codes.wrapping_add(QUAD_BYTES);
        x = x.wrapping_add(4);
    }
    sums
}
