use crate::gpu::table::Kernel;

use super::plan::Shape;

/// A kernel that multiplies, and the matrix rows and tokens that each of its blocks takes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tile {
    pub(super) kernel: &'static Kernel,
    pub(super) rows: usize,
    pub(super) tokens: usize,
}

impl Tile {
    /// Returns the smallest of `tiles`, in ascending order, that takes `n` tokens at once, or else the largest.
    pub(super) fn choose(tiles: &'static [Tile], n: usize) -> &'static Tile {
        tiles.iter().find(|tile| n <= tile.tokens).unwrap_or(&tiles[tiles.len() - 1])
    }

    /// Numbers of blocks along the rows and the tokens.
    pub(super) fn blocks(&self, shape: Shape) -> [usize; 2] {
        [shape.rows.div_ceil(self.rows), shape.tokens.div_ceil(self.tokens)]
    }
}
