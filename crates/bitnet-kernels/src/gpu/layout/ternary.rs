//! Ternary weights in layout T2F, packed so that one 16-byte load feeds four multiplications of the matrix units.
//! `docs/dev/kernels.md` draws the layout.

use std::array;

use bitnet_tensor::{TernaryScales, TernaryTensor};
use half::f16;

use crate::RowOrder;
use crate::gpu::{
    DeviceBuffer, Driver, Gpu, GpuError,
    layout::{K_TILE, f32_bytes},
};

/// Rows in a tile of codes.
pub(super) const TILE_ROWS: usize = 16;
/// Bytes of a tile's codes: 16 rows x 128 codes of 2 bits.
const TILE_BYTES: usize = TILE_ROWS * K_TILE / 4;
/// Rows are padded to a multiple of the largest tile of a kernel, so that no tile reaches past the buffer.
pub(super) const ROW_PADDING: usize = 128;

/// A matrix of int8 (`int8.rs`), or a ternary matrix in layout T2F: codes (the value + 1) in tiles of 16 rows x 128 columns, `[row tile][k tile]`, as
/// the matrix unit takes them. Each lane of a warp owns 16 bytes of a tile: word `j` has columns `32 j ..`, and `(word
/// >> 2 i) & 0x03030303` is register `i` of operand A:
///
/// ```text
/// bits [8b + 2i, 8b + 2i + 1] of word j of lane 4g + q
///     = code[row g + 8 (i & 1)][column 32j + 4q + b + 16 (i >> 1)]        b, i = 0..4
/// ```
///
/// Rows `g` and `g + 8` of a tile are in one thread. With [`RowOrder::Plain`] the rows are in order; otherwise such a
/// pair has two rows that are needed together.
///
/// Scales for groups of 64 or 128 columns are f16 and follow the codes of each tile: `[group of the tile][pair][2]`.
#[derive(Debug)]
pub struct Linear {
    pub(in crate::gpu) rows: usize,
    pub(in crate::gpu) cols: usize,
    pub(in crate::gpu) order: RowOrder,
    /// `[row tiles][k tiles][512]`, or 544 or 576 with the scales of groups, or 2,176 for int8.
    pub(in crate::gpu) codes: DeviceBuffer,
    pub(in crate::gpu) scales: Scales,
}

#[derive(Debug)]
pub(in crate::gpu) enum Scales {
    /// f32 `[rows padded]`, in the order of the codes.
    Rows(DeviceBuffer),
    /// One per row and group of this many columns, stored with the codes.
    Groups(usize),
    /// One per row and block of 32 columns, stored with codes that are int8.
    Blocks,
}

/// Number of tiles along the rows of a matrix, with its padding.
pub(super) fn row_tiles(rows: usize) -> usize {
    rows.next_multiple_of(ROW_PADDING) / TILE_ROWS
}

impl Linear {
    /// Number of tiles along the rows.
    pub(in crate::gpu) fn row_tiles(&self) -> usize {
        row_tiles(self.rows)
    }

    /// Number of tiles along the columns.
    pub(in crate::gpu) fn k_tiles(&self) -> usize {
        self.cols.div_ceil(K_TILE)
    }
}

/// Bytes of the codes of a [`Linear`], with the scales of groups of `group` columns, and of the scales of rows.
pub(in crate::gpu) fn linear_bytes(rows: usize, cols: usize, group: Option<usize>) -> [usize; 2] {
    let padded = rows.next_multiple_of(ROW_PADDING);
    let codes = padded / TILE_ROWS * cols.div_ceil(K_TILE) * tile_bytes(group);
    [codes, if group.is_none() { padded * size_of::<f32>() } else { 0 }]
}

/// Bytes of a tile of codes, with the scales of its groups.
fn tile_bytes(group: Option<usize>) -> usize {
    TILE_BYTES + 2 * TILE_ROWS * group.map_or(0, |group| K_TILE / group)
}

/// Returns the row at `place` in a matrix of `rows` rows; `None` for padding.
pub(super) fn row_at(order: RowOrder, rows: usize, place: usize) -> Option<usize> {
    let pair = place / TILE_ROWS * 8 + place % 8;
    let second = place % TILE_ROWS / 8;
    let row = match order {
        RowOrder::Plain => return (place < rows).then_some(place),
        RowOrder::GateUp => pair + second * (rows / 2),
        RowOrder::Rope { head_dim } => {
            let half = head_dim / 2;
            pair / half * head_dim + pair % half + second * half
        }
    };
    (pair < rows / 2).then_some(row)
}

/// Checks that a matrix can have its rows in this order.
pub(super) fn check(order: RowOrder, rows: usize) {
    if let RowOrder::Rope { head_dim } = order {
        assert!(rows.is_multiple_of(head_dim) && head_dim.is_multiple_of(2), "rows must be whole heads");
    }
}

/// Finds the row at a place: its matrix and its number there; `None` for padding.
type RowAt<'a, 'w> = &'a (dyn Fn(usize) -> Option<(&'w TernaryTensor, usize)> + Sync);

/// A matrix that is packed into tiles.
struct Tiles<'a, 'w> {
    row: RowAt<'a, 'w>,
    group: Option<usize>,
}

