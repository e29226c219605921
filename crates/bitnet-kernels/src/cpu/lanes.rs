//! The operations that an instruction set provides: 16 f32 lanes, and a dot product of a group of ternary codes.
//!
//! The algorithms in [`super::generic`] are written once, generic over this trait. Its functions mirror instructions.
//! All are `unsafe` for the same reason: the CPU must have the instruction set, which the entry points in its own file
//! guarantee by their `target_feature`.

use std::ops::Range;

use crate::cpu::panels::{BLOCK, BLOCK_BYTES};

/// Applies `f` to each of the `N` parts of two vectors.
#[inline(always)]
pub(crate) fn each<T: Copy, U: Copy, R, const N: usize>(
    a: [T; N],
    b: [U; N],
    f: impl Fn(T, U) -> R,
) -> [R; N] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// Defines functions of [`Lanes`] as a list: `fn name(arguments) -> result = expression;`.
macro_rules! instructions {
    ($(fn $name:ident $(<const $n:ident: usize>)? ($($args:tt)*) $(-> $result:ty)? = $body:expr;)*) => {
        $(
            #[inline(always)]
            unsafe fn $name $(<const $n: usize>)? ($($args)*) $(-> $result)? {
                $body
            }
        )*
    };
}
pub(crate) use instructions;

