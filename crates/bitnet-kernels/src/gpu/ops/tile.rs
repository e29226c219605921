use crate::gpu::table::Kernel;

/// A kernel that multiplies, and the matrix rows and tokens that each of its blocks takes.
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
}
