use super::{Buffer, Driver, Gpu, GpuError};
use crate::KvShape;

/// Widest head that the attention kernels take.
pub(super) const MAX_HEAD_DIM: usize = 256;

/// Keys and values of one layer, bf16 `[block][kv_head][64][stride]` each. What pads a head is zero. Values are
/// finite: those that are not are stored as the largest, because a masked key's weight is zero and zero times
/// its value must be zero.
#[derive(Debug)]
pub struct Kv {
    pub(super) shape: KvShape,
    /// Elements of a key: `head_dim` padded to 16 bytes.
    pub(super) stride: usize,
    pub(super) keys: Buffer,
    pub(super) values: Buffer,
}

/// Cosines and sines of the rotary embedding, f32 `[position][head_dim / 2]` each.
#[derive(Debug)]
pub struct Rope {
    pub(super) head_dim: usize,
    pub(super) positions: usize,
    pub(super) cos: Buffer,
    pub(super) sin: Buffer,
}

impl<D: Driver> Gpu<D> {
    /// An empty cache.
    ///
    /// # Errors
    /// If there is not the memory, or no kernel for heads as wide.
    pub fn kv(&mut self, shape: KvShape) -> Result<Kv, GpuError> {
        if shape.head_dim > MAX_HEAD_DIM {
            return Err(GpuError::HeadTooWide { head_dim: shape.head_dim, limit: MAX_HEAD_DIM });
        }
        let stride = shape.head_dim.next_multiple_of(8);
        let bytes = shape.gpu_bytes() / 2;
        let keys = self.alloc(bytes, "cached keys")?;
        let values = self.alloc(bytes, "cached values")?;
        Ok(Kv { shape, stride, keys, values })
    }

    /// Takes cosines and sines, `[positions][head_dim / 2]` each.
    pub fn rope(&mut self, cos: &[f32], sin: &[f32], head_dim: usize) -> Result<Rope, GpuError> {
        assert_eq!(cos.len(), sin.len(), "every angle has a cosine and a sine");
        let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
        let positions = 2 * cos.len() / head_dim;
        let cos = self.store(&bytes(cos), "rotary tables")?;
        let sin = self.store(&bytes(sin), "rotary tables")?;
        Ok(Rope { head_dim, positions, cos, sin })
    }
}
