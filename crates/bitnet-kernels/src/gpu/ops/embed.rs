//! Launches the lookup of embedding rows, dense or ternary.

use crate::{
    RowsKind,
    gpu::{
        Arg, Driver, Gpu, GpuError, Rotation, Rows, Table,
        layout::Scales,
        table::{EMBED, EMBED_TERNARY, HADAMARD},
        upload::Upload,
    },
};

impl<D: Driver> Gpu<D> {
    /// Sets row `i` of `out` to row `tokens[i]` of `table`, without the transform that it contains, times `factor`.
    pub fn embed(
        &mut self,
        table: &Table,
        tokens: &[u32],
        factor: f32,
        out: &mut Rows,
    ) -> Result<(), GpuError> {
        let [rows, cols] = table.shape();
        assert!(cols == out.width && tokens.len() <= out.rows, "the rows must fit their buffers");
        assert_eq!(out.kind, RowsKind::Residual, "embeddings must go to the residual");
        assert!(tokens.iter().all(|&token| (token as usize) < rows), "tokens must be in the table");
        let tokens_at = self.upload(Upload::Tokens, tokens.iter().copied())?;
        // The place of a row follows from the stride of a dense table, or from the group size of a ternary one.
        let (kernel, address, layout, rotation) = match table {
            Table::Dense(table) => (&EMBED, table.buffer.address(), table.stride, None),
            Table::Ternary(table, rotation) => {
                let Scales::Groups(group) = table.scales else { panic!("a ternary table has groups") };
                (&EMBED_TERNARY, table.codes.address(), group, rotation.as_ref())
            }
        };
        self.launch(
            kernel,
            [tokens.len(), 1, 1],
            0,
            &[
                Arg::u64(address),
                Arg::u64(tokens_at),
                Arg::u64(out.address()),
                Arg::u32(cols as u32),
                Arg::u32(layout as u32),
                Arg::u32(out.stride as u32),
                Arg::f32(if rotation.is_some() { 1.0 } else { factor }),
            ],
        )?;
        rotation.map_or(Ok(()), |rotation| self.undo(tokens.len(), rotation, factor, out))
    }

    /// Undoes a transform in the first `n` rows, and multiplies them by `factor`.
    fn undo(&mut self, n: usize, rotation: &Rotation, factor: f32, out: &mut Rows) -> Result<(), GpuError> {
        assert_eq!(rotation.width, out.width, "the transform must be as wide as the rows");
        self.launch(
            &HADAMARD,
            [n, 1, 1],
            HADAMARD.dynamic as usize * out.width.next_multiple_of(128),
            &[
                Arg::u64(out.address()),
                Arg::u64(rotation.signs.address()),
                Arg::u32(out.width as u32),
                Arg::u32(out.stride as u32),
                Arg::u32(rotation.block as u32),
                Arg::f32(rotation.scale),
                Arg::f32(factor),
            ],
        )
    }
}
