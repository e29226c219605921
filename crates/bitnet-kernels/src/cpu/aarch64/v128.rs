//! 16 lanes as four 128-bit vectors: everything but the dot product, for all instruction sets of 64-bit Arm.
#![allow(unsafe_op_in_unsafe_fn, reason = "instructions only: see `Lanes` for the contract")]

use std::arch::aarch64::{
    int8x16_t, uint8x16_t, vdupq_n_s32, vdupq_n_u8, veorq_u8, vreinterpretq_s8_s32, vreinterpretq_s8_u8,
};

/// Loads the four activations at `p` into every row's lane.
#[inline(always)]
pub(super) unsafe fn splat_quad(p: *const i8) -> int8x16_t {
    vreinterpretq_s8_s32(vdupq_n_s32(p.cast::<i32>().read_unaligned()))
}

/// Subtracts 128 from every byte.
#[inline(always)]
pub(super) unsafe fn signed(bytes: uint8x16_t) -> int8x16_t {
    vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(128)))
}

/// Defines an instruction that adds products of 16 codes and 16 activations to four sums. It is in assembly because the
/// intrinsic is not stable.
macro_rules! products {
    ($name:ident, $extension:literal) => {
        #[inline(always)]
        pub(super) unsafe fn $name(mut sums: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
            std::arch::asm!(
                concat!(".arch_extension ", $extension),
                concat!(stringify!($name), " {sums:v}.4s, {codes:v}.16b, {x:v}.16b"),
                sums = inout(vreg) sums,
                codes = in(vreg) codes,
                x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags),
            );
            sums
        }
    };
}
pub(super) use products;

