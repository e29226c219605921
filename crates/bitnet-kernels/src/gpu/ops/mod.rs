//! One operation a file: which kernel, how many blocks, which arguments.

mod attention;
mod bit_linear;
mod embed;
mod logits;

pub(super) use bit_linear::split_bytes;
