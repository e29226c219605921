use crate::{Grouping, gpu::table::Kernel};

/// What a product multiplies with. Each has its own kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Trits, with scales as those of the activations.
    Trits(Grouping),
    /// int8, with scales for blocks of columns.
    Int8,
}

/// Sizes of a product: rows of the matrix, tiles of 128 features, tokens. Only sums of whole rows are split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) k_tiles: usize,
    pub(super) tokens: usize,
    pub(super) kind: Kind,
}

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
