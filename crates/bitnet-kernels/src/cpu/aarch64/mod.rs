//! The levels of 64-bit Arm. The vectors are written once; a level adds its integer dot product.

pub(crate) mod dotprod;
pub(crate) mod i8mm;
pub(crate) mod neon;
mod v128;
