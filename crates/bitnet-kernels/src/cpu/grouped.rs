//! The kernel layout of ternary weights with scales for groups of columns: panels as in [`super::panels`], with the
//! scales of a group after its codes, so that a kernel reads a single stream.
//!
//! ```text
//! panel   64 rows, all columns: groups are contiguous; rows and columns are padded with code 0
//! group   its blocks of 16 columns, 256 bytes each as in [`super::panels`], then 64 f16, the scale of every row
//! ```
//!
//! A group of 128 columns has 8 blocks, a group of 64 has 4; the last may have fewer. A file holds the same, as lines
//! of 128 bytes. Code 3 is valid here.

use std::{borrow::Cow, ops::Range};

use bitnet_tensor::{GroupedTensor, SharedBytes, TensorError, TernaryTensor};
use half::f16;

use crate::{
    KernelError,
    cpu::{
        memory::{Arena, LineReader, Shared},
        panels::{BLOCK, BLOCK_BYTES, PANEL_ROWS, pack_row, unpack_row},
        pool::Pool,
    },
};

/// Bytes of the scales of one group of a panel.
pub(crate) const SCALE_BYTES: usize = PANEL_ROWS * size_of::<f16>();

/// A matrix with one scale per group of columns, packed into panels.
pub struct GroupedPanels {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Columns that share a scale: 64 or 128.
    pub(crate) group: usize,
    /// `[panels][panel_bytes]`
    pub(crate) data: SharedBytes,
}

impl GroupedPanels {
    pub(crate) fn pack(
        weights: &GroupedTensor,
        pool: &mut Pool,
        memory: &mut Arena,
    ) -> Result<Self, KernelError> {
        let (rows, cols, group) = (weights.rows(), weights.cols(), weights.group());
        let (panels, bytes) = (rows.div_ceil(PANEL_ROWS), panel_bytes(cols, group));
        let mut data = memory.zeroed(panels * bytes, "packed weights")?;
        let out = data.shared();
        pool.run(panels, &|_, panel| pack_panel(weights, panel, bytes, out));
        Ok(GroupedPanels { rows, cols, group, data: SharedBytes::new(data) })
    }

    /// Number of lines, and bytes per line, that a file holds for a matrix of this shape.
    pub fn stored_shape(rows: usize, cols: usize, group: usize) -> [usize; 2] {
        let lines = cols.div_ceil(group) + cols.div_ceil(BLOCK) * (BLOCK_BYTES / SCALE_BYTES);
        [rows.div_ceil(PANEL_ROWS).saturating_mul(lines), SCALE_BYTES]
    }

    /// Takes a matrix as stored in a file, without copying it.
    ///
    /// # Errors
    /// If `group` is neither 64 nor 128, or is 64 although [`GroupedTensor`] would have merged the groups to 128; if
    /// the length does not match, or a scale is not finite.
    pub fn from_stored(
        rows: usize,
        cols: usize,
        group: usize,
        bytes: &SharedBytes,
    ) -> Result<Self, KernelError> {
        if rows == 0 || cols == 0 {
            return Err(TensorError::Empty { rows, cols }.into());
        }
        if ![GroupedTensor::NARROW, GroupedTensor::WIDE].contains(&group) {
            return Err(TensorError::Group { group }.into());
        }
        let data = LineReader::new(bytes, Self::stored_shape(rows, cols, group))?.rest();
        let panels = GroupedPanels { rows, cols, group, data };
        let mut merges = group == GroupedTensor::NARROW;
        for row in 0..rows {
            let mut previous = f16::ZERO;
            for (i, scale) in panels.row_scales(row).enumerate() {
                if !scale.is_finite() {
                    return Err(TensorError::Scale { scale: scale.to_f32() }.into());
                }
                merges &= i % 2 == 0 || scale.to_bits() == previous.to_bits();
                previous = scale;
            }
        }
        if merges {
            return Err(KernelError::NotMerged);
        }
        Ok(panels)
    }

