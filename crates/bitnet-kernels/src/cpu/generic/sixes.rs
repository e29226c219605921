//! The form of [`HeadCopy`](crate::cpu::head::HeadCopy) for tables of Q6_K: their own codes of 6 bits, in the order of the
//! kernels, and their scales, as [`super::nibbles`] for tables of 4 bits.
//!
//! ```text
//! panel    64 rows, all columns
//! block    256 columns of a panel: f16 scales, then 16 groups
//! group    16 columns: i8 scales, then 2 lines of low bits and 1 of high bits
//! low      8 columns: byte 4 r + j holds the lower 4 bits of row r: of column j, and of column 4 + j in the high half
//! high     16 columns: byte 4 r + j holds the upper 2 bits of columns j, 4 + j, 8 + j and 12 + j, the first in the lowest
//! ```
//!
//! A value is `scale * (i8 scale) * (code - 32)`. The sums of a group are exact in integers; what follows is rounded, and
//! [`copy_row`] returns the most that this can be.

#![allow(clippy::needless_range_loop, reason = "tiles of registers are indexed by row group and plane")]

use bitnet_tensor::{BitNetTensor, f16};

use crate::cpu::{
    generic::{ahead::Ahead, nibbles::Planes},
    lanes::Lanes,
    panels::PANEL_ROWS,
};

/// Columns of a block and of a group.
pub(crate) const BLOCK: usize = 256;
pub(crate) const GROUP: usize = 16;
const GROUPS: usize = BLOCK / GROUP;
/// Groups of 4 columns, which are multiplied at once: those of a group, and those of a block.
const QUADS: usize = GROUP / 4;
pub(crate) const BLOCK_QUADS: usize = QUADS * GROUPS;
/// Bytes of a line, of the scales of a group, and of those of a block.
const LINE_BYTES: usize = 4 * PANEL_ROWS;
const SMALL: usize = PANEL_ROWS;
const LARGE: usize = 2 * PANEL_ROWS;
const GROUP_BYTES: usize = SMALL + 3 * LINE_BYTES;
pub(crate) const BLOCK_BYTES: usize = LARGE + GROUPS * GROUP_BYTES;
/// What a code is when the value is zero.
const ZERO: i32 = 32;

/// Bytes of a block of Q6_K: lower bits, upper bits, small scales and the scale.
const STORED: usize = 210;

/// Copies a row of a Q6_K table into a panel. Returns an upper bound on the length of the difference between the row and
/// what the panel stands for, all roundings of [`dots`] included.
pub(crate) fn copy_row(table: &BitNetTensor, row: usize, out: &mut [u8]) -> f64 {
    let at = row % PANEL_ROWS;
    let bytes = &table.bytes()[row * table.row_bytes()..][..table.row_bytes()];
    let mut squares = 0.0;
    for (stored, block) in bytes.chunks_exact(STORED).zip(out.chunks_exact_mut(BLOCK_BYTES)) {
        block[2 * at..][..2].copy_from_slice(&stored[208..]);
        let scale = f64::from(f16::from_le_bytes([stored[208], stored[209]]).to_f32());
        for (g, group) in block[LARGE..].chunks_exact_mut(GROUP_BYTES).enumerate() {
            let small = stored[192 + g];
            group[at] = small;
            let codes = stored_codes(stored, g);
            copy_codes(&codes, at, &mut group[SMALL..]);
            let lengths = codes.map(|code| (i32::from(code) - ZERO).pow(2));
            squares += (scale * f64::from(small as i8)).powi(2) * f64::from(lengths.iter().sum::<i32>());
        }
    }
    // Totals have a rounding for every group, scales one and values two. Planes are at most four times as long as the row
    // of activations.
    let roundings = (GROUPS * (bytes.len() / STORED) + 4) as f64 * f64::from(f32::EPSILON);
    4.0 * roundings * squares.sqrt()
}

/// The codes of group `g` of a block of Q6_K. Each half of the block has 64 bytes of lower bits and 32 of upper bits; each of
/// its four quarters has the lower half of 32 of the former, or the upper half, and two bits of all of the latter.
fn stored_codes(block: &[u8], g: usize) -> [u8; GROUP] {
    let (half, quarter, part) = (g / 8, g / 2 % 4, g % 2);
    std::array::from_fn(|i| {
        let low = block[64 * half + 32 * (quarter % 2) + GROUP * part + i] >> (4 * (quarter / 2)) & 15;
        let high = block[128 + 32 * half + GROUP * part + i] >> (2 * quarter) & 3;
        low | high << 4
    })
}

