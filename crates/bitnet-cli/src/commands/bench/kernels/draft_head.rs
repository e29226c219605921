//! Measures what the head that drafts tokens does beside the operations of a layer: norms of hidden states, and products with
//! matrices of int8.

use bitnet::kernels::{Inspect, Int8Matrix, RowOrder, RowsKind};
use bitnet::tensor::BitNetTensor;

use super::{Kernels, Work, values};
use crate::error::CliError;

impl<B: Inspect> Kernels<'_, B> {
    pub(super) fn draft_head(&mut self, steps: &[usize]) -> Result<(), CliError> {
        let hidden = self.spec.hidden;
        let weights = BitNetTensor::from_f32([hidden, hidden], &values(hidden * hidden))
            .map_err(|e| CliError::refused(e, "head's input", "report this"))?;
        let bytes = Int8Matrix::bytes(hidden, hidden);
        let copies = (0..self.copies(bytes)).map(|_| {
            let mut matrix = Int8Matrix::with_capacity(hidden, hidden)?;
            matrix.append(&weights, 0..hidden);
            self.backend.linear(matrix, RowOrder::Plain)
        });
        let copies = copies.collect::<Result<Vec<_>, _>>()?;
        for &n in steps {
            self.norm_rows("norm of hidden states", n, RowsKind::Intermediate)?;
            let states = self.filled(n, hidden, RowsKind::Intermediate)?;
            let mut x = self.backend.int8_rows(n, hidden, self.grouping)?;
            self.backend.norm_quantize(n, &states, [None, None], None, &mut x)?;
            let mut out = self.backend.rows(n, hidden, RowsKind::Residual)?;
            let work = Work {
                operation: "head's input",
                shape: format!("{hidden}x{hidden}"),
                tokens: n,
                bytes: bytes + n * hidden * (1 + size_of::<f32>()),
                operations: 2 * n * hidden * hidden,
                peak: self.bounds.integers,
            };
            self.time(work, copies.len(), |b, i| b.bit_linear(n, &x, &copies[i], &mut out, 0, None))?;
        }
        Ok(())
    }
}
