//! A copy of a dense table, in int8 or in the 4 or 6 bits that it has, with which a step finds the rows that cannot have one of
//! the highest logits.
//!
//! ```text
//! panel   64 rows, all columns; panels are contiguous
//! quad    4 columns of a panel: 256 bytes; byte 4 r + j holds row r, column j, as q + 128
//! ```
//!
//! The lanes are those of [`crate::cpu::panels`], but a byte holds one column instead of four. The panels of 4 and 6 bits are
//! those of [`crate::cpu::generic::nibbles`] and [`crate::cpu::generic::sixes`]. [`crate::cpu::generic::shortlist`] explains how the copy bounds a logit.
//!
//! A file holds the codes, then scales, norms and errors of all rows as little-endian f32, padded as here: all are
//! whole lines of 256 bytes. Every code is valid; the floats are checked, because the bounds rely on them.

use std::borrow::Cow;

use bitnet_tensor::{DType, SharedBytes, TensorError};

use crate::{
    KernelError,
    cpu::{
        generic::{nibbles, sixes},
        memory::{Buffer, LINE, LineReader, float_bytes},
        panels::PANEL_ROWS,
    },
};

/// Bytes of a quad of a panel.
pub(crate) const QUAD_BYTES: usize = 4 * PANEL_ROWS;

/// Maximum number of columns whose sums fit 32 bits: a column adds at most 255 * 128.
pub(crate) const MAX_COLS: usize = 1 << 16;

/// How a [`HeadCopy`] holds values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyForm {
    /// A byte a value, and a scale a row.
    Int8,
    /// The codes and scales of a Q4_K table: 4.625 bits a value.
    Nibbles,
    /// The codes, scales and minima of a Q4_1 table: 5 bits a value.
    NibblePairs,
    /// The codes and scales of a Q6_K table: 6.5625 bits a value.
    Sixes,
}

impl CopyForm {
    /// The form of the copy of a table of this type.
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::Q4K => CopyForm::Nibbles,
            DType::Q4_1 => CopyForm::NibblePairs,
            DType::Q6K => CopyForm::Sixes,
            _ => CopyForm::Int8,
        }
    }

    /// Bytes of a panel of this many columns.
    pub(crate) fn panel_bytes(self, cols: usize) -> usize {
        match self {
            CopyForm::Int8 => cols.div_ceil(4).saturating_mul(QUAD_BYTES),
            CopyForm::Nibbles => cols.div_ceil(nibbles::BLOCK).saturating_mul(nibbles::BLOCK_BYTES),
            CopyForm::NibblePairs => cols.div_ceil(nibbles::GROUP).saturating_mul(nibbles::PAIR_BYTES),
            // A block is half a line longer than whole lines.
            CopyForm::Sixes => {
                let bytes = cols.div_ceil(sixes::BLOCK).saturating_mul(sixes::BLOCK_BYTES);
                bytes.div_ceil(LINE).saturating_mul(LINE)
            }
        }
    }

    /// Sums of groups of columns that a plane of activations needs.
    pub(crate) fn sums(self, cols: usize) -> usize {
        match self {
            CopyForm::Int8 => 0,
            CopyForm::Nibbles | CopyForm::NibblePairs => cols.div_ceil(nibbles::GROUP),
            CopyForm::Sixes => cols.div_ceil(sixes::GROUP),
        }
    }

    /// Writes these sums.
    pub(crate) fn sum_groups(self, plane: &[i8], sums: &mut [f32]) {
        match self {
            CopyForm::Int8 => {}
            CopyForm::Nibbles | CopyForm::NibblePairs => nibbles::group_sums(plane, sums),
            CopyForm::Sixes => sixes::group_sums(plane, sums),
        }
    }

    /// How often a pass over a panel asks for bytes ahead: quads of int8 or of 6 bits, or lines of nibbles.
    pub(crate) fn lines(self, cols: usize) -> usize {
        match self {
            CopyForm::Int8 => cols.div_ceil(4),
            CopyForm::Nibbles => cols.div_ceil(nibbles::BLOCK) * nibbles::BLOCK_LINES,
            CopyForm::NibblePairs => cols.div_ceil(nibbles::GROUP) * nibbles::PAIR_LINES,
            CopyForm::Sixes => cols.div_ceil(sixes::BLOCK) * sixes::BLOCK_QUADS,
        }
    }
}

/// The copy of a table, which rules out most logits before they are computed.
pub struct HeadCopy {
    pub(crate) form: CopyForm,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// `[panels][panel_bytes]`.
    pub(crate) codes: SharedBytes,
    /// Value of one step of each row's codes, 1 in all forms but int8; padded to whole panels, like the next two.
    pub(crate) scales: Buffer<f32>,
    /// Upper bound on the length of each row.
    pub(crate) norms: Buffer<f32>,
    /// Upper bound on the length of the difference between each row and its copy; infinite for rows of the padding.
    pub(crate) errors: Buffer<f32>,
    /// Whether all rows have magnitudes that bounds hold for; the others have infinite errors.
    pub(crate) is_ordinary: bool,
}

