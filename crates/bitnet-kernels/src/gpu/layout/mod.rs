//! What the GPU holds in its memory, and in which order: weights, activations, caches and recurrent states.

mod bytes;
mod cache;
mod convert;
mod delta;
mod dense;
mod experts;
mod head_copy;
mod int8;
mod int8_rows;
mod rotation;
mod rows;
mod ternary;

pub(super) use bytes::{f32_bytes, u32_bytes};
pub use cache::{Kv, Rope};
pub(super) use convert::Converter;
pub use delta::{Delta, State};
pub use dense::{Dense, Gain, Table};
pub(super) use dense::{HeadCopy, dense_bytes, gain_bytes};
pub use experts::Experts;
pub(super) use experts::{Mixture, expert_bytes, mixture_bytes, most_tiles};
pub(super) use head_copy::{
    CopySize, ShortlistBuffers, copy_bytes, copy_size, panels, rescore_bytes, shortlist_bytes,
};
pub(super) use int8::int8_linear_bytes;
pub use int8_rows::Int8Rows;
pub(super) use int8_rows::{K_TILE, int8_bytes};
pub use rotation::Rotation;
pub use rows::Rows;
pub(super) use rows::rows_bytes;
pub use ternary::Linear;
pub(super) use ternary::{Scales, linear_bytes};
