//! The kernel layout of ternary weights with scales for rows: panels with one row per lane.
//!
//! ```text
//! panel   64 rows, all columns; panels are contiguous; rows and columns are padded with code 0
//! block   16 columns of a panel: 256 bytes = 4 groups of 16 rows
//! group   64 bytes: byte 4 r + j holds row r, columns 16 b + 4 p + j at bits 2p, 2p + 1 (p = 0..4)
//! ```
//!
//! Plane `p` of a group, `(byte >> 2p) & 3`, is thus an operand of a 4-way dot product: each 32-bit lane holds four
//! consecutive columns of one row, and all lanes are multiplied by the same four activations. Nothing is ever added
//! across lanes, and the same layout serves vectors of 8 and of 16 rows and any number of tokens.
//!
//! A file holds the same: all codes, then the scale of every row as little-endian f32, with rows padded with zeros.
//! Both are whole lines of 256 bytes. Kernels read the codes in place, at any alignment. A code 3 is refused, because
//! kernels would treat it as a weight of 2.

use std::{borrow::Cow, ops::Range};

use bitnet_tensor::{SharedBytes, TensorError, TernaryTensor, find_code_three, transpose_codes};

use crate::{
    KernelError,
    cpu::{
        memory::{Arena, Buffer, LINE, LineReader, Shared, float_bytes},
        pool::Pool,
    },
};

/// Rows of a panel; a line of a file holds a float for each.
pub(crate) const PANEL_ROWS: usize = LINE / size_of::<f32>();
/// Columns in a block.
pub(crate) const BLOCK: usize = 16;
pub(crate) const BLOCK_BYTES: usize = PANEL_ROWS * BLOCK / 4;

/// A ternary matrix packed into panels.
pub struct Panels {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// `[panels][blocks][256]`.
    pub(crate) codes: SharedBytes,
    /// Scale of every row, padded with zeros to whole panels.
    pub(crate) scales: Buffer<f32>,
}

impl Panels {
    pub(crate) fn pack(
        weights: &TernaryTensor,
        pool: &mut Pool,
        memory: &mut Arena,
    ) -> Result<Self, KernelError> {
        let (rows, cols) = (weights.rows(), weights.cols());
        let (panels, blocks) = (rows.div_ceil(PANEL_ROWS), cols.div_ceil(BLOCK));
        let mut codes = memory.zeroed(panels * blocks * BLOCK_BYTES, "packed weights")?;
        let mut scales = Buffer::zeroed(panels * PANEL_ROWS, "weight scales")?;
        for range in weights.scales() {
            scales[range.start..range.end].fill(range.scale);
        }
        let out = codes.shared();
        pool.run(panels, &|_, panel| pack_panel(weights, panel, blocks, out));
        Ok(Panels { rows, cols, codes: SharedBytes::new(codes), scales })
    }

    /// Number of lines, and bytes per line, that a file holds for a matrix of this shape.
    pub fn stored_shape(rows: usize, cols: usize) -> [usize; 2] {
        [rows.div_ceil(PANEL_ROWS).saturating_mul(cols.div_ceil(BLOCK) + 1), LINE]
    }

    /// Takes a matrix as stored in a file, without copying its codes.
    ///
    /// # Errors
    /// If the length does not match, a code is 3, or a scale is not finite.
    pub fn from_stored(rows: usize, cols: usize, bytes: &SharedBytes) -> Result<Self, KernelError> {
        if rows == 0 || cols == 0 {
            return Err(TensorError::Empty { rows, cols }.into());
        }
        let mut stored = LineReader::new(bytes, Self::stored_shape(rows, cols))?;
        let (panels, blocks) = (rows.div_ceil(PANEL_ROWS), cols.div_ceil(BLOCK));
        let codes = stored.codes(panels * blocks);
        if let Some((at, plane)) = find_code_three(&codes) {
            let (line, byte) = (at / LINE, at % LINE);
            let row = line / blocks * PANEL_ROWS + byte / 4;
            let col = line % blocks * BLOCK + 4 * plane + byte % 4;
            return Err(TensorError::InvalidCode { row, col }.into());
        }
        let scales = stored.floats(panels, "weight scales")?;
        if let Some(&scale) = scales.iter().find(|scale| !scale.is_finite()) {
            return Err(TensorError::Scale { scale }.into());
        }
        Ok(Panels { rows, cols, codes, scales })
    }