impl HeadCopy {
    /// A copy of a table of this shape, from its codes and its scales, norms and errors.
    pub(crate) fn of(
        form: CopyForm,
        [rows, cols]: [usize; 2],
        codes: SharedBytes,
        [scales, norms, errors]: [Buffer<f32>; 3],
    ) -> Self {
        let is_ordinary = errors[..rows].iter().all(|error| error.is_finite());
        HeadCopy { form, rows, cols, codes, scales, norms, errors, is_ordinary }
    }

    /// Bytes of the copy of a table of this shape.
    pub(crate) fn bytes(form: CopyForm, rows: usize, cols: usize) -> usize {
        rows.div_ceil(PANEL_ROWS) * (form.panel_bytes(cols) + 3 * LINE)
    }

    /// Number of lines, and bytes per line, that a file holds for the copy of a table of this shape; `None` if such a
    /// table has no copy.
    pub fn stored_shape(form: CopyForm, rows: usize, cols: usize) -> Option<[usize; 2]> {
        // The kernels read whole blocks and groups of nibbles.
        let whole = match form {
            CopyForm::Int8 => true,
            CopyForm::Nibbles => cols.is_multiple_of(nibbles::BLOCK),
            CopyForm::NibblePairs => cols.is_multiple_of(nibbles::GROUP),
            CopyForm::Sixes => cols.is_multiple_of(sixes::BLOCK),
        };
        let lines = || rows.div_ceil(PANEL_ROWS).saturating_mul(form.panel_bytes(cols) / LINE + 3);
        (cols <= MAX_COLS && whole).then(|| [lines(), LINE])
    }

    /// Takes a copy as stored in a file, without copying its codes.
    ///
    /// # Errors
    /// If the length does not match, or a float cannot bound a logit.
    pub fn from_stored(
        form: CopyForm,
        rows: usize,
        cols: usize,
        bytes: &SharedBytes,
    ) -> Result<Self, KernelError> {
        let shape = Self::stored_shape(form, rows, cols).ok_or(TensorError::Empty { rows, cols })?;
        let mut stored = LineReader::new(bytes, shape)?;
        let panels = rows.div_ceil(PANEL_ROWS);
        let codes = stored.codes(panels * form.panel_bytes(cols) / LINE);
        let mut floats = || stored.floats(panels, "bounds of the output head");
        let copy = HeadCopy::of(form, [rows, cols], codes, [floats()?, floats()?, floats()?]);
        let is_length = |value: &f32| value.is_finite() && *value >= 0.0;
        let is_error = |row: usize, value: f32| value >= 0.0 && (row < rows || value == f32::INFINITY);
        let lengths = copy.scales.iter().chain(&*copy.norms).find(|value| !is_length(value));
        let errors = || copy.errors.iter().enumerate().find(|(row, value)| !is_error(*row, **value));
        match lengths.or_else(|| Some(errors()?.1)) {
            Some(&value) => Err(KernelError::Bound { value }),
            None => Ok(copy),
        }
    }

    /// The bytes that a file holds for this copy, in pieces.
    pub fn stored(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        let floats = [&self.scales, &self.norms, &self.errors].map(|floats| float_bytes(floats).into());
        [Cow::from(&*self.codes)].into_iter().chain(floats)
    }

    pub(crate) fn panels(&self) -> usize {
        self.scales.len() / PANEL_ROWS
    }

    /// The codes of a panel.
    pub(crate) fn panel(&self, panel: usize) -> &[u8] {
        let bytes = self.form.panel_bytes(self.cols);
        &self.codes[panel * bytes..][..bytes]
    }

    /// Writes the codes of a row as int8, then zeros.
    ///
    /// # Panics
    /// If the codes are not int8.
    pub(crate) fn unpack(&self, row: usize, out: &mut [u8]) {
        assert_eq!(self.form, CopyForm::Int8, "only int8 can be unpacked");
        let (out, padding) = out.split_at_mut(self.cols.next_multiple_of(4));
        let quads = self.panel(row / PANEL_ROWS).as_chunks::<QUAD_BYTES>().0;
        for (out, quad) in out.as_chunks_mut::<4>().0.iter_mut().zip(quads) {
            *out = [0, 1, 2, 3].map(|column| quad[4 * (row % PANEL_ROWS) + column] ^ 0x80);
        }
        padding.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, Cpu, Isa, cpu::Table};

