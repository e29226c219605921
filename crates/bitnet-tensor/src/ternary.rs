//! [`TernaryTensor`]: 2-bit codes with the scales of row ranges or of groups of columns. Every file format is read into
//! this canonical layout, and every kernel layout is packed from it.

use half::f16;

use crate::{
    DType, TensorError,
    codes::{check_length, clear_padding, find_code_three, row_bytes, values},
};

/// A matrix of 2-bit codes and their scales: `w[r][k] = scale(r, k) * (code[r][k] - 1)`.
///
/// ```text
/// codes  [rows][ceil(cols / 4)] u8      bits 2i..2i+2 of byte j hold the code of column 4j + i
/// ```
///
/// The unused codes at the end of a row are 0. Rows are output features, columns are input features.
#[derive(Debug, Clone, PartialEq)]
pub struct TernaryTensor {
    rows: usize,
    cols: usize,
    codes: Vec<u8>,
    scales: TernaryScales,
}

/// The scales of a [`TernaryTensor`].
#[derive(Debug, Clone, PartialEq)]
pub enum TernaryScales {
    /// A scale for each range of rows: sorted ranges that cover all rows without gaps. In fused q/k/v or gate/up, each
    /// part keeps its range. All codes are 0, 1 or 2.
    Rows(Vec<RowScale>),
    /// A scale for each group of columns of a row. Code 3 stands for +2: released files do not use it, but their formats
    /// define it.
    Groups {
        /// Columns in a group: 64 or 128. If the scales of all groups of 64 are equal in pairs, they are merged to groups
        /// of 128, so that both storage forms of a matrix become the same tensor and give the same bits.
        width: usize,
        /// `[rows][ceil(cols / width)]`
        scales: Vec<f16>,
    },
}

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

impl TernaryTensor {
    /// Columns in the widest group.
    pub const WIDE: usize = 128;
    /// Columns in the narrowest group.
    pub const NARROW: usize = 64;

    /// Bytes of one row of codes.
    pub const fn row_bytes(cols: usize) -> usize {
        row_bytes(cols)
    }

    /// Number of groups in a row.
    pub const fn groups(cols: usize, width: usize) -> usize {
        cols.div_ceil(width)
    }

    /// Makes a tensor from codes in the canonical layout, with one scale for all rows. Codes after the last column are
    /// cleared, not checked.
    ///
    /// # Errors
    /// If there are no rows or columns, the length does not match, a code is 3, or the scale is not finite.
    pub fn from_codes(rows: usize, cols: usize, codes: Vec<u8>, scale: f32) -> Result<Self, TensorError> {
        let codes = checked_codes(rows, cols, codes)?;
        if !scale.is_finite() {
            return Err(TensorError::Scale { scale });
        }
        if let Some((at, field)) = find_code_three(&codes) {
            let stride = row_bytes(cols);
            return Err(TensorError::InvalidCode { row: at / stride, col: 4 * (at % stride) + field });
        }
        let scales = TernaryScales::Rows(vec![RowScale { start: 0, end: rows, scale }]);
        Ok(TernaryTensor { rows, cols, codes, scales })
    }

