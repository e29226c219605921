//! The kernel layout of ternary weights: panels with one row per lane.
//!
//! ```text
//! panel      64 rows, all columns; panels are contiguous; rows and columns are padded with code 0
//! block      16 columns of a panel: 256 bytes = 4 row groups of 16 rows
//! row group  64 bytes: byte 4 r + j holds row r, columns 16 b + 4 p + j at bits 2p, 2p + 1 (p = 0..4)
//! ```
//!
//! Plane `p` of a row group, `(byte >> 2p) & 3`, is thus an operand of a 4-way dot product: each 32-bit lane holds four
//! consecutive columns of one row, and all lanes are multiplied by the same four activations. Nothing is ever added
//! across lanes, and the same layout serves vectors of 8 and of 16 rows and any number of tokens.
//!
//! Scales of rows are f32. With scales for groups of columns, the f16 scales of the 64 rows follow the blocks of each
//! group, so that a kernel reads a single stream: 8 blocks and 128 bytes for a group of 128 columns, 4 blocks and 128
//! bytes for one of 64; the last group may have fewer blocks.
//!
//! A file holds all panels, in lines of 128 bytes with groups and of 256 without; then, without groups, the scale of every
//! row as little-endian f32, with rows padded with zeros. Kernels read panels in place, at any alignment. Without groups,
//! a code 3 is refused, because kernels would treat it as a weight of 2.

use std::{borrow::Cow, ops::Range};

use bitnet_tensor::{
    SharedBytes, TensorError, TernaryScales, TernaryTensor, find_code_three, transpose_codes,
};
use half::f16;

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
/// Bytes of the scales of one group of a panel.
pub(crate) const SCALE_BYTES: usize = PANEL_ROWS * size_of::<f16>();

/// A ternary matrix packed into panels.
pub struct Panels {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// `[panels][panel_bytes]`
    pub(crate) data: SharedBytes,
    pub(crate) scales: PanelScales,
}

/// The scales of [`Panels`].
pub(crate) enum PanelScales {
    /// Scale of every row, padded with zeros to whole panels.
    Rows(Buffer<f32>),
    /// Scales of groups of this many columns, 64 or 128, are in the panels.
    Groups(usize),
}

impl Panels {
    pub(crate) fn pack(
        weights: &TernaryTensor,
        pool: &mut Pool,
        memory: &mut Arena,
    ) -> Result<Self, KernelError> {
        let (rows, cols, group) = (weights.rows(), weights.cols(), weights.group());
        let panels = rows.div_ceil(PANEL_ROWS);
        let mut data = memory.zeroed(panels * panel_bytes(cols, group), "packed weights")?;
        let scales = match weights.scales() {
            TernaryScales::Rows(ranges) => {
                let mut scales = Buffer::zeroed(panels * PANEL_ROWS, "weight scales")?;
                for range in ranges {
                    scales[range.start..range.end].fill(range.scale);
                }
                PanelScales::Rows(scales)
            }
            TernaryScales::Groups { width, .. } => PanelScales::Groups(*width),
        };
        let out = data.shared();
        pool.run(panels, &|_, panel| pack_panel(weights, panel, out));
        Ok(Panels { rows, cols, data: SharedBytes::new(data), scales })
    }

    /// Bytes that a matrix of this shape takes in memory, and that a file holds for it. `group` is as for
    /// [`Panels::group`].
    pub fn bytes(rows: usize, cols: usize, group: Option<usize>) -> usize {
        let [lines, bytes] = Self::stored_shape(rows, cols, group);
        lines.saturating_mul(bytes)
    }

    /// Number of lines, and bytes per line, that a file holds for a matrix of this shape. `group` is as for
    /// [`Panels::group`].
    pub fn stored_shape(rows: usize, cols: usize, group: Option<usize>) -> [usize; 2] {
        let (lines, bytes) = match group {
            None => (cols.div_ceil(BLOCK) + 1, LINE),
            Some(group) => (panel_bytes(cols, Some(group)) / SCALE_BYTES, SCALE_BYTES),
        };
        [rows.div_ceil(PANEL_ROWS).saturating_mul(lines), bytes]
    }