/// An instruction set.
///
/// # Safety
/// Every function may be called only on a CPU that has the instruction set, and pointers must be valid for what the
/// function reads or writes: 16 elements unless stated otherwise. No alignment is needed.
pub(crate) trait Lanes: Copy {
    /// 16 f32.
    type F: Copy;
    /// 16 f64.
    type D: Copy;
    /// 16 i32.
    type I: Copy;
    /// 64 bytes: a group of 16 rows, 4 bytes each (see [`super::panels`]).
    type Codes: Copy;
    /// 16 pairs of i16.
    type Pairs: Copy;
    /// Running sums of a group, exact for [`Lanes::STEPS`] calls of [`Lanes::dot`].
    type Part: Copy;
    /// How often [`Lanes::dot`] may add codes up to 2 before [`Lanes::widen`] is needed. With codes up to 3, every
    /// instruction set may add 32 times, which is a group of columns; with codes up to 15 and activations up to
    /// [`Lanes::MAX_QUANT`], 8 times.
    const STEPS: usize;
    /// The same with codes up to 63 and activations up to [`Lanes::MAX_QUANT`]: 4 times, or 2.
    const SIX_BIT_DOTS: usize = 4;
    /// Row groups (of 16 rows) and tokens of the largest tile that fits the registers.
    const TILE: (usize, usize);
    /// Tokens of a tile that adds its sums to totals after every group of columns.
    const GROUP_TOKENS: usize = Self::TILE.1;
    /// Whether one register holds 16 lanes and there are 32 registers; kernels then take four row groups of a panel at
    /// once.
    const WIDE_REGISTERS: bool = false;
    /// Whether [`Lanes::dot`] takes any byte as a code, so that a single token can use codes masked in place.
    const WIDE_CODES: bool;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    unsafe fn load_f16(p: *const u16) -> Self::F;
    unsafe fn load_i8(p: *const i8) -> Self::F;
    unsafe fn store(p: *mut f32, x: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The same for one number.
    #[inline(always)]
    fn fused(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    /// `if a > b { a } else { b }`.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// Rounds to the nearest integer, halves to even.
    unsafe fn round(x: Self::F) -> Self::F;
    /// `2^x` for integers `x` in -126..=127.
    unsafe fn pow2(x: Self::F) -> Self::F;
    /// Lane `i` becomes lane `i ^ APART`, for `APART` 1, 2, 4 or 8.
    unsafe fn swap<const APART: usize>(x: Self::F) -> Self::F;
    /// [`crate::order::tree`].
    unsafe fn reduce_add(x: Self::F) -> f32;
    /// The largest lane; no lane may be NaN.
    unsafe fn reduce_max(x: Self::F) -> f32;

    unsafe fn zero_d() -> Self::D;
    /// `sum + x * x`, rounded once.
    unsafe fn add_square(sum: Self::D, x: Self::F) -> Self::D;
    unsafe fn add_d(a: Self::D, b: Self::D) -> Self::D;
    /// [`crate::order::tree`].
    unsafe fn reduce_add_d(x: Self::D) -> f64;

    unsafe fn zero_i() -> Self::I;
    /// The larger of `a` and the bits of `|x|`, as unsigned integers.
    unsafe fn max_abs_bits(a: Self::I, x: Self::F) -> Self::I;
    unsafe fn reduce_max_u(x: Self::I) -> u32;
    /// Rounds to the nearest integer, halves to even, clamps to i8, writes 16 bytes, and adds what it wrote.
    unsafe fn quantize(p: *mut i8, x: Self::F, sum: Self::I) -> Self::I;
    unsafe fn reduce_add_i(x: Self::I) -> i32;
    unsafe fn splat_i(x: i32) -> Self::I;
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn sub_i(a: Self::I, b: Self::I) -> Self::I;
    /// Shifts right by `2 * plane`, keeping the sign.
    unsafe fn shift_plane(x: Self::I, plane: usize) -> Self::I;
    unsafe fn to_f32(x: Self::I) -> Self::F;
    unsafe fn load_i(p: *const i32) -> Self::I;
    unsafe fn store_i(p: *mut i32, x: Self::I);

    /// Rounds to the nearest integer, halves to even, clamps to i16, and writes 16 of them.
    unsafe fn narrow(p: *mut i16, x: Self::F);
    /// Pairs of 16 numbers at `first` with 16 at `second`.
    unsafe fn load_pairs(first: *const i8, second: *const i8) -> Self::Pairs;
    /// Adds to every sum the dot product of its pair with the two numbers at `p`.
    unsafe fn dot_pairs(sum: Self::I, pairs: Self::Pairs, p: *const i16) -> Self::I;

    unsafe fn load_codes(p: *const u8) -> Self::Codes;
    /// `codes & (3 << (2 * plane))` in every byte.
    unsafe fn mask_plane(codes: Self::Codes, plane: usize) -> Self::Codes;
    /// The lower four bits of every byte.
    unsafe fn low_half(codes: Self::Codes) -> Self::Codes;
    /// The upper four bits of every byte.
    unsafe fn high_half(codes: Self::Codes) -> Self::Codes;
    /// Codes of 6 bits from their lower 4 bits and, in bits `2 * PLANE` and the next of `high`, their upper 2.
    unsafe fn with_high<const PLANE: usize>(low: Self::Codes, high: Self::Codes) -> Self::Codes;
    /// Shifts the next plane to the lowest bits; the highest bits become unspecified.
    unsafe fn next_plane(codes: Self::Codes) -> Self::Codes;
    unsafe fn zero_part() -> Self::Part;
    /// Running sums that begin with these, if they have 32 bits.
    #[inline(always)]
    unsafe fn begin_with(sums: Self::I) -> Option<Self::Part> {
        let _ = sums;
        None
    }
    /// Adds to every row the dot product of its 4 bytes with the 4 activations at `p`.
    unsafe fn dot(part: Self::Part, codes: Self::Codes, p: *const i8) -> Self::Part;
    unsafe fn widen(part: Self::Part) -> Self::I;
    /// Maximum magnitude of activations that [`Lanes::dot_bytes`] takes.
    const MAX_QUANT: i32;
    /// What [`Lanes::dot_bytes`] multiplies, minus the signed number that the byte stands for: 128, or 0 if bytes are
    /// converted to signed numbers first.
    const BYTE_OFFSET: i32;
    /// Adds to every row the dot product of its 4 bytes, of any value, with the 4 activations at `p`.
    unsafe fn dot_bytes(sum: Self::I, codes: Self::Codes, p: *const i8) -> Self::I;
    /// Computes the dot products of `R` groups with `T` tokens over `blocks` blocks, at most as many as
    /// [`Lanes::STEPS`] allows, and prefetches what is `ahead` bytes after the codes, modulo 2^64: the distance may be
    /// negative. Instruction sets that multiply more than one token per instruction override this.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "tiles of registers are indexed by row group and token")]
    unsafe fn dot_blocks<const R: usize, const T: usize>(
        mut codes: *const u8,
        mut x: *const i8,
        x_stride: usize,
        blocks: usize,
        ahead: usize,
    ) -> [[Self::Part; R]; T] {
        // SAFETY: the caller keeps this trait's contract, and passes whole blocks.
        unsafe {
            let mut parts = [[Self::zero_part(); R]; T];
            // Groups that share a load of activations are unpacked together; one token has nothing to share.
            let together = if T == 1 { 1 } else { R };
            for _ in 0..blocks {
                for first in (0..R).step_by(together) {
                    let mut v = [Self::load_codes(codes); R];
                    for r in first..first + together {
                        v[r] = Self::load_codes(codes.add(64 * r));
                        Self::prefetch(codes.wrapping_add(64 * r).wrapping_add(ahead));
                    }
                    let rows = first..first + together;
                    dot_plane::<Self, R, T, 0>(&mut parts, &mut v, codes, x, x_stride, rows.clone());
                    dot_plane::<Self, R, T, 1>(&mut parts, &mut v, codes, x, x_stride, rows.clone());
                    dot_plane::<Self, R, T, 2>(&mut parts, &mut v, codes, x, x_stride, rows.clone());
                    dot_plane::<Self, R, T, 3>(&mut parts, &mut v, codes, x, x_stride, rows);
                }
                // After the last block these may point past the end; they are not dereferenced.
                codes = codes.wrapping_add(BLOCK_BYTES);
                x = x.wrapping_add(BLOCK);
            }
            parts
        }
    }
    /// Prefetches the cache line at `p`, which need not be valid.
    unsafe fn prefetch(p: *const u8);
}

/// Multiplies one plane of a block for [`Lanes::dot_blocks`]. `v` holds the codes of the plane before it, and gets those of
/// this one.
///
/// With 24 sums, 512-bit vectors have no registers for what later planes need, and the compiler spills sums in the loop.
/// Such a tile loads and shifts its codes again for every plane, on ports that the products do not use.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "tiles of registers are indexed by row group and token")]
unsafe fn dot_plane<L: Lanes, const R: usize, const T: usize, const PLANE: usize>(
    parts: &mut [[L::Part; R]; T],
    v: &mut [L::Codes; R],
    codes: *const u8,
    x: *const i8,
    x_stride: usize,
    rows: Range<usize>,
) {
    // SAFETY: the caller keeps the contract of `Lanes`.
    unsafe {
        let mut low = *v;
        if L::WIDE_REGISTERS && R * T > 20 {
            let codes = unknown(codes);
            for r in rows.clone() {
                v[r] = L::load_codes(codes.add(64 * r));
                for _ in 0..PLANE {
                    v[r] = L::next_plane(v[r]);
                }
            }
        } else if PLANE > 0 {
            for r in rows.clone() {
                v[r] = L::next_plane(v[r]);
            }
        }
        for r in rows.clone() {
            low[r] = L::mask_plane(v[r], 0);
        }
        for t in 0..T {
            let quad = x.wrapping_add(t * x_stride + 4 * PLANE);
            for r in rows.clone() {
                parts[t][r] = L::dot(parts[t][r], low[r], quad);
            }
        }
    }
}

/// Returns `p`, and hides from the compiler that it points to what was read before, so that it is read again.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is read or written")]
fn unknown(mut p: *const u8) -> *const u8 {
    // SAFETY: no instruction is executed.
    unsafe { std::arch::asm!("/* {0} */", inout(reg) p, options(nomem, nostack, preserves_flags)) };
    p
}

/// Returns `p`: other processors have no tile that needs more, and some no stable `asm`.
#[cfg(not(target_arch = "x86_64"))]
fn unknown(p: *const u8) -> *const u8 {
    p
}
