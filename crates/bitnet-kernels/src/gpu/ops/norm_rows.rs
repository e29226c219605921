//! Launches the norm of the rows whose logits or hidden states are wanted, and the norm of what is added to the residual.

use crate::{
    Norm, RowsKind,
    gpu::{
        Arg, Driver, Gain, Gpu, GpuError, Rows,
        table::{NORM_ADD, NORM_HIDDEN, NORM_ROWS},
        upload::Upload,
    },
};

impl<D: Driver> Gpu<D> {
    /// Sets row `i` of `out` to row `rows[i]` of `x`, normalised by `norm`.
    pub fn norm_rows(
        &mut self,
        rows: &[usize],
        x: &Rows,
        norm: &Norm<Gain>,
        out: &mut Rows,
    ) -> Result<(), GpuError> {
        assert!(rows.len() <= out.rows && x.width == out.width, "the rows must fit their buffers");
        assert!(rows.iter().all(|&row| row < x.rows), "the rows must exist");
        assert_eq!(norm.gain.width, x.width, "the gain must be as wide as the rows");
        assert_eq!(out.kind, RowsKind::Intermediate, "the output must be bf16");
        // Hidden states are gathered in the same step as the rows of logits.
        let (kernel, what) = match x.kind {
            RowsKind::Residual => (&NORM_ROWS, Upload::Rows),
            RowsKind::Intermediate => (&NORM_HIDDEN, Upload::Hidden),
        };
        let first = rows.iter().enumerate().all(|(i, &row)| i == row);
        let indices = if first { 0 } else { self.upload(what, rows.iter().map(|&row| row as u32))? };
        self.launch(
            kernel,
            [rows.len(), 1, 1],
            0,
            &[
                Arg::u64(x.address()),
                Arg::u64(norm.gain.buffer.address()),
                Arg::u64(indices),
                Arg::u64(out.address()),
                Arg::u32(x.width as u32),
                Arg::u32(x.stride as u32),
                Arg::u32(out.stride as u32),
                Arg::f32(norm.eps),
                Arg::f64(1.0 / x.width as f64),
            ],
        )
    }

    /// Adds every row of `x`, normalised by `norm`, to the row of `out`, which must be the residual.
    pub fn norm_add(
        &mut self,
        n: usize,
        x: &Rows,
        norm: &Norm<Gain>,
        out: &mut Rows,
    ) -> Result<(), GpuError> {
        assert!(n <= x.rows && n <= out.rows && x.width == out.width, "the rows must fit their buffers");
        assert_eq!(norm.gain.width, x.width, "the gain must be as wide as the rows");
        assert_eq!(
            (x.kind, out.kind),
            (RowsKind::Intermediate, RowsKind::Residual),
            "from a projection to the residual"
        );
        self.launch(
            &NORM_ADD,
            [n, 1, 1],
            0,
            &[
                Arg::u64(x.address()),
                Arg::u64(norm.gain.buffer.address()),
                Arg::u64(out.address()),
                Arg::u32(x.width as u32),
                Arg::u32(x.stride as u32),
                Arg::u32(out.stride as u32),
                Arg::f32(norm.eps),
                Arg::f64(1.0 / x.width as f64),
            ],
        )
    }
}
