//! AVX2: `vpmaddubsw` multiplies u8 codes by i8 activations and adds pairs in 16 bits.
//!
//! Two instructions for 32 products. A group of 16 rows by 16 columns and 5 tokens takes 80 of them and 14 to unpack,
//! which bounds many tokens: they reach 84 % of the products from registers, 157 x 10^9 per second on one core of Zen
//! 4. One token needs the same 14 for 16 and reaches 62 %; with two or more threads it is bound by memory.
#![allow(unsafe_op_in_unsafe_fn, reason = "instructions only: see `Lanes` for the contract")]

use std::arch::x86_64::*;

use crate::cpu::{
    generic::kernel_set,
    lanes::instructions,
    x86_64::ymm::{both, ymm_lanes},
};

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

kernel_set!(Avx2, ["avx2", "fma", "f16c"]);

ymm_lanes!(Avx2 {
    /// Sums of pairs in 16 bits. A step adds at most 2 * 2 * 128 in magnitude, so 60 steps stay below 2^15.
    type Part = [__m256i; 2];
    const STEPS: usize = 60;
    /// A fifth token would spill sums to memory.
    const GROUP_TOKENS: usize = 4;
    const WIDE_CODES: bool = false;
    /// Keeps a pair of products below 2^15.
    const MAX_QUANT: i32 = 63;
    const BYTE_OFFSET: i32 = 128;

    instructions! {
        fn zero_part() -> Self::Part = [_mm256_setzero_si256(); 2];
        fn dot(part: Self::Part, codes: Self::Codes, p: *const i8) -> Self::Part = {
            let quad = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
            [
                _mm256_add_epi16(part[0], _mm256_maddubs_epi16(codes[0], quad)),
                _mm256_add_epi16(part[1], _mm256_maddubs_epi16(codes[1], quad)),
            ]
        };
        fn widen(part: Self::Part) -> Self::I = both!(part, p => _mm256_madd_epi16(p, _mm256_set1_epi16(1)));
        fn dot_bytes(sum: Self::I, codes: Self::Codes, p: *const i8) -> Self::I = {
            let quad = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
            Self::add_i(sum, Self::widen(both!(codes, c => _mm256_maddubs_epi16(c, quad))))
        };
    }
});
