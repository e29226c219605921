use half::f16;

use crate::{
    DType, TensorError,
    codes::{check_length, clear_padding, row_bytes, values},
};

/// A matrix of 2-bit codes with a scale per group of 64 or 128 columns of a row:
/// `w[r][k] = scale[r][k / group] * (code[r][k] - 1)`.
///
/// ```text
/// codes  [rows][ceil(cols / 4)] u8      bits 2i..2i+2 of byte j hold the code of column 4j + i: 0, 1, 2 or 3
/// scales [rows][ceil(cols / group)] f16
/// ```
///
/// Codes are laid out as in [`TernaryTensor`](crate::TernaryTensor). Code 3 stands for +2: released files do not use it,
/// but their formats define it. The unused codes at the end of a row are 0. Rows are output features, columns are input
/// features.
///
/// If the scales of groups of 64 are equal in pairs, [`GroupedTensor::new`] merges them to groups of 128, so that both
/// storage forms of a matrix become the same tensor and give the same bits.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupedTensor {
    rows: usize,
    cols: usize,
    group: usize,
    codes: Vec<u8>,
    scales: Vec<f16>,
}

impl GroupedTensor {
    /// Columns in the widest group.
    pub const WIDE: usize = 128;
    /// Columns in the narrowest group.
    pub const NARROW: usize = 64;

    /// Number of scales in a row.
    pub const fn groups(cols: usize, group: usize) -> usize {
        cols.div_ceil(group)
    }

    /// Makes a tensor from codes and scales in the layout above. Codes after the last column are cleared.
    ///
    /// # Errors
    /// If there are no rows or columns, `group` is not 64 or 128, a length does not match, or a scale is not finite.
    pub fn new(
        rows: usize,
        cols: usize,
        group: usize,
        mut codes: Vec<u8>,
        scales: Vec<f16>,
    ) -> Result<Self, TensorError> {
        if rows == 0 || cols == 0 {
            return Err(TensorError::Empty { rows, cols });
        }
        if ![Self::NARROW, Self::WIDE].contains(&group) {
            return Err(TensorError::Group { group });
        }
        check_length([rows, row_bytes(cols)], DType::U8, codes.len())?;
        check_length([rows, Self::groups(cols, group)], DType::F16, scales.len() * size_of::<f16>())?;
        if let Some(scale) = scales.iter().find(|scale| !scale.is_finite()) {
            return Err(TensorError::Scale { scale: scale.to_f32() });
        }
        clear_padding(&mut codes, cols);
        let mut tensor = GroupedTensor { rows, cols, group, codes, scales };
        tensor.merge();
        Ok(tensor)
    }

    /// Merges groups of 64 to groups of 128 if the scales of every pair are bitwise equal.
    fn merge(&mut self) {
        if self.group == Self::WIDE {
            return;
        }
        let mut rows = self.scales.chunks_exact(Self::groups(self.cols, Self::NARROW));
        let equal = |pair: &[f16]| pair.iter().all(|scale| scale.to_bits() == pair[0].to_bits());
        if rows.all(|row| row.chunks(2).all(equal)) {
            let rows = self.scales.chunks_exact(Self::groups(self.cols, Self::NARROW));
            self.scales = rows.flat_map(|row| row.iter().copied().step_by(2)).collect();
            self.group = Self::WIDE;
        }
    }