    /// Takes a matrix as stored in a file, without copying its panels. `group` is as for [`Panels::group`].
    ///
    /// # Errors
    /// If the length does not match, a scale is not finite, or a code is 3 although rows have scales; if `group` is neither
    /// 64 nor 128, or is 64 although [`TernaryTensor`] would have merged the groups to 128.
    pub fn from_stored(
        rows: usize,
        cols: usize,
        group: Option<usize>,
        bytes: &SharedBytes,
    ) -> Result<Self, KernelError> {
        if rows == 0 || cols == 0 {
            return Err(TensorError::Empty { rows, cols }.into());
        }
        if let Some(group) =
            group.filter(|group| ![TernaryTensor::NARROW, TernaryTensor::WIDE].contains(group))
        {
            return Err(TensorError::Group { group }.into());
        }
        let mut stored = LineReader::new(bytes, Self::stored_shape(rows, cols, group))?;
        let Some(group) = group else {
            let panels = rows.div_ceil(PANEL_ROWS);
            let data = stored.codes(panels * cols.div_ceil(BLOCK));
            check_codes(&data, cols)?;
            let scales = stored.floats(panels, "weight scales")?;
            if let Some(&scale) = scales.iter().find(|scale| !scale.is_finite()) {
                return Err(TensorError::Scale { scale }.into());
            }
            return Ok(Panels { rows, cols, data, scales: PanelScales::Rows(scales) });
        };
        let panels = Panels { rows, cols, data: stored.rest(), scales: PanelScales::Groups(group) };
        panels.check_group_scales(group)?;
        Ok(panels)
    }

    /// Checks that all scales of groups are finite, and that groups of 64 are not to be merged.
    fn check_group_scales(&self, group: usize) -> Result<(), KernelError> {
        let mut merges = group == TernaryTensor::NARROW;
        for row in 0..self.rows {
            let mut previous = 0.0f32;
            for (i, scale) in self.row_scales(row).enumerate() {
                if !scale.is_finite() {
                    return Err(TensorError::Scale { scale }.into());
                }
                merges &= i % 2 == 0 || scale.to_bits() == previous.to_bits();
                previous = scale;
            }
        }
        if merges { Err(KernelError::NotMerged) } else { Ok(()) }
    }

    /// The matrices of as many experts, whose rows follow each other. They share the memory of the whole if their rows
    /// fill panels.
    pub(crate) fn split(
        self,
        experts: usize,
        pool: &mut Pool,
        memory: &mut Arena,
    ) -> Result<Vec<Panels>, KernelError> {
        let PanelScales::Groups(group) = self.scales else { panic!("experts have scales for groups") };
        let rows = self.rows / experts;
        if !rows.is_multiple_of(PANEL_ROWS) {
            let one = |expert| Panels::pack(&self.unpack(expert * rows..(expert + 1) * rows)?, pool, memory);
            return (0..experts).map(one).collect();
        }
        let bytes = rows / PANEL_ROWS * panel_bytes(self.cols, Some(group));
        let of = |expert: usize| {
            let data =
                self.data.slice(expert * bytes..(expert + 1) * bytes).expect("every expert has panels");
            Panels { rows, cols: self.cols, data, scales: PanelScales::Groups(group) }
        };
        Ok((0..experts).map(of).collect())
    }

