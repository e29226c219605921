use bitnet_tensor::TernaryTensor;

use super::{Buffer, Driver, Gpu, GpuError, quants::K_TILE};
use crate::RowOrder;

/// Rows in a tile of codes.
const TILE_ROWS: usize = 16;
/// Bytes of a tile: 16 rows x 128 codes of 2 bits.
const TILE_BYTES: usize = TILE_ROWS * K_TILE / 4;
/// Rows are padded to a multiple of the largest tile of a kernel, so that no tile reaches past the buffer.
const ROW_PADDING: usize = 128;

/// A ternary matrix in layout T2F: codes `trit + 1` in tiles of 16 rows x 128 columns, `[row tile][k tile]`, as the
/// matrix unit takes them. Of a tile lane `l` owns 16 bytes: word `j` is the columns `32 j ..`, and
/// `(word >> 2 i) & 0x03030303` is register `i` of operand A:
///
/// ```text
/// bits [8b + 2i, 8b + 2i + 1] of word j of lane 4g + q
///     = code[row g + 8 (i & 1)][column 32j + 4q + b + 16 (i >> 1)]        b, i = 0..4
/// ```
///
/// Rows of a tile are pairs `(g, g + 8)`: of neighbours in order [`RowOrder::Plain`], else of rows that belong
/// together, so that one thread has both.
#[derive(Debug)]
pub struct Linear {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) order: RowOrder,
    /// `[row tiles][k tiles][512]`
    pub(super) codes: Buffer,
    /// f32 `[rows padded]`, in the order of the codes.
    pub(super) scales: Buffer,
}

impl Linear {
    /// Number of tiles along the columns.
    pub(super) fn k_tiles(&self) -> usize {
        self.cols.div_ceil(K_TILE)
    }
}

/// Returns the row at `place` in a matrix of `rows` rows; `None` for padding.
fn row_at(order: RowOrder, rows: usize, place: usize) -> Option<usize> {
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

/// Spreads the four codes of a byte to four bytes.
fn spread(codes: u8) -> u32 {
    let x = u32::from(codes);
    let x = (x | x << 12) & 0x000F_000F;
    (x | x << 6) & 0x0303_0303
}

/// The tile of 16 rows that starts at `place`, all of its columns. What pads them is of no consequence: activations
/// are zero there, and such rows are not stored.
fn pack_tile(w: &TernaryTensor, order: RowOrder, place: usize, out: &mut Vec<u8>) {
    let rows: [&[u8]; TILE_ROWS] =
        std::array::from_fn(|i| row_at(order, w.rows(), place + i).map_or(&[][..], |row| w.row_codes(row)));
    let codes = |row: usize, byte: usize| spread(rows[row].get(byte).copied().unwrap_or(0));
    // Four columns are a byte.
    for first in (0..w.cols().div_ceil(4)).step_by(K_TILE / 4) {
        for (g, q) in (0..32).map(|lane| (lane / 4, lane % 4)) {
            for near in (0..4).map(|j| first + 8 * j + q) {
                let far = near + 4;
                let word =
                    codes(g, near) | codes(g + 8, near) << 2 | codes(g, far) << 4 | codes(g + 8, far) << 6;
                out.extend(word.to_le_bytes());
            }
        }
    }
}

impl<D: Driver> Gpu<D> {
    /// Packs a ternary matrix.
    pub fn linear(&mut self, weights: &TernaryTensor, order: RowOrder) -> Result<Linear, GpuError> {
        let (rows, cols) = (weights.rows(), weights.cols());
        if let RowOrder::Rope { head_dim } = order {
            assert!(rows.is_multiple_of(head_dim) && head_dim.is_multiple_of(2), "rows are whole heads");
        }
        let places = rows.next_multiple_of(ROW_PADDING);
        let tile_row = cols.div_ceil(K_TILE) * TILE_BYTES;
        let codes = self.alloc(places / TILE_ROWS * tile_row, "ternary weights")?;
        let mut bytes = Vec::with_capacity(tile_row);
        for tile in 0..places / TILE_ROWS {
            bytes.clear();
            pack_tile(weights, order, tile * TILE_ROWS, &mut bytes);
            self.send(codes.address() + (tile * tile_row) as u64, &bytes)?;
        }
        let scale = |place: usize| {
            let row = row_at(order, rows, place)?;
            let range = weights.scales().iter().find(|range| (range.start..range.end).contains(&row))?;
            Some(range.scale)
        };
        let scales: Vec<u8> =
            (0..places).flat_map(|place| scale(place).unwrap_or(0.0).to_le_bytes()).collect();
        let scales = self.store(&scales, "scales of ternary weights")?;
        Ok(Linear { rows, cols, order, codes, scales })
    }
}
