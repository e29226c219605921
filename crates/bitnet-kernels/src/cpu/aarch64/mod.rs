//! The instruction sets of 64-bit Arm. The vectors are written once; each instruction set adds its integer dot product.

pub(crate) mod dotprod;
pub(crate) mod i8mm;
pub(crate) mod neon;
mod v128;
