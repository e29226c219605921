//! NEON, which every 64-bit Arm CPU has: `smlal` adds 8 products per instruction, in 16 bits.
//!
//! Layout: [`super::super::panels`], 4 rows per vector. A block of 16 rows by 16 columns and 2 tokens takes 134
//! instructions for 512 products: 64 `smlal`, 42 to load and unpack codes, 8 to load activations. One token takes 87.
//! Many tokens are bound by instructions, at half of what `smlal` alone would give; one token with several threads is
//! bound by memory. Not measured: like all of 64-bit Arm, this has run under emulation only.
#![allow(unsafe_op_in_unsafe_fn, reason = "instructions only: see `Lanes` for the contract")]

use std::arch::aarch64::*;

use crate::cpu::{
    aarch64::v128::{signed, splat_quad, v128_lanes},
    generic::kernel_set,
    lanes::{each, instructions},
};

#[derive(Clone, Copy)]
pub(crate) struct Neon;

kernel_set!(Neon, ["neon"]);

v128_lanes!(Neon {
    /// Four sums per row, two rows per vector. A step adds at most 2 * 128 in magnitude, so 124 steps stay below 2^15.
    type Part = [int16x8_t; 8];
    const STEPS: usize = 124;
    const SIX_BIT_DOTS: usize = 2;
    const TILE: (usize, usize) = (1, 2);
    const WIDE_CODES: bool = false;
    const MAX_QUANT: i32 = 127;
    const BYTE_OFFSET: i32 = 0;

    instructions! {
        fn zero_part() -> Self::Part = [vdupq_n_s16(0); 8];
        fn dot(part: Self::Part, codes: Self::Codes, p: *const i8) -> Self::Part = {
            let quad = splat_quad(p);
            std::array::from_fn(|i| {
                let codes = vreinterpretq_s8_u8(codes[i / 2]);
                if i % 2 == 0 {
                    vmlal_s8(part[i], vget_low_s8(codes), vget_low_s8(quad))
                } else {
                    vmlal_high_s8(part[i], codes, quad)
                }
            })
        };
        fn widen(part: Self::Part) -> Self::I = {
            std::array::from_fn(|i| vpaddq_s32(vpaddlq_s16(part[2 * i]), vpaddlq_s16(part[2 * i + 1])))
        };
        fn dot_bytes(sum: Self::I, codes: Self::Codes, p: *const i8) -> Self::I = {
            let quad = splat_quad(p);
            each(sum, codes, |sum, codes| {
                let q = signed(codes);
                // Two products of 127 * 127 stay below 2^15.
                let pairs = vpaddq_s16(vmull_s8(vget_low_s8(q), vget_low_s8(quad)), vmull_high_s8(q, quad));
                vpadalq_s16(sum, pairs)
            })
        };
    }
});
