//! BitLinear with one scale per group of columns: for every group `y[t][r] += (sum_k x[t][k] * code[r][k] - sum_k
//! x[t][k]) * (scale(t) * scale(r))`, in the order of [`crate::order::grouped`].
//!
//! As in [`super::ternary`], a panel of 64 rows stays in cache while tiles of tokens pass over it. The integer sums of
//! a tile stay in registers for the length of a group; they are then converted to floats and added to the totals of the
//! tile, which 512-bit instruction sets and AVX2 keep in L1.
//!
//! Layout: [`super::super::panels`]. With 512-bit vectors, a group of 128 columns by 64 rows and `T` tokens takes 8
//! blocks as in [`super::ternary`], and then `4 T` each of subtractions, conversions, products of scales, fused
//! multiply-adds, loads and stores: with 5 tokens 40 instructions on the ports of 640 dot products. One token takes 24
//! more shifts and additions to combine its planes, and is bound by memory, of which scales are a seventeenth.

#![allow(clippy::needless_range_loop, reason = "tiles of registers are indexed by row group and token")]

use std::ops::Range;

use bitnet_tensor::quant::{GROUP, GroupQuant};

use crate::cpu::{
    generic::ternary::{AHEAD, Output, one_group, put},
    lanes::Lanes,
    panels::{BLOCK, BLOCK_BYTES, PANEL_ROWS, Panels, SCALE_BYTES},
    pool::share,
};

pub(crate) struct Grouped<'a> {
    pub(crate) w: &'a Panels,
    /// Columns that share a scale: 64 or 128.
    pub(crate) group: usize,
    /// `[n][x_stride]`, zeros after the last column.
    pub(crate) x: &'a [i8],
    pub(crate) x_stride: usize,
    /// `[n][groups]`
    pub(crate) x_groups: &'a [GroupQuant],
    pub(crate) n: usize,
    pub(crate) out: Output<'a>,
    /// What the same thread reads after these panels, unless that follows them in memory.
    pub(crate) next: Option<&'a [u8]>,
}

/// A pass over a panel, for one tile of tokens, and what it prefetches.
///
/// One or two passes are bound by memory and prefetch what they read next, a few groups ahead. Of more passes, each
/// prefetches its share of the next panel, so that the loads spread over all of them.
#[derive(Clone, Copy)]
struct Pass {
    index: usize,
    count: usize,
    /// Bytes of a whole group, and of the panel.
    group: usize,
    panel: usize,
    /// Bytes from the end of the panel to the next one, modulo 2^64.
    jump: usize,
}

impl Pass {
    fn of(a: &Grouped<'_>, panel: usize, last: bool) -> Self {
        let bytes = a.w.panel(panel);
        let jump = match a.next {
            Some(next) if last => next.as_ptr().addr().wrapping_sub(bytes.as_ptr_range().end.addr()),
            _ => 0,
        };
        let group = a.group / BLOCK * BLOCK_BYTES + SCALE_BYTES;
        Pass { index: 0, count: 1, group, panel: bytes.len(), jump }
    }

    /// Distance in bytes, modulo 2^64, from the group of columns `index` of the panel to what is prefetched meanwhile.
    fn ahead(&self, index: usize) -> usize {
        if self.count > 2 {
            let groups = self.panel.div_ceil(self.group);
            let next = self.panel.wrapping_add(self.jump);
            return if index * self.count / groups == self.index { next } else { 0 };
        }
        // A number of whole groups, about `AHEAD`.
        let ahead = (AHEAD + self.group / 2) / self.group * self.group;
        if index * self.group + ahead < self.panel { ahead } else { ahead.wrapping_add(self.jump) }
    }
}

/// Multiplies all tokens by some panels.
#[inline(always)]
pub(crate) unsafe fn grouped<L: Lanes>(a: &Grouped<'_>, panels: Range<usize>) {
    debug_assert!(panels.end <= a.w.panels(), "the panels must exist");
    debug_assert!(a.x_stride >= a.w.blocks() * BLOCK, "rows must be padded to whole blocks");
    debug_assert!(a.x.len() >= a.n * a.x_stride, "there must be a row for every token");
    debug_assert!(a.x_groups.len() >= a.n * a.w.cols.div_ceil(GROUP), "every group must have a scale");
    for panel in panels.clone() {
        let pass = Pass::of(a, panel, panel + 1 == panels.end);
        if a.n == 1 {
            // The planes of four row groups need sums in 32 registers.
            if L::WIDE_REGISTERS || !L::WIDE_CODES {
                one_token::<L, 4>(a, panel, pass);
            } else {
                one_token::<L, 1>(a, panel, pass);
            }
            continue;
        }
        let tiles = a.n.div_ceil(L::GROUP_TOKENS);
        for i in 0..tiles {
            let tokens = share(a.n, tiles, i);
            let pass = Pass { index: i, count: tiles, ..pass };
            for rows in (0..PANEL_ROWS / 16).step_by(L::TILE.0) {
                let place = Place { panel, rows, token: tokens.start, pass };
                if L::WIDE_REGISTERS {
                    tile_of::<L, 4>(a, place, tokens.len());
                } else {
                    tile_of::<L, 1>(a, place, tokens.len());
                }
            }
        }
    }
}

