//! Matrices of int8 with a scale for every block of 32 columns: the projections of a draft head.
//!
//! `y[r] = sum over groups g of x: scale(g) * sum over blocks b of g: scale(r, b) * sum_k x[k] * code[r][k]`, in
//! ascending order of columns. The innermost sums are exact; the others are plain multiplications and additions, the
//! same on every instruction set.

use std::ops::Range;

use bitnet_tensor::{BitNetTensor, DType, quant::GROUP, quant::GroupQuant};
use half::f16;

use crate::KernelError;

/// A matrix of int8 with a scale for every [`Int8Matrix::BLOCK`] columns.
#[derive(Clone)]
pub struct Int8Matrix {
    rows: usize,
    cols: usize,
    /// `[rows][cols]`
    codes: Vec<i8>,
    /// `[rows][cols / BLOCK]`
    scales: Vec<f32>,
}

impl Int8Matrix {
    /// Columns that share a scale.
    pub const BLOCK: usize = 32;

    /// An empty matrix of `cols` columns, a multiple of [`Int8Matrix::BLOCK`], with memory for `rows` rows.
    ///
    /// # Errors
    /// If there is no memory.
    ///
    /// # Panics
    /// If `cols` is not a multiple of [`Int8Matrix::BLOCK`].
    pub fn with_capacity(rows: usize, cols: usize) -> Result<Self, KernelError> {
        assert!(cols.is_multiple_of(Self::BLOCK), "columns are whole blocks");
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        let bytes = rows * cols;
        let lack = |_| KernelError::OutOfMemory { what: "int8 weights", bytes };
        codes.try_reserve_exact(bytes).map_err(lack)?;
        scales.try_reserve_exact(bytes / Self::BLOCK).map_err(lack)?;
        Ok(Int8Matrix { rows: 0, cols, codes, scales })
    }

    /// Appends columns `cols` of all rows of a float tensor: the codes and scales of Q8_0 as they are stored, anything
    /// else quantised to the largest magnitude of each block.
    ///
    /// # Panics
    /// If the range is not of whole blocks, as many as this matrix has.
    pub fn append(&mut self, from: &BitNetTensor, cols: Range<usize>) {
        let whole = cols.start.is_multiple_of(Self::BLOCK) && cols.len() == self.cols;
        assert!(whole && cols.end <= from.cols(), "columns are whole blocks");
        let mut row = vec![0.0; from.cols()];
        for r in 0..from.rows() {
            if from.dtype() == DType::Q8_0 {
                let (blocks, _) = from.bytes()[r * from.row_bytes()..][..from.row_bytes()].as_chunks::<34>();
                for block in &blocks[cols.start / Self::BLOCK..cols.end / Self::BLOCK] {
                    self.scales.push(f16::from_le_bytes([block[0], block[1]]).to_f32());
                    self.codes.extend(block[2..].iter().map(|&code| code.cast_signed()));
                }
                continue;
            }
            from.decode_row(r, &mut row);
            for block in row[cols.clone()].chunks_exact(Self::BLOCK) {
                let largest = block.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                let scale = f16::from_f32(largest / 127.0).to_f32();
                self.scales.push(scale);
                let code =
                    |x: &f32| if scale == 0.0 { 0.0 } else { (x / scale).round().clamp(-127.0, 127.0) };
                self.codes.extend(block.iter().map(|x| code(x) as i8));
            }
        }
        self.rows += from.rows();
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes in memory.
    pub fn bytes(rows: usize, cols: usize) -> usize {
        rows * cols + 4 * rows * cols / Self::BLOCK
    }

    /// The blocks of a row: codes, and scales that came from f16.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> (&[[i8; Int8Matrix::BLOCK]], &[f32]) {
        let blocks = self.cols / Self::BLOCK;
        let codes = &self.codes[row * self.cols..][..self.cols];
        (codes.as_chunks().0, &self.scales[row * blocks..][..blocks])
    }

    /// The product of a row with quantised activations `x`, which have `groups`.
    #[inline(always)]
    pub(crate) fn product(&self, row: usize, x: &[i8], groups: &[GroupQuant]) -> f32 {
        let (codes, scales) = self.row(row);
        let (x, _) = x[..self.cols].as_chunks::<32>();
        const BLOCKS: usize = GROUP / Int8Matrix::BLOCK;
        let mut total = 0.0;
        let groups = codes.chunks(BLOCKS).zip(x.chunks(BLOCKS)).zip(scales.chunks(BLOCKS)).zip(groups);
        for (((codes, x), scales), group) in groups {
            let mut sum = 0.0;
            for ((codes, x), scale) in codes.iter().zip(x).zip(scales) {
                let exact: i32 = codes.iter().zip(x).map(|(&c, &x)| i32::from(c) * i32::from(x)).sum();
                sum += exact as f32 * scale;
            }
            total += sum * group.scale;
        }
        total
    }
}

bitnet_tensor::opaque_debug!(Int8Matrix);

#[cfg(test)]
mod tests {
    use bitnet_tensor::SharedBytes;

    use super::*;

    #[test]
    fn columns_of_q8_0_are_taken_as_they_are_and_floats_are_quantised_to_the_same() {
        let codes: Vec<i8> = (0..128).map(|i| (i * 37 % 255 - 127) as i8).collect();
        let mut bytes = Vec::new();
        let mut floats = Vec::new();
        for (i, block) in codes.chunks(32).enumerate() {
            // The largest code of every block is 127, so a scale follows from the values.
            let block: Vec<i8> =
                block.iter().enumerate().map(|(k, &c)| if k == 3 { 127 } else { c.max(-127) }).collect();
            let scale = f16::from_f32(0.5f32.powi(i as i32));
            bytes.extend(scale.to_le_bytes());
            bytes.extend(block.iter().map(|c| c.cast_unsigned()));
            floats.extend(block.iter().map(|&c| f32::from(c) * scale.to_f32()));
        }
        let stored = BitNetTensor::new(DType::Q8_0, [2, 64], SharedBytes::new(bytes)).unwrap();
        let floats = BitNetTensor::from_f32([2, 64], &floats).unwrap();
        for range in [0..64, 0..32, 32..64] {
            let [a, b] = [&stored, &floats].map(|from| {
                let mut matrix = Int8Matrix::with_capacity(2, range.len()).unwrap();
                matrix.append(from, range.clone());
                matrix
            });
            assert_eq!((a.rows(), a.cols()), (2, range.len()));
            assert_eq!((a.codes, a.scales), (b.codes, b.scales), "{range:?}");
        }
    }

    #[test]
    fn a_block_of_zeros_has_codes_of_zero() {
        let mut matrix = Int8Matrix::with_capacity(1, 32).unwrap();
        matrix.append(&BitNetTensor::from_f32([1, 32], &[0.0; 32]).unwrap(), 0..32);
        let group = GroupQuant { scale: 1.0, ..GroupQuant::default() };
        assert_eq!(matrix.product(0, &[5; 32], &[group]), 0.0);
    }
}