    /// The bytes that a file holds for this matrix, in pieces.
    pub fn stored(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        [Cow::from(&*self.data)].into_iter()
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

    /// Unpacks some of the rows to the canonical layout.
    ///
    /// # Errors
    /// If the range is empty.
    ///
    /// # Panics
    /// If the range reaches past the last row.
    pub fn unpack(&self, rows: Range<usize>) -> Result<GroupedTensor, TensorError> {
        assert!(rows.end <= self.rows, "the rows must exist");
        let codes = rows.clone().flat_map(|row| self.row_codes(row)).collect();
        let scales = rows.clone().flat_map(|row| self.row_scales(row)).collect();
        GroupedTensor::new(rows.len(), self.cols, self.group, codes, scales)
    }

    /// Decodes one row to f32: each value times the scale of its group.
    pub(crate) fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "the row must exist and fit the output");
        let mut codes = self.row_codes(row);
        for (out, scale) in out.chunks_mut(self.group).zip(self.row_scales(row)) {
            for (four, byte) in out.chunks_mut(4).zip(&mut codes) {
                for (i, out) in four.iter_mut().enumerate() {
                    *out = scale.to_f32() * (f32::from(byte >> (2 * i) & 3) - 1.0);
                }
            }
        }
    }

    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL_ROWS)
    }

    pub(crate) fn blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }

    /// The codes and scales of a panel.
    pub(crate) fn panel(&self, panel: usize) -> &[u8] {
        let bytes = panel_bytes(self.cols, self.group);
        &self.data[panel * bytes..][..bytes]
    }

    /// The codes of a row in the canonical layout.
    fn row_codes(&self, row: usize) -> impl Iterator<Item = u8> + '_ {
        let blocks = self.groups(row).flat_map(|(blocks, _)| blocks);
        unpack_row(blocks, row % PANEL_ROWS).take(TernaryTensor::row_bytes(self.cols))
    }

    fn row_scales(&self, row: usize) -> impl Iterator<Item = f16> + '_ {
        self.groups(row).map(move |(_, scales)| {
            let (scales, _) = scales.as_chunks::<2>();
            f16::from_le_bytes(scales[row % PANEL_ROWS])
        })
    }

    /// The blocks and the scales of each group in the panel that contains a row.
    fn groups(&self, row: usize) -> impl Iterator<Item = (&[[u8; BLOCK_BYTES]], &[u8])> {
        self.panel(row / PANEL_ROWS).chunks(group_bytes(self.group)).map(|group| {
            let (blocks, scales) = group.split_at(group.len() - SCALE_BYTES);
            (blocks.as_chunks().0, scales)
        })
    }
}

/// Bytes of one whole group of a panel.
fn group_bytes(group: usize) -> usize {
    group / BLOCK * BLOCK_BYTES + SCALE_BYTES
}

fn panel_bytes(cols: usize, group: usize) -> usize {
    cols.div_ceil(group) * SCALE_BYTES + cols.div_ceil(BLOCK) * BLOCK_BYTES
}

