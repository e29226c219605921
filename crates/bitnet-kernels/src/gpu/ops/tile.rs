use crate::gpu::table::Kernel;

/// A kernel that multiplies, and the rows of the matrix and the tokens that one of its blocks takes.
pub(super) struct Tile {
    pub(super) kernel: &'static Kernel,
    pub(super) rows: usize,
    pub(super) tokens: usize,
}

impl Tile {
    /// The smallest of `tiles`, which ascend, that takes `n` tokens at once, or else the largest.
    pub(super) fn choose(tiles: &'static [Tile], n: usize) -> &'static Tile {
        tiles.iter().find(|tile| n <= tile.tokens).unwrap_or(&tiles[tiles.len() - 1])
    }
}
