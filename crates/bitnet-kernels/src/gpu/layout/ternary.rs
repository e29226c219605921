//! Ternary weights in layout T2F, packed so that one 16-byte load feeds four multiplications of the matrix units.
//! `docs/dev/kernels.md` draws the layout.

use bitnet_tensor::{TernaryScales, TernaryTensor};
use half::f16;

use crate::RowOrder;
use crate::gpu::{
    DeviceBuffer, Driver, Gpu, GpuError,
    layout::{K_TILE, f32_bytes},
};

/// Rows in a tile of codes.
const TILE_ROWS: usize = 16;
/// Bytes of a tile's codes: 16 rows x 128 codes of 2 bits.
const TILE_BYTES: usize = TILE_ROWS * K_TILE / 4;
/// Rows are padded to a multiple of the largest tile of a kernel, so that no tile reaches past the buffer.
const ROW_PADDING: usize = 128;

/// A ternary matrix in layout T2F: codes (the value + 1) in tiles of 16 rows x 128 columns, `[row tile][k tile]`, as
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
    /// `[row tiles][k tiles][512]`, or 544 or 576 with the scales of groups.
    pub(in crate::gpu) codes: DeviceBuffer,
    pub(in crate::gpu) scales: Scales,
}

#[derive(Debug)]
pub(in crate::gpu) enum Scales {
    /// f32 `[rows padded]`, in the order of the codes.
    Rows(DeviceBuffer),
    /// One per row and group of this many columns, stored with the codes.
    Groups(usize),
}

impl Linear {
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

/// Appends the codes of 128 columns of 16 rows, in the tile of columns `tile`; `row_codes` gives the codes of a row. The
/// codes of padding may have any value: activations are zero there, and outputs of padding rows are not stored.
fn pack_tile<'w>(
    rows: [Option<usize>; TILE_ROWS],
    row_codes: impl Fn(usize) -> &'w [u8],
    tile: usize,
    out: &mut Vec<u8>,
) {
    let rows = rows.map(|row| row.map_or(&[][..], &row_codes));
    // A byte has four columns.
    let first = tile * K_TILE / 4;
    let codes = |row: usize, byte: usize| spread(rows[row].get(byte).copied().unwrap_or(0));
    for (g, q) in (0..32).map(|lane| (lane / 4, lane % 4)) {
        for near in (0..4).map(|j| first + 8 * j + q) {
            let far = near + 4;
            let word = codes(g, near) | codes(g + 8, near) << 2 | codes(g, far) << 4 | codes(g + 8, far) << 6;
            out.extend(word.to_le_bytes());
        }
    }
}

/// Appends the scales of the groups `first..first + count` of 16 rows.
fn pack_scales(rows: &[&[f16]; TILE_ROWS], first: usize, count: usize, out: &mut Vec<u8>) {
    for group in first..first + count {
        for row in (0..8).flat_map(|pair| [pair, pair + 8]) {
            out.extend(rows[row].get(group).copied().unwrap_or(f16::ZERO).to_le_bytes());
        }
    }
}

impl<D: Driver> Gpu<D> {
    /// Packs a ternary matrix.
    pub fn linear(&mut self, weights: &TernaryTensor, order: RowOrder) -> Result<Linear, GpuError> {
        let shape = [weights.rows(), weights.cols()];
        let groups = weights.group().map_or(0, |group| K_TILE / group);
        let bytes = tile_bytes(weights.group());
        let codes = self.pack(shape, order, bytes, |rows, tile, out| {
            pack_tile(rows, |row| weights.row_codes(row), tile, out);
            let scales = rows.map(|row| row.map_or(&[][..], |row| weights.group_scales(row)));
            pack_scales(&scales, tile * groups, groups, out);
        })?;
        let scales = match weights.scales() {
            TernaryScales::Rows(_) => {
                let places = 0..shape[0].next_multiple_of(ROW_PADDING);
                let row_scale = |place| weights.row_scale(row_at(order, shape[0], place)?);
                let scales: Vec<f32> = places.map(|place| row_scale(place).unwrap_or(0.0)).collect();
                Scales::Rows(self.store(&f32_bytes(&scales), "scales of ternary weights")?)
            }
            TernaryScales::Groups { width, .. } => Scales::Groups(*width),
        };
        Ok(Linear { rows: shape[0], cols: shape[1], order, codes, scales })
    }

    /// Stores a matrix as tiles of `bytes` bytes. `pack` appends one tile, given its 16 rows (`None` is padding) and
    /// its number along the columns.
    fn pack(
        &mut self,
        [rows, cols]: [usize; 2],
        order: RowOrder,
        bytes: usize,
        pack: impl Fn([Option<usize>; TILE_ROWS], usize, &mut Vec<u8>),
    ) -> Result<DeviceBuffer, GpuError> {
        if let RowOrder::Rope { head_dim } = order {
            assert!(rows.is_multiple_of(head_dim) && head_dim.is_multiple_of(2), "rows must be whole heads");
        }
        let row_tiles = rows.next_multiple_of(ROW_PADDING) / TILE_ROWS;
        let k_tiles = cols.div_ceil(K_TILE);
        let buffer = self.alloc(row_tiles * k_tiles * bytes, "ternary weights")?;
        let mut packed = Vec::with_capacity(k_tiles * bytes);
        for tile in 0..row_tiles {
            packed.clear();
            let rows = std::array::from_fn(|i| row_at(order, rows, tile * TILE_ROWS + i));
            (0..k_tiles).for_each(|k_tile| pack(rows, k_tile, &mut packed));
            self.send(buffer.address() + (tile * k_tiles * bytes) as u64, &packed)?;
        }
        Ok(buffer)
    }
}
