//! The fallback for every CPU: the same steps with arrays instead of vectors. It takes two instructions per product, or
//! fewer if the compiler vectorises; no peak is claimed.
#![allow(unsafe_op_in_unsafe_fn, reason = "these functions are as safe as their pointers; see `Lanes`")]

use half::{bf16, f16};

use crate::{
    cpu::{
        generic::kernel_set,
        lanes::{Lanes, each, instructions},
    },
    order,
};

/// 16 lanes as an array, in tiles of `ROWS` row groups by `TOKENS` tokens. Tests use the tiles and limits of other
/// instruction sets, to cover their paths through the algorithms on any machine.
#[derive(Clone, Copy)]
pub(crate) struct Arrays<const ROWS: usize, const TOKENS: usize, const STEPS: usize, const WIDE_CODES: bool>;

type Scalar = Arrays<1, 4, { usize::MAX }, true>;

kernel_set!(Scalar, []);

// Baseline x86-64 has no instruction for these: each lane is a call or a dozen instructions. One copy of each, instead of
// one wherever an algorithm is unrolled, makes these kernels a third of their size at the same speed.

#[inline(never)]
fn fma(a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
    std::array::from_fn(|i| order::fused(a[i], b[i], c[i]))
}

#[inline(never)]
fn add_square(sum: [f64; 16], x: [f32; 16]) -> [f64; 16] {
    // The product is exact.
    each(sum, x, |sum, x| f64::from(x) * f64::from(x) + sum)
}

#[inline(never)]
fn round(x: [f32; 16]) -> [f32; 16] {
    x.map(f32::round_ties_even)
}

#[inline(never)]
fn f16_to_f32(bits: [u16; 16]) -> [f32; 16] {
    bits.map(|b| f16::from_bits(b).to_f32())
}

