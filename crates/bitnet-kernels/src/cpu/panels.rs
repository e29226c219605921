//! The one kernel layout of ternary weights: panels with a row in every lane.
//!
//! ```text
//! panel   64 rows, all columns; panels one after another; rows and columns padded with code 0
//! block   16 columns of a panel: 256 bytes = 4 groups of 16 rows
//! group   64 bytes: byte 4 r + j holds row r, columns 16 b + 4 p + j at bits 2p, 2p + 1 (p = 0..4)
//! ```
//!
//! So plane `p` of a group, `(byte >> 2p) & 3`, is an operand of a 4-way dot product: each 32-bit lane holds one
//! row and four consecutive columns, and meets the same four activations in every lane. Nothing is ever added
//! across lanes, and one layout serves vectors of 8 and of 16 rows and any number of tokens.

use bitnet_tensor::{TernaryTensor, transpose_codes};

use crate::{
    KernelError,
    cpu::{
        buffer::{Buffer, Shared},
        pool::Pool,
    },
};

pub(crate) const PANEL_ROWS: usize = 64;
/// Columns of a block.
pub(crate) const BLOCK: usize = 16;
pub(crate) const BLOCK_BYTES: usize = PANEL_ROWS * BLOCK / 4;

/// A ternary matrix packed into panels.
pub struct Panels {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// `[panels][blocks][256]`.
    pub(crate) codes: Buffer<u8>,
    /// Scale of every row, padded with zeros to whole panels.
    pub(crate) scales: Buffer<f32>,
}

impl Panels {
    pub(crate) fn pack(weights: &TernaryTensor, pool: &mut Pool) -> Result<Self, KernelError> {
        let (rows, cols) = (weights.rows(), weights.cols());
        let (panels, blocks) = (rows.div_ceil(PANEL_ROWS), cols.div_ceil(BLOCK));
        let mut codes = Buffer::zeroed(panels * blocks * BLOCK_BYTES, "packed weights")?;
        let mut scales = Buffer::zeroed(panels * PANEL_ROWS, "weight scales")?;
        for range in weights.scales() {
            scales[range.start..range.end].fill(range.scale);
        }
        let out = codes.shared();
        pool.run(panels, &|_, panel| pack_panel(weights, panel, blocks, out));
        Ok(Panels { rows, cols, codes, scales })
    }

    pub(crate) fn panels(&self) -> usize {
        self.scales.len() / PANEL_ROWS
    }

    pub(crate) fn blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }

    /// The codes of a panel.
    pub(crate) fn panel(&self, panel: usize) -> *const u8 {
        let bytes = self.blocks() * BLOCK_BYTES;
        self.codes[panel * bytes..][..bytes].as_ptr()
    }
}

fn pack_panel(weights: &TernaryTensor, panel: usize, blocks: usize, out: Shared<'_, u8>) {
    let bytes = blocks * BLOCK_BYTES;
    // SAFETY: every panel is packed by one call.
    let out = unsafe { out.slice(panel * bytes, bytes) };
    for r in 0..PANEL_ROWS.min(weights.rows() - panel * PANEL_ROWS) {
        // Canonical byte p holds columns 4p..4p+4 of the block, first column lowest; transposing this 4 x 4 matrix
        // of 2-bit codes puts column j into byte j and plane p at bits 2p.
        let put = |block: &mut [u8; BLOCK_BYTES], word: [u8; 4]| {
            let word = transpose_codes(u32::from_le_bytes(word));
            block[4 * r..][..4].copy_from_slice(&word.to_le_bytes());
        };
        let (words, rest) = weights.row_codes(panel * PANEL_ROWS + r).as_chunks::<{ BLOCK / 4 }>();
        let (blocks, _) = out.as_chunks_mut::<BLOCK_BYTES>();
        for (block, word) in blocks.iter_mut().zip(words) {
            put(block, *word);
        }
        if !rest.is_empty() {
            let mut word = [0; BLOCK / 4];
            word[..rest.len()].copy_from_slice(rest);
            put(&mut blocks[words.len()], word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_where_the_layout_says() {
        let (rows, cols) = (70, 37);
        let trits: Vec<i8> = (0..rows * cols).map(|i| (i * i % 7 % 3) as i8 - 1).collect();
        let t = TernaryTensor::from_trits(rows, cols, &trits, 1.0).unwrap();
        let p = Panels::pack(&t, &mut Pool::new(2).unwrap()).unwrap();
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
}
