//! 16 lanes as one 512-bit vector: everything but the dot product, for the instruction sets with AVX-512.

/// Implements the float and integer part of [`Lanes`](crate::cpu::lanes::Lanes) with 512-bit vectors; the given block
/// completes it.
macro_rules! zmm_lanes {
    ($name:ty { $($rest:tt)* }) => {
        impl $crate::cpu::lanes::Lanes for $name {
            type F = __m512;
            type D = [__m512d; 2];
            type I = __m512i;
            type Codes = __m512i;
            type Pairs = __m512i;
            const TILE: (usize, usize) = (4, 6);
            /// A sixth token would spill sums to memory.
            const GROUP_TOKENS: usize = 5;
            const WIDE_REGISTERS: bool = true;
            $($rest)*

            $crate::cpu::lanes::instructions! {
                fn splat(x: f32) -> Self::F = _mm512_set1_ps(x);
                fn load(p: *const f32) -> Self::F = _mm512_loadu_ps(p);
                fn load_bf16(p: *const u16) -> Self::F = {
                    let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                    _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))
                };
                fn load_f16(p: *const u16) -> Self::F = _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
                fn load_i8(p: *const i8) -> Self::F = {
                    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))
                };
                fn store(p: *mut f32, x: Self::F) = _mm512_storeu_ps(p, x);
                fn add(a: Self::F, b: Self::F) -> Self::F = _mm512_add_ps(a, b);
                fn sub(a: Self::F, b: Self::F) -> Self::F = _mm512_sub_ps(a, b);
                fn mul(a: Self::F, b: Self::F) -> Self::F = _mm512_mul_ps(a, b);
                fn div(a: Self::F, b: Self::F) -> Self::F = _mm512_div_ps(a, b);
                fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F = _mm512_fmadd_ps(a, b, c);
                fn max(a: Self::F, b: Self::F) -> Self::F = _mm512_max_ps(a, b);
                fn min(a: Self::F, b: Self::F) -> Self::F = _mm512_min_ps(a, b);
                fn round(x: Self::F) -> Self::F = {
                    _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                };
                fn pow2(x: Self::F) -> Self::F = {
                    let biased = _mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(127));
                    _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))
                };
                fn swap<const APART: usize>(x: Self::F) -> Self::F = match APART {
                    1 => _mm512_permute_ps::<0b10_11_00_01>(x),
                    2 => _mm512_permute_ps::<0b01_00_11_10>(x),
                    4 => _mm512_shuffle_f32x4::<0b10_11_00_01>(x, x),
                    _ => _mm512_shuffle_f32x4::<0b01_00_11_10>(x, x),
                };
                fn reduce_add(x: Self::F) -> f32 = {
                    let x = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
                    let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
                    let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
                    _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
                };
                fn reduce_max(x: Self::F) -> f32 = _mm512_reduce_max_ps(x);
                fn zero_d() -> Self::D = [_mm512_setzero_pd(); 2];
                fn add_square(sum: Self::D, x: Self::F) -> Self::D = {
                    let low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
                    let high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
                    [_mm512_fmadd_pd(low, low, sum[0]), _mm512_fmadd_pd(high, high, sum[1])]
                };
                fn add_d(a: Self::D, b: Self::D) -> Self::D = [_mm512_add_pd(a[0], b[0]), _mm512_add_pd(a[1], b[1])];
                fn reduce_add_d(x: Self::D) -> f64 = {
                    let x = _mm512_add_pd(x[0], x[1]);
                    let x = _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd(x, 1));
                    let x = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
                    _mm_cvtsd_f64(_mm_add_sd(x, _mm_unpackhi_pd(x, x)))
                };
                fn zero_i() -> Self::I = _mm512_setzero_si512();
                fn max_abs_bits(a: Self::I, x: Self::F) -> Self::I = {
                    _mm512_max_epu32(a, _mm512_castps_si512(_mm512_abs_ps(x)))
                };
                fn reduce_max_u(x: Self::I) -> u32 = _mm512_reduce_max_epu32(x);
                fn quantize(p: *mut i8, x: Self::F, sum: Self::I) -> Self::I = {
                    let q = _mm512_min_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(127));
                    let q = _mm512_max_epi32(q, _mm512_set1_epi32(-128));
                    _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(q));
                    _mm512_add_epi32(sum, q)
                };
                fn reduce_add_i(x: Self::I) -> i32 = _mm512_reduce_add_epi32(x);
                fn splat_i(x: i32) -> Self::I = _mm512_set1_epi32(x);
                fn add_i(a: Self::I, b: Self::I) -> Self::I = _mm512_add_epi32(a, b);
                fn sub_i(a: Self::I, b: Self::I) -> Self::I = _mm512_sub_epi32(a, b);
                fn shift_plane(x: Self::I, plane: usize) -> Self::I = {
                    _mm512_sra_epi32(x, _mm_cvtsi32_si128(2 * plane as i32))
                };
                fn to_f32(x: Self::I) -> Self::F = _mm512_cvtepi32_ps(x);
                fn load_i(p: *const i32) -> Self::I = _mm512_loadu_si512(p.cast());
                fn store_i(p: *mut i32, x: Self::I) = _mm512_storeu_si512(p.cast(), x);
                fn narrow(p: *mut i16, x: Self::F) = {
                    _mm256_storeu_si256(p.cast(), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
                };
                fn load_pairs(first: *const i8, second: *const i8) -> Self::Pairs = {
                    let (a, b) = (_mm_loadu_si128(first.cast()), _mm_loadu_si128(second.cast()));
                    let numbers = _mm512_cvtepi8_epi16(_mm256_set_m128i(b, a));
                    // Pair `i` has the numbers `i` and `16 + i`.
                    let second = _mm512_set1_epi32(16 << 16);
                    let each = _mm512_setr_epi32(
                        0, 0x10001, 0x20002, 0x30003, 0x40004, 0x50005, 0x60006, 0x70007, 0x80008, 0x90009, 0xA000A,
                        0xB000B, 0xC000C, 0xD000D, 0xE000E, 0xF000F,
                    );
                    _mm512_permutexvar_epi16(_mm512_add_epi32(each, second), numbers)
                };
                fn dot_pairs(sum: Self::I, pairs: Self::Pairs, p: *const i16) -> Self::I = {
                    let factors = _mm512_set1_epi32(p.cast::<i32>().read_unaligned());
                    _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, factors))
                };
                fn load_codes(p: *const u8) -> Self::Codes = _mm512_loadu_si512(p.cast());
                fn mask_plane(codes: Self::Codes, plane: usize) -> Self::Codes = {
                    _mm512_and_si512(codes, _mm512_set1_epi8((3u8 << (2 * plane)) as i8))
                };
                fn low_half(codes: Self::Codes) -> Self::Codes = _mm512_and_si512(codes, _mm512_set1_epi8(15));
                fn high_half(codes: Self::Codes) -> Self::Codes = Self::low_half(_mm512_srli_epi16(codes, 4));
                fn with_high<const PLANE: usize>(low: Self::Codes, high: Self::Codes) -> Self::Codes = {
                    let high = match PLANE {
                        0 => _mm512_slli_epi16(high, 4),
                        1 => _mm512_slli_epi16(high, 2),
                        2 => high,
                        _ => _mm512_srli_epi16(high, 2),
                    };
                    // `low | high & 48`
                    _mm512_ternarylogic_epi32::<0xF8>(low, high, _mm512_set1_epi8(48))
                };
                fn next_plane(codes: Self::Codes) -> Self::Codes = _mm512_srli_epi16(codes, 2);
                fn prefetch(p: *const u8) = _mm_prefetch::<_MM_HINT_T0>(p.cast());
            }
        }
    };
}
pub(super) use zmm_lanes;
