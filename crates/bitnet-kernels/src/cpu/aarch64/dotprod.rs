//! NEON with dot products: `sdot` adds 16 products per instruction, exact in 32 bits.
//!
//! Layout: [`super::super::panels`], 4 rows per vector. A block of 16 rows by 16 columns and 4 tokens takes 127
//! instructions for 1024 products: 64 `sdot`, 26 to load and unpack codes, 16 to load activations. One token takes 55.
//! The limits are as in [`super::neon`]. `sdot` takes codes as signed bytes, so those of the highest plane must be
//! shifted down before they are multiplied.
#![allow(unsafe_op_in_unsafe_fn, reason = "instructions only: see `Lanes` for the contract")]

use std::arch::aarch64::*;

use crate::cpu::{
    aarch64::v128::{products, signed, splat_quad, v128_lanes},
    generic::kernel_set,
    lanes::each,
};

#[derive(Clone, Copy)]
pub(crate) struct Dotprod;

kernel_set!(Dotprod, ["neon", "dotprod"], floats of neon);

products!(sdot, "dotprod");

/// The part that instruction sets with `sdot` have in common: sums of four products, exact in 32 bits.
macro_rules! dot_products {
    () => {
        type Part = [int32x4_t; 4];
        const STEPS: usize = usize::MAX;
        const TILE: (usize, usize) = (1, 4);
        const WIDE_CODES: bool = false;
        const MAX_QUANT: i32 = 127;
        const BYTE_OFFSET: i32 = 0;

        $crate::cpu::lanes::instructions! {
            fn begin_with(sums: Self::I) -> Option<Self::Part> = Some(sums);
            fn zero_part() -> Self::Part = [vdupq_n_s32(0); 4];
            fn dot(part: Self::Part, codes: Self::Codes, p: *const i8) -> Self::Part = {
                let quad = splat_quad(p);
                each(part, codes, |part, codes| sdot(part, codes, quad))
            };
            fn widen(part: Self::Part) -> Self::I = part;
            fn dot_bytes(sum: Self::I, codes: Self::Codes, p: *const i8) -> Self::I = {
                Self::dot(sum, codes.map(|c| vreinterpretq_u8_s8(signed(c))), p)
            };
        }
    };
}
pub(super) use dot_products;

v128_lanes!(Dotprod {
    dot_products!();
});
