//! Tables and gains in device memory.

use bitnet_tensor::{BitNetTensor, TernaryTensor};
use half::bf16;

use crate::RowOrder;
use crate::gpu::{DeviceBuffer, Driver, Gpu, GpuError, Linear, Rotation, layout::f32_bytes};

/// An embedding or an output head.
#[derive(Debug)]
pub enum Table {
    /// With bf16 values.
    Dense(Dense),
    /// With codes, scales for groups of columns, and the transform that the rows contain.
    Ternary(Linear, Option<Rotation>),
}

impl Table {
    /// Rows and columns.
    pub(in crate::gpu) fn shape(&self) -> [usize; 2] {
        match self {
            Table::Dense(table) => [table.rows, table.cols],
            Table::Ternary(table, _) => [table.rows, table.cols],
        }
    }
}

/// A dense matrix in bf16, `[rows][stride]`; columns after `cols` are zero, so that the matrix units take whole steps.
#[derive(Debug)]
pub struct Dense {
    pub(in crate::gpu) rows: usize,
    pub(in crate::gpu) cols: usize,
    pub(in crate::gpu) stride: usize,
    pub(in crate::gpu) buffer: DeviceBuffer,
    /// The int8 copy, if steps may use bounds.
    pub(in crate::gpu) copy: Option<HeadCopy>,
}

/// The int8 copy of a dense matrix, from which its products are bounded.
#[derive(Debug)]
pub(in crate::gpu) struct HeadCopy {
    /// s8 `[rows][stride]`
    pub(in crate::gpu) codes: DeviceBuffer,
    pub(in crate::gpu) stride: usize,
    /// f32 `{scale, length, length of the error, 0}` of each row.
    pub(in crate::gpu) rows: DeviceBuffer,
}

/// The gain of a norm, f32 `[width]`, and zeros up to whole pieces of 16 bytes, which kernels copy at once.
#[derive(Debug)]
pub struct Gain {
    pub(in crate::gpu) width: usize,
    pub(in crate::gpu) buffer: DeviceBuffer,
}

/// Columns of a [`Dense`] matrix are padded to a multiple of this: 128 bytes.
const TABLE_COLUMNS: usize = 64;

/// Bytes of a [`Dense`] matrix.
pub(in crate::gpu) fn dense_bytes(rows: usize, cols: usize) -> usize {
    2 * rows * cols.next_multiple_of(TABLE_COLUMNS)
}

/// Bytes of a [`Gain`].
pub(in crate::gpu) fn gain_bytes(width: usize) -> usize {
    (width * size_of::<f32>()).next_multiple_of(16)
}

/// Writes a row in bf16, then zeros.
fn round_row(weights: &BitNetTensor, row: usize, out: &mut [u8]) {
    let mut values = vec![0.0; weights.cols()];
    weights.decode_row(row, &mut values);
    let (out, padding) = out.split_at_mut(2 * values.len());
    for (out, &value) in out.as_chunks_mut().0.iter_mut().zip(&values) {
        *out = bf16::from_f32(value).to_le_bytes();
    }
    padding.fill(0);
}

impl<D: Driver> Gpu<D> {
    /// Takes a dense matrix and rounds it to bf16.
    pub fn table(&mut self, weights: &BitNetTensor) -> Result<Table, GpuError> {
        let (rows, cols) = (weights.rows(), weights.cols());
        let stride = cols.next_multiple_of(TABLE_COLUMNS);
        let buffer = self.alloc(dense_bytes(rows, cols), "a dense matrix")?;
        self.convert(buffer.address(), rows, 2 * stride, &|row, out| round_row(weights, row, out))?;
        Ok(Table::Dense(Dense { rows, cols, stride, buffer, copy: None }))
    }

    /// Takes a ternary matrix with scales for groups of columns. [`Gpu::prepare`] allocates the int8 input that it
    /// needs as a head.
    ///
    /// # Panics
    /// If whole rows have scales.
    pub fn ternary_table(&mut self, weights: &TernaryTensor) -> Result<Table, GpuError> {
        assert!(weights.group().is_some(), "a ternary table must have scales for groups of columns");
        self.head_width = self.head_width.max(weights.cols());
        Ok(Table::Ternary(self.linear(weights, RowOrder::Plain)?, None))
    }

    /// Takes the gain of a norm.
    pub fn gain(&mut self, gain: &[f32]) -> Result<Gain, GpuError> {
        let mut bytes = f32_bytes(gain);
        bytes.resize(gain_bytes(gain.len()), 0);
        let buffer = self.store(&bytes, "norm gains")?;
        Ok(Gain { width: gain.len(), buffer })
    }
}
