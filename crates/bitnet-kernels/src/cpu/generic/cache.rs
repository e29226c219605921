//! Keys and values of one layer, in blocks, in any of the types of [`KvType`].
//!
//! A block has a panel of keys and a panel of values for each head, in separate buffers. In a panel of keys, 16 tokens
//! are interleaved, so that scores need no sums across lanes; values are stored row by row:
//!
//! ```text
//! keys    [block][kv_head] { [BLOCK_TOKENS / 16][head_dim][16 tokens] numbers, [BLOCK_TOKENS] f32 scales }
//! values  [block][kv_head] { [BLOCK_TOKENS][value_stride] numbers,             [BLOCK_TOKENS] f32 scales }
//! ```
//!
//! Only int8 has scales, by which attention multiplies scores and weights, not numbers. See [`super::operands`] for how it
//! multiplies numbers.

use half::{bf16, f16, slice::HalfFloatSliceExt};

use crate::{
    BLOCK_TOKENS, KernelError, KvShape, KvType,
    cpu::{
        generic::element::{Bf16, F16, F32},
        memory::Buffer,
    },
};

/// Keys and values of one layer.
pub struct Kv {
    pub(crate) shape: KvShape,
    pub(crate) kv: KvType,
    pub(crate) keys: Buffer<u8>,
    pub(crate) values: Buffer<u8>,
}

impl Kv {
    pub(crate) fn zeroed(shape: KvShape, kv: KvType) -> Result<Self, KernelError> {
        let panels = shape.blocks * shape.kv_heads;
        let keys = Buffer::zeroed(panels * kv.panel(shape.head_dim), "cached keys")?;
        let values = Buffer::zeroed(panels * kv.panel(shape.value_stride()), "cached values")?;
        Ok(Kv { shape, kv, keys, values })
    }

    /// Copies all keys and values of block `from` to block `to`.
    pub(crate) fn copy_block(&mut self, from: usize, to: usize) {
        for side in [&mut self.keys, &mut self.values] {
            let block = side.len() / self.shape.blocks;
            side.copy_within(from * block..(from + 1) * block, to * block);
        }
    }

    /// The panels of a block: all its keys, then all its values.
    pub(crate) fn block(&self, block: usize) -> [&[u8]; 2] {
        [&self.keys, &self.values].map(|side| {
            let bytes = side.len() / self.shape.blocks;
            &side[block * bytes..][..bytes]
        })
    }

    /// [`Kv::block`], to be overwritten.
    pub(crate) fn block_mut(&mut self, block: usize) -> [&mut [u8]; 2] {
        let blocks = self.shape.blocks;
        [&mut self.keys, &mut self.values].map(|side| {
            let bytes = side.len() / blocks;
            &mut side[block * bytes..][..bytes]
        })
    }
}

/// A type in which the cache stores numbers.
pub(crate) trait Cached {
    /// A stored number.
    type Number: Copy + Default;
    /// The type as a value.
    const KV: KvType;

    /// The factor of all numbers of a key or value.
    fn scale(_: &[f32]) -> f32 {
        1.0
    }
    /// Converts part of a key or value to stored numbers.
    fn narrow(part: &[f32], scale: f32, to: &mut [Self::Number]);
}

impl Cached for F32 {
    type Number = f32;
    const KV: KvType = KvType::F32;

    #[inline(always)]
    fn narrow(part: &[f32], _: f32, to: &mut [f32]) {
        to.copy_from_slice(part);
    }
}

impl Cached for F16 {
    type Number = f16;
    const KV: KvType = KvType::F16;

    #[inline(always)]
    fn narrow(part: &[f32], _: f32, to: &mut [f16]) {
        to.convert_from_f32_slice(part);
    }
}

impl Cached for Bf16 {
    type Number = bf16;
    const KV: KvType = KvType::Bf16;

    #[inline(always)]
    fn narrow(part: &[f32], _: f32, to: &mut [bf16]) {
        to.convert_from_f32_slice(part);
    }
}

pub(crate) struct Int8;

impl Cached for Int8 {
    type Number = i8;
    const KV: KvType = KvType::Int8;

    #[inline(always)]
    fn scale(row: &[f32]) -> f32 {
        // Comparing the bits of |x| as integers is exact and independent of order, and a NaN compares highest.
        let absmax = row.iter().fold(0, |most, x| x.abs().to_bits().max(most));
        f32::from_bits(absmax) / 127.0
    }
    /// If the scale is zero, the key or value reads as zeros; if it is infinite or NaN, as NaNs.
    #[inline(always)]
    fn narrow(part: &[f32], scale: f32, to: &mut [i8]) {
        for (to, x) in to.iter_mut().zip(part) {
            *to = (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8;
        }
    }
}

/// Returns where the numbers of panel `index` are, with `width` numbers per token, and where their scales would be.
#[inline(always)]
pub(crate) fn panel<S: Cached>(side: &[u8], index: usize, width: usize) -> (*const S::Number, *const f32) {
    let bytes = S::KV.panel(width);
    let panel = side[index * bytes..][..bytes].as_ptr();
    (panel.cast(), panel.wrapping_add(BLOCK_TOKENS * width * size_of::<S::Number>()).cast())
}

/// Stores a key or value of the token at `slot`: its numbers at `first`, `first + step` and so on.
///
/// # Safety
/// `panel` must have `width` numbers per token, and the numbers and the slot must be inside it.
#[inline(always)]
pub(crate) unsafe fn store<S: Cached>(
    panel: &mut [u8],
    width: usize,
    slot: usize,
    (first, step): (usize, usize),
    row: &[f32],
) {
    let scale = S::scale(row);
    let numbers = panel.as_mut_ptr().cast::<S::Number>();
    for (i, part) in row.chunks(16).enumerate() {
        let mut narrow = [S::Number::default(); 16];
        S::narrow(part, scale, &mut narrow[..part.len()]);
        for (d, number) in narrow[..part.len()].iter().enumerate() {
            numbers.add(first + (16 * i + d) * step).write(*number);
        }
    }
    if S::KV.scaled() {
        numbers.add(BLOCK_TOKENS * width).cast::<f32>().add(slot).write(scale);
    }
}
