//! One operation a file: which kernel, how many blocks, which arguments.

mod bit_linear;
mod embed;

pub(super) use bit_linear::split_bytes;
