//! The forms of [`HeadCopy`](crate::cpu::head::HeadCopy) for tables of 4 bits: their own codes, in the order of the
//! kernels, and their scales. A byte a value would take nearly twice as many bytes, and be less exact.
//!
//! ```text
//! panel    64 rows, all columns
//! block    256 columns of a panel of Q4_K: f16 scales, f16 scales of the minima, then 8 groups
//! group    32 columns: u8 scales, u8 minima, then 4 lines
//! line     8 columns: byte 4 r + j holds row r, column j in the low half and column 4 + j in the high half
//! ```
//!
//! A value is `scale * (u8 scale) * code - minimum * (u8 minimum)`. A panel of Q4_1 has no blocks, but groups with f16
//! scales and f16 minima, and a value is `scale * code + minimum`. The sums of a group are exact in integers; what
//! follows is rounded, and [`copy_row`] and [`copy_pairs`] return the most that this can be.

#![allow(clippy::needless_range_loop, reason = "tiles of registers are indexed by row group and plane")]

use bitnet_tensor::{BitNetTensor, f16, k_scales};

use crate::cpu::{generic::ahead::Ahead, lanes::Lanes, panels::PANEL_ROWS};

/// Columns of a block and of a group.
pub(crate) const BLOCK: usize = 256;
pub(crate) const GROUP: usize = 32;
const GROUPS: usize = BLOCK / GROUP;
/// Lines of a group, and of a block.
const LINES: usize = 4;
pub(crate) const BLOCK_LINES: usize = LINES * GROUPS;
/// Columns and bytes of a line.
const LINE: usize = 8;
const LINE_BYTES: usize = PANEL_ROWS * LINE / 2;
/// Bytes of the scales or minima of a group, and of those of a block.
const SMALL: usize = PANEL_ROWS;
const LARGE: usize = 2 * PANEL_ROWS;
const GROUP_BYTES: usize = 2 * SMALL + LINES * LINE_BYTES;
pub(crate) const BLOCK_BYTES: usize = 2 * LARGE + GROUPS * GROUP_BYTES;
/// Lines and bytes of a group of Q4_1.
pub(crate) const PAIR_LINES: usize = LINES;
pub(crate) const PAIR_BYTES: usize = 2 * LARGE + LINES * LINE_BYTES;

/// Bytes of a block of Q4_K: two scales, small scales and minima, codes.
const STORED: usize = 144;
/// Bytes of a block of Q4_1: scale, minimum, codes.
const STORED_PAIR: usize = 20;

/// Copies a row of a Q4_K table into a panel. Returns an upper bound on the length of the difference between the row and
/// what the panel stands for, all roundings of [`dots`] included.
pub(crate) fn copy_row(table: &BitNetTensor, row: usize, out: &mut [u8]) -> f64 {
    let at = row % PANEL_ROWS;
    let bytes = &table.bytes()[row * table.row_bytes()..][..table.row_bytes()];
    let (mut steps, mut minima) = (0.0, 0.0);
    for (stored, block) in bytes.chunks_exact(STORED).zip(out.chunks_exact_mut(BLOCK_BYTES)) {
        block[2 * at..][..2].copy_from_slice(&stored[..2]);
        block[LARGE + 2 * at..][..2].copy_from_slice(&stored[2..4]);
        let [scale, minimum] =
            [0, 2].map(|i| f64::from(f16::from_le_bytes([stored[i], stored[i + 1]]).to_f32()));
        let groups = block[2 * LARGE..].chunks_exact_mut(GROUP_BYTES);
        for (g, (group, (small, least))) in groups.zip(k_scales(&stored[4..16])).enumerate() {
            (group[at], group[SMALL + at]) = (small, least);
            let codes = &stored[16 + GROUP * (g / 2)..][..GROUP];
            let code = |column: usize| codes[column] >> (4 * (g % 2)) & 15;
            let squares = copy_codes(code, at, &mut group[2 * SMALL..]);
            steps += (scale * f64::from(small)).powi(2) * f64::from(squares);
            minima += (minimum * f64::from(least)).powi(2) * GROUP as f64;
        }
    }
    // Sums of a group of blocks have a few roundings of what they add, and totals two for every block. Planes are at most
    // four times as long as the row of activations.
    let roundings = (2 * (bytes.len() / STORED) + 4 * GROUPS) as f64 * f64::from(f32::EPSILON);
    4.0 * roundings * (steps.sqrt() + minima.sqrt())
}

/// The same for a row of a Q4_1 table.
pub(crate) fn copy_pairs(table: &BitNetTensor, row: usize, out: &mut [u8]) -> f64 {
    let at = row % PANEL_ROWS;
    let bytes = &table.bytes()[row * table.row_bytes()..][..table.row_bytes()];
    let (mut steps, mut minima) = (0.0, 0.0);
    for (stored, group) in bytes.chunks_exact(STORED_PAIR).zip(out.chunks_exact_mut(PAIR_BYTES)) {
        group[2 * at..][..2].copy_from_slice(&stored[..2]);
        group[LARGE + 2 * at..][..2].copy_from_slice(&stored[2..4]);
        let [scale, minimum] =
            [0, 2].map(|i| f64::from(f16::from_le_bytes([stored[i], stored[i + 1]]).to_f32()));
        let code = |column: usize| stored[4 + column % 16] >> (4 * (column / 16)) & 15;
        let squares = copy_codes(code, at, &mut group[2 * LARGE..]);
        steps += scale.powi(2) * f64::from(squares);
        minima += minimum.powi(2) * GROUP as f64;
    }
    // Totals have two roundings for every group, and values one.
    let roundings = (2 * (bytes.len() / STORED_PAIR) + 4) as f64 * f64::from(f32::EPSILON);
    4.0 * roundings * (steps.sqrt() + minima.sqrt())
}

