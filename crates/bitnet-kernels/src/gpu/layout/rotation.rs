//! The Walsh-Hadamard transform of rows: its sizes, and its signs as bits.

use crate::Rotate;
use crate::gpu::{
    DeviceBuffer, Driver, Gpu, GpuError,
    layout::{K_TILE, u32_bytes},
};

/// A Walsh-Hadamard transform with signs.
#[derive(Debug)]
pub struct Rotation {
    pub(in crate::gpu) width: usize,
    /// Columns that are transformed together.
    pub(in crate::gpu) block: usize,
    /// `1 / sqrt(block)`
    pub(in crate::gpu) scale: f32,
    /// Key heads, and value heads per key head, if columns come in the tiled order and are needed in the grouped.
    pub(in crate::gpu) grouped: Option<(usize, usize)>,
    /// u32 `[width padded / 32]`: a bit for each column, set for -1.
    pub(in crate::gpu) signs: DeviceBuffer,
}

impl<D: Driver> Gpu<D> {
    /// Takes a transform of rows of `width` columns.
    pub fn rotation(&mut self, width: usize, rotate: &Rotate<'_>) -> Result<Rotation, GpuError> {
        let Rotate { block, signs, grouped } = *rotate;
        assert!(block.is_power_of_two() && width.is_multiple_of(block), "blocks must divide the width");
        assert!(signs.is_none_or(|signs| signs.len() == width), "there must be a sign for every column");
        let heads = grouped.map_or(1, |(key_heads, per_key)| key_heads * per_key);
        assert!(heads > 0 && width.is_multiple_of(heads), "heads must divide the width");
        let mut words = vec![0u32; width.next_multiple_of(K_TILE) / 32];
        for (i, _) in signs.into_iter().flatten().enumerate().filter(|(_, sign)| **sign < 0) {
            words[i / 32] |= 1 << (i % 32);
        }
        let mut bytes = Vec::new();
        u32_bytes(&words, &mut bytes);
        let signs = self.store(&bytes, "signs")?;
        let scale = (1.0 / (block as f64).sqrt()) as f32;
        Ok(Rotation { width, block, scale, grouped, signs })
    }
}
