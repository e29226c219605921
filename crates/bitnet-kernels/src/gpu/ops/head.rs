//! Launches the output head: all logits of the wanted rows, from a dense or a ternary table.

use crate::{
    Grouping, RowsKind,
    gpu::{
        Arg, Dense, Driver, Gpu, GpuError, Int8Rows, Linear, Rotation, Rows, Table,
        table::{HEAD_T8, HEAD_T32, HEAD_T64},
    },
};

use super::tile::Tile;

/// The kernels, by number of tokens.
static TILES: [Tile; 3] = [
    Tile { kernel: &HEAD_T8, rows: 64, tokens: 8 },
    Tile { kernel: &HEAD_T32, rows: 128, tokens: 32 },
    Tile { kernel: &HEAD_T64, rows: 128, tokens: 64 },
];

/// Checks that the first `n` rows of `x` can be multiplied by a table of this shape, into rows of `out`.
pub(super) fn assert_head(n: usize, x: &Rows, [vocab, cols]: [usize; 2], out: &Rows) {
    assert!(x.width == cols && n <= x.rows, "rows must be as wide as the table");
    assert!(out.width == vocab && n <= out.rows, "logits must fit their buffer");
    assert!(
        x.kind == RowsKind::Intermediate && out.kind == RowsKind::Residual,
        "the head takes bf16 and gives f32"
    );
}

impl<D: Driver> Gpu<D> {
    /// Computes `out[t][v] = sum_k x[t][k] * table[v][k]` for the first `n` rows; `out` stays on the device as f32, with
    /// a column for each row of the table. For a ternary table, the rows are quantised first, after the transform that it
    /// contains.
    pub fn head(&mut self, n: usize, x: &Rows, table: &Table, out: &mut Rows) -> Result<(), GpuError> {
        let [_, cols] = table.shape();
        assert_head(n, x, table.shape(), out);
        match table {
            _ if n == 0 => Ok(()),
            Table::Dense(table) => self.dense_logits(n, x, table, out),
            Table::Ternary(table, rotation) => {
                let mut quants = self.head_input(n, cols)?;
                let made = self.ternary_logits(n, x, table, rotation.as_ref(), &mut quants, out);
                self.head_input = Some(quants);
                made
            }
        }
    }

    fn ternary_logits(
        &mut self,
        n: usize,
        x: &Rows,
        table: &Linear,
        rotation: Option<&Rotation>,
        quants: &mut Int8Rows,
        out: &mut Rows,
    ) -> Result<(), GpuError> {
        self.norm_quantize(n, x, [None, None], rotation, quants)?;
        self.bit_linear(n, quants, table, out, 0, None)
    }

    /// Buffer for the int8 input of a ternary head; allocated again only for a larger step or another width.
    fn head_input(&mut self, n: usize, width: usize) -> Result<Int8Rows, GpuError> {
        match self.head_input.take() {
            Some(quants) if quants.rows >= n && quants.width == width => Ok(quants),
            _ => self.int8_rows(n, width, Grouping::Groups),
        }
    }

    fn dense_logits(&mut self, n: usize, x: &Rows, table: &Dense, out: &mut Rows) -> Result<(), GpuError> {
        self.head.whole += n as u64;
        let tile = Tile::choose(&TILES, n);
        let blocks = [n.div_ceil(tile.tokens), table.rows.div_ceil(tile.rows), 1];
        let sizes = [table.rows, n, table.stride, x.stride, out.stride];
        let args: Vec<Arg> = [table.buffer.address(), x.address(), out.address()]
            .into_iter()
            .map(Arg::u64)
            .chain(sizes.into_iter().map(|size| Arg::u32(size as u32)))
            .collect();
        self.launch(tile.kernel, blocks, tile.kernel.dynamic as usize, &args)
    }
}
