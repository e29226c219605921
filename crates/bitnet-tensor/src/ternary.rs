use crate::{
    DType, TensorError,
    codes::{check_length, clear_padding, find_code_three, row_bytes, values},
};

/// The weight scale of a range of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowScale {
    /// First row of the range.
    pub start: usize,
    /// One past the last row.
    pub end: usize,
    /// `w = scale * t` for the trits of these rows.
    pub scale: f32,
}

/// A matrix of trits with a scale per row range. Every file format is read into this canonical layout, and every kernel
/// layout is packed from it.
///
/// ```text
/// codes  [rows][ceil(cols / 4)] u8      bits 2i..2i+2 of byte j hold column 4j + i as trit + 1 (0, 1, 2)
/// scales sorted ranges that cover all rows without gaps; in fused q/k/v or gate/up, each part keeps its range
/// ```
///
/// The unused codes at the end of a row are 0. Rows are output features, columns are input features.
#[derive(Debug, Clone, PartialEq)]
pub struct TernaryTensor {
    rows: usize,
    cols: usize,
    codes: Vec<u8>,
    scales: Vec<RowScale>,
}

impl TernaryTensor {
    /// Bytes of one row of codes.
    pub const fn row_bytes(cols: usize) -> usize {
        row_bytes(cols)
    }

    /// Makes a tensor from codes in the canonical layout, with one scale for all rows. Codes after the last column are
    /// cleared, not checked.
    ///
    /// # Errors
    /// If there are no rows or columns, the length does not match, a code is 3, or the scale is not finite.
    pub fn from_codes(rows: usize, cols: usize, mut codes: Vec<u8>, scale: f32) -> Result<Self, TensorError> {
        if rows == 0 || cols == 0 {
            return Err(TensorError::Empty { rows, cols });
        }
        if !scale.is_finite() {
            return Err(TensorError::Scale { scale });
        }
        let stride = row_bytes(cols);
        check_length([rows, stride], DType::U8, codes.len())?;
        clear_padding(&mut codes, cols);
        if let Some((at, field)) = find_code_three(&codes) {
            return Err(TensorError::InvalidCode { row: at / stride, col: 4 * (at % stride) + field });
        }
        Ok(TernaryTensor { rows, cols, codes, scales: vec![RowScale { start: 0, end: rows, scale }] })
    }

    /// Makes a tensor from trits in row-major order, with one scale for all rows.
    ///
    /// # Errors
    /// If there are no rows or columns, the length does not match, a value is not a trit, or the scale is not finite.
    pub fn from_trits(rows: usize, cols: usize, trits: &[i8], scale: f32) -> Result<Self, TensorError> {
        if rows == 0 || cols == 0 {
            return Err(TensorError::Empty { rows, cols });
        }
        if rows.checked_mul(cols) != Some(trits.len()) {
            return Err(TensorError::ByteLength {
                shape: [rows, cols].into(),
                dtype: DType::I8,
                expected: rows.saturating_mul(cols),
                actual: trits.len(),
            });
        }
        if let Some(at) = trits.iter().position(|t| !(-1..=1).contains(t)) {
            return Err(TensorError::InvalidTrit { row: at / cols, col: at % cols, value: trits[at] });
        }
        let mut codes = Vec::with_capacity(rows * Self::row_bytes(cols));
        for row in trits.chunks_exact(cols) {
            codes.extend(
                row.chunks(4).map(|four| four.iter().rev().fold(0, |byte, &t| byte << 2 | (t + 1) as u8)),
            );
        }
        Self::from_codes(rows, cols, codes, scale)
    }

    /// Stacks the rows of the parts in order, which fuses q/k/v or gate and up. Each part keeps its scales.
    ///
    /// # Errors
    /// If the parts differ in their number of columns, or `parts` is empty.
    pub fn stack(parts: &[TernaryTensor]) -> Result<Self, TensorError> {
        let Some(first) = parts.first() else {
            return Err(TensorError::Empty { rows: 0, cols: 0 });
        };
        let mut all = TernaryTensor { rows: 0, cols: first.cols, codes: Vec::new(), scales: Vec::new() };
        all.codes.reserve_exact(parts.iter().map(|p| p.codes.len()).sum());
        for part in parts {
            if part.cols != all.cols {
                return Err(TensorError::ColumnMismatch { expected: all.cols, actual: part.cols });
            }
            all.codes.extend_from_slice(&part.codes);
            all.scales.extend(part.scales.iter().map(|s| RowScale {
                start: s.start + all.rows,
                end: s.end + all.rows,
                scale: s.scale,
            }));
            all.rows += part.rows;
        }
        Ok(all)
    }

