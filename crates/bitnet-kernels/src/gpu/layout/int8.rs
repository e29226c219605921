//! Int8 weights in layout T8F, packed so that one 16-byte load is an operand of the matrix units.
//! `docs/dev/kernels.md` draws the layout.

use std::array;

use half::f16;

use crate::{
    Int8Matrix, RowOrder,
    gpu::{
        Driver, Gpu, GpuError, Linear,
        layout::{
            K_TILE,
            ternary::{Scales, TILE_ROWS, check, row_at, row_tiles},
        },
    },
};

/// Bytes of a block's codes in a tile: 16 rows x 32 codes.
const BLOCK_BYTES: usize = TILE_ROWS * Int8Matrix::BLOCK;
/// Blocks in a tile.
const BLOCKS: usize = K_TILE / Int8Matrix::BLOCK;
/// Bytes of a tile: its codes, then an f16 scale for each row of each block.
const TILE_BYTES: usize = BLOCKS * (BLOCK_BYTES + 2 * TILE_ROWS);

/// Bytes of a matrix of int8.
pub(in crate::gpu) fn int8_linear_bytes(rows: usize, cols: usize) -> usize {
    row_tiles(rows) * cols.div_ceil(K_TILE) * TILE_BYTES
}

/// Writes a tile: for each block of 32 columns the codes as operand A of `mma.m16n8k32`, 16 bytes for each lane `4g + q` of a
/// warp, then the scales of each block, `[pair][2]` as those of ternary weights:
///
/// ```text
/// byte 4i + b of lane 4g + q of block j = code[row g + 8 (i & 1)][column 32j + 4q + b + 16 (i >> 1)]        b, i = 0..4
/// ```
///
/// Padding is zero.
fn write_tile(weights: &Int8Matrix, rows: &[Option<usize>; TILE_ROWS], tile: usize, out: &mut [u8]) {
    out.fill(0);
    let (codes, scales) = out.split_at_mut(BLOCKS * BLOCK_BYTES);
    for (place, row) in rows.iter().enumerate().filter_map(|(place, row)| Some((place, (*row)?))) {
        let (g, second) = (place % 8, place / 8);
        let (row_codes, row_scales) = weights.row(row);
        for (j, (block, &scale)) in
            row_codes.iter().zip(row_scales).skip(BLOCKS * tile).take(BLOCKS).enumerate()
        {
            for (quarter, values) in block.as_chunks::<4>().0.iter().enumerate() {
                let (q, i) = (quarter % 4, quarter / 4 * 2 + second);
                codes[BLOCK_BYTES * j + 16 * (4 * g + q) + 4 * i..][..4]
                    .copy_from_slice(&values.map(i8::cast_unsigned));
            }
            // It comes from an f16.
            let at = 2 * TILE_ROWS * j + 2 * (2 * g + second);
            scales[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
    }
}

impl<D: Driver> Gpu<D> {
    /// Packs a matrix of int8.
    pub fn int8_linear(&mut self, weights: &Int8Matrix, order: RowOrder) -> Result<Linear, GpuError> {
        let (rows, cols) = (weights.rows(), weights.cols());
        check(order, rows);
        let codes = self.alloc(int8_linear_bytes(rows, cols), "int8 weights")?;
        self.convert(
            codes.address(),
            row_tiles(rows),
            cols.div_ceil(K_TILE) * TILE_BYTES,
            &|row_tile, out| {
                let rows = array::from_fn(|i| row_at(order, rows, row_tile * TILE_ROWS + i));
                for (tile, out) in out.chunks_exact_mut(TILE_BYTES).enumerate() {
                    write_tile(weights, &rows, tile, out);
                }
            },
        )?;
        Ok(Linear { rows, cols, order, codes, scales: Scales::Blocks })
    }
}
