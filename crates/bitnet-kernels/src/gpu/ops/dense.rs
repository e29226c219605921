//! Launches the product of normed rows with a small dense matrix: decays and rates of a gated-delta layer.

use crate::{
    Norm, RowsKind,
    gpu::{Arg, Driver, Gain, Gpu, GpuError, Rows, Table, table::DENSE},
};

/// Matrix rows of a thread block.
const ROWS: usize = 16;

impl<D: Driver> Gpu<D> {
    /// Computes `out[t][column + r] = sum_k norm(x[t])[k] * w[r][k]` in floats, for all rows `r` of a dense table.
    pub fn dense(
        &mut self,
        n: usize,
        x: &Rows,
        norm: &Norm<Gain>,
        w: &Table,
        out: &mut Rows,
        column: usize,
    ) -> Result<(), GpuError> {
        let Table::Dense(w) = w else { panic!("the table must be dense") };
        assert!(n <= x.rows && n <= out.rows && x.width == w.cols, "the rows must fit their buffers");
        assert!(column + w.rows <= out.width, "the output columns must fit the rows");
        assert_eq!(norm.gain.width, x.width, "the gain must be as wide as the rows");
        assert_eq!(
            (x.kind, out.kind),
            (RowsKind::Residual, RowsKind::Intermediate),
            "from the residual to bf16"
        );
        self.launch(
            &DENSE,
            [n, w.rows.div_ceil(ROWS), 1],
            DENSE.dynamic as usize * w.stride,
            &[
                Arg::u64(x.address()),
                Arg::u64(norm.gain.buffer.address()),
                Arg::u64(w.buffer.address()),
                Arg::u64(out.address()),
                Arg::u32(x.width as u32),
                Arg::u32(w.rows as u32),
                Arg::u32(x.stride as u32),
                Arg::u32(w.stride as u32),
                Arg::u32(out.stride as u32),
                Arg::u32(column as u32),
                Arg::f32(norm.eps),
                Arg::f64(1.0 / x.width as f64),
            ],
        )
    }
}