    /// The bytes that a file holds for this matrix, in pieces.
    pub fn stored(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        let scales: Cow<'_, [u8]> = match &self.scales {
            PanelScales::Rows(scales) => float_bytes(scales).into(),
            PanelScales::Groups(_) => Cow::default(),
        };
        [Cow::from(&*self.data), scales].into_iter()
    }

    /// Number of output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Columns that share a scale, 64 or 128; `None` if whole rows do.
    pub fn group(&self) -> Option<usize> {
        match self.scales {
            PanelScales::Rows(_) => None,
            PanelScales::Groups(group) => Some(group),
        }
    }

    /// The scales of rows; none if groups of columns have scales.
    pub fn scales(&self) -> &[f32] {
        match &self.scales {
            PanelScales::Rows(scales) => &scales[..self.rows],
            PanelScales::Groups(_) => &[],
        }
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
        let codes = |rows: Range<usize>| rows.flat_map(|row| self.row_codes(row)).collect();
        match &self.scales {
            PanelScales::Rows(scales) => {
                let parts = scales[rows.clone()].chunk_by(|a, b| a.to_bits() == b.to_bits());
                let mut first = rows.start;
                let parts = parts.map(|scales| {
                    let some = first..first + scales.len();
                    first = some.end;
                    TernaryTensor::from_codes(scales.len(), self.cols, codes(some), scales[0])
                });
                TernaryTensor::stack(&parts.collect::<Result<Vec<_>, _>>()?)
            }
            PanelScales::Groups(group) => {
                let scales = rows.clone().flat_map(|row| self.row_scales(row)).map(f16::from_f32);
                TernaryTensor::from_groups(
                    rows.len(),
                    self.cols,
                    *group,
                    codes(rows.clone()),
                    scales.collect(),
                )
            }
        }
    }

    /// Decodes one row to f32: each value times its scale.
    pub(crate) fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "the row must exist and fit the output");
        let mut codes = self.row_codes(row);
        for (out, scale) in out.chunks_mut(self.group().unwrap_or(self.cols)).zip(self.row_scales(row)) {
            for (four, byte) in out.chunks_mut(4).zip(&mut codes) {
                for (i, out) in four.iter_mut().enumerate() {
                    *out = scale * (f32::from(byte >> (2 * i) & 3) - 1.0);
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

    /// The codes of a panel, and the scales of its groups.
    pub(crate) fn panel(&self, panel: usize) -> &[u8] {
        let bytes = panel_bytes(self.cols, self.group());
        &self.data[panel * bytes..][..bytes]
    }

    /// The codes of a row in the canonical layout.
    fn row_codes(&self, row: usize) -> impl Iterator<Item = u8> + '_ {
        let blocks = self.groups(row).flat_map(|(blocks, _)| blocks);
        let bytes = blocks.flat_map(move |block| {
            let word = *block[4 * (row % PANEL_ROWS)..].first_chunk().expect("64 rows in a block");
            transpose_codes(u32::from_le_bytes(word)).to_le_bytes()
        });
        bytes.take(TernaryTensor::row_bytes(self.cols))
    }

    /// The scales of a row: one for each of its groups, or one.
    fn row_scales(&self, row: usize) -> impl Iterator<Item = f32> + '_ {
        self.groups(row).map(move |(_, scales)| match &self.scales {
            PanelScales::Rows(scales) => scales[row],
            PanelScales::Groups(_) => f16::from_le_bytes(scales.as_chunks().0[row % PANEL_ROWS]).to_f32(),
        })
    }

    /// The blocks and the scales of each group in the panel that contains a row. Without groups, the panel is one.
    fn groups(&self, row: usize) -> impl Iterator<Item = (&[[u8; BLOCK_BYTES]], &[u8])> {
        let (bytes, scale_bytes) = group_bytes(self.cols, self.group());
        self.panel(row / PANEL_ROWS).chunks(bytes).map(move |group| {
            let (blocks, scales) = group.split_at(group.len() - scale_bytes);
            (blocks.as_chunks().0, scales)
        })
    }
}

/// Bytes of a whole group of a panel, and of the scales at its end. Without groups, a panel is one group without scales.
fn group_bytes(cols: usize, group: Option<usize>) -> (usize, usize) {
    match group {
        Some(group) => (group / BLOCK * BLOCK_BYTES + SCALE_BYTES, SCALE_BYTES),
        None => (cols.div_ceil(BLOCK) * BLOCK_BYTES, 0),
    }
}

fn panel_bytes(cols: usize, group: Option<usize>) -> usize {
    group.map_or(0, |group| cols.div_ceil(group) * SCALE_BYTES) + cols.div_ceil(BLOCK) * BLOCK_BYTES
}

