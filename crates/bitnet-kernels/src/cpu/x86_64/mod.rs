//! The x86-64 instruction sets. 256-bit and 512-bit floats are written once each; each instruction set adds its integer
//! dot product.

pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod avx512vnni;
pub(crate) mod avxvnni;
mod ymm;
mod zmm;