/// Implements the float and integer part of [`Lanes`](crate::cpu::lanes::Lanes) with four 128-bit vectors; the given
/// block completes it.
macro_rules! v128_lanes {
    ($name:ty { $($rest:tt)* }) => {
        impl $crate::cpu::lanes::Lanes for $name {
            type F = [float32x4_t; 4];
            type D = [float64x2_t; 8];
            type I = [int32x4_t; 4];
            type Codes = [uint8x16_t; 4];
            type Pairs = [int16x8_t; 4];
            $($rest)*

            $crate::cpu::lanes::instructions! {
                fn splat(x: f32) -> Self::F = [vdupq_n_f32(x); 4];
                fn load(p: *const f32) -> Self::F = [0, 4, 8, 12].map(|at| vld1q_f32(p.add(at)));
                fn load_bf16(p: *const u16) -> Self::F = {
                    [0, 4, 8, 12].map(|at| vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p.add(at)))))
                };
                fn load_f16(p: *const u16) -> Self::F = {
                    [0, 4, 8, 12].map(|at| vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p.add(at)))))
                };
                fn load_i8(p: *const i8) -> Self::F = {
                    let bytes = vld1q_s8(p);
                    let low = vmovl_s8(vget_low_s8(bytes));
                    let high = vmovl_high_s8(bytes);
                    let words = [vget_low_s16(low), vget_high_s16(low), vget_low_s16(high), vget_high_s16(high)];
                    words.map(|x| vcvtq_f32_s32(vmovl_s16(x)))
                };
                fn store(p: *mut f32, x: Self::F) = for (i, x) in x.into_iter().enumerate() {
                    vst1q_f32(p.add(4 * i), x);
                };
                fn add(a: Self::F, b: Self::F) -> Self::F = each(a, b, |a, b| vaddq_f32(a, b));
                fn sub(a: Self::F, b: Self::F) -> Self::F = each(a, b, |a, b| vsubq_f32(a, b));
                fn mul(a: Self::F, b: Self::F) -> Self::F = each(a, b, |a, b| vmulq_f32(a, b));
                fn div(a: Self::F, b: Self::F) -> Self::F = each(a, b, |a, b| vdivq_f32(a, b));
                fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F = {
                    std::array::from_fn(|i| vfmaq_f32(c[i], a[i], b[i]))
                };
                fn max(a: Self::F, b: Self::F) -> Self::F = {
                    // Not `fmax`, which returns NaN if either is NaN.
                    each(a, b, |a, b| vbslq_f32(vcgtq_f32(a, b), a, b))
                };
                fn min(a: Self::F, b: Self::F) -> Self::F = each(a, b, |a, b| vbslq_f32(vcltq_f32(a, b), a, b));
                fn round(x: Self::F) -> Self::F = x.map(|x| vrndnq_f32(x));
                fn pow2(x: Self::F) -> Self::F = x.map(|x| {
                    let biased = vaddq_s32(vcvtq_s32_f32(x), vdupq_n_s32(127));
                    vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
                });
                fn swap<const APART: usize>(x: Self::F) -> Self::F = match APART {
                    1 => x.map(|x| vrev64q_f32(x)),
                    2 => x.map(|x| vextq_f32::<2>(x, x)),
                    4 => [x[1], x[0], x[3], x[2]],
                    _ => [x[2], x[3], x[0], x[1]],
                };
                fn reduce_add(x: Self::F) -> f32 = {
                    let x = vaddq_f32(vaddq_f32(x[0], x[2]), vaddq_f32(x[1], x[3]));
                    vaddv_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x)))
                };
                fn reduce_max(x: Self::F) -> f32 = vmaxvq_f32(vmaxq_f32(vmaxq_f32(x[0], x[2]), vmaxq_f32(x[1], x[3])));
                fn zero_d() -> Self::D = [vdupq_n_f64(0.0); 8];
                fn add_square(sum: Self::D, x: Self::F) -> Self::D = std::array::from_fn(|i| {
                    let half = if i % 2 == 0 { vget_low_f32(x[i / 2]) } else { vget_high_f32(x[i / 2]) };
                    let wide = vcvt_f64_f32(half);
                    vfmaq_f64(sum[i], wide, wide)
                });
                fn add_d(a: Self::D, b: Self::D) -> Self::D = each(a, b, |a, b| vaddq_f64(a, b));
                fn reduce_add_d(x: Self::D) -> f64 = {
                    let [a, b, c, d]: [float64x2_t; 4] = std::array::from_fn(|i| vaddq_f64(x[i], x[i + 4]));
                    vaddvq_f64(vaddq_f64(vaddq_f64(a, c), vaddq_f64(b, d)))
                };
                fn zero_i() -> Self::I = [vdupq_n_s32(0); 4];
                fn max_abs_bits(a: Self::I, x: Self::F) -> Self::I = each(a, x, |a, x| {
                    let bits = vreinterpretq_u32_f32(vabsq_f32(x));
                    vreinterpretq_s32_u32(vmaxq_u32(vreinterpretq_u32_s32(a), bits))
                });
                fn reduce_max_u(x: Self::I) -> u32 = {
                    let [a, b, c, d] = x.map(|x| vreinterpretq_u32_s32(x));
                    vmaxvq_u32(vmaxq_u32(vmaxq_u32(a, b), vmaxq_u32(c, d)))
                };
                fn quantize(p: *mut i8, x: Self::F, mut sum: Self::I) -> Self::I = {
                    let [a, b, c, d] = x.map(|x| vqmovn_s32(vcvtnq_s32_f32(x)));
                    let bytes = vqmovn_high_s16(vqmovn_s16(vcombine_s16(a, b)), vcombine_s16(c, d));
                    vst1q_s8(p, bytes);
                    sum[0] = vpadalq_s16(sum[0], vpaddlq_s8(bytes));
                    sum
                };
                fn reduce_add_i(x: Self::I) -> i32 = {
                    vaddvq_s32(vaddq_s32(vaddq_s32(x[0], x[1]), vaddq_s32(x[2], x[3])))
                };
                fn splat_i(x: i32) -> Self::I = [vdupq_n_s32(x); 4];
                fn add_i(a: Self::I, b: Self::I) -> Self::I = each(a, b, |a, b| vaddq_s32(a, b));
                fn sub_i(a: Self::I, b: Self::I) -> Self::I = each(a, b, |a, b| vsubq_s32(a, b));
                fn shift_plane(x: Self::I, plane: usize) -> Self::I = {
                    x.map(|x| vshlq_s32(x, vdupq_n_s32(-2 * plane as i32)))
                };
                fn to_f32(x: Self::I) -> Self::F = x.map(|x| vcvtq_f32_s32(x));
                fn load_i(p: *const i32) -> Self::I = [0, 4, 8, 12].map(|at| vld1q_s32(p.add(at)));
                fn store_i(p: *mut i32, x: Self::I) = for (i, x) in x.into_iter().enumerate() {
                    vst1q_s32(p.add(4 * i), x);
                };
                fn narrow(p: *mut i16, x: Self::F) = for (i, x) in x.into_iter().enumerate() {
                    vst1_s16(p.add(4 * i), vqmovn_s32(vcvtnq_s32_f32(x)));
                };
                fn load_pairs(first: *const i8, second: *const i8) -> Self::Pairs = {
                    let (a, b) = (vld1q_s8(first), vld1q_s8(second));
                    let (low, high) = (vzip1q_s8(a, b), vzip2q_s8(a, b));
                    [vmovl_s8(vget_low_s8(low)), vmovl_high_s8(low), vmovl_s8(vget_low_s8(high)), vmovl_high_s8(high)]
                };
                fn dot_pairs(sum: Self::I, pairs: Self::Pairs, p: *const i16) -> Self::I = {
                    let factors = vreinterpretq_s16_s32(vdupq_n_s32(p.cast::<i32>().read_unaligned()));
                    each(sum, pairs, |sum, pair| {
                        let low = vmull_s16(vget_low_s16(pair), vget_low_s16(factors));
                        vaddq_s32(sum, vpaddq_s32(low, vmull_high_s16(pair, factors)))
                    })
                };
                fn load_codes(p: *const u8) -> Self::Codes = [0, 16, 32, 48].map(|at| vld1q_u8(p.add(at)));
                fn mask_plane(codes: Self::Codes, plane: usize) -> Self::Codes = {
                    codes.map(|c| vandq_u8(c, vdupq_n_u8(3 << (2 * plane))))
                };
                fn low_half(codes: Self::Codes) -> Self::Codes = codes.map(|c| vandq_u8(c, vdupq_n_u8(15)));
                fn high_half(codes: Self::Codes) -> Self::Codes = codes.map(|c| vshrq_n_u8::<4>(c));
                fn with_high<const PLANE: usize>(low: Self::Codes, high: Self::Codes) -> Self::Codes = {
                    each(low, high, |low, high| {
                        let high = match PLANE {
                            0 => vshlq_n_u8::<4>(high),
                            1 => vshlq_n_u8::<2>(high),
                            2 => high,
                            _ => vshrq_n_u8::<2>(high),
                        };
                        vorrq_u8(low, vandq_u8(high, vdupq_n_u8(48)))
                    })
                };
                fn next_plane(codes: Self::Codes) -> Self::Codes = codes.map(|c| vshrq_n_u8::<2>(c));
                fn prefetch(p: *const u8) = {
                    // In assembly because the intrinsic is not stable.
                    std::arch::asm!(
                        "prfm pldl1keep, [{p}]",
                        p = in(reg) p,
                        options(readonly, nostack, preserves_flags),
                    );
                };
            }
        }
    };
}
pub(super) use v128_lanes;
