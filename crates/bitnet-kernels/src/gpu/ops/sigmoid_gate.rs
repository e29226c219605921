//! Launches the output gate of attention.

use crate::{
    RowsKind,
    gpu::{Arg, Driver, Gpu, GpuError, Rows, table::SIGMOID_GATE},
};

impl<D: Driver> Gpu<D> {
    /// Multiplies `out[t][i]` by `sigmoid(x[t][column + i])`, for every column of `out`.
    pub fn sigmoid_gate(
        &mut self,
        n: usize,
        x: &Rows,
        column: usize,
        out: &mut Rows,
    ) -> Result<(), GpuError> {
        assert!(n <= x.rows && n <= out.rows, "the rows must fit their buffers");
        assert!(column + out.width <= x.width, "there must be a gate for every column");
        assert!(
            x.kind == RowsKind::Intermediate && out.kind == RowsKind::Intermediate,
            "gates and values must be bf16"
        );
        self.launch(
            &SIGMOID_GATE,
            [n, out.width.div_ceil(SIGMOID_GATE.block as usize), 1],
            0,
            &[
                Arg::u64(x.address()),
                Arg::u64(out.address()),
                Arg::u32(out.width as u32),
                Arg::u32(column as u32),
                Arg::u32(x.stride as u32),
                Arg::u32(out.stride as u32),
            ],
        )
    }
}
