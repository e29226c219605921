//! BitLinear: `y[t][r] = (sum_k x[t][k] * code[r][k] - sum_k x[t][k]) / multiplier(t) * scale(r)`.
//!
//! A panel of 64 rows stays in cache while all tokens pass over it, one tile of tokens at a time; a tile keeps its sums
//! in registers along all of K. A single token reads every weight once and, where the dot product allows it, masks the
//! four planes in place, which saves the shifts.
//!
//! Layout: [`super::super::panels`]. With 512-bit vectors, a block of 64 rows by 16 columns and `T` tokens takes 4
//! loads (16 with 6 tokens, whose sums leave no registers for codes of later planes), 16 masks, 12 shifts, `4 T` loads
//! of activations and `16 T` dot products of 64 codes each. Many tokens are
//! bound by the dot products: on two cores of Zen 4, 512 x 6912 x 2560 reaches 91 % and 512 x 2560 x 6912 reaches 96 %
//! of what the same instructions achieve from registers. One token takes 4 loads, 16 masks and 16 dot products, and is
//! bound by memory.

#![allow(clippy::needless_range_loop, reason = "tiles of registers are indexed by row group and token")]

use std::ops::Range;

use bitnet_tensor::quant::RowQuant;

use crate::cpu::{
    generic::{load_partial, store_partial},
    lanes::Lanes,
    memory::Shared,
    panels::{BLOCK, BLOCK_BYTES, PANEL_ROWS, Panels},
    pool::share,
};

/// Distance of prefetches in bytes: far enough to hide the latency of memory, near enough to stay in L1.
pub(crate) const AHEAD: usize = 8192;

pub(crate) struct BitLinear<'a> {
    pub(crate) w: &'a Panels,
    /// Of every row, padded to whole panels.
    pub(crate) scales: &'a [f32],
    /// `[n][x_stride]`, zeros after the last column.
    pub(crate) x: &'a [i8],
    pub(crate) x_stride: usize,
    /// `[n]`
    pub(crate) x_rows: &'a [RowQuant],
    pub(crate) out: Output<'a>,
}

/// Where to write products.
pub(crate) struct Output<'a> {
    /// `[n][stride]`
    pub(crate) values: Shared<'a, f32>,
    pub(crate) stride: usize,
    /// Output column of the matrix's first row.
    pub(crate) column: usize,
    /// If given, products are multiplied by this factor and added to the output; otherwise they overwrite it.
    pub(crate) add: Option<f32>,
}