impl<const ROWS: usize, const TOKENS: usize, const STEPS: usize, const WIDE_CODES: bool> Lanes
    for Arrays<ROWS, TOKENS, STEPS, WIDE_CODES>
{
    type F = [f32; 16];
    type D = [f64; 16];
    type I = [i32; 16];
    type Codes = [u8; 64];
    type Pairs = [[i16; 2]; 16];
    type Part = [i32; 16];
    const STEPS: usize = STEPS;
    const TILE: (usize, usize) = (ROWS, TOKENS);
    const GROUP_TOKENS: usize = if ROWS == 4 { 5 } else { TOKENS };
    const WIDE_REGISTERS: bool = ROWS == 4;
    const WIDE_CODES: bool = WIDE_CODES;
    const MAX_QUANT: i32 = 127;
    const BYTE_OFFSET: i32 = 128;

    instructions! {
        fn splat(x: f32) -> Self::F = [x; 16];
        fn load(p: *const f32) -> Self::F = p.cast::<Self::F>().read_unaligned();
        fn load_bf16(p: *const u16) -> Self::F = {
            p.cast::<[u16; 16]>().read_unaligned().map(|b| bf16::from_bits(b).to_f32())
        };
        fn load_f16(p: *const u16) -> Self::F = f16_to_f32(p.cast::<[u16; 16]>().read_unaligned());
        fn load_i8(p: *const i8) -> Self::F = p.cast::<[i8; 16]>().read_unaligned().map(f32::from);
        fn store(p: *mut f32, x: Self::F) = p.cast::<Self::F>().write_unaligned(x);
        fn add(a: Self::F, b: Self::F) -> Self::F = each(a, b, |a, b| a + b);
        fn sub(a: Self::F, b: Self::F) -> Self::F = each(a, b, |a, b| a - b);
        fn mul(a: Self::F, b: Self::F) -> Self::F = each(a, b, |a, b| a * b);
        fn div(a: Self::F, b: Self::F) -> Self::F = each(a, b, |a, b| a / b);
        fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F = fma(a, b, c);
        fn max(a: Self::F, b: Self::F) -> Self::F = each(a, b, |a, b| if a > b { a } else { b });
        fn min(a: Self::F, b: Self::F) -> Self::F = each(a, b, |a, b| if a < b { a } else { b });
        fn round(x: Self::F) -> Self::F = round(x);
        fn pow2(x: Self::F) -> Self::F = x.map(|x| f32::from_bits(((x as i32 + 127) << 23) as u32));
        fn swap<const APART: usize>(x: Self::F) -> Self::F = std::array::from_fn(|i| x[i ^ APART]);
        fn reduce_add(x: Self::F) -> f32 = order::tree(x);
        fn reduce_max(x: Self::F) -> f32 = x.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b });
        fn zero_d() -> Self::D = [0.0; 16];
        fn add_square(sum: Self::D, x: Self::F) -> Self::D = add_square(sum, x);
        fn add_d(a: Self::D, b: Self::D) -> Self::D = each(a, b, |a, b| a + b);
        fn reduce_add_d(x: Self::D) -> f64 = order::tree(x);
        fn zero_i() -> Self::I = [0; 16];
        fn max_abs_bits(a: Self::I, x: Self::F) -> Self::I = {
            each(a, x, |a, x| (a as u32).max(x.abs().to_bits()) as i32)
        };
        fn reduce_max_u(x: Self::I) -> u32 = x.into_iter().map(|x| x as u32).fold(0, u32::max);
        fn quantize(p: *mut i8, x: Self::F, sum: Self::I) -> Self::I = {
            let q = round(x).map(|x| x.clamp(-128.0, 127.0) as i8);
            p.cast::<[i8; 16]>().write_unaligned(q);
            each(sum, q, |s, q| s + i32::from(q))
        };
        fn reduce_add_i(x: Self::I) -> i32 = x.into_iter().sum();
        fn splat_i(x: i32) -> Self::I = [x; 16];
        fn add_i(a: Self::I, b: Self::I) -> Self::I = each(a, b, |a, b| a + b);
        fn sub_i(a: Self::I, b: Self::I) -> Self::I = each(a, b, |a, b| a - b);
        fn shift_plane(x: Self::I, plane: usize) -> Self::I = x.map(|x| x >> (2 * plane));
        fn to_f32(x: Self::I) -> Self::F = x.map(|x| x as f32);
        fn load_i(p: *const i32) -> Self::I = p.cast::<Self::I>().read_unaligned();
        fn store_i(p: *mut i32, x: Self::I) = p.cast::<Self::I>().write_unaligned(x);
        fn narrow(p: *mut i16, x: Self::F) = p.cast::<[i16; 16]>().write_unaligned(round(x).map(|x| x as i16));
        fn load_pairs(first: *const i8, second: *const i8) -> Self::Pairs = {
            let [first, second] = [first, second].map(|p| p.cast::<[i8; 16]>().read_unaligned().map(i16::from));
            each(first, second, |a, b| [a, b])
        };
        fn dot_pairs(sum: Self::I, pairs: Self::Pairs, p: *const i16) -> Self::I = {
            let [a, b] = p.cast::<[i16; 2]>().read_unaligned().map(i32::from);
            each(sum, pairs, |sum, [first, second]| sum + i32::from(first) * a + i32::from(second) * b)
        };
        fn load_codes(p: *const u8) -> Self::Codes = p.cast::<Self::Codes>().read_unaligned();
        fn mask_plane(codes: Self::Codes, plane: usize) -> Self::Codes = codes.map(|c| c & (3 << (2 * plane)));
        fn low_half(codes: Self::Codes) -> Self::Codes = codes.map(|c| c & 15);
        fn high_half(codes: Self::Codes) -> Self::Codes = codes.map(|c| c >> 4);
        fn with_high<const PLANE: usize>(low: Self::Codes, high: Self::Codes) -> Self::Codes = {
            each(low, high, |low, high| low | (high >> (2 * PLANE) & 3) << 4)
        };
        fn next_plane(codes: Self::Codes) -> Self::Codes = codes.map(|c| c >> 2);
        fn begin_with(sums: Self::I) -> Option<Self::Part> = Some(sums);
        fn zero_part() -> Self::Part = [0; 16];
        fn dot(part: Self::Part, codes: Self::Codes, p: *const i8) -> Self::Part = {
            let quad = p.cast::<[i8; 4]>().read_unaligned();
            std::array::from_fn(|row| {
                let products = (0..4).map(|j| i32::from(codes[4 * row + j]) * i32::from(quad[j]));
                part[row] + products.sum::<i32>()
            })
        };
        fn widen(part: Self::Part) -> Self::I = part;
        fn dot_bytes(sum: Self::I, codes: Self::Codes, p: *const i8) -> Self::I = Self::dot(sum, codes, p);
        fn prefetch(_: *const u8) = ();
    }

    fn fused(a: f32, b: f32, c: f32) -> f32 {
        order::fused(a, b, c)
    }
}

/// Runs all algorithms with the tiles and limits of 512-bit vectors, which many machines lack.
#[cfg(test)]
mod tests {
    use super::Arrays;
    use crate::{
        Cpu, Isa, KvType,
        conformance::{Expected, cpu_cases},
        cpu::{generic::kernel_set, isa::Level},
    };

    mod avx512vnni {
        super::kernel_set!(super::Arrays<4, 6, { usize::MAX }, true>, []);
    }

    mod avx512 {
        super::kernel_set!(super::Arrays<4, 6, 60, false>, [], floats of avx512vnni);
    }

    static LEVELS: [Level; 2] = [
        Level::of_arrays("tiles of avx512vnni", &avx512vnni::KERNELS),
        Level::of_arrays("tiles of avx512", &avx512::KERNELS),
    ];

    #[test]
    fn tiles_of_512_bit_levels_equal_the_reference_bit_for_bit() {
        assert!(avx512vnni::present() && avx512::present(), "arrays need no instruction set");
        for kv in [KvType::F32, KvType::Int8] {
            let mut cpus = LEVELS.each_ref().map(|level| {
                let isa = Isa::of_arrays(level);
                (isa, Cpu::new(isa, 2).unwrap().keeping(kv))
            });
            let mut failures = Vec::new();
            for case in cpu_cases().into_iter().filter(|case| kv == KvType::F32 || case.caches()) {
                let expected = Expected::of(case, kv);
                for (isa, cpu) in &mut cpus {
                    failures.extend(expected.check(cpu).err().map(|failure| (*isa, failure)));
                }
            }
            assert!(failures.is_empty(), "{kv}: {failures:#?}");
        }
    }
}