    /// The copy of 70 rows, as stored in a file.
    fn stored(isa: Isa) -> Vec<u8> {
        let values: Vec<f32> = (0..70 * 9).map(|i| (i * i % 37) as f32 - 18.0).collect();
        let table = bitnet_tensor::BitNetTensor::from_f32([70, 9], &values).unwrap();
        let copy = Cpu::new(isa, 2).unwrap().copy_head(&table).unwrap().unwrap();
        copy.stored().flat_map(Cow::into_owned).collect()
    }

    #[test]
    fn every_instruction_set_makes_the_same_copy_and_a_stored_one_is_used_in_place() {
        let bytes = stored(Isa::best());
        assert!(Isa::available().all(|isa| stored(isa) == bytes));
        let bytes = SharedBytes::new(bytes);
        let copy = HeadCopy::from_stored(CopyForm::Int8, 70, 9, &bytes).unwrap();
        assert_eq!(copy.codes.as_ptr(), bytes.as_ptr());
        assert!(copy.stored().collect::<Vec<_>>().concat() == *bytes);
    }

    #[test]
    fn a_stored_copy_of_a_tables_own_bits_equals_the_one_that_was_made_and_needs_whole_blocks() {
        for dtype in [DType::Q4K, DType::Q4_1, DType::Q6K] {
            copy_of_own_bits(dtype);
        }
    }

    fn copy_of_own_bits(dtype: DType) {
        let form = CopyForm::of(dtype);
        let blocks = 512 / dtype.block_elements() as u32;
        let len = 70 * blocks * dtype.block_bytes() as u32;
        let mut bytes: Vec<u8> = (0..len).map(|i| (i * i % 251) as u8).collect();
        // Scales of ordinary size.
        bytes.chunks_exact_mut(dtype.block_bytes()).for_each(|block| match dtype {
            DType::Q6K => block[208..].copy_from_slice(&[0, 0x20]),
            _ => block[..4].copy_from_slice(&[0, 0x20, 0, 0x24]),
        });
        let table = bitnet_tensor::BitNetTensor::new(dtype, [70, 512], SharedBytes::new(bytes)).unwrap();
        let stored = |isa| {
            let copy = Cpu::new(isa, 2).unwrap().copy_head(&table).unwrap().unwrap();
            assert!(copy.is_ordinary && (0..70).all(|row| copy.errors[row] < 1e-2 * copy.norms[row]));
            copy.stored().flat_map(Cow::into_owned).collect::<Vec<u8>>()
        };
        let bytes = stored(Isa::best());
        assert!(Isa::available().all(|isa| stored(isa) == bytes));
        assert_eq!(bytes.len(), HeadCopy::bytes(form, 70, 512));
        let copy = HeadCopy::from_stored(form, 70, 512, &SharedBytes::new(bytes.clone())).unwrap();
        assert!(copy.stored().collect::<Vec<_>>().concat() == bytes);
        assert_eq!(HeadCopy::stored_shape(form, 70, 500), None);
    }

    #[test]
    fn a_stored_copy_of_another_form_than_that_of_the_table_is_made_again() {
        let mut cpu = Cpu::new(Isa::best(), 2).unwrap();
        let zeros = bitnet_tensor::BitNetTensor::from_f32([70, 512], &[0.0; 70 * 512]).unwrap();
        let int8 = cpu.copy_head(&zeros).unwrap().unwrap();
        let bytes = SharedBytes::new(vec![0; 70 * DType::Q6K.row_bytes(512)]);
        let table = bitnet_tensor::BitNetTensor::new(DType::Q6K, [70, 512], bytes).unwrap();
        let mut table = cpu.table(&table).unwrap();
        cpu.prepare_shortlist(&mut table, Some(int8)).unwrap();
        let Table::Dense { copy, .. } = table else { panic!("the table is dense") };
        assert_eq!(copy.map(|copy| copy.form), Some(CopyForm::Sixes));
    }

    #[test]
    fn a_stored_copy_with_invalid_bounds_is_refused() {
        let good = stored(Isa::best());
        let refused = |at: usize, value: f32| {
            let mut bytes = good.clone();
            let at = good.len() - 4 * at;
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            HeadCopy::from_stored(CopyForm::Int8, 70, 9, &SharedBytes::new(bytes)).err()
        };
        // From the end: errors of 58 rows of padding, errors of the other rows, norms, scales.
        assert_eq!(refused(58, f32::INFINITY), None);
        assert_eq!(refused(58, 1e9), Some(KernelError::Bound { value: 1e9 }));
        for (at, value) in [(59, f32::NAN), (59, -1.0), (129, f32::INFINITY), (257, f32::NAN), (257, -2.0)] {
            assert!(matches!(refused(at, value), Some(KernelError::Bound { .. })), "{at} {value}");
        }
        assert!(HeadCopy::from_stored(CopyForm::Int8, 70, 9, &SharedBytes::new(good[1..].to_vec())).is_err());
        assert_eq!(HeadCopy::stored_shape(CopyForm::Int8, 70, MAX_COLS + 1), None);
    }
}
