//! AVX-VNNI: `vpdpbusd` on 256-bit vectors, without AVX-512.
//!
//! One instruction for 32 products. A group of 16 rows by 16 columns and 5 tokens takes 40 of them and 14 to unpack.
//! Not measured, for lack of a processor that has it.
#![allow(unsafe_op_in_unsafe_fn, reason = "instructions only: see `Lanes` for the contract")]

use std::arch::x86_64::*;

use crate::cpu::{
    generic::kernel_set,
    lanes::instructions,
    x86_64::ymm::{both, ymm_lanes},
};

#[derive(Clone, Copy)]
pub(crate) struct AvxVnni;

kernel_set!(AvxVnni, ["avx2", "fma", "f16c", "avxvnni"], floats of avx2);

ymm_lanes!(AvxVnni {
    type Part = [__m256i; 2];
    const STEPS: usize = usize::MAX;
    const WIDE_CODES: bool = true;
    const MAX_QUANT: i32 = 127;
    const BYTE_OFFSET: i32 = 128;

    instructions! {
        fn begin_with(sums: Self::I) -> Option<Self::Part> = Some(sums);
        fn zero_part() -> Self::Part = [_mm256_setzero_si256(); 2];
        fn dot(part: Self::Part, codes: Self::Codes, p: *const i8) -> Self::Part = {
            let quad = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
            [
                _mm256_dpbusd_avx_epi32(part[0], codes[0], quad),
                _mm256_dpbusd_avx_epi32(part[1], codes[1], quad),
            ]
        };
        fn widen(part: Self::Part) -> Self::I = part;
        fn dot_bytes(sum: Self::I, codes: Self::Codes, p: *const i8) -> Self::I = Self::dot(sum, codes, p);
    }
});