    /// The bytes that a file holds for this matrix, in pieces.
    pub fn stored(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        [Cow::from(&*self.codes), float_bytes(&self.scales).into()].into_iter()
    }

    /// Number of output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The scales, one per row.
    pub fn scales(&self) -> &[f32] {
        &self.scales[..self.rows]
    }

    /// Unpacks some of the rows to the canonical layout.
    ///
    /// # Errors
    /// If the range is empty.
    ///
    /// # Panics
    /// If the range reaches past the last row.
    pub fn unpack(&self, rows: Range<usize>) -> Result<TernaryTensor, TensorError> {
        assert!(rows.end <= self.rows, "the rows must exist");
        let parts = self.scales()[rows.clone()].chunk_by(|a, b| a.to_bits() == b.to_bits());
        let mut first = rows.start;
        let parts = parts.map(|scales| {
            let some = first..first + scales.len();
            first = some.end;
            let codes = some.flat_map(|row| self.row_codes(row)).collect();
            TernaryTensor::from_codes(scales.len(), self.cols, codes, scales[0])
        });
        TernaryTensor::stack(&parts.collect::<Result<Vec<_>, _>>()?)
    }

    /// The codes of a row in the canonical layout.
    fn row_codes(&self, row: usize) -> impl Iterator<Item = u8> + '_ {
        let bytes = self.blocks() * BLOCK_BYTES;
        let (blocks, _) = self.codes[row / PANEL_ROWS * bytes..][..bytes].as_chunks();
        unpack_row(blocks.iter(), row % PANEL_ROWS).take(TernaryTensor::row_bytes(self.cols))
    }

    pub(crate) fn panels(&self) -> usize {
        self.scales.len() / PANEL_ROWS
    }

    pub(crate) fn blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }

    pub(crate) fn panel(&self, panel: usize) -> *const u8 {
        let bytes = self.blocks() * BLOCK_BYTES;
        self.codes[panel * bytes..][..bytes].as_ptr()
    }
}

fn pack_panel(weights: &TernaryTensor, panel: usize, blocks: usize, out: Shared<'_, u8>) {
    let bytes = blocks * BLOCK_BYTES;
    // SAFETY: every panel is packed by exactly one call.
    let out = unsafe { out.slice(panel * bytes, bytes) };
    for r in 0..PANEL_ROWS.min(weights.rows() - panel * PANEL_ROWS) {
        pack_row(weights.row_codes(panel * PANEL_ROWS + r), r, out.as_chunks_mut().0);
    }
}

/// Packs the canonical codes of a row into lane `r` of the blocks of its panel.
pub(crate) fn pack_row<'a>(
    codes: &[u8],
    r: usize,
    blocks: impl IntoIterator<Item = &'a mut [u8; BLOCK_BYTES]>,
) {
    // Canonical byte p holds columns 4p..4p+4 of the block, first column lowest; transposing this 4 x 4 matrix of 2-bit
    // codes puts column j into byte j and plane p at bits 2p.
    for (block, bytes) in blocks.into_iter().zip(codes.chunks(BLOCK / 4)) {
        let mut word = [0; BLOCK / 4];
        word[..bytes.len()].copy_from_slice(bytes);
        let word = transpose_codes(u32::from_le_bytes(word));
        block[4 * r..][..4].copy_from_slice(&word.to_le_bytes());
    }
}

