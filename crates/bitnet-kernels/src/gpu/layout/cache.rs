//! Keys and values of the tokens so far, and the tables of the rotary embedding.

use crate::{
    KvShape, KvType,
    gpu::{DeviceBuffer, Driver, Gpu, GpuError, layout::f32_bytes},
};

/// Maximum width of a head for the attention kernels.
const MAX_HEAD_DIM: usize = 256;

/// Keys and values of one layer, with zeros in the padding of a head:
///
/// ```text
/// bf16  [block][kv_head] [64][stride] numbers
/// int8  [block][kv_head] { [64][stride] numbers, [64] f32 scales }
/// ```
///
/// Values that are not finite are stored as the largest finite number: a masked key has weight zero, and zero times its
/// value must be zero.
#[derive(Debug)]
pub struct Kv {
    pub(in crate::gpu) shape: KvShape,
    pub(in crate::gpu) kv: KvType,
    /// Numbers of a key: `head_dim` padded to 16 bytes.
    pub(in crate::gpu) stride: usize,
    pub(in crate::gpu) keys: DeviceBuffer,
    pub(in crate::gpu) values: DeviceBuffer,
}

/// Cosines and sines of the rotary embedding, f32 `[position][width / 2]` each.
#[derive(Debug)]
pub struct Rope {
    /// Dimensions of a head that are rotated.
    pub(in crate::gpu) width: usize,
    pub(in crate::gpu) positions: usize,
    pub(in crate::gpu) cos: DeviceBuffer,
    pub(in crate::gpu) sin: DeviceBuffer,
}

impl<D: Driver> Gpu<D> {
    /// Makes an empty cache.
    ///
    /// # Errors
    /// If there is not enough memory, or the heads are too wide for the kernels.
    pub fn kv(&mut self, shape: KvShape) -> Result<Kv, GpuError> {
        if shape.head_dim > MAX_HEAD_DIM {
            let (what, head_dim) = ("attention", shape.head_dim);
            return Err(GpuError::HeadTooWide { what, head_dim, limit: MAX_HEAD_DIM });
        }
        let kv = self.kv;
        let stride = shape.gpu_stride(kv);
        let bytes = shape.gpu_bytes(kv) / 2;
        let keys = self.alloc(bytes, "cached keys")?;
        let values = self.alloc(bytes, "cached values")?;
        Ok(Kv { shape, kv, stride, keys, values })
    }

    /// Takes cosines and sines for the first `width` dimensions of a head, `[positions][width / 2]` each. A table of no
    /// dimensions has every position.
    pub fn rope(&mut self, cos: &[f32], sin: &[f32], width: usize) -> Result<Rope, GpuError> {
        assert_eq!(cos.len(), sin.len(), "there must be as many cosines as sines");
        let positions = (2 * cos.len()).checked_div(width).unwrap_or(usize::MAX);
        let cos = self.store(&f32_bytes(cos), "rotary tables")?;
        let sin = self.store(&f32_bytes(sin), "rotary tables")?;
        Ok(Rope { width, positions, cos, sin })
    }
}