/// Writes the codes of a group of row `at` of a panel into its lines. Returns the sum of their squares.
fn copy_codes(code: impl Fn(usize) -> u8, at: usize, lines: &mut [u8]) -> u32 {
    for (line, to) in lines.chunks_exact_mut(LINE_BYTES).enumerate() {
        for (j, to) in to[4 * at..][..4].iter_mut().enumerate() {
            *to = code(LINE * line + j) | code(LINE * line + 4 + j) << 4;
        }
    }
    (0..GROUP).map(|column| u32::from(code(column)).pow(2)).sum()
}

/// What [`dots`] and [`pair_dots`] multiply a panel by.
#[derive(Clone, Copy)]
pub(crate) struct Planes {
    /// `[M][stride]`
    pub(crate) x: *const i8,
    pub(crate) stride: usize,
    /// Sums of the planes' groups of [`GROUP`] columns, `[M][sums_stride]`.
    pub(crate) sums: *const f32,
    pub(crate) sums_stride: usize,
}

/// The products of `R` row groups of a panel, from `first` on, with `M` planes.
#[inline(always)]
pub(crate) unsafe fn dots<L: Lanes, const R: usize, const M: usize>(
    panel: &[u8],
    first: usize,
    planes: Planes,
    mut ahead: Ahead,
) -> [[L::F; R]; M] {
    let Planes { mut x, stride, mut sums, sums_stride } = planes;
    let mut totals = [[L::splat(0.0); R]; M];
    for block in panel.chunks_exact(BLOCK_BYTES) {
        let (mut steps, mut minima) = ([[L::splat(0.0); R]; M], [[L::splat(0.0); R]; M]);
        for group in block[2 * LARGE..].chunks_exact(GROUP_BYTES) {
            let parts = group_dots::<L, R, M>(&group[2 * SMALL..], first, (x, stride), &mut ahead);
            for r in 0..R {
                let [scale, least] = [0, SMALL].map(|at| group[at + 16 * (first + r)..][..16].as_ptr());
                let (scale, least) = (L::load_i8(scale.cast()), L::load_i8(least.cast()));
                for m in 0..M {
                    steps[m][r] = L::fma(L::to_f32(L::widen(parts[m][r])), scale, steps[m][r]);
                    minima[m][r] = L::fma(least, L::splat(*sums.add(m * sums_stride)), minima[m][r]);
                }
            }
            x = x.add(GROUP);
            sums = sums.add(1);
        }
        for r in 0..R {
            let [scale, least] = large_scales::<L>(block, first + r);
            let least = L::sub(L::splat(0.0), least);
            for m in 0..M {
                totals[m][r] = L::fma(steps[m][r], scale, totals[m][r]);
                totals[m][r] = L::fma(minima[m][r], least, totals[m][r]);
            }
        }
    }
    totals
}

/// The same for a panel of Q4_1.
#[inline(always)]
pub(crate) unsafe fn pair_dots<L: Lanes, const R: usize, const M: usize>(
    panel: &[u8],
    first: usize,
    planes: Planes,
    mut ahead: Ahead,
) -> [[L::F; R]; M] {
    let Planes { mut x, stride, mut sums, sums_stride } = planes;
    let mut totals = [[L::splat(0.0); R]; M];
    for group in panel.chunks_exact(PAIR_BYTES) {
        let parts = group_dots::<L, R, M>(&group[2 * LARGE..], first, (x, stride), &mut ahead);
        for r in 0..R {
            let [scale, least] = large_scales::<L>(group, first + r);
            for m in 0..M {
                totals[m][r] = L::fma(L::to_f32(L::widen(parts[m][r])), scale, totals[m][r]);
                totals[m][r] = L::fma(least, L::splat(*sums.add(m * sums_stride)), totals[m][r]);
            }
        }
        x = x.add(GROUP);
        sums = sums.add(1);
    }
    totals
}

/// The f16 scales and minima of a row group, which `bytes` begin with.
#[inline(always)]
unsafe fn large_scales<L: Lanes>(bytes: &[u8], row_group: usize) -> [L::F; 2] {
    let [scales, minima] = [0, LARGE].map(|at| bytes[at + 32 * row_group..][..32].as_ptr());
    [L::load_f16(scales.cast()), L::load_f16(minima.cast())]
}

/// The sums of a group: its codes, in `lines`, times `M` planes.
#[inline(always)]
unsafe fn group_dots<L: Lanes, const R: usize, const M: usize>(
    lines: &[u8],
    first: usize,
    (x, stride): (*const i8, usize),
    ahead: &mut Ahead,
) -> [[L::Part; R]; M] {
    let mut parts = [[L::zero_part(); R]; M];
    for line in 0..LINES {
        ahead.prefetch::<L>();
        for r in 0..R {
            let at = line * LINE_BYTES + 64 * (first + r);
            let codes = L::load_codes(lines[at..][..64].as_ptr());
            let halves = [L::low_half(codes), L::high_half(codes)];
            for m in 0..M {
                let x = x.add(m * stride + LINE * line);
                parts[m][r] = L::dot(parts[m][r], halves[0], x);
                parts[m][r] = L::dot(parts[m][r], halves[1], x.add(4));
            }
        }
    }
    parts
}

/// Sums the groups of a plane.
pub(crate) fn group_sums(plane: &[i8], sums: &mut [f32]) {
    for (group, sum) in plane.chunks_exact(GROUP).zip(sums) {
        *sum = group.iter().map(|&x| i32::from(x)).sum::<i32>() as f32;
    }
}