/// Checks that no code of the panels is 3.
fn check_codes(panels: &[u8], cols: usize) -> Result<(), TensorError> {
    let Some((at, plane)) = find_code_three(panels) else { return Ok(()) };
    let (block, byte) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
    let blocks = cols.div_ceil(BLOCK);
    let row = block / blocks * PANEL_ROWS + byte / 4;
    let col = block % blocks * BLOCK + 4 * plane + byte % 4;
    Err(TensorError::InvalidCode { row, col })
}

fn pack_panel(weights: &TernaryTensor, panel: usize, out: Shared<'_, u8>) {
    let bytes = panel_bytes(weights.cols(), weights.group());
    // SAFETY: every panel is packed by exactly one call.
    let out = unsafe { out.slice(panel * bytes, bytes) };
    let (group_bytes, scale_bytes) = group_bytes(weights.cols(), weights.group());
    for r in 0..PANEL_ROWS.min(weights.rows() - panel * PANEL_ROWS) {
        let row = panel * PANEL_ROWS + r;
        let mut codes = weights.row_codes(row).chunks(BLOCK / 4);
        let mut scales = weights.group_scales(row).iter();
        for group in out.chunks_mut(group_bytes) {
            let (blocks, f16s) = group.split_at_mut(group.len() - scale_bytes);
            // Canonical byte p holds columns 4p..4p+4 of the block, first column lowest; transposing this 4 x 4 matrix of
            // 2-bit codes puts column j into byte j and plane p at bits 2p.
            for (block, bytes) in blocks.as_chunks_mut::<BLOCK_BYTES>().0.iter_mut().zip(&mut codes) {
                let mut word = [0; BLOCK / 4];
                word[..bytes.len()].copy_from_slice(bytes);
                let word = transpose_codes(u32::from_le_bytes(word));
                block[4 * r..][..4].copy_from_slice(&word.to_le_bytes());
            }
            if let Some(scale) = scales.next() {
                f16s[2 * r..][..2].copy_from_slice(&scale.to_le_bytes());
            }
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
        let p = Panels::pack(&t, &mut Pool::new(2).unwrap(), &mut Arena::default()).unwrap();
        for r in 0..2 * PANEL_ROWS {
            for c in 0..p.blocks() * BLOCK {
                let (panel, block) = (r / PANEL_ROWS, c / BLOCK);
                let byte = p.data
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
        assert_eq!([bytes.len() / LINE, LINE], Panels::stored_shape(101, 37, None));
        let bytes = SharedBytes::new(bytes);
        let panels = Panels::from_stored(101, 37, None, &bytes).unwrap();
        assert_eq!(panels.panel(0).as_ptr(), bytes.as_ptr());
        assert_eq!(panels.unpack(0..101).unwrap(), stack);
        let part = panels.unpack(70..101).unwrap();
        assert!((0..31).all(|row| part.row_codes(row) == stack.row_codes(70 + row)));
        assert_eq!((part.row_scale(0), part.row_scale(30)), (Some(3.0), Some(3.0)));
    }

    #[test]
    fn invalid_stored_panels_are_refused_with_the_place() {
        let (_, good) = stack();
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            Panels::from_stored(101, 37, None, &SharedBytes::new(bytes)).err()
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
        assert!(Panels::from_stored(0, 37, None, &SharedBytes::default()).is_err());
    }

    /// A matrix with codes of every value and scales that are all different.
    fn tensor(rows: usize, cols: usize, group: usize) -> TernaryTensor {
        let codes = (0..rows * cols.div_ceil(4)).map(|i| (i * i * 37 % 251) as u8).collect();
        let scales = (0..rows * cols.div_ceil(group)).map(|i| f16::from_bits(0x2000 + 7 * i as u16));
        TernaryTensor::from_groups(rows, cols, group, codes, scales.collect()).unwrap()
    }

    fn packed(tensor: &TernaryTensor) -> Panels {
        Panels::pack(tensor, &mut Pool::new(2).unwrap(), &mut Arena::default()).unwrap()
    }

    fn stored(panels: &Panels) -> Vec<u8> {
        panels.stored().collect::<Vec<_>>().concat()
    }

    #[test]
    fn every_code_and_scale_of_groups_is_where_the_layout_says() {
        for (rows, cols, group) in [(70, 301, 64), (70, 301, 128), (1, 16, 128), (65, 256, 64)] {
            let tensor = tensor(rows, cols, group);
            let (group, panels) = (tensor.group().unwrap(), packed(&tensor));
            let data = stored(&panels);
            let panel = data.len() / rows.div_ceil(64);
            for row in 0..rows {
                let values: Vec<i8> = tensor.row_trits(row).collect();
                for (column, value) in values.into_iter().enumerate() {
                    let (g, block) = (column / group, column % group / 16);
                    let at = row / 64 * panel + g * (group * 16 + 128) + block * 256;
                    let byte = data[at + 4 * (row % 64) + column % 4];
                    assert_eq!((byte >> (2 * (column % 16 / 4)) & 3) as i8 - 1, value, "{row} {column}");
                }
                for (g, scale) in tensor.group_scales(row).iter().enumerate() {
                    let blocks = (group / 16).min(cols.div_ceil(16) - g * group / 16);
                    let at = row / 64 * panel + g * (group * 16 + 128) + blocks * 256 + 2 * (row % 64);
                    assert_eq!(data[at..at + 2], scale.to_le_bytes(), "row {row} group {g}");
                }
            }
        }
    }

    #[test]
    fn stored_groups_are_used_in_place_and_unpack_to_what_was_packed() {
        for (rows, cols, group) in [(101, 301, 64), (101, 301, 128), (3, 40, 128)] {
            let tensor = tensor(rows, cols, group);
            let bytes = stored(&packed(&tensor));
            let shape = Panels::stored_shape(rows, cols, tensor.group());
            assert_eq!(bytes.len(), shape[0] * shape[1]);
            let bytes = SharedBytes::new(bytes);
            let panels = Panels::from_stored(rows, cols, tensor.group(), &bytes).unwrap();
            assert_eq!(panels.panel(0).as_ptr(), bytes.as_ptr());
            assert_eq!(panels.unpack(0..rows).unwrap(), tensor);
            let mut decoded = [vec![0.0; cols], vec![0.0; cols]];
            for row in 0..rows {
                panels.decode_row(row, &mut decoded[0]);
                tensor.decode_row(row, &mut decoded[1]);
                assert_eq!(decoded[0], decoded[1], "row {row}");
            }
            let part = panels.unpack(1..rows).unwrap();
            assert!((1..rows).all(|row| part.group_scales(row - 1) == tensor.group_scales(row)));
        }
    }

    #[test]
    fn stored_groups_that_are_none_are_refused() {
        let good = stored(&packed(&tensor(70, 301, 64)));
        let refused = |group, change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            Panels::from_stored(70, 301, Some(group), &SharedBytes::new(bytes)).err()
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
        assert!(Panels::from_stored(0, 301, Some(64), &SharedBytes::default()).is_err());
    }

    /// Groups of 64 that were not merged would give other bits than every other form of the matrix.
    #[test]
    fn stored_groups_of_64_that_should_be_of_128_are_refused() {
        let bytes = |scales: [u16; 3]| {
            let mut bytes = vec![0; 3 * SCALE_BYTES + 9 * BLOCK_BYTES];
            for (g, scale) in scales.into_iter().enumerate() {
                let at = g * group_bytes(144, Some(64)).0 + [4, 4, 1][g] * BLOCK_BYTES;
                bytes[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
            SharedBytes::new(bytes)
        };
        assert!(Panels::from_stored(1, 144, Some(64), &bytes([5, 6, 7])).is_ok());
        let refused = Panels::from_stored(1, 144, Some(64), &bytes([5, 5, 7])).err();
        assert_eq!(refused, Some(KernelError::NotMerged));
    }
}
