//! An int8 copy of a dense table, with which a step finds the rows that cannot have one of the highest logits.
//!
//! `docs/dev/kernels.md` has the bound.

use bitnet_tensor::{BitNetTensor, DType, SharedBytes};

use crate::gpu::{
    Dense, DeviceBuffer, Driver, Gpu, GpuError, Rows, Table,
    layout::{HeadCopy, f32_bytes},
    table::RESCORE,
};
use crate::{Cpu, HeadCounts, Isa, KernelError, RowsKind};

/// Rows of the copy, and of tokens that are multiplied with it, are padded to a multiple of this many bytes.
const COLUMNS: usize = 128;
/// Floats of rows are padded to a multiple of this: the rows of the largest thread block.
const ROWS: usize = 256;
/// Limits of tokens are padded to a multiple of this: the tokens of the largest thread block.
const TOKENS: usize = 64;
/// Rows that are copied at a time, so that the host never holds a whole table.
const PIECE: usize = 4096;
/// Rows of a table in a panel, which has one lower bound.
const PANEL: usize = 64;

/// Number of panels of a table.
pub(in crate::gpu) fn panels(rows: usize) -> usize {
    rows.div_ceil(PANEL)
}

/// Shared memory of a block of [`RESCORE`], which holds a row of the head's input.
pub(in crate::gpu) fn rescore_bytes(stride: usize) -> usize {
    RESCORE.dynamic as usize + 2 * stride.next_multiple_of(128)
}

/// The maximum sizes of the copies of a GPU's tables: bytes of a row, and panels.
pub(in crate::gpu) type CopySize = [usize; 2];

/// What a step needs in addition to the copy.
#[derive(Debug)]
pub(in crate::gpu) struct ShortlistBuffers {
    size: CopySize,
    /// s8 `[2 tokens][stride]`: two planes for each token.
    pub(in crate::gpu) planes: DeviceBuffer,
    /// f32 `[tokens][4]`: values of a plane's steps, and how far bounds are from a logit.
    pub(in crate::gpu) limits: DeviceBuffer,
    /// f32 `[tokens][panels][4]`: of the tokens of each panel that set the bar in a race, lower bounds and arrival times.
    pub(in crate::gpu) leaders: DeviceBuffer,
    /// `[tokens][panels]`: the highest lower bound of each panel.
    pub(in crate::gpu) best: Rows,
}

/// Size of the copy of a dense table of this shape.
pub(in crate::gpu) fn copy_size(rows: usize, cols: usize) -> CopySize {
    [cols.next_multiple_of(COLUMNS), panels(rows)]
}

/// Bytes of the codes of such a copy, and of the floats of its rows.
pub(in crate::gpu) fn copy_bytes(rows: usize, cols: usize) -> [usize; 2] {
    [rows * cols.next_multiple_of(COLUMNS), 16 * rows.next_multiple_of(ROWS)]
}

/// Bytes of planes, limits, leaders and lower bounds for steps of `tokens` rows of logits.
pub(in crate::gpu) fn shortlist_bytes(tokens: usize, [stride, panels]: CopySize) -> [usize; 4] {
    [2 * tokens * stride, 16 * tokens.next_multiple_of(TOKENS), 16 * tokens * panels, 4 * tokens * panels]
}

impl<D: Driver> Gpu<D> {
    /// Makes the int8 copy of a dense table from the values on the device, unless its rows are too wide for bounds.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(in crate::gpu) fn copy_head(&mut self, table: &mut Table) -> Result<(), KernelError> {
        // An int8 copy would be larger than a ternary table itself.
        let Table::Dense(Dense { rows, stride: columns, buffer, copy, .. }) = table else { return Ok(()) };
        let (rows, columns) = (*rows, *columns);
        if !self.makes_copy(columns) {
            return Ok(());
        }
        let mut cpu = Cpu::new(Isa::best(), self.converter.threads())?;
        let stride = columns.next_multiple_of(COLUMNS);
        let codes = self.alloc(rows * stride, "int8 weights of the output head")?;
        let mut floats = Vec::with_capacity(4 * rows.next_multiple_of(ROWS));
        for first in (0..rows).step_by(PIECE) {
            let count = PIECE.min(rows - first);
            let mut values = vec![0; 2 * count * columns];
            self.receive(buffer.address() + (2 * first * columns) as u64, &mut values)?;
            let values = BitNetTensor::new(DType::BF16, [count, columns], SharedBytes::new(values))?;
            let Some(piece) = cpu.copy_head(&values)? else { return Ok(()) };
            let address = codes.address() + (first * stride) as u64;
            self.convert(address, count, stride, &|row, out| piece.unpack(row, out))?;
            let of = |row| [piece.scales[row], piece.norms[row], piece.errors[row], 0.0];
            floats.extend((0..count).flat_map(of));
        }
        // No bound of a row of the padding may be the best.
        let padding = [0.0, 0.0, f32::INFINITY, 0.0];
        floats.extend(padding.iter().cycle().take(4 * (rows.next_multiple_of(ROWS) - rows)));
        let floats = self.store(&f32_bytes(&floats), "int8 weights of the output head")?;
        self.largest_copy = [self.largest_copy[0].max(stride), self.largest_copy[1].max(panels(rows))];
        *copy = Some(HeadCopy { codes, stride, rows: floats });
        Ok(())
    }

    /// Returns the memory for bounds of `tokens` tokens; makes it only for a larger step or another table.
    pub(in crate::gpu) fn shortlist(&mut self, tokens: usize) -> Result<ShortlistBuffers, GpuError> {
        let size @ [_, panels] = self.largest_copy;
        match self.shortlist.take() {
            Some(shortlist) if shortlist.best.rows >= tokens && shortlist.size == size => Ok(shortlist),
            _ => {
                let [planes, limits, leaders, bounds] = shortlist_bytes(tokens, size);
                let planes = self.alloc(planes, "planes of activations")?;
                let limits = self.alloc(limits, "limits of bounds")?;
                let leaders = self.alloc(leaders, "leaders of races")?;
                let buffer = self.alloc(bounds, "lower bounds")?;
                let kind = RowsKind::Residual;
                let best = Rows { kind, rows: tokens, width: panels, stride: panels, buffer };
                Ok(ShortlistBuffers { size, planes, limits, leaders, best })
            }
        }
    }

    /// The work of dense output heads so far.
    ///
    /// # Errors
    /// If the GPU fails.
    pub fn head_counts(&mut self) -> Result<HeadCounts, GpuError> {
        let mut bytes = [0; 8];
        self.receive(self.computed.address(), &mut bytes)?;
        Ok(HeadCounts { rescored: u64::from_le_bytes(bytes), ..self.head })
    }
}
