//! AVX-512 VNNI: `vpdpbusd` on 512-bit vectors, 64 products per instruction, exact in 32 bits.
//!
//! A processor issues one (Zen 4) or two (Zen 5) per cycle. 24 sums, for 4 row groups by 6 tokens, leave 8 registers
//! for codes and activations of one plane. With 6 tokens, unpacking takes 28 of 124 vector instructions, on ports that the
//! products do not use.
#![allow(unsafe_op_in_unsafe_fn, reason = "instructions only: see `Lanes` for the contract")]

use std::arch::x86_64::*;

use crate::cpu::{generic::kernel_set, lanes::instructions, x86_64::zmm::zmm_lanes};

#[derive(Clone, Copy)]
pub(crate) struct Avx512Vnni;

kernel_set!(
    Avx512Vnni,
    ["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c", "avx512vnni"],
    floats of avx512
);

zmm_lanes!(Avx512Vnni {
    type Part = __m512i;
    const STEPS: usize = usize::MAX;
    const WIDE_CODES: bool = true;
    const MAX_QUANT: i32 = 127;
    const BYTE_OFFSET: i32 = 128;

    instructions! {
        fn begin_with(sums: Self::I) -> Option<Self::Part> = Some(sums);
        fn zero_part() -> Self::Part = _mm512_setzero_si512();
        fn dot(part: Self::Part, codes: Self::Codes, p: *const i8) -> Self::Part = {
            _mm512_dpbusd_epi32(part, codes, _mm512_set1_epi32(p.cast::<i32>().read_unaligned()))
        };
        fn widen(part: Self::Part) -> Self::I = part;
        fn dot_bytes(sum: Self::I, codes: Self::Codes, p: *const i8) -> Self::I = Self::dot(sum, codes, p);
    }
});
