use crate::{
    RowsKind,
    gpu::{Arg, Driver, Gpu, GpuError, Rows, Table, table::EMBED, upload::Upload},
};

impl<D: Driver> Gpu<D> {
    /// Row `i` of `out` becomes row `tokens[i]` of `table`.
    pub fn embed(&mut self, table: &Table, tokens: &[u32], out: &mut Rows) -> Result<(), GpuError> {
        assert!(table.cols == out.width && tokens.len() <= out.rows, "rows fit their buffers");
        assert_eq!(out.kind, RowsKind::Residual, "embeddings begin the residual");
        assert!(tokens.iter().all(|&token| (token as usize) < table.rows), "tokens are rows of the table");
        let tokens_at = self.upload(Upload::Tokens, tokens.iter().copied())?;
        self.launch(
            &EMBED,
            [tokens.len(), 1, 1],
            0,
            &[
                Arg::U64(table.buffer.address()),
                Arg::U64(tokens_at),
                Arg::U64(out.address()),
                Arg::U32(table.cols as u32),
                Arg::U32(table.stride as u32),
                Arg::U32(out.stride as u32),
            ],
        )
    }
}