    /// Makes a tensor from codes in the canonical layout, with a scale for each group of `width` columns of a row. Codes
    /// after the last column are cleared.
    ///
    /// # Errors
    /// If there are no rows or columns, `width` is not 64 or 128, a length does not match, or a scale is not finite.
    pub fn from_groups(
        rows: usize,
        cols: usize,
        width: usize,
        codes: Vec<u8>,
        scales: Vec<f16>,
    ) -> Result<Self, TensorError> {
        let codes = checked_codes(rows, cols, codes)?;
        if ![Self::NARROW, Self::WIDE].contains(&width) {
            return Err(TensorError::Group { group: width });
        }
        check_length([rows, Self::groups(cols, width)], DType::F16, scales.len() * size_of::<f16>())?;
        if let Some(scale) = scales.iter().find(|scale| !scale.is_finite()) {
            return Err(TensorError::Scale { scale: scale.to_f32() });
        }
        Ok(TernaryTensor { rows, cols, codes, scales: merged(cols, width, scales) })
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

    /// Stacks the rows of the parts in order, which fuses q/k/v or gate and up. Each part keeps its scales. If any part
    /// has groups of 64 columns, the result has.
    ///
    /// # Errors
    /// If `parts` is empty, the parts differ in their number of columns or in what shares a scale, or there is no memory for
    /// the result.
    pub fn stack(parts: &[TernaryTensor]) -> Result<Self, TensorError> {
        let Some(first) = parts.first() else {
            return Err(TensorError::Empty { rows: 0, cols: 0 });
        };
        if let Some(part) = parts.iter().find(|part| part.cols != first.cols) {
            return Err(TensorError::ColumnMismatch { expected: first.cols, actual: part.cols });
        }
        let scales = stacked_ranges(parts).or_else(|| stacked_groups(parts));
        let scales = scales.ok_or(TensorError::ScaleMismatch)?;
        let bytes = parts.iter().map(|part| part.codes.len()).sum();
        let mut codes = Vec::new();
        codes.try_reserve_exact(bytes).map_err(|_| TensorError::OutOfMemory { bytes })?;
        parts.iter().for_each(|part| codes.extend_from_slice(&part.codes));
        Ok(TernaryTensor { rows: parts.iter().map(|part| part.rows).sum(), cols: first.cols, codes, scales })
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

    /// All scales.
    pub fn scales(&self) -> &TernaryScales {
        &self.scales
    }

    /// Columns that share a scale, 64 or 128; `None` if whole rows do.
    pub fn group(&self) -> Option<usize> {
        match self.scales {
            TernaryScales::Rows(_) => None,
            TernaryScales::Groups { width, .. } => Some(width),
        }
    }

    /// The codes of one row.
    pub fn row_codes(&self, row: usize) -> &[u8] {
        let stride = row_bytes(self.cols);
        &self.codes[row * stride..][..stride]
    }

    /// Returns one trit: -1, 0 or 1, or 2 for code 3.
    pub fn trit(&self, row: usize, col: usize) -> i8 {
        assert!(col < self.cols, "column {col} of {}", self.cols);
        (self.row_codes(row)[col / 4] >> (2 * (col % 4)) & 3) as i8 - 1
    }

    /// The trits of one row, in column order; 2 for code 3.
    pub fn row_trits(&self, row: usize) -> impl Iterator<Item = i8> + '_ {
        values(self.row_codes(row), self.cols)
    }

    /// The scales of the groups of one row; none if whole rows have scales.
    pub fn group_scales(&self, row: usize) -> &[f16] {
        match &self.scales {
            TernaryScales::Rows(_) => &[],
            TernaryScales::Groups { width, scales } => {
                let stride = Self::groups(self.cols, *width);
                &scales[row * stride..][..stride]
            }
        }
    }

    /// The scale of one row; `None` if groups of columns have scales.
    pub fn row_scale(&self, row: usize) -> Option<f32> {
        let TernaryScales::Rows(ranges) = &self.scales else { return None };
        ranges.iter().find(|range| (range.start..range.end).contains(&row)).map(|range| range.scale)
    }

    /// Decodes one row to f32: each value times its scale.
    ///
    /// # Panics
    /// If `out` is not as long as a row.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "decode_row: output must be as long as a row");
        let whole = self.row_scale(row);
        let width = self.group().unwrap_or(self.cols);
        let scales = self.group_scales(row);
        for (k, (out, value)) in out.iter_mut().zip(self.row_trits(row)).enumerate() {
            *out = whole.unwrap_or_else(|| scales[k / width].to_f32()) * f32::from(value);
        }
    }

    /// Returns the matrix with its rows reordered: row `i` of the result is row `order(i)` of `self`.
    ///
    /// # Panics
    /// If the tensor has more than one range of rows with a scale, or `order` returns a row that does not exist.
    pub fn permute_rows(&self, order: impl Fn(usize) -> usize) -> Self {
        self.select_rows(self.rows, order)
    }

    /// Returns a matrix of `rows` rows: row `i` of the result is row `order(i)` of `self`.
    ///
    /// # Panics
    /// If the tensor has more than one range of rows with a scale, or `order` returns a row that does not exist.
    pub fn select_rows(&self, rows: usize, order: impl Fn(usize) -> usize) -> Self {
        let selected = || (0..rows).map(&order);
        let codes = selected().flat_map(|r| self.row_codes(r).iter().copied()).collect();
        let scales = match &self.scales {
            TernaryScales::Rows(ranges) => {
                assert_eq!(ranges.len(), 1, "select_rows: rows of different scales must not be mixed");
                TernaryScales::Rows(vec![RowScale { start: 0, end: rows, ..ranges[0] }])
            }
            TernaryScales::Groups { width, .. } => TernaryScales::Groups {
                width: *width,
                scales: selected().flat_map(|r| self.group_scales(r).iter().copied()).collect(),
            },
        };
        TernaryTensor { rows, cols: self.cols, codes, scales }
    }

