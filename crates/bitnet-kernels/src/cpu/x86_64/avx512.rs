//! AVX-512 without VNNI: `vpmaddubsw` on 512-bit vectors, pairs added in 16 bits.
//!
//! Two instructions for 64 products, and two more every 60 steps to widen the sums; otherwise as
//! [`super::avx512vnni`]. The copy of the output head takes three, because pairs of its products fill 16 bits.
#![allow(unsafe_op_in_unsafe_fn, reason = "instructions only: see `Lanes` for the contract")]

use std::arch::x86_64::*;

use crate::cpu::{generic::kernel_set, lanes::instructions, x86_64::zmm::zmm_lanes};

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

kernel_set!(Avx512, ["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c"]);

zmm_lanes!(Avx512 {
    /// Sums of pairs in 16 bits. A step adds at most 2 * 2 * 128 in magnitude, so 60 steps stay below 2^15.
    type Part = __m512i;
    const STEPS: usize = 60;
    const WIDE_CODES: bool = false;
    /// Keeps a pair of products below 2^15.
    const MAX_QUANT: i32 = 63;
    const BYTE_OFFSET: i32 = 128;

    instructions! {
        fn zero_part() -> Self::Part = _mm512_setzero_si512();
        fn dot(part: Self::Part, codes: Self::Codes, p: *const i8) -> Self::Part = {
            let quad = _mm512_set1_epi32(p.cast::<i32>().read_unaligned());
            _mm512_add_epi16(part, _mm512_maddubs_epi16(codes, quad))
        };
        fn widen(part: Self::Part) -> Self::I = _mm512_madd_epi16(part, _mm512_set1_epi16(1));
        fn dot_bytes(sum: Self::I, codes: Self::Codes, p: *const i8) -> Self::I = {
            let quad = _mm512_set1_epi32(p.cast::<i32>().read_unaligned());
            Self::add_i(sum, Self::widen(_mm512_maddubs_epi16(codes, quad)))
        };
    }
});
