//! NEON with int8 matrix products: `smmla` multiplies 2 rows by 2 tokens over 8 columns, 32 products per instruction,
//! exact in 32 bits.
//!
//! ```text
//! codes   two neighbouring planes of 4 rows, zipped: [row 0, 8 columns][row 1, 8 columns], [row 2][row 3]
//! x       8 activations of each of two tokens: [token 0][token 1]
//! sums    [row 0 x token 0][row 0 x token 1][row 1 x token 0][row 1 x token 1], sorted once at the end of K
//! ```
//!
//! Layout: [`super::super::panels`]. A block of 16 rows by 16 columns and 4 tokens takes 92 instructions for 1024
//! products: 32 `smmla`, 42 to load, unpack and zip codes, 8 to load activations. Many tokens are bound by
//! instructions, at a third of what `smmla` alone would give. A single token, and the last of an odd number, multiplies
//! the same codes with `sdot`, as in [`super::dotprod`].
#![allow(unsafe_op_in_unsafe_fn, reason = "instructions only: see `Lanes` for the contract")]
#![allow(clippy::needless_range_loop, reason = "tiles of registers are indexed by row group and token")]

use std::arch::aarch64::*;

use crate::cpu::{
    aarch64::{
        dotprod::{dot_products, sdot},
        v128::{products, signed, splat_quad, v128_lanes},
    },
    generic::kernel_set,
    lanes::each,
    panels::{BLOCK, BLOCK_BYTES},
};

#[derive(Clone, Copy)]
pub(crate) struct I8mm;

kernel_set!(I8mm, ["neon", "dotprod", "i8mm"], floats of neon);

products!(smmla, "i8mm");

v128_lanes!(I8mm {
    dot_products!();

    #[inline(always)]
    unsafe fn dot_blocks<const R: usize, const T: usize>(
        mut codes: *const u8,
        mut x: *const i8,
        x_stride: usize,
        blocks: usize,
        ahead: usize,
    ) -> [[Self::Part; R]; T] {
        // For a pair of tokens, vector i of the first token's sums holds rows 4 i and 4 i + 1 of both tokens, and
        // vector i of the second's holds rows 4 i + 2 and 4 i + 3.
        let mut sums = [[Self::zero_part(); R]; T];
        for _ in 0..blocks {
            for r in 0..R {
                Self::prefetch(codes.wrapping_add(64 * r).wrapping_add(ahead));
                for i in 0..4 {
                    let planes = vld1q_u8(codes.add(64 * r + 16 * i));
                    for half in 0..2 {
                        let [first, second] = two_planes(planes, half);
                        let upper = zip_upper(first, second);
                        let lower = zip_lower(first, second);
                        for t in (1..T).step_by(2) {
                            let tokens = x.add((t - 1) * x_stride + 8 * half);
                            let tokens = vcombine_s8(vld1_s8(tokens), vld1_s8(tokens.add(x_stride)));
                            sums[t - 1][r][i] = smmla(sums[t - 1][r][i], upper, tokens);
                            sums[t][r][i] = smmla(sums[t][r][i], lower, tokens);
                        }
                        if T % 2 == 1 {
                            let x = x.add((T - 1) * x_stride + 8 * half);
                            let sum = sdot(sums[T - 1][r][i], first, splat_quad(x));
                            sums[T - 1][r][i] = sdot(sum, second, splat_quad(x.add(4)));
                        }
                    }
                }
            }
            // After the last block these may point past the end; they are not dereferenced.
            codes = codes.wrapping_add(BLOCK_BYTES);
            x = x.wrapping_add(BLOCK);
        }
        for t in (1..T).step_by(2) {
            for r in 0..R {
                let (upper, lower) = (sums[t - 1][r], sums[t][r]);
                sums[t - 1][r] = each(upper, lower, |a, b| vuzp1q_s32(a, b));
                sums[t][r] = each(upper, lower, |a, b| vuzp2q_s32(a, b));
            }
        }
        sums
    }
});

/// The planes of the lower (0) or upper (1) half of a block's columns, 4 columns each.
#[inline(always)]
unsafe fn two_planes(planes: uint8x16_t, half: usize) -> [uint8x16_t; 2] {
    let three = vdupq_n_u8(3);
    match half {
        0 => [vandq_u8(planes, three), vandq_u8(vshrq_n_u8::<2>(planes), three)],
        _ => [vandq_u8(vshrq_n_u8::<4>(planes), three), vshrq_n_u8::<6>(planes)],
    }
}

/// Rows 0 and 1 of two planes: 8 columns each.
#[inline(always)]
unsafe fn zip_upper(first: uint8x16_t, second: uint8x16_t) -> uint8x16_t {
    vreinterpretq_u8_u32(vzip1q_u32(vreinterpretq_u32_u8(first), vreinterpretq_u32_u8(second)))
}

/// Rows 2 and 3 of two planes: 8 columns each.
#[inline(always)]
unsafe fn zip_lower(first: uint8x16_t, second: uint8x16_t) -> uint8x16_t {
    vreinterpretq_u8_u32(vzip2q_u32(vreinterpretq_u32_u8(first), vreinterpretq_u32_u8(second)))
}
