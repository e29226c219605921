//! The x86-64 levels. Wide floats and narrow floats are written once each; a level adds its integer dot product.

pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod avx512vnni;
pub(crate) mod avxvnni;
mod ymm;
mod zmm;