/// Unpacks the canonical codes of the row in lane `r` of a panel's blocks, padded to whole blocks.
pub(crate) fn unpack_row<'a>(
    blocks: impl Iterator<Item = &'a [u8; BLOCK_BYTES]>,
    r: usize,
) -> impl Iterator<Item = u8> {
    blocks.flat_map(move |block| {
        let word = *block[4 * r..].first_chunk().expect("64 rows in a block");
        transpose_codes(u32::from_le_bytes(word)).to_le_bytes()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_where_the_layout_says() {
        let (rows, cols) = (70, 37);
        let trits: Vec<i8> = (0..rows * cols).map(|i| (i * i % 7 % 3) as i8 - 1).collect();
        let t = TernaryTensor::from_trits(rows, cols, &trits, 1.0).unwrap();
        let p = Panels::pack(&t, &mut Pool::new(2).unwrap(), &mut Arena::default()).unwrap();
        for r in 0..2 * PANEL_ROWS {
            for c in 0..p.blocks() * BLOCK {
                let (panel, block) = (r / PANEL_ROWS, c / BLOCK);
                let byte = p.codes
                    [(panel * p.blocks() + block) * BLOCK_BYTES + 64 * (r % 64 / 16) + 4 * (r % 16) + c % 4];
                let code = byte >> (2 * (c % 16 / 4)) & 3;
                let expected = if r < rows && c < cols { (trits[r * cols + c] + 1) as u8 } else { 0 };
                assert_eq!(code, expected, "row {r} column {c}");
            }
        }
    }

    /// A stack of parts with two scales, and its bytes in a file.
    fn stack() -> (TernaryTensor, Vec<u8>) {
        let part = |rows: usize, scale| {
            let trits: Vec<i8> = (0..rows * 37).map(|i| (i * i % 11 % 3) as i8 - 1).collect();
            TernaryTensor::from_trits(rows, 37, &trits, scale).unwrap()
        };
        let stack = TernaryTensor::stack(&[part(70, 0.5), part(31, 3.0)]).unwrap();
        let panels = Panels::pack(&stack, &mut Pool::new(2).unwrap(), &mut Arena::default()).unwrap();
        (stack, panels.stored().flat_map(Cow::into_owned).collect())
    }

    #[test]
    fn stored_panels_are_used_in_place_and_unpack_to_what_was_packed() {
        let (stack, bytes) = stack();
        assert_eq!([bytes.len() / LINE, LINE], Panels::stored_shape(101, 37));
        let bytes = SharedBytes::new(bytes);
        let panels = Panels::from_stored(101, 37, &bytes).unwrap();
        assert_eq!(panels.panel(0), bytes.as_ptr());
        assert_eq!(panels.unpack(0..101).unwrap(), stack);
        let part = panels.unpack(70..101).unwrap();
        assert!((0..31).all(|row| part.row_codes(row) == stack.row_codes(70 + row)));
        assert_eq!((part.scales().len(), part.scales()[0].scale), (1, 3.0));
    }

    #[test]
    fn invalid_stored_panels_are_refused_with_the_place() {
        let (_, good) = stack();
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            Panels::from_stored(101, 37, &SharedBytes::new(bytes)).err()
        };
        assert_eq!(refused(&|_| ()), None);
        let row_98_column_21 = (3 + 1) * LINE + 4 * 34 + 1;
        assert_eq!(
            refused(&|bytes| bytes[row_98_column_21] |= 3 << 2),
            Some(TensorError::InvalidCode { row: 98, col: 21 }.into())
        );
        let (last, infinite) = (good.len() - 4 * 64, f32::INFINITY);
        assert_eq!(
            refused(&|bytes| bytes[last..last + 4].copy_from_slice(&infinite.to_le_bytes())),
            Some(TensorError::Scale { scale: infinite }.into())
        );
        for wrong in [0, 1, LINE, good.len() - LINE, good.len() - 1] {
            assert!(matches!(
                refused(&|bytes| bytes.truncate(wrong)),
                Some(KernelError::Weights(TensorError::ByteLength { .. }))
            ));
        }
        assert!(Panels::from_stored(0, 37, &SharedBytes::default()).is_err());
    }
}