/// Where a tile begins: its panel, its first group of 16 rows within the panel, and its first token.
#[derive(Clone, Copy)]
struct Place {
    panel: usize,
    rows: usize,
    token: usize,
    pass: Pass,
}

#[inline(always)]
unsafe fn tile_of<L: Lanes, const R: usize>(a: &Grouped<'_>, place: Place, tokens: usize) {
    match tokens {
        1 => tile::<L, R, 1>(a, place),
        2 => tile::<L, R, 2>(a, place),
        3 => tile::<L, R, 3>(a, place),
        4 => tile::<L, R, 4>(a, place),
        5 if L::GROUP_TOKENS >= 5 => tile::<L, R, 5>(a, place),
        _ => unreachable!("tile of {tokens} tokens"),
    }
}

/// Multiplies `R` row groups of a panel by `T` tokens, along all of K.
#[inline(always)]
unsafe fn tile<L: Lanes, const R: usize, const T: usize>(a: &Grouped<'_>, place: Place) {
    let (mut codes, blocks) = (a.w.panel(place.panel).as_ptr(), a.w.blocks());
    let group = a.group / BLOCK;
    let x = a.x.as_ptr().add(place.token * a.x_stride);
    let x_groups = a.w.cols.div_ceil(GROUP);
    let quants = a.x_groups.as_ptr().add(place.token * x_groups);
    let mut totals = [[L::splat(0.0); R]; T];
    for block in (0..blocks).step_by(group) {
        let some = group.min(blocks - block);
        let ahead = place.pass.ahead(block / group);
        let (rows, x) = (codes.add(64 * place.rows), x.add(block * BLOCK));
        let parts = L::dot_blocks::<R, T>(rows, x, a.x_stride, some, ahead);
        let scales = codes.add(some * BLOCK_BYTES + 32 * place.rows);
        L::prefetch(scales.wrapping_add(ahead));
        let mut weights = [L::splat(0.0); R];
        for r in 0..R {
            weights[r] = L::load_f16(scales.add(32 * r).cast());
        }
        let (at, sum) = quant_of(a, block);
        for t in 0..T {
            let (scale, own) = read_quant::<L>(quants.add(t * x_groups + at), sum);
            for r in 0..R {
                let y = L::to_f32(L::sub_i(L::widen(parts[t][r]), own));
                totals[t][r] = L::fma(y, L::mul(scale, weights[r]), totals[t][r]);
            }
        }
        // After the last group this may point past the end; it is not dereferenced.
        codes = codes.wrapping_add(group * BLOCK_BYTES + SCALE_BYTES);
    }
    for t in 0..T {
        for r in 0..R {
            let row = place.panel * PANEL_ROWS + 16 * (place.rows + r);
            put::<L>(&a.out, a.w.rows, row, place.token + t, totals[t][r]);
        }
    }
}

/// Finds the activations for the group of weights that begins at `block`: their group within the row, and the word of
/// its [`GroupQuant`] that holds their sum.
#[inline(always)]
fn quant_of(a: &Grouped<'_>, block: usize) -> (usize, usize) {
    let half = block * BLOCK / (GROUP / 2);
    (half / 2, if a.group == GROUP { 1 } else { 2 + half % 2 })
}

/// Loads the scale and the sum of a group of activations into all lanes.
#[inline(always)]
unsafe fn read_quant<L: Lanes>(quant: *const GroupQuant, sum: usize) -> (L::F, L::I) {
    (L::splat((*quant).scale), L::splat_i(quant.cast::<i32>().add(sum).read()))
}

/// Multiplies a whole panel by a single token, `R` row groups at a time within a group of columns.
#[inline(always)]
unsafe fn one_token<L: Lanes, const R: usize>(a: &Grouped<'_>, panel: usize, pass: Pass) {
    let (mut codes, blocks) = (a.w.panel(panel).as_ptr(), a.w.blocks());
    let group = a.group / BLOCK;
    let mut totals = [L::splat(0.0); PANEL_ROWS / 16];
    for block in (0..blocks).step_by(group) {
        let some = group.min(blocks - block);
        let ahead = pass.ahead(block / group);
        let scales = codes.add(some * BLOCK_BYTES);
        L::prefetch(scales.wrapping_add(ahead));
        L::prefetch(scales.wrapping_add(64).wrapping_add(ahead));
        let x = a.x.as_ptr().add(block * BLOCK);
        let (at, sum) = quant_of(a, block);
        let (scale, own) = read_quant::<L>(a.x_groups.as_ptr().add(at), sum);
        for first in (0..PANEL_ROWS / 16).step_by(R) {
            let sums = one_group::<L, R>(codes.add(64 * first), x, some, ahead);
            for r in 0..R {
                let weights = L::load_f16(scales.add(32 * (first + r)).cast());
                let y = L::to_f32(L::sub_i(sums[r], own));
                totals[first + r] = L::fma(y, L::mul(scale, weights), totals[first + r]);
            }
        }
        codes = codes.wrapping_add(group * BLOCK_BYTES + SCALE_BYTES);
    }
    for r in 0..PANEL_ROWS / 16 {
        put::<L>(&a.out, a.w.rows, panel * PANEL_ROWS + 16 * r, 0, totals[r]);
    }
}