fn pack_panel(weights: &GroupedTensor, panel: usize, bytes: usize, out: Shared<'_, u8>) {
    // SAFETY: every panel is packed by exactly one call.
    let out = unsafe { out.slice(panel * bytes, bytes) };
    let group = group_bytes(weights.group());
    for r in 0..PANEL_ROWS.min(weights.rows() - panel * PANEL_ROWS) {
        let row = panel * PANEL_ROWS + r;
        let blocks = out.chunks_mut(group).flat_map(|group| {
            let codes = group.len() - SCALE_BYTES;
            group[..codes].as_chunks_mut().0
        });
        pack_row(weights.row_codes(row), r, blocks);
        for (group, scale) in out.chunks_mut(group).zip(weights.row_scales(row)) {
            let codes = group.len() - SCALE_BYTES;
            group[codes + 2 * r..][..2].copy_from_slice(&scale.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A matrix with codes of every value and scales that are all different.
    fn tensor(rows: usize, cols: usize, group: usize) -> GroupedTensor {
        let codes = (0..rows * cols.div_ceil(4)).map(|i| (i * i * 37 % 251) as u8).collect();
        let scales = (0..rows * cols.div_ceil(group)).map(|i| f16::from_bits(0x2000 + 7 * i as u16));
        GroupedTensor::new(rows, cols, group, codes, scales.collect()).unwrap()
    }

    fn packed(tensor: &GroupedTensor) -> GroupedPanels {
        GroupedPanels::pack(tensor, &mut Pool::new(2).unwrap(), &mut Arena::default()).unwrap()
    }

    fn stored(panels: &GroupedPanels) -> Vec<u8> {
        panels.stored().collect::<Vec<_>>().concat()
    }

    #[test]
    fn every_code_and_scale_is_where_the_layout_says() {
        for (rows, cols, group) in [(70, 301, 64), (70, 301, 128), (1, 16, 128), (65, 256, 64)] {
            let tensor = tensor(rows, cols, group);
            let (group, panels) = (tensor.group(), packed(&tensor));
            let data = stored(&panels);
            let panel = data.len() / rows.div_ceil(64);
            for row in 0..rows {
                let values: Vec<i8> = tensor.row_values(row).collect();
                for (column, value) in values.into_iter().enumerate() {
                    let (g, block) = (column / group, column % group / 16);
                    let at = row / 64 * panel + g * (group * 16 + 128) + block * 256;
                    let byte = data[at + 4 * (row % 64) + column % 4];
                    assert_eq!((byte >> (2 * (column % 16 / 4)) & 3) as i8 - 1, value, "{row} {column}");
                }
                for (g, scale) in tensor.row_scales(row).iter().enumerate() {
                    let blocks = (group / 16).min(cols.div_ceil(16) - g * group / 16);
                    let at = row / 64 * panel + g * (group * 16 + 128) + blocks * 256 + 2 * (row % 64);
                    assert_eq!(data[at..at + 2], scale.to_le_bytes(), "row {row} group {g}");
                }
            }
        }
    }

    #[test]
    fn stored_panels_are_used_in_place_and_unpack_to_what_was_packed() {
        for (rows, cols, group) in [(101, 301, 64), (101, 301, 128), (3, 40, 128)] {
            let tensor = tensor(rows, cols, group);
            let bytes = stored(&packed(&tensor));
            let shape = GroupedPanels::stored_shape(rows, cols, tensor.group());
            assert_eq!(bytes.len(), shape[0] * shape[1]);
            let bytes = SharedBytes::new(bytes);
            let panels = GroupedPanels::from_stored(rows, cols, tensor.group(), &bytes).unwrap();
            assert_eq!(panels.panel(0).as_ptr(), bytes.as_ptr());
            assert_eq!(panels.unpack(0..rows).unwrap(), tensor);
            let mut decoded = [vec![0.0; cols], vec![0.0; cols]];
            for row in 0..rows {
                panels.decode_row(row, &mut decoded[0]);
                tensor.decode_row(row, &mut decoded[1]);
                assert_eq!(decoded[0], decoded[1], "row {row}");
            }
            let part = panels.unpack(1..rows).unwrap();
            assert!((1..rows).all(|row| part.row_scales(row - 1) == tensor.row_scales(row)));
        }
    }

    #[test]
    fn stored_panels_that_are_none_are_refused() {
        let good = stored(&packed(&tensor(70, 301, 64)));
        let refused = |group, change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            GroupedPanels::from_stored(70, 301, group, &SharedBytes::new(bytes)).err()
        };
        assert_eq!(refused(64, &|_| ()), None);
        assert_eq!(refused(32, &|_| ()), Some(TensorError::Group { group: 32 }.into()));
        for (group, wrong) in [(64, 0), (64, good.len() - 128), (64, good.len() - 1), (128, good.len())] {
            assert!(matches!(
                refused(group, &|bytes| bytes.truncate(wrong)),
                Some(KernelError::Weights(TensorError::ByteLength { .. }))
            ));
        }
        // The scale of row 69 in the second group.
        let at = good.len() / 2 + 4 * 256 + 128 + 4 * 256 + 2 * 5;
        let infinite = |bytes: &mut Vec<u8>| bytes[at..at + 2].copy_from_slice(&f16::INFINITY.to_le_bytes());
        assert_eq!(refused(64, &infinite), Some(TensorError::Scale { scale: f32::INFINITY }.into()));
        assert!(GroupedPanels::from_stored(0, 301, 64, &SharedBytes::default()).is_err());
    }

    /// Groups of 64 that were not merged would give other bits than every other form of the matrix.
    #[test]
    fn stored_groups_of_64_that_should_be_of_128_are_refused() {
        let bytes = |scales: [u16; 3]| {
            let mut bytes = vec![0; 3 * SCALE_BYTES + 9 * BLOCK_BYTES];
            for (g, scale) in scales.into_iter().enumerate() {
                let at = g * group_bytes(64) + [4, 4, 1][g] * BLOCK_BYTES;
                bytes[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
            SharedBytes::new(bytes)
        };
        assert!(GroupedPanels::from_stored(1, 144, 64, &bytes([5, 6, 7])).is_ok());
        let refused = GroupedPanels::from_stored(1, 144, 64, &bytes([5, 5, 7])).err();
        assert_eq!(refused, Some(KernelError::NotMerged));
    }
}