    /// Returns the matrix with blocks of `width` columns reordered: block `i` of the result is block `order(i)` of
    /// `self`. `None` if that would tear groups apart: blocks must be whole groups, or parts of the only one, and
    /// columns must be whole blocks of a multiple of four.
    ///
    /// # Panics
    /// If `order` returns a block that does not exist.
    pub fn permute_columns(&self, width: usize, order: impl Fn(usize) -> usize) -> Option<Self> {
        let whole = width.is_multiple_of(4) && width > 0 && self.cols.is_multiple_of(width);
        // With one scale in a row, scales stay where they are.
        let group = self.group().filter(|&group| Self::groups(self.cols, group) > 1);
        if !whole || group.is_some_and(|group| !width.is_multiple_of(group)) {
            return None;
        }
        let blocks = || (0..self.cols / width).map(&order);
        let rows = || (0..self.rows).flat_map(|row| blocks().map(move |block| (row, block)));
        let codes = rows().flat_map(|(row, block)| &self.row_codes(row)[block * width / 4..][..width / 4]);
        let scales = match group {
            None => self.scales.clone(),
            Some(group) => {
                let per = width / group;
                let scales = rows().flat_map(|(row, block)| &self.group_scales(row)[block * per..][..per]);
                TernaryScales::Groups { width: group, scales: scales.copied().collect() }
            }
        };
        Some(TernaryTensor { codes: codes.copied().collect(), scales, ..*self })
    }
}

/// Checks the size of a matrix, and clears the codes after its last column.
fn checked_codes(rows: usize, cols: usize, mut codes: Vec<u8>) -> Result<Vec<u8>, TensorError> {
    if rows == 0 || cols == 0 {
        return Err(TensorError::Empty { rows, cols });
    }
    check_length([rows, row_bytes(cols)], DType::U8, codes.len())?;
    clear_padding(&mut codes, cols);
    Ok(codes)
}

/// Merges groups of 64 to groups of 128 if the scales of every pair are bitwise equal.
fn merged(cols: usize, width: usize, scales: Vec<f16>) -> TernaryScales {
    let per_row = cols.div_ceil(TernaryTensor::NARROW);
    let equal = |pair: &[f16]| pair.iter().all(|scale| scale.to_bits() == pair[0].to_bits());
    if width == TernaryTensor::WIDE || !scales.chunks_exact(per_row).all(|row| row.chunks(2).all(equal)) {
        return TernaryScales::Groups { width, scales };
    }
    let wide = scales.chunks_exact(per_row).flat_map(|row| row.iter().copied().step_by(2));
    TernaryScales::Groups { width: TernaryTensor::WIDE, scales: wide.collect() }
}

/// The ranges of a stack's rows; `None` if a part has groups.
fn stacked_ranges(parts: &[TernaryTensor]) -> Option<TernaryScales> {
    let (mut first, mut all) = (0, Vec::new());
    for part in parts {
        let TernaryScales::Rows(ranges) = &part.scales else { return None };
        all.extend(ranges.iter().map(|range| RowScale {
            start: first + range.start,
            end: first + range.end,
            scale: range.scale,
        }));
        first += part.rows;
    }
    Some(TernaryScales::Rows(all))
}

