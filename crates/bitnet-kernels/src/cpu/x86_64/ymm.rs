//! 16 lanes as two 256-bit vectors: everything but the dot product, for the instruction sets without AVX-512.

/// Applies an expression to both halves. A closure might not be inlined, and then its instructions would be in a
/// function without the `target_feature`.
macro_rules! both {
    ($pair:expr, $v:ident => $e:expr) => {{
        let [low, high] = $pair;
        [
            {
                let $v = low;
                $e
            },
            {
                let $v = high;
                $e
            },
        ]
    }};
}
pub(super) use both;

/// Implements the float and integer part of [`Lanes`](crate::cpu::lanes::Lanes) with pairs of 256-bit vectors; the
/// given block completes it.
macro_rules! ymm_lanes {
    ($name:ty { $($rest:tt)* }) => {
        impl $crate::cpu::lanes::Lanes for $name {
            type F = [__m256; 2];
            type D = [__m256d; 4];
            type I = [__m256i; 2];
            type Codes = [__m256i; 2];
            type Pairs = [__m256i; 2];
            const TILE: (usize, usize) = (1, 5);
            $($rest)*

            $crate::cpu::lanes::instructions! {
                fn splat(x: f32) -> Self::F = [_mm256_set1_ps(x); 2];
                fn load(p: *const f32) -> Self::F = [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))];
                fn load_bf16(p: *const u16) -> Self::F = both!([p, p.add(8)], p => {
                    let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))
                });
                fn load_f16(p: *const u16) -> Self::F = {
                    both!([p, p.add(8)], p => _mm256_cvtph_ps(_mm_loadu_si128(p.cast())))
                };
                fn load_i8(p: *const i8) -> Self::F = {
                    both!([p, p.add(8)], p => _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))))
                };
                fn store(p: *mut f32, x: Self::F) = {
                    _mm256_storeu_ps(p, x[0]);
                    _mm256_storeu_ps(p.add(8), x[1]);
                };
                fn add(a: Self::F, b: Self::F) -> Self::F = [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])];
                fn sub(a: Self::F, b: Self::F) -> Self::F = [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])];
                fn mul(a: Self::F, b: Self::F) -> Self::F = [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])];
                fn div(a: Self::F, b: Self::F) -> Self::F = [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])];
                fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F = {
                    [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
                };
                fn max(a: Self::F, b: Self::F) -> Self::F = [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])];
                fn min(a: Self::F, b: Self::F) -> Self::F = [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])];
                fn round(x: Self::F) -> Self::F = {
                    both!(x, x => _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
                };
                fn pow2(x: Self::F) -> Self::F = both!(x, x => {
                    let biased = _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127));
                    _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23))
                });
                fn swap<const APART: usize>(x: Self::F) -> Self::F = match APART {
                    1 => both!(x, x => _mm256_permute_ps::<0b10_11_00_01>(x)),
                    2 => both!(x, x => _mm256_permute_ps::<0b01_00_11_10>(x)),
                    4 => both!(x, x => _mm256_permute2f128_ps::<1>(x, x)),
                    _ => [x[1], x[0]],
                };
                fn reduce_add(x: Self::F) -> f32 = {
                    let x = _mm256_add_ps(x[0], x[1]);
                    let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
                    let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
                    _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
                };
                fn reduce_max(x: Self::F) -> f32 = {
                    let x = _mm256_max_ps(x[0], x[1]);
                    let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
                    let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
                    _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
                };
                fn zero_d() -> Self::D = [_mm256_setzero_pd(); 4];
                fn add_square(sum: Self::D, x: Self::F) -> Self::D = {
                    let a = _mm256_cvtps_pd(_mm256_castps256_ps128(x[0]));
                    let b = _mm256_cvtps_pd(_mm256_extractf128_ps(x[0], 1));
                    let c = _mm256_cvtps_pd(_mm256_castps256_ps128(x[1]));
                    let d = _mm256_cvtps_pd(_mm256_extractf128_ps(x[1], 1));
                    [
                        _mm256_fmadd_pd(a, a, sum[0]),
                        _mm256_fmadd_pd(b, b, sum[1]),
                        _mm256_fmadd_pd(c, c, sum[2]),
                        _mm256_fmadd_pd(d, d, sum[3]),
                    ]
                };
                fn add_d(a: Self::D, b: Self::D) -> Self::D = [
                    _mm256_add_pd(a[0], b[0]),
                    _mm256_add_pd(a[1], b[1]),
                    _mm256_add_pd(a[2], b[2]),
                    _mm256_add_pd(a[3], b[3]),
                ];
                fn reduce_add_d(x: Self::D) -> f64 = {
                    let x = _mm256_add_pd(_mm256_add_pd(x[0], x[2]), _mm256_add_pd(x[1], x[3]));
                    let x = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
                    _mm_cvtsd_f64(_mm_add_sd(x, _mm_unpackhi_pd(x, x)))
                };
                fn zero_i() -> Self::I = [_mm256_setzero_si256(); 2];
                fn max_abs_bits(a: Self::I, x: Self::F) -> Self::I = {
                    let sign = _mm256_set1_ps(-0.0);
                    let bits = both!(x, x => _mm256_castps_si256(_mm256_andnot_ps(sign, x)));
                    [_mm256_max_epu32(a[0], bits[0]), _mm256_max_epu32(a[1], bits[1])]
                };
                fn reduce_max_u(x: Self::I) -> u32 = {
                    let x = _mm256_max_epu32(x[0], x[1]);
                    let x = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
                    let x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0b01_00_11_10));
                    _mm_cvtsi128_si32(_mm_max_epu32(x, _mm_shuffle_epi32(x, 0b10_11_00_01))) as u32
                };
                fn quantize(p: *mut i8, x: Self::F, sum: Self::I) -> Self::I = {
                    let q = both!(x, x => {
                        let q = _mm256_min_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127));
                        _mm256_max_epi32(q, _mm256_set1_epi32(-128))
                    });
                    // Packing works within 128-bit halves: the permutation restores the order.
                    let words = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[0], q[1]), 0b11_01_10_00);
                    let low = _mm256_castsi256_si128(words);
                    let bytes = _mm_packs_epi16(low, _mm256_extracti128_si256(words, 1));
                    _mm_storeu_si128(p.cast(), bytes);
                    Self::add_i(sum, q)
                };
                fn reduce_add_i(x: Self::I) -> i32 = {
                    let x = _mm256_add_epi32(x[0], x[1]);
                    let x = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
                    let x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0b01_00_11_10));
                    _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0b10_11_00_01)))
                };
                fn splat_i(x: i32) -> Self::I = [_mm256_set1_epi32(x); 2];
                fn add_i(a: Self::I, b: Self::I) -> Self::I = {
                    [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])]
                };
                fn sub_i(a: Self::I, b: Self::I) -> Self::I = {
                    [_mm256_sub_epi32(a[0], b[0]), _mm256_sub_epi32(a[1], b[1])]
                };
                fn shift_plane(x: Self::I, plane: usize) -> Self::I = {
                    both!(x, x => _mm256_sra_epi32(x, _mm_cvtsi32_si128(2 * plane as i32)))
                };
                fn to_f32(x: Self::I) -> Self::F = both!(x, x => _mm256_cvtepi32_ps(x));
                fn load_i(p: *const i32) -> Self::I = both!([p, p.add(8)], p => _mm256_loadu_si256(p.cast()));
                fn store_i(p: *mut i32, x: Self::I) = {
                    _mm256_storeu_si256(p.cast(), x[0]);
                    _mm256_storeu_si256(p.add(8).cast(), x[1]);
                };
                fn narrow(p: *mut i16, x: Self::F) = {
                    let q = both!(x, x => _mm256_cvtps_epi32(x));
                    // Packing works within 128-bit halves: the permutation restores the order.
                    let words = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[0], q[1]), 0b11_01_10_00);
                    _mm256_storeu_si256(p.cast(), words);
                };
                fn load_pairs(first: *const i8, second: *const i8) -> Self::Pairs = {
                    let (a, b) = (_mm_loadu_si128(first.cast()), _mm_loadu_si128(second.cast()));
                    both!([_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b)], x => _mm256_cvtepi8_epi16(x))
                };
                fn dot_pairs(sum: Self::I, pairs: Self::Pairs, p: *const i16) -> Self::I = {
                    let factors = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
                    Self::add_i(sum, both!(pairs, x => _mm256_madd_epi16(x, factors)))
                };
                fn load_codes(p: *const u8) -> Self::Codes = {
                    [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())]
                };
                fn mask_plane(codes: Self::Codes, plane: usize) -> Self::Codes = {
                    both!(codes, c => _mm256_and_si256(c, _mm256_set1_epi8((3u8 << (2 * plane)) as i8)))
                };
                fn low_half(codes: Self::Codes) -> Self::Codes = {
                    both!(codes, c => _mm256_and_si256(c, _mm256_set1_epi8(15)))
                };
                fn high_half(codes: Self::Codes) -> Self::Codes = {
                    Self::low_half(both!(codes, c => _mm256_srli_epi16(c, 4)))
                };
                fn with_high<const PLANE: usize>(low: Self::Codes, high: Self::Codes) -> Self::Codes = {
                    let high = both!(high, c => match PLANE {
                        0 => _mm256_slli_epi16(c, 4),
                        1 => _mm256_slli_epi16(c, 2),
                        2 => c,
                        _ => _mm256_srli_epi16(c, 2),
                    });
                    let high = both!(high, c => _mm256_and_si256(c, _mm256_set1_epi8(48)));
                    [_mm256_or_si256(low[0], high[0]), _mm256_or_si256(low[1], high[1])]
                };
                fn next_plane(codes: Self::Codes) -> Self::Codes = both!(codes, c => _mm256_srli_epi16(c, 2));
                fn prefetch(p: *const u8) = _mm_prefetch::<_MM_HINT_T0>(p.cast());
            }
        }
    };
}
pub(super) use ymm_lanes;