impl Tiles<'_, '_> {
    /// Writes a row of tiles: all columns of 16 rows. The codes of padding may have any value: activations are zero
    /// there, and outputs of padding rows are not stored.
    fn write(&self, row_tile: usize, out: &mut [u8]) {
        let rows: [Option<(&TernaryTensor, usize)>; TILE_ROWS] =
            array::from_fn(|i| (self.row)(row_tile * TILE_ROWS + i));
        let codes = rows.map(|row| row.map_or(&[][..], |(weights, row)| weights.row_codes(row)));
        let scales = rows.map(|row| row.map_or(&[][..], |(weights, row)| weights.group_scales(row)));
        let groups = self.group.map_or(0, |group| K_TILE / group);
        for (tile, out) in out.chunks_exact_mut(tile_bytes(self.group)).enumerate() {
            let (out, scales_out) = out.split_at_mut(TILE_BYTES);
            for (g, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
                pack_pair([&columns(codes[g], tile), &columns(codes[g + 8], tile)], out);
            }
            pack_scales(&scales, tile * groups, groups, scales_out);
        }
    }
}

/// The codes of 128 columns of a row, in the tile of columns `tile`; zeros after its end.
fn columns(row: &[u8], tile: usize) -> [u8; K_TILE / 4] {
    let rest = row.get(tile * K_TILE / 4..).unwrap_or_default();
    rest.first_chunk().copied().unwrap_or_else(|| {
        let mut last = [0; K_TILE / 4];
        last[..rest.len()].copy_from_slice(rest);
        last
    })
}

/// Packs rows `g` and `g + 8` of a tile, for four lanes. Each step treats the four words of a lane alike, so that the
/// compiler computes them in one vector.
fn pack_pair(rows: [&[u8; K_TILE / 4]; 2], out: &mut [u8; 2 * K_TILE / 4]) {
    const EVEN: u32 = 0x3333_3333;
    const LOW: u32 = 0x0F0F_0F0F;
    // Byte `q` of `columns[b][j]` has the codes of column `b` in word `j` of lane `q`.
    let mut columns = [[0; 4]; 4];
    for (j, at) in (0..K_TILE / 4).step_by(8).enumerate() {
        let word = |row: usize, at: usize| u32::from_le_bytes(array::from_fn(|byte| rows[row][at + byte]));
        let [first, second] = [at, at + 4].map(|at| (word(0, at), word(1, at)));
        let even = |(a, b): (u32, u32)| a & EVEN | (b & EVEN) << 2;
        let odd = |(a, b): (u32, u32)| a >> 2 & EVEN | b & !EVEN;
        for (b, near, far) in [(0, even(first), even(second)), (1, odd(first), odd(second))] {
            columns[b][j] = near & LOW | (far & LOW) << 4;
            columns[b + 2][j] = near >> 4 & LOW | far & !LOW;
        }
    }
    let (lanes, _) = out.as_chunks_mut::<16>();
    for (q, lane) in lanes.iter_mut().enumerate() {
        let words: [u32; 4] = array::from_fn(|j| {
            let byte = |b: usize| (columns[b][j] >> (8 * q) & 0xFF) << (8 * b);
            byte(0) | byte(1) | byte(2) | byte(3)
        });
        lane.as_chunks_mut().0.iter_mut().zip(words).for_each(|(out, word)| *out = word.to_le_bytes());
    }
}

/// Writes the scales of the groups `first..first + count` of 16 rows.
fn pack_scales(rows: &[&[f16]; TILE_ROWS], first: usize, count: usize, out: &mut [u8]) {
    for (group, out) in (first..first + count).zip(out.chunks_exact_mut(2 * TILE_ROWS)) {
        for (place, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let scale = rows[place / 2 + 8 * (place % 2)].get(group);
            *out = scale.copied().unwrap_or(f16::ZERO).to_le_bytes();
        }
    }
}

impl<D: Driver> Gpu<D> {
    /// Packs a ternary matrix.
    pub fn linear(&mut self, weights: &TernaryTensor, order: RowOrder) -> Result<Linear, GpuError> {
        let (rows, cols) = (weights.rows(), weights.cols());
        check(order, rows);
        let padded = rows.next_multiple_of(ROW_PADDING);
        let find = |place| Some((weights, row_at(order, rows, place)?));
        let codes = self.pack([padded, cols], weights.group(), &find)?;
        let scales = match weights.scales() {
            TernaryScales::Rows(_) => {
                let row_scale = |place| weights.row_scale(row_at(order, rows, place)?);
                let scales: Vec<f32> = (0..padded).map(|place| row_scale(place).unwrap_or(0.0)).collect();
                Scales::Rows(self.store(&f32_bytes(&scales), "scales of ternary weights")?)
            }
            TernaryScales::Groups { width, .. } => Scales::Groups(*width),
        };
        Ok(Linear { rows, cols, order, codes, scales })
    }

    /// Packs rows, with their scales for groups, into tiles; there are as many as whole tiles have.
    pub(in crate::gpu) fn pack(
        &mut self,
        [rows, cols]: [usize; 2],
        group: Option<usize>,
        row: RowAt<'_, '_>,
    ) -> Result<DeviceBuffer, GpuError> {
        let tiles = Tiles { row, group };
        let codes = self.alloc(linear_bytes(rows, cols, group)[0], "ternary weights")?;
        let row_bytes = cols.div_ceil(K_TILE) * tile_bytes(group);
        self.convert(codes.address(), rows / TILE_ROWS, row_bytes, &|row, out| tiles.write(row, out))?;
        Ok(codes)
    }
}
