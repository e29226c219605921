//! AVX2: `vpmaddubsw` multiplies u8 codes by i8 activations and adds pairs in 16 bits.
//!
//! Two instructions for 32 products. A group of 16 rows by 16 columns and 5 tokens takes 80 of them and 14 to unpack,
//! which bounds many tokens ([`many`]). One token takes 16 and 10 to unpack ([`one`]), 6.5 cycles on Zen 5, in which a
//! core reads 64 bytes: 41 GB/s at 4.2 GHz. Both loops are in assembly, because the compiler keeps the codes of several
//! planes at once and spills sums.
#![allow(unsafe_op_in_unsafe_fn, reason = "instructions only: see `Lanes` for the contract")]
#![allow(clippy::needless_range_loop, reason = "halves of several vectors are indexed together")]

use std::{
    arch::{asm, x86_64::*},
    mem::MaybeUninit,
};

use crate::cpu::{
    generic::kernel_set,
    lanes::{Lanes, instructions},
    panels::{BLOCK, BLOCK_BYTES},
    x86_64::ymm::{both, ymm_lanes},
};

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

kernel_set!(Avx2, ["avx2", "fma", "f16c"]);

ymm_lanes!(Avx2 {
    /// Sums of pairs in 16 bits. A step adds at most 2 * 2 * 128 in magnitude, so 60 steps stay below 2^15.
    type Part = [__m256i; 2];
    const STEPS: usize = 60;
    const WIDE_CODES: bool = false;
    /// Keeps a pair of products below 2^15.
    const MAX_QUANT: i32 = 63;
    const BYTE_OFFSET: i32 = 128;

    #[inline(always)]
    unsafe fn dot_blocks<const R: usize, const T: usize>(
        codes: *const u8,
        x: *const i8,
        x_stride: usize,
        blocks: usize,
        ahead: usize,
    ) -> [[Self::Part; R]; T] {
        if T == 1 {
            return [one(codes, x, blocks, ahead); T];
        }
        let mut parts = [[Self::zero_part(); R]; T];
        for r in 0..R {
            let sums: [_; T] = many(codes.add(64 * r), x, x_stride, blocks, ahead);
            for (parts, sums) in parts.iter_mut().zip(sums) {
                parts[r] = sums;
            }
        }
        parts
    }

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

type Part = <Avx2 as Lanes>::Part;

/// Blocks of which 16 bits hold the sums of codes up to 3 that are masked in place: a block adds at most
/// 2 * 2 * 12 * 128.
const IN_PLACE: usize = 5;

/// The lowest code of every byte, and the one above it.
static PLANES: [[u8; 32]; 2] = [[3; 32], [12; 32]];

/// Multiplies `R` row groups by one token, one after the other, over one block at least. Every second plane is masked
/// where it is, four times its value, and has sums of its own, which saves two of three shifts. Prefetches ask for what
/// all row groups read later in the order of memory, which brings more of it a second than the order of reading.
#[inline(always)]
unsafe fn one<const R: usize>(codes: *const u8, x: *const i8, blocks: usize, ahead: usize) -> [Part; R] {
    debug_assert!(blocks > 0, "the loop ends after a block");
    let mut parts = MaybeUninit::<[Part; R]>::uninit();
    for r in 0..R {
        asm!(
            "vmovdqu ymm14, [{planes}]",
            "vmovdqu ymm15, [{planes} + 32]",
            "vpxor ymm0, ymm0, ymm0",
            "vpxor ymm1, ymm1, ymm1",
            "2:",
            "mov {run}, {in_place}",
            "cmp {blocks}, {run}",
            "cmovb {run}, {blocks}",
            "sub {blocks}, {run}",
            "vpxor ymm2, ymm2, ymm2",
            "vpxor ymm3, ymm3, ymm3",
            "3:",
            "vmovdqu ymm4, [{codes}]",
            "vmovdqu ymm5, [{codes} + 32]",
            "prefetcht0 [{next}]",
            "vpbroadcastd ymm12, [{x}]",
            "vpbroadcastd ymm13, [{x} + 4]",
            "vpsrlw ymm6, ymm4, 4",
            "vpsrlw ymm7, ymm5, 4",
            "vpand ymm8, ymm4, ymm14",
            "vpand ymm9, ymm5, ymm14",
            "vpand ymm10, ymm4, ymm15",
            "vpand ymm11, ymm5, ymm15",
            "vpmaddubsw ymm8, ymm8, ymm12",
            "vpmaddubsw ymm9, ymm9, ymm12",
            "vpmaddubsw ymm10, ymm10, ymm13",
            "vpmaddubsw ymm11, ymm11, ymm13",
            "vpbroadcastd ymm12, [{x} + 8]",
            "vpbroadcastd ymm13, [{x} + 12]",
            "vpaddw ymm0, ymm0, ymm8",
            "vpaddw ymm1, ymm1, ymm9",
            "vpaddw ymm2, ymm2, ymm10",
            "vpaddw ymm3, ymm3, ymm11",
            "vpand ymm8, ymm6, ymm14",
            "vpand ymm9, ymm7, ymm14",
            "vpand ymm10, ymm6, ymm15",
            "vpand ymm11, ymm7, ymm15",
            "vpmaddubsw ymm8, ymm8, ymm12",
            "vpmaddubsw ymm9, ymm9, ymm12",
            "vpmaddubsw ymm10, ymm10, ymm13",
            "vpmaddubsw ymm11, ymm11, ymm13",
            "vpaddw ymm0, ymm0, ymm8",
            "vpaddw ymm1, ymm1, ymm9",
            "vpaddw ymm2, ymm2, ymm10",
            "vpaddw ymm3, ymm3, ymm11",
            "add {codes}, {block_bytes}",
            "add {x}, {block}",
            "add {next}, 64",
            "dec {run}",
            "jnz 3b",
            "vpsraw ymm2, ymm2, 2",
            "vpsraw ymm3, ymm3, 2",
            "vpaddw ymm0, ymm0, ymm2",
            "vpaddw ymm1, ymm1, ymm3",
            "test {blocks}, {blocks}",
            "jnz 2b",
            "vmovdqu [{sums}], ymm0",
            "vmovdqu [{sums} + 32], ymm1",
            codes = inout(reg) codes.add(64 * r) => _,
            x = inout(reg) x => _,
            blocks = inout(reg) blocks => _,
            next = inout(reg) codes.wrapping_add(ahead).wrapping_add(64 * r * blocks) => _,
            run = out(reg) _,
            sums = in(reg) parts.as_mut_ptr().cast::<Part>().add(r),
            planes = in(reg) PLANES.as_ptr(),
            in_place = const IN_PLACE,
            block_bytes = const BLOCK_BYTES,
            block = const BLOCK,
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
            out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
            out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
            options(nostack),
        );
    }
    // The loop has stored two vectors for every row group.
    parts.assume_init()
}

/// The instructions for one plane: those that put its codes into `ymm12` and `ymm13`, and for every token the place of
/// its activations and the registers of its sums.
macro_rules! plane {
    ($codes:expr, $offset:literal, $($x:literal $low:literal $high:literal),*) => {
        concat!(
            $codes,
            $(
                "vpbroadcastd ymm11, [{x}", $x, $offset, "]\n",
                "vpmaddubsw ymm10, ymm12, ymm11\n",
                "vpaddw ", $low, ", ", $low, ", ymm10\n",
                "vpmaddubsw ymm11, ymm13, ymm11\n",
                "vpaddw ", $high, ", ", $high, ", ymm11\n",
            )*
        )
    };
}

/// The instructions that put the codes of a later plane, so many bits up, into `ymm12` and `ymm13`.
macro_rules! shifted {
    ($bits:literal) => {
        concat!(
            "vpsrlw ymm12, ymm14, ",
            $bits,
            "\n",
            "vpsrlw ymm13, ymm15, ",
            $bits,
            "\n",
            "vpand ymm12, ymm12, [{lowest}]\n",
            "vpand ymm13, ymm13, [{lowest}]\n",
        )
    };
}

/// The loop of [`many`]. Each token has a place of activations and two registers of sums. It reads whole blocks of
/// codes and 16 activations of every token for each, and writes 64 bytes a token.
macro_rules! multiply {
    (
        $codes:ident, $x:ident, $stride:ident, $blocks:ident, $ahead:ident, $sums:ident:
        $($at:literal $low:literal $high:literal),*
    ) => {
        asm!(
            concat!(
                "/* {stride} {stride3} */\n",
                $("vpxor ", $low, ", ", $low, ", ", $low, "\n", "vpxor ", $high, ", ", $high, ", ", $high, "\n",)*
                "2:\n",
                "vmovdqu ymm14, [{codes}]\n",
                "vmovdqu ymm15, [{codes} + 32]\n",
                "prefetcht0 [{codes} + {ahead}]\n",
                plane!("vpand ymm12, ymm14, [{lowest}]\nvpand ymm13, ymm15, [{lowest}]\n", "", $($at $low $high),*),
                plane!(shifted!(2), " + 4", $($at $low $high),*),
                plane!(shifted!(4), " + 8", $($at $low $high),*),
                plane!(shifted!(6), " + 12", $($at $low $high),*),
                "add {codes}, {block_bytes}\n",
                "add {x}, {block}\n",
                "dec {blocks}\n",
                "jnz 2b\n",
                $("vmovdqu [{sums}], ", $low, "\n", "vmovdqu [{sums} + 32], ", $high, "\n", "add {sums}, 64\n",)*
            ),
            codes = inout(reg) $codes => _,
            x = inout(reg) $x => _,
            blocks = inout(reg) $blocks => _,
            sums = inout(reg) $sums => _,
            stride = in(reg) $stride,
            stride3 = in(reg) $stride.wrapping_mul(3),
            ahead = in(reg) $ahead,
            lowest = in(reg) PLANES.as_ptr(),
            block_bytes = const BLOCK_BYTES,
            block = const BLOCK,
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
            out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
            out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
            options(nostack),
        )
    };
}

/// Multiplies a row group by 2 to 5 tokens, over one block at least. All registers are used: `ymm0` to `ymm9` for sums,
/// `ymm10` and `ymm11` for products, `ymm12` and `ymm13` for a plane, `ymm14` and `ymm15` for all planes.
#[inline(always)]
unsafe fn many<const T: usize>(
    codes: *const u8,
    x: *const i8,
    stride: usize,
    blocks: usize,
    ahead: usize,
) -> [Part; T] {
    debug_assert!(blocks > 0, "the loop ends after a block");
    let mut parts = MaybeUninit::<[Part; T]>::uninit();
    let sums = parts.as_mut_ptr();
    match T {
        2 => multiply!(codes, x, stride, blocks, ahead, sums: "" "ymm0" "ymm1", " + {stride}" "ymm2" "ymm3"),
        3 => multiply!(codes, x, stride, blocks, ahead, sums: "" "ymm0" "ymm1", " + {stride}" "ymm2" "ymm3",
            " + 2 * {stride}" "ymm4" "ymm5"),
        4 => multiply!(codes, x, stride, blocks, ahead, sums: "" "ymm0" "ymm1", " + {stride}" "ymm2" "ymm3",
            " + 2 * {stride}" "ymm4" "ymm5", " + {stride3}" "ymm6" "ymm7"),
        5 => multiply!(codes, x, stride, blocks, ahead, sums: "" "ymm0" "ymm1", " + {stride}" "ymm2" "ymm3",
            " + 2 * {stride}" "ymm4" "ymm5", " + {stride3}" "ymm6" "ymm7", " + 4 * {stride}" "ymm8" "ymm9"),
        _ => unreachable!("{T} tokens"),
    }
    // The loop has stored two vectors for every token.
    parts.assume_init()
}