#[inline(always)]
pub(crate) unsafe fn bit_linear<L: Lanes>(a: &BitLinear<'_>, panels: Range<usize>) {
    let n = a.x_rows.len();
    debug_assert!(panels.end <= a.w.panels(), "the panels must exist");
    debug_assert!(a.x_stride >= a.w.blocks() * BLOCK, "rows must be padded to whole blocks");
    debug_assert!(a.x.len() >= n * a.x_stride, "there must be a row for every token");
    for panel in panels {
        if n == 1 {
            // The planes of four row groups need sums in 32 registers.
            if L::WIDE_REGISTERS || !L::WIDE_CODES {
                one_token::<L, 4>(a, panel);
            } else {
                one_token::<L, 1>(a, panel);
            }
            continue;
        }
        // Tiles of nearly equal size: a last tile of a token or two would cost as much as a full one.
        let tiles = n.div_ceil(L::TILE.1);
        for i in 0..tiles {
            let tokens = share(n, tiles, i);
            for group in (0..PANEL_ROWS / 16).step_by(L::TILE.0) {
                if L::WIDE_REGISTERS {
                    tile_of::<L, 4>(a, panel, group, tokens.start, tokens.len());
                } else {
                    tile_of::<L, 1>(a, panel, group, tokens.start, tokens.len());
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn tile_of<L: Lanes, const R: usize>(
    a: &BitLinear<'_>,
    panel: usize,
    group: usize,
    first: usize,
    tokens: usize,
) {
    // A constant number of tokens keeps the sums in registers; there are never more than `L::TILE.1`.
    match tokens {
        1 => tile::<L, R, 1>(a, panel, group, first),
        2 => tile::<L, R, 2>(a, panel, group, first),
        3 => tile::<L, R, 3>(a, panel, group, first),
        4 => tile::<L, R, 4>(a, panel, group, first),
        5 if L::TILE.1 >= 5 => tile::<L, R, 5>(a, panel, group, first),
        6 if L::TILE.1 >= 6 => tile::<L, R, 6>(a, panel, group, first),
        _ => unreachable!("tile of {tokens} tokens"),
    }
}

/// Multiplies `R` row groups of a panel by `T` tokens, along all of K.
#[inline(always)]
unsafe fn tile<L: Lanes, const R: usize, const T: usize>(
    a: &BitLinear<'_>,
    panel: usize,
    group: usize,
    first: usize,
) {
    let blocks = a.w.blocks();
    let mut codes = a.w.panel(panel).as_ptr().add(64 * group);
    let mut x = a.x.as_ptr().add(first * a.x_stride);
    let mut sums = [[L::zero_i(); R]; T];
    if L::STEPS == usize::MAX {
        // Nothing overflows, so there is no second set of sums, for which there would be no registers.
        let parts = L::dot_blocks::<R, T>(codes, x, a.x_stride, blocks, AHEAD);
        for (sums, parts) in sums.iter_mut().zip(parts) {
            for (sum, part) in sums.iter_mut().zip(parts) {
                *sum = L::widen(part);
            }
        }
    } else {
        let mut left = blocks;
        while left > 0 {
            let run = left.min(L::STEPS / 4);
            let parts = L::dot_blocks::<R, T>(codes, x, a.x_stride, run, AHEAD);
            for (sums, parts) in sums.iter_mut().zip(parts) {
                for (sum, part) in sums.iter_mut().zip(parts) {
                    *sum = L::add_i(*sum, L::widen(part));
                }
            }
            codes = codes.wrapping_add(run * BLOCK_BYTES);
            x = x.wrapping_add(run * BLOCK);
            left -= run;
        }
    }
    for (t, sums) in sums.into_iter().enumerate() {
        for (r, sum) in sums.into_iter().enumerate() {
            finish::<L>(a, panel, group + r, first + t, sum);
        }
    }
}

/// Blocks that [`one_group`] multiplies at a time, so that its sums fit.
const fn blocks_of_one<L: Lanes>() -> usize {
    match (L::WIDE_CODES, L::WIDE_REGISTERS) {
        (false, _) => L::STEPS / 4,
        // A block adds at most 4 * 128 * 128 to a sum of 32 bits.
        (true, true) => (1 << 31) / (4 * 128 * 128) - 1,
        // A row group at a time, and so few blocks that the others stay in L1 meanwhile.
        (true, false) => 32,
    }
}

/// Multiplies a whole panel by a single token, `R` row groups at a time.
#[inline(always)]
unsafe fn one_token<L: Lanes, const R: usize>(a: &BitLinear<'_>, panel: usize) {
    let (mut codes, mut x) = (a.w.panel(panel).as_ptr(), a.x.as_ptr());
    let mut sums = [L::zero_i(); PANEL_ROWS / 16];
    let mut left = a.w.blocks();
    while left > 0 {
        let run = left.min(blocks_of_one::<L>());
        for first in (0..PANEL_ROWS / 16).step_by(R) {
            let parts = one_group::<L, R>(codes.add(64 * first), x, run, AHEAD);
            for r in 0..R {
                sums[first + r] = L::add_i(sums[first + r], parts[r]);
            }
        }
        codes = codes.wrapping_add(run * BLOCK_BYTES);
        x = x.wrapping_add(run * BLOCK);
        left -= run;
    }
    for (group, sum) in sums.into_iter().enumerate() {
        finish::<L>(a, panel, group, 0, sum);
    }
}

/// Multiplies `R` row groups by one token over some blocks. Where the instruction set allows it, codes are masked in
/// place, with one mask and one dot product per plane, and the planes' factors (1, 4, 16, 64) shifted out at the end.
/// Prefetches gain 4 % on Zen 5, where products of groups gain 30 %; Zen 4, whose hardware prefetches suffice, loses
/// 2 %.
#[inline(always)]
pub(crate) unsafe fn one_group<L: Lanes, const R: usize>(
    mut codes: *const u8,
    mut x: *const i8,
    blocks: usize,
    ahead: usize,
) -> [L::I; R] {
    let mut sums = [L::zero_i(); R];
    if !L::WIDE_CODES {
        let [parts] = L::dot_blocks::<R, 1>(codes, x, 0, blocks, ahead);
        for r in 0..R {
            sums[r] = L::widen(parts[r]);
        }
        return sums;
    }
    let mut parts = [[L::zero_part(); 4]; R]; // [row group][plane]
    for _ in 0..blocks {
        for r in 0..R {
            let v = L::load_codes(codes.add(64 * r));
            L::prefetch(codes.wrapping_add(64 * r).wrapping_add(ahead));
            for plane in 0..4 {
                parts[r][plane] = L::dot(parts[r][plane], L::mask_plane(v, plane), x.add(4 * plane));
            }
        }
        codes = codes.wrapping_add(BLOCK_BYTES);
        x = x.wrapping_add(BLOCK);
    }
    for r in 0..R {
        for plane in 0..4 {
            sums[r] = L::add_i(sums[r], L::shift_plane(L::widen(parts[r][plane]), plane));
        }
    }
    sums
}

/// Turns the sums of 16 rows into outputs.
#[inline(always)]
unsafe fn finish<L: Lanes>(a: &BitLinear<'_>, panel: usize, group: usize, token: usize, sum: L::I) {
    let row = panel * PANEL_ROWS + 16 * group;
    let x = a.x_rows[token];
    let y = L::to_f32(L::sub_i(sum, L::splat_i(x.sum)));
    let y = L::mul(L::div(y, L::splat(x.multiplier)), L::load(a.scales.as_ptr().add(row)));
    put::<L>(&a.out, a.w.rows, row, token, y);
}

/// Stores or adds the products of one token with rows `row..row + 16` of a matrix that has `rows` rows.
#[inline(always)]
pub(crate) unsafe fn put<L: Lanes>(out: &Output<'_>, rows: usize, row: usize, token: usize, y: L::F) {
    let Some(rows @ 1..) = rows.checked_sub(row) else { return };
    let rows = rows.min(16);
    // Each panel belongs to one thread, so no other thread writes these outputs.
    let to = out.values.slice(token * out.stride + out.column + row, rows).as_mut_ptr();
    let there = if rows == 16 { L::load(to) } else { load_partial::<L>(to, rows) };
    let y = match out.add {
        Some(factor) => L::add(there, L::mul(L::splat(factor), y)),
        None => y,
    };
    if rows == 16 {
        L::store(to, y);
    } else {
        store_partial::<L>(to, y, rows);
    }
}