    /// Number of output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All codes, `[rows][ceil(cols / 4)]`.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The scales with their row ranges, in row order.
    pub fn scales(&self) -> &[RowScale] {
        &self.scales
    }

    /// The codes of one row.
    pub fn row_codes(&self, row: usize) -> &[u8] {
        let stride = row_bytes(self.cols);
        &self.codes[row * stride..][..stride]
    }

    /// Returns one value: -1, 0 or 1.
    pub fn trit(&self, row: usize, col: usize) -> i8 {
        assert!(col < self.cols, "column {col} of {}", self.cols);
        (self.row_codes(row)[col / 4] >> (2 * (col % 4)) & 3) as i8 - 1
    }

    /// The values of one row, in column order.
    pub fn row_trits(&self, row: usize) -> impl Iterator<Item = i8> + '_ {
        values(self.row_codes(row), self.cols)
    }

    /// Returns the matrix with its rows reordered: row `i` of the result is row `order(i)` of `self`.
    ///
    /// # Panics
    /// If the tensor has more than one scale range, or `order` returns a row that does not exist.
    pub fn permute_rows(&self, order: impl Fn(usize) -> usize) -> Self {
        assert_eq!(self.scales.len(), 1, "permute_rows: rows of different scales must not be mixed");
        let codes = (0..self.rows).flat_map(|r| self.row_codes(order(r)).iter().copied()).collect();
        TernaryTensor { codes, ..self.clone() }
    }
}

/// Transposes a 4 x 4 matrix of 2-bit fields: field `i` of byte `j` is swapped with field `j` of byte `i`.
pub fn transpose_codes(x: u32) -> u32 {
    // Swap the off-diagonal fields of every 2 x 2 block, then the off-diagonal blocks.
    let t = (x ^ (x >> 6)) & 0x00CC_00CC;
    let x = x ^ t ^ (t << 6);
    let t = (x ^ (x >> 12)) & 0x0000_F0F0;
    x ^ t ^ (t << 12)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn transpose_exchanges_byte_and_field() {
        for i in 0..4 {
            for j in 0..4 {
                for code in 1..3u32 {
                    assert_eq!(transpose_codes(code << (8 * i + 2 * j)), code << (8 * j + 2 * i), "{i} {j}");
                }
            }
        }
    }

    #[test]
    fn code_three_is_refused_with_its_place() {
        let err = TernaryTensor::from_codes(2, 5, vec![0, 0, 0b0011_0000, 0], 1.0).unwrap_err();
        assert_eq!(err, TensorError::InvalidCode { row: 1, col: 2 });
    }

    #[test]
    fn codes_after_the_last_column_are_cleared() {
        let t = TernaryTensor::from_codes(1, 5, vec![0, !0b10], 1.0).unwrap();
        assert_eq!(t.codes(), [0, 1]);
    }

    #[test]
    fn stacked_parts_keep_their_scales() {
        let a = TernaryTensor::from_trits(1, 2, &[1, -1], 0.5).unwrap();
        let b = TernaryTensor::from_trits(2, 2, &[0, 1, 1, 1], 2.0).unwrap();
        let s = TernaryTensor::stack(&[a, b]).unwrap();
        assert_eq!((s.rows(), s.cols()), (3, 2));
        assert_eq!(
            s.scales(),
            [RowScale { start: 0, end: 1, scale: 0.5 }, RowScale { start: 1, end: 3, scale: 2.0 }]
        );
        assert_eq!(s.row_trits(1).collect::<Vec<_>>(), [0, 1]);
    }

    proptest! {
        #[test]
        fn trits_survive_packing((rows, cols, trits) in (1usize..9, 1usize..40).prop_flat_map(|(r, c)| {
            (Just(r), Just(c), prop::collection::vec(-1i8..=1, r * c))
        })) {
            let t = TernaryTensor::from_trits(rows, cols, &trits, 1.0).unwrap();
            let back: Vec<i8> = (0..rows).flat_map(|r| t.row_trits(r)).collect();
            prop_assert_eq!(&back, &trits);
            prop_assert!((0..rows * cols).all(|i| t.trit(i / cols, i % cols) == trits[i]));
        }
    }
}
