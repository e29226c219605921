//! Activations between operations: f32 for the residual, bf16 for everything else.

use half::bf16;

use crate::RowsKind;
use crate::gpu::{DeviceBuffer, Driver, Gpu, GpuError};

/// Activations, `[rows][stride]`: f32 for the residual, bf16 between operations. Columns after `width` are padding, so
/// that every row begins at a multiple of 16 bytes.
#[derive(Debug)]
pub struct Rows {
    pub(in crate::gpu) kind: RowsKind,
    pub(in crate::gpu) rows: usize,
    pub(in crate::gpu) width: usize,
    pub(in crate::gpu) stride: usize,
    pub(in crate::gpu) buffer: DeviceBuffer,
}

impl Rows {
    fn element(&self) -> usize {
        element(self.kind)
    }

    pub(in crate::gpu) fn address(&self) -> u64 {
        self.buffer.address()
    }
}

fn element(kind: RowsKind) -> usize {
    match kind {
        RowsKind::Residual => 4,
        RowsKind::Intermediate => 2,
    }
}

fn stride_of(width: usize) -> usize {
    width.next_multiple_of(8)
}

/// Bytes of [`Rows`].
pub(in crate::gpu) fn rows_bytes(rows: usize, width: usize, kind: RowsKind) -> usize {
    rows * stride_of(width) * element(kind)
}

impl<D: Driver> Gpu<D> {
    /// Makes zeroed activations.
    pub fn rows(&mut self, rows: usize, width: usize, kind: RowsKind) -> Result<Rows, GpuError> {
        let stride = stride_of(width);
        let buffer = self.alloc(rows_bytes(rows, width, kind), "activations")?;
        Ok(Rows { kind, rows, width, stride, buffer })
    }

    /// Reads the first `n` rows as f32, `[n][width]`.
    pub fn read_rows(&mut self, x: &Rows, n: usize) -> Result<Vec<f32>, GpuError> {
        let bytes = self.fetch(&x.buffer, n * x.stride * x.element())?;
        let values: Vec<f32> = match x.kind {
            RowsKind::Residual => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            RowsKind::Intermediate => {
                bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect()
            }
        };
        Ok(values.chunks_exact(x.stride).flat_map(|row| &row[..x.width]).copied().collect())
    }

    /// Overwrites the first rows with `values`, `[n][width]`, rounded to the type of the rows.
    pub fn write_rows(&mut self, x: &mut Rows, values: &[f32]) -> Result<(), GpuError> {
        assert!(values.len() <= x.rows * x.width, "values must fit the rows");
        let mut bytes = Vec::with_capacity(x.rows * x.stride * x.element());
        for row in values.chunks_exact(x.width) {
            match x.kind {
                RowsKind::Residual => bytes.extend(row.iter().flat_map(|v| v.to_le_bytes())),
                RowsKind::Intermediate => {
                    bytes.extend(row.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()))
                }
            }
            bytes.resize(bytes.len() + (x.stride - x.width) * x.element(), 0);
        }
        self.send(x.address(), &bytes)
    }
}
