//! Quantised activations in layout XQ, from which the matrix units load operands without bank conflicts.

use crate::Grouping;
use crate::gpu::{DeviceBuffer, Driver, Gpu, GpuError};

/// Tokens in an atom: eight rows of [`K_TILE`] bytes whose 16-byte chunks are swizzled, so that a matrix load of eight
/// rows uses every bank once.
const ATOM_TOKENS: usize = 8;
/// Features in an atom and in a tile of weights.
pub(in crate::gpu) const K_TILE: usize = 128;
/// Tokens are padded to a multiple of the largest tile of a kernel, so that no tile reaches past the buffer.
const TOKEN_PADDING: usize = 128;

/// int8 activations in layout XQ: atoms `[k / 128][token / 8]`, within an atom row `token % 8`, chunk
/// `(k % 128 / 16) ^ (token % 8)`. The padding of `width` and of the tokens is zero. A group of columns is a tile.
#[derive(Debug)]
pub struct Int8Rows {
    pub(in crate::gpu) rows: usize,
    pub(in crate::gpu) width: usize,
    /// Number of atoms along the tokens.
    pub(in crate::gpu) atoms: usize,
    pub(in crate::gpu) grouping: Grouping,
    /// `[k_tiles][atoms][1024]` s8
    pub(in crate::gpu) values: DeviceBuffer,
    /// For rows, `[8 * atoms]` of {f32 multiplier, s32 sum}. For groups, `[k_tiles][8 * atoms]` of {f32 scale, s32 sum,
    /// s32 sums of both halves}.
    pub(in crate::gpu) scales: DeviceBuffer,
}

/// Bytes of the values of [`Int8Rows`], and of their scales and sums.
pub(in crate::gpu) fn int8_bytes(rows: usize, width: usize, grouping: Grouping) -> [usize; 2] {
    let tokens = rows.next_multiple_of(TOKEN_PADDING);
    let scales = match grouping {
        Grouping::Row => 8 * tokens,
        Grouping::Groups => 16 * tokens * width.div_ceil(K_TILE),
    };
    [tokens * width.next_multiple_of(K_TILE), scales]
}

/// Values `[n][width]`, multipliers (or scales) and sums of rows (or groups).
type QuantRows = (Vec<i8>, Vec<f32>, Vec<i32>);

impl Int8Rows {
    /// Offsets in `scales` of those of `n` rows, in the order of [`QuantRows`].
    fn scale_places(&self, n: usize) -> Vec<usize> {
        match self.grouping {
            Grouping::Row => (0..n).map(|t| 8 * t).collect(),
            Grouping::Groups => {
                let tiles = self.width.div_ceil(K_TILE);
                let place = |i: usize| 16 * (i % tiles * self.atoms * ATOM_TOKENS + i / tiles);
                (0..n * tiles).map(place).collect()
            }
        }
    }

    /// Offset of a value in bytes.
    fn at(&self, token: usize, k: usize) -> usize {
        let (tile, column) = (k / K_TILE, k % K_TILE);
        let row = token % ATOM_TOKENS;
        let atom = tile * self.atoms + token / ATOM_TOKENS;
        atom * ATOM_TOKENS * K_TILE + row * K_TILE + ((column / 16) ^ row) * 16 + column % 16
    }
}

impl<D: Driver> Gpu<D> {
    /// Makes zeroed int8 activations.
    pub fn int8_rows(&mut self, rows: usize, width: usize, grouping: Grouping) -> Result<Int8Rows, GpuError> {
        let [values, scales] = int8_bytes(rows, width, grouping);
        let values = self.alloc(values, "int8 activations")?;
        let scales = self.alloc(scales, "scales of int8 activations")?;
        let atoms = rows.next_multiple_of(TOKEN_PADDING) / ATOM_TOKENS;
        Ok(Int8Rows { rows, width, atoms, grouping, values, scales })
    }

    /// Reads the first `n` rows: values, then multipliers and sums of rows, or scales and sums of groups.
    pub fn read_int8_rows(&mut self, x: &Int8Rows, n: usize) -> Result<QuantRows, GpuError> {
        assert!(n <= x.rows, "the rows must exist");
        let bytes = self.fetch(&x.values, x.values.bytes())?;
        let values =
            (0..n).flat_map(|t| (0..x.width).map(move |k| (t, k))).map(|(t, k)| bytes[x.at(t, k)] as i8);
        let values = values.collect();
        let places = x.scale_places(n);
        let scales = self.fetch(&x.scales, x.scales.bytes())?;
        let word = |at: usize| [scales[at], scales[at + 1], scales[at + 2], scales[at + 3]];
        let multipliers = places.iter().map(|&at| f32::from_le_bytes(word(at))).collect();
        let sums = places.iter().map(|&at| i32::from_le_bytes(word(at + 4))).collect();
        Ok((values, multipliers, sums))
    }

    /// Writes rows of values (`[n][width]`), multipliers and sums of rows, for tests.
    pub fn write_int8_rows(
        &mut self,
        x: &Int8Rows,
        values: &[i8],
        multipliers: &[f32],
        sums: &[i32],
    ) -> Result<(), GpuError> {
        let mut bytes = vec![0; x.values.bytes()];
        for (i, &value) in values.iter().enumerate() {
            bytes[x.at(i / x.width, i % x.width)] = value as u8;
        }
        self.send(x.values.address(), &bytes)?;
        let scales = multipliers.iter().zip(sums);
        let scales: Vec<u8> =
            scales.flat_map(|(m, s)| [m.to_le_bytes(), s.to_le_bytes()]).flatten().collect();
        self.send(x.scales.address(), &scales)
    }
}