    /// The scale of every 64 columns; both halves of a group of 128 have its scale.
    fn narrow_scales(&self) -> impl Iterator<Item = f16> + '_ {
        let narrow = Self::groups(self.cols, Self::NARROW);
        let columns = move |i| i * Self::NARROW / self.group;
        (0..self.rows).flat_map(move |row| (0..narrow).map(move |i| self.row_scales(row)[columns(i)]))
    }

    /// Stacks the rows of the parts in order; each part keeps its scales. If any part has groups of 64, the result has.
    ///
    /// # Errors
    /// If the parts differ in their number of columns, or `parts` is empty.
    pub fn stack(parts: &[GroupedTensor]) -> Result<Self, TensorError> {
        let Some(first) = parts.first() else {
            return Err(TensorError::Empty { rows: 0, cols: 0 });
        };
        let group = parts.iter().map(|part| part.group).min().unwrap_or(Self::WIDE);
        let mut all =
            GroupedTensor { rows: 0, cols: first.cols, group, codes: Vec::new(), scales: Vec::new() };
        all.codes.reserve_exact(parts.iter().map(|part| part.codes.len()).sum());
        for part in parts {
            if part.cols != all.cols {
                return Err(TensorError::ColumnMismatch { expected: all.cols, actual: part.cols });
            }
            all.codes.extend_from_slice(&part.codes);
            if part.group == group {
                all.scales.extend_from_slice(&part.scales);
            } else {
                all.scales.extend(part.narrow_scales());
            }
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

    /// Columns that share a scale: 64 or 128.
    pub fn group(&self) -> usize {
        self.group
    }

    /// All codes, `[rows][ceil(cols / 4)]`.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The codes of one row.
    pub fn row_codes(&self, row: usize) -> &[u8] {
        let stride = row_bytes(self.cols);
        &self.codes[row * stride..][..stride]
    }

    /// All scales, `[rows][ceil(cols / group)]`.
    pub fn scales(&self) -> &[f16] {
        &self.scales
    }

    /// The scales of one row.
    pub fn row_scales(&self, row: usize) -> &[f16] {
        let stride = Self::groups(self.cols, self.group);
        &self.scales[row * stride..][..stride]
    }

    /// The values of one row before scaling, in column order: -1, 0, 1, or 2.
    pub fn row_values(&self, row: usize) -> impl Iterator<Item = i8> + '_ {
        values(self.row_codes(row), self.cols)
    }

    /// Decodes one row to f32: each value times the scale of its group.
    ///
    /// # Panics
    /// If `out` is not as long as a row.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "decode_row: output must be as long as a row");
        let scales = self.row_scales(row);
        for (k, (out, value)) in out.iter_mut().zip(self.row_values(row)).enumerate() {
            *out = scales[k / self.group].to_f32() * f32::from(value);
        }
    }

    /// Returns the matrix with its rows reordered: row `i` of the result is row `order(i)` of `self`.
    ///
    /// # Panics
    /// If `order` returns a row that does not exist.
    pub fn permute_rows(&self, order: impl Fn(usize) -> usize) -> Self {
        self.select_rows(self.rows, order)
    }

    /// Returns a matrix of `rows` rows: row `i` of the result is row `order(i)` of `self`.
    ///
    /// # Panics
    /// If `order` returns a row that does not exist.
    pub fn select_rows(&self, rows: usize, order: impl Fn(usize) -> usize) -> Self {
        let selected = || (0..rows).map(&order);
        let codes = selected().flat_map(|r| self.row_codes(r).iter().copied()).collect();
        let scales = selected().flat_map(|r| self.row_scales(r).iter().copied()).collect();
        GroupedTensor { rows, codes, scales, ..*self }
    }

    /// Returns the matrix with blocks of `width` columns reordered: block `i` of the result is block `order(i)` of
    /// `self`. `None` if that would tear groups apart: blocks must be whole groups, or parts of the only one, and
    /// columns must be whole blocks of a multiple of four.
    ///
    /// # Panics
    /// If `order` returns a block that does not exist.
    pub fn permute_columns(&self, width: usize, order: impl Fn(usize) -> usize) -> Option<Self> {
        let groups = Self::groups(self.cols, self.group);
        let whole = width.is_multiple_of(4) && width > 0 && self.cols.is_multiple_of(width);
        if !whole || groups > 1 && !width.is_multiple_of(self.group) {
            return None;
        }
        let blocks = || (0..self.cols / width).map(&order);
        let mut codes = Vec::with_capacity(self.codes.len());
        let mut scales = Vec::with_capacity(self.scales.len());
        for row in 0..self.rows {
            let (from, per) = (self.row_codes(row), width / 4);
            codes.extend(blocks().flat_map(|block| &from[block * per..][..per]));
            let (from, per) = (self.row_scales(row), width / self.group);
            match groups {
                1 => scales.extend_from_slice(from),
                _ => scales.extend(blocks().flat_map(|block| &from[block * per..][..per])),
            }
        }
        Some(GroupedTensor { codes, scales, ..*self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        let t = GroupedTensor::new(1, 129, 64, codes, f16s(&[0.5, 0.25, -2.0])).unwrap();
        assert_eq!(t.group(), 64);
        assert_eq!(t.row_values(0).step_by(64).collect::<Vec<_>>(), [2, 0, 1]);
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
        let narrow = GroupedTensor::new(2, 320, 64, codes.clone(), equal.clone()).unwrap();
        let wide =
            GroupedTensor::new(2, 320, 128, codes.clone(), f16s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).unwrap();
        assert_eq!((narrow.group(), &narrow), (128, &wide));
        for (at, scale) in [(1, 1.5), (7, -4.0), (8, 0.0)] {
            let mut scales = equal.clone();
            scales[at] = f16::from_f32(scale);
            let other = GroupedTensor::new(2, 320, 64, codes.clone(), scales.clone()).unwrap();
            assert_eq!((other.group(), other.scales()), (64, &scales[..]), "scale {at}");
        }
        // Zeros of different signs are different scales: merging them would change a product's sign.
        let zeros = GroupedTensor::new(1, 128, 64, vec![0; 32], f16s(&[0.0, -0.0])).unwrap();
        assert_eq!(zeros.group(), 64);
    }

    #[test]
    fn stacked_parts_of_different_groups_keep_their_values() {
        let wide = GroupedTensor::new(1, 192, 128, vec![0b1100_1001; 48], f16s(&[0.5, 3.0])).unwrap();
        let narrow = GroupedTensor::new(1, 192, 64, vec![0b0110_0010; 48], f16s(&[1.0, 2.0, 4.0])).unwrap();
        let stack = GroupedTensor::stack(&[wide.clone(), narrow.clone()]).unwrap();
        assert_eq!((stack.rows(), stack.cols(), stack.group()), (2, 192, 64));
        assert_eq!(stack.scales(), f16s(&[0.5, 0.5, 3.0, 1.0, 2.0, 4.0]));
        let row = |t: &GroupedTensor, row| {
            let mut out = vec![0.0; 192];
            t.decode_row(row, &mut out);
            out
        };
        assert_eq!((row(&stack, 0), row(&stack, 1)), (row(&wide, 0), row(&narrow, 0)));
        assert_eq!(GroupedTensor::stack(&[wide.clone(), wide.clone()]).unwrap().group(), 128);
        let other = GroupedTensor::new(1, 64, 64, vec![0; 16], f16s(&[1.0])).unwrap();
        assert_eq!(
            GroupedTensor::stack(&[wide, other]),
            Err(TensorError::ColumnMismatch { expected: 192, actual: 64 })
        );
        assert_eq!(GroupedTensor::stack(&[]), Err(TensorError::Empty { rows: 0, cols: 0 }));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_reason() {
        let new = |cols, group, codes, scales: &[f32]| {
            GroupedTensor::new(2, cols, group, vec![0; codes], f16s(scales)).map(|t| t.group())
        };
        assert_eq!(new(5, 64, 4, &[1.0, 2.0]), Ok(128));
        assert_eq!(new(0, 64, 0, &[]), Err(TensorError::Empty { rows: 2, cols: 0 }));
        assert_eq!(new(5, 32, 4, &[1.0, 2.0]), Err(TensorError::Group { group: 32 }));
        let lengths = |result| matches!(result, Err(TensorError::ByteLength { expected: 4, .. }));
        assert!(lengths(new(5, 64, 3, &[1.0, 2.0])));
        assert!(lengths(new(5, 64, 4, &[1.0])));
        assert!(lengths(new(5, 128, 4, &[1.0, 2.0, 3.0])));
        assert_eq!(new(5, 64, 4, &[1.0, f32::INFINITY]), Err(TensorError::Scale { scale: f32::INFINITY }));
        assert!(matches!(
            GroupedTensor::new(usize::MAX, 5, 64, vec![], vec![]),
            Err(TensorError::Overflow { .. })
        ));
    }

    #[test]
    fn codes_after_the_last_column_are_cleared_and_rows_change_places_with_their_scales() {
        let t = GroupedTensor::new(2, 3, 128, vec![0xFF, 0b1110_0100], f16s(&[1.0, 2.0])).unwrap();
        assert_eq!(t.codes(), [0b0011_1111, 0b0010_0100]);
        let turned = t.permute_rows(|row| 1 - row);
        assert_eq!(
            (turned.codes(), turned.scales()),
            (&[0b0010_0100, 0b0011_1111][..], &f16s(&[2.0, 1.0])[..])
        );
    }

    proptest! {
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
            let whole = GroupedTensor::new(3, cols, 64, codes.clone(), scales(3)).unwrap();
            let stride = cols.div_ceil(4);
            let values: Vec<i8> = (0..3 * cols)
                .map(|i| (codes[i / cols * stride + i % cols / 4] >> (2 * (i % cols % 4)) & 3) as i8 - 1)
                .collect();
            let back: Vec<i8> = (0..3).flat_map(|row| whole.row_values(row)).collect();
            prop_assert_eq!(back, values);
            let parts: Vec<GroupedTensor> = (0..3)
                .map(|row| {
                    let (codes, scales) = (whole.row_codes(row).to_vec(), whole.row_scales(row).to_vec());
                    GroupedTensor::new(1, cols, whole.group(), codes, scales).unwrap()
                })
                .collect();
            prop_assert_eq!(GroupedTensor::stack(&parts).unwrap(), whole);
        }
    }
}