/// The scales of a stack's groups, as narrow as those of any part; `None` if a part has none.
fn stacked_groups(parts: &[TernaryTensor]) -> Option<TernaryScales> {
    let widths = parts.iter().map(TernaryTensor::group).collect::<Option<Vec<_>>>()?;
    let width = widths.into_iter().min()?;
    let mut all = Vec::new();
    for part in parts {
        let count = TernaryTensor::groups(part.cols, width);
        for row in 0..part.rows {
            let scales = part.group_scales(row);
            // Both halves of a group of 128 columns have its scale.
            all.extend((0..count).map(|i| if scales.len() == count { scales[i] } else { scales[i / 2] }));
        }
    }
    Some(TernaryScales::Groups { width, scales: all })
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
        let ranges = [RowScale { start: 0, end: 1, scale: 0.5 }, RowScale { start: 1, end: 3, scale: 2.0 }];
        assert_eq!(s.scales(), &TernaryScales::Rows(ranges.into()));
        let mut decoded = [0.0; 2];
        s.decode_row(2, &mut decoded);
        assert_eq!(decoded, [2.0, 2.0]);
        assert_eq!(s.row_trits(1).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn parts_with_scales_of_rows_and_of_groups_cannot_be_stacked() {
        let rows = TernaryTensor::from_codes(1, 5, vec![0, 0], 1.0).unwrap();
        let groups = TernaryTensor::from_groups(1, 5, 64, vec![0, 0], f16s(&[1.0])).unwrap();
        for parts in [[rows.clone(), groups.clone()], [groups, rows]] {
            assert_eq!(TernaryTensor::stack(&parts), Err(TensorError::ScaleMismatch));
        }
    }

    #[test]
    fn columns_change_places_with_their_scales() {
        let rows = TernaryTensor::from_codes(2, 8, vec![1, 2, 4, 8], 1.0).unwrap();
        assert_eq!(rows.permute_columns(4, |block| 1 - block).unwrap().codes(), [2, 1, 8, 4]);
        let groups = TernaryTensor::from_groups(1, 128, 64, vec![1; 32], f16s(&[1.0, 2.0])).unwrap();
        let turned = groups.permute_columns(64, |block| 1 - block).unwrap();
        assert_eq!(turned.group_scales(0), f16s(&[2.0, 1.0]));
        assert_eq!(groups.permute_columns(32, |block| block), None);
    }

    fn f16s(values: &[f32]) -> Vec<f16> {
        values.iter().map(|&v| f16::from_f32(v)).collect()
    }

    #[test]
    fn values_are_code_minus_one_times_the_scale_of_their_group() {
        // Column 0 has code 3, column 65 code 0, column 128 code 2; all others code 1.
        let mut codes = vec![0b0101_0101; 33];
        codes[0] = 0b0101_0111;
        codes[16] = 0b0101_0001;
        codes[32] = 0b0000_0010;
        let t = TernaryTensor::from_groups(1, 129, 64, codes, f16s(&[0.5, 0.25, -2.0])).unwrap();
        assert_eq!(t.group(), Some(64));
        assert_eq!(t.row_trits(0).step_by(64).collect::<Vec<_>>(), [2, 0, 1]);
        let mut row = vec![f32::NAN; 129];
        t.decode_row(0, &mut row);
        let expected =
            |k| [(0, 1.0), (65, -0.25), (128, -2.0)].iter().find(|e| e.0 == k).map_or(0.0, |e| e.1);
        assert!((0..129).all(|k| row[k] == expected(k)), "{row:?}");
    }

    #[test]
    fn groups_of_64_that_are_equal_in_pairs_become_groups_of_128() {
        let codes = vec![0b1001_0010; 2 * 80];
        let equal = f16s(&[1.0, 1.0, 2.0, 2.0, 3.0, 4.0, 4.0, 5.0, 5.0, 6.0]);
        let narrow = TernaryTensor::from_groups(2, 320, 64, codes.clone(), equal.clone()).unwrap();
        let wide =
            TernaryTensor::from_groups(2, 320, 128, codes.clone(), f16s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
                .unwrap();
        assert_eq!((narrow.group(), &narrow), (Some(128), &wide));
        for (at, scale) in [(1, 1.5), (7, -4.0), (8, 0.0)] {
            let mut scales = equal.clone();
            scales[at] = f16::from_f32(scale);
            let other = TernaryTensor::from_groups(2, 320, 64, codes.clone(), scales.clone()).unwrap();
            assert_eq!(other.scales(), &TernaryScales::Groups { width: 64, scales }, "scale {at}");
        }
        // Zeros of different signs are different scales: merging them would change a product's sign.
        let zeros = TernaryTensor::from_groups(1, 128, 64, vec![0; 32], f16s(&[0.0, -0.0])).unwrap();
        assert_eq!(zeros.group(), Some(64));
    }

    #[test]
    fn stacked_parts_of_different_groups_keep_their_values() {
        let wide = TernaryTensor::from_groups(1, 192, 128, vec![0b1100_1001; 48], f16s(&[0.5, 3.0])).unwrap();
        let narrow =
            TernaryTensor::from_groups(1, 192, 64, vec![0b0110_0010; 48], f16s(&[1.0, 2.0, 4.0])).unwrap();
        let stack = TernaryTensor::stack(&[wide.clone(), narrow.clone()]).unwrap();
        assert_eq!((stack.rows(), stack.cols(), stack.group()), (2, 192, Some(64)));
        assert_eq!(
            [stack.group_scales(0), stack.group_scales(1)].concat(),
            f16s(&[0.5, 0.5, 3.0, 1.0, 2.0, 4.0])
        );
        let row = |t: &TernaryTensor, row| {
            let mut out = vec![0.0; 192];
            t.decode_row(row, &mut out);
            out
        };
        assert_eq!((row(&stack, 0), row(&stack, 1)), (row(&wide, 0), row(&narrow, 0)));
        assert_eq!(TernaryTensor::stack(&[wide.clone(), wide.clone()]).unwrap().group(), Some(128));
        let other = TernaryTensor::from_groups(1, 64, 64, vec![0; 16], f16s(&[1.0])).unwrap();
        assert_eq!(
            TernaryTensor::stack(&[wide, other]),
            Err(TensorError::ColumnMismatch { expected: 192, actual: 64 })
        );
        assert_eq!(TernaryTensor::stack(&[]), Err(TensorError::Empty { rows: 0, cols: 0 }));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_reason() {
        let new = |cols, group, codes, scales: &[f32]| {
            TernaryTensor::from_groups(2, cols, group, vec![0; codes], f16s(scales)).map(|t| t.group())
        };
        assert_eq!(new(5, 64, 4, &[1.0, 2.0]), Ok(Some(128)));
        assert_eq!(new(0, 64, 0, &[]), Err(TensorError::Empty { rows: 2, cols: 0 }));
        assert_eq!(new(5, 32, 4, &[1.0, 2.0]), Err(TensorError::Group { group: 32 }));
        let lengths = |result| matches!(result, Err(TensorError::ByteLength { expected: 4, .. }));
        assert!(lengths(new(5, 64, 3, &[1.0, 2.0])));
        assert!(lengths(new(5, 64, 4, &[1.0])));
        assert!(lengths(new(5, 128, 4, &[1.0, 2.0, 3.0])));
        assert_eq!(new(5, 64, 4, &[1.0, f32::INFINITY]), Err(TensorError::Scale { scale: f32::INFINITY }));
        assert!(matches!(
            TernaryTensor::from_groups(usize::MAX, 5, 64, vec![], vec![]),
            Err(TensorError::Overflow { .. })
        ));
    }

    #[test]
    fn codes_after_the_last_column_are_cleared_and_rows_change_places_with_their_scales() {
        let t = TernaryTensor::from_groups(2, 3, 128, vec![0xFF, 0b1110_0100], f16s(&[1.0, 2.0])).unwrap();
        assert_eq!(t.codes(), [0b0011_1111, 0b0010_0100]);
        let turned = t.permute_rows(|row| 1 - row);
        assert_eq!(turned.codes(), [0b0010_0100, 0b0011_1111]);
        assert_eq!([turned.group_scales(0), turned.group_scales(1)].concat(), f16s(&[2.0, 1.0]));
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

        #[test]
        fn codes_survive_and_stacking_is_in_order(
            (cols, codes) in (1usize..300).prop_flat_map(|cols| {
                (Just(cols), prop::collection::vec(any::<u8>(), 3 * cols.div_ceil(4)))
            }),
            seed in any::<u16>(),
        ) {
            let scales = |rows: usize| {
                (0..rows * cols.div_ceil(64))
                    .map(|i| f16::from_bits((seed ^ (i as u16).wrapping_mul(40_503)) & 0xBBFF))
                    .collect::<Vec<_>>()
            };
            let whole = TernaryTensor::from_groups(3, cols, 64, codes.clone(), scales(3)).unwrap();
            let stride = cols.div_ceil(4);
            let values: Vec<i8> = (0..3 * cols)
                .map(|i| (codes[i / cols * stride + i % cols / 4] >> (2 * (i % cols % 4)) & 3) as i8 - 1)
                .collect();
            let back: Vec<i8> = (0..3).flat_map(|row| whole.row_trits(row)).collect();
            prop_assert_eq!(back, values);
            let parts: Vec<TernaryTensor> = (0..3)
                .map(|row| {
                    let codes = whole.row_codes(row).to_vec();
                    let scales = whole.group_scales(row).to_vec();
                    TernaryTensor::from_groups(1, cols, whole.group().unwrap(), codes, scales).unwrap()
                })
                .collect();
            prop_assert_eq!(TernaryTensor::stack(&parts).unwrap(), whole);
        }
    }
}