/// Writes the codes of a group of row `at` of a panel into its lines.
fn copy_codes(codes: &[u8; GROUP], at: usize, lines: &mut [u8]) {
    let (low, high) = lines.split_at_mut(2 * LINE_BYTES);
    for j in 0..4 {
        for (line, to) in low.chunks_exact_mut(LINE_BYTES).enumerate() {
            let [first, second] = [0, 4].map(|next| codes[8 * line + next + j] & 15);
            to[4 * at + j] = first | second << 4;
        }
        high[4 * at + j] = (0..QUADS).map(|quad| codes[4 * quad + j] >> 4 << (2 * quad)).sum();
    }
}

/// The products of `R` row groups of a panel, from `first` on, with `M` planes.
#[inline(always)]
pub(crate) unsafe fn dots<L: Lanes, const R: usize, const M: usize>(
    panel: &[u8],
    first: usize,
    planes: Planes,
    mut ahead: Ahead,
) -> [[L::F; R]; M] {
    let Planes { mut x, stride, sums, sums_stride } = planes;
    let mut sums = sums.cast::<i32>();
    let mut totals = [[L::splat(0.0); R]; M];
    for block in panel.chunks_exact(BLOCK_BYTES) {
        let mut large = [L::splat(0.0); R];
        for r in 0..R {
            large[r] = L::load_f16(block[32 * (first + r)..][..32].as_ptr().cast());
        }
        for group in block[LARGE..].chunks_exact(GROUP_BYTES) {
            let lines = &group[SMALL..];
            let products = group_dots::<L, R, M>(lines, first, (x, stride), (sums, sums_stride), &mut ahead);
            for r in 0..R {
                let scale = L::mul(large[r], L::load_i8(group[16 * (first + r)..][..16].as_ptr().cast()));
                for m in 0..M {
                    totals[m][r] = L::fma(L::to_f32(products[m][r]), scale, totals[m][r]);
                }
            }
            x = x.add(GROUP);
            sums = sums.add(1);
        }
    }
    totals
}

/// The sums of a group: its codes, in `lines`, times `M` planes, plus what [`group_sums`] has for it.
#[inline(always)]
unsafe fn group_dots<L: Lanes, const R: usize, const M: usize>(
    lines: &[u8],
    first: usize,
    (x, stride): (*const i8, usize),
    (begin, begin_stride): (*const i32, usize),
    ahead: &mut Ahead,
) -> [[L::I; R]; M] {
    // All at once and, in tiles with many planes, without a branch: the products after them stay one block of instructions,
    // which the compiler then leaves in this order.
    for _ in 0..QUADS {
        if R == 1 {
            ahead.prefetch_line::<L>();
        } else {
            ahead.prefetch::<L>();
        }
    }
    let mut parts = [[L::zero_part(); R]; M];
    let mut sums = [[L::zero_i(); R]; M];
    for m in 0..M {
        let begin = L::splat_i(*begin.add(m * begin_stride));
        for r in 0..R {
            match L::begin_with(begin) {
                Some(part) => parts[m][r] = part,
                None => sums[m][r] = begin,
            }
        }
    }
    for line in 0..2 {
        for r in 0..R {
            let at = 64 * (first + r);
            let low = L::load_codes(lines[line * LINE_BYTES + at..][..64].as_ptr());
            let high = L::load_codes(lines[2 * LINE_BYTES + at..][..64].as_ptr());
            let halves = if line == 0 {
                [L::with_high::<0>(L::low_half(low), high), L::with_high::<1>(L::high_half(low), high)]
            } else {
                [L::with_high::<2>(L::low_half(low), high), L::with_high::<3>(L::high_half(low), high)]
            };
            for m in 0..M {
                let x = x.add(m * stride + 8 * line);
                parts[m][r] = L::dot(parts[m][r], halves[0], x);
                parts[m][r] = L::dot(parts[m][r], halves[1], x.add(4));
                if line == 1 || L::SIX_BIT_DOTS == 2 {
                    sums[m][r] = L::add_i(sums[m][r], L::widen(parts[m][r]));
                    parts[m][r] = L::zero_part();
                }
            }
        }
    }
    sums
}

/// Sums the groups of a plane, and makes of each what takes the value zero from the sum of codes. These are i32 in the bits
/// of f32.
pub(crate) fn group_sums(plane: &[i8], sums: &mut [f32]) {
    for (group, sum) in plane.chunks_exact(GROUP).zip(sums) {
        let zeros = -ZERO * group.iter().map(|&x| i32::from(x)).sum::<i32>();
        *sum = f32::from_bits(zeros.cast_unsigned());
    }
}
