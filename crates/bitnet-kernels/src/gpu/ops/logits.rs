use crate::{
    RowsKind,
    gpu::{
        Arg, Driver, Gpu, GpuError, Rows, Table,
        table::{HEAD_T8, HEAD_T32, HEAD_T64},
    },
};

use super::tile::Tile;

/// By the number of tokens.
static TILES: [Tile; 3] = [
    Tile { kernel: &HEAD_T8, rows: 64, tokens: 8 },
    Tile { kernel: &HEAD_T32, rows: 128, tokens: 32 },
    Tile { kernel: &HEAD_T64, rows: 128, tokens: 64 },
];

impl<D: Driver> Gpu<D> {
    /// `out[t][v] = sum_k x[t][k] * table[v][k]` for the first `n` rows; `out` is f32 and as wide as the table has rows.
    pub fn logits(&mut self, n: usize, x: &Rows, table: &Table, out: &mut Rows) -> Result<(), GpuError> {
        assert!(x.width == table.cols && n <= x.rows, "rows have the table's width");
        assert!(out.width == table.rows && n <= out.rows, "logits fit their buffer");
        assert!(
            x.kind == RowsKind::Between && out.kind == RowsKind::Residual,
            "the head takes bf16 and makes f32"
        );
        if n == 0 {
            return Ok(());
        }
        let tile = Tile::choose(&TILES, n);
        let blocks = [n.div_ceil(tile.tokens), table.rows.div_ceil(tile.rows), 1];
        let sizes = [table.rows, n, table.stride, x.stride, out.stride];
        let args: Vec<Arg> = [table.buffer.address(), x.address(), out.address()]
            .into_iter()
            .map(Arg::U64)
            .chain(sizes.into_iter().map(|size| Arg::U32(size as u32)))
            .collect();
        self.launch(tile.kernel, blocks, tile.kernel.dynamic as usize, &args)
    }
}
