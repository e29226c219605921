//! A table of instructions with input and output bits according to the PTX manual. Both the simulator and a GPU are
//! checked against it; the program `gpu-instructions` does so on a GPU.

use bitnet_kernels::gpu::{Arg, Driver, Entry, GpuError, Grid, table::Kernel};

/// An instruction, or a few, with sources and result.
#[derive(Debug, Clone, Copy)]
pub struct Instruction {
    /// Sources are in registers `a`, `b`, `c`, `e`; the result is read from `d`. `p` and `q` are predicates, `g` is the
    /// address of the sources (eight bytes each), `s` a shared array.
    pub text: &'static str,
    /// Width of the result's register in bits.
    width: usize,
    /// Width in bits and contents of each source's register.
    sources: &'static [(usize, u64)],
    expected: u64,
}

const H: usize = 16;
const W: usize = 32;
const D: usize = 64;

const fn case(
    text: &'static str,
    width: usize,
    sources: &'static [(usize, u64)],
    expected: u64,
) -> Instruction {
    Instruction { text, width, sources, expected }
}

/// The cases. Results must be equal bit for bit.
#[rustfmt::skip]
pub static INSTRUCTIONS: &[Instruction] = &[
    // Integer arithmetic wraps; products keep the half they name.
    case("add.u32 d, a, b", W, &[(W, 0xffff_ffff), (W, 2)], 1),
    case("add.u64 d, a, b", D, &[(D, u64::MAX), (D, 1 << 40)], (1 << 40) - 1),
    case("sub.s32 d, a, b", W, &[(W, 0), (W, 1)], 0xffff_ffff),
    case("mul.lo.u32 d, a, b", W, &[(W, 0x1_0001), (W, 0x1_0001)], 0x2_0001),
    case("mul.lo.u64 d, a, b", D, &[(D, 1 << 33), (D, 3 << 31)], 0),
    case("mul.hi.u32 d, a, b", W, &[(W, 0xffff_ffff), (W, 0xffff_ffff)], 0xffff_fffe),
    case("mul.hi.u64 d, a, b", D, &[(D, 1 << 63), (D, 4)], 2),
    case("mul.wide.u32 d, a, b", D, &[(W, 0xffff_ffff), (W, 2)], 0x1_ffff_fffe),
    case("mad.wide.u32 d, a, b, c", D, &[(W, 0xffff_ffff), (W, 0xffff_ffff), (D, 1)], 0xffff_fffe_0000_0002),
    case("div.u32 d, a, b", W, &[(W, 0xffff_fff9), (W, 2)], 0x7fff_fffc),
    case("min.u32 d, a, b", W, &[(W, 0xffff_ffff), (W, 1)], 1),
    case("min.s32 d, a, b", W, &[(W, 0xffff_ffff), (W, 1)], 0xffff_ffff),
    case("max.s32 d, a, -127", W, &[(W, 0x8000_0000)], 0xffff_ff81),
    // Bits. Shift amounts are clamped, not wrapped.
    case("and.b32 d, a, b", W, &[(W, 0xff0f), (W, 0x0ff0)], 0x0f00),
    case("or.b64 d, a, b", D, &[(D, 1 << 40), (D, 1)], 1 << 40 | 1),
    case("xor.b32 d, a, 0xff", W, &[(W, 0xff0f)], 0xfff0),
    case("not.b32 d, a", W, &[(W, 0xff0f)], 0xffff_00f0),
    case("shl.b32 d, a, b", W, &[(W, 3), (W, 31)], 1 << 31),
    case("shl.b32 d, a, b", W, &[(W, 3), (W, 32)], 0),
    case("shl.b64 d, a, b", D, &[(D, 3), (W, 33)], 3 << 33),
    case("shr.u32 d, a, b", W, &[(W, 1 << 31), (W, 32)], 0),
    case("shr.s32 d, a, b", W, &[(W, 1 << 31), (W, 40)], 0xffff_ffff),
    case("shr.s32 d, a, b", W, &[(W, 1 << 31), (W, 4)], 0xf800_0000),
    case("shr.u64 d, a, b", D, &[(D, 1 << 63), (W, 63)], 1),
    case("clz.b32 d, a", W, &[(W, 0)], 32),
    case("popc.b32 d, a", W, &[(W, 0x8000_0101)], 3),
    case("brev.b32 d, a", W, &[(W, 0xb)], 0xd000_0000),
    case("bfe.u32 d, a, 8, 8", W, &[(W, 0xabcd_1234)], 0x12),
    case("bfe.u32 d, a, 4, 0", W, &[(W, 0xffff_ffff)], 0),
    case("dp4a.u32.s32 d, a, b, c", W, &[(W, 0x0201_02fe), (W, 0xff01_ff01), (W, 10)], 10 + 254 - 2 + 1 - 2),
    case("dp4a.s32.s32 d, a, b, c", W, &[(W, 0x8080_8080), (W, 0x7f7f_7f7f), (W, 0)], 0xffff_0200),
    // Moves.
    case("mov.b64 d, {a, b}", D, &[(W, 1), (W, 2)], 2 << 32 | 1),
    case("mov.b64 {c, d}, a", W, &[(D, 7 << 32 | 5), (W, 0), (W, 0)], 7),
    case("mov.f32 d, 0f3F800000", W, &[], 0x3f80_0000),
    case("mov.b32 d, a", W, &[(W, 0xdead_beef)], 0xdead_beef),
    case("mov.u32 d, -1", W, &[], 0xffff_ffff),
    case("mov.u32 e, s; st.shared.b32 [s+4], a; ld.shared.b32 d, [e+4]", W, &[(W, 7), (W, 0), (W, 0), (W, 0)], 7),
    case("setp.ne.u32 p, a, 0; selp.b32 d, a, b, p", W, &[(W, 5), (W, 9)], 5),
    // Comparisons: signedness, and what NaN does.
    case("setp.lt.s32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0xffff_ffff), (W, 1)], 1),
    case("setp.lt.u32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0xffff_ffff), (W, 1)], 0),
    case("setp.eq.f32 p, a, a; selp.b32 d, 1, 0, p", W, &[(W, 0x7fc0_0000)], 0),
    case("setp.nan.f32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0), (W, 0x7fc0_0000)], 1),
    case("setp.eq.f32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0), (W, 1 << 31)], 1),
    case("setp.eq.u32 p, a, 1; setp.lt.and.u32 q, b, 9, !p; selp.b32 d, 1, 0, q", W, &[(W, 2), (W, 3)], 1),
    // f32: rounded to nearest even once; NaNs are canonical; subnormals live unless flushed.
    case("add.rn.f32 d, a, b", W, &[(W, 0x7f80_0000), (W, 0xff80_0000)], 0x7fff_ffff),
    case("fma.rn.f32 d, a, b, c", W, &[(W, 0x3f80_0800), (W, 0x3f80_0800), (W, 0xbf80_1000)], 0x3380_0000),
    case("div.rn.f32 d, a, b", W, &[(W, 0x3f80_0000), (W, 0x4040_0000)], 0x3eaa_aaab),
    case("rcp.rn.f32 d, a", W, &[(W, 0x8000_0000)], 0xff80_0000),
    case("sqrt.rn.f32 d, a", W, &[(W, 0x4000_0000)], 0x3fb5_04f3),
    case("sqrt.rn.f32 d, a", W, &[(W, 0xbf80_0000)], 0x7fff_ffff),
    case("min.f32 d, a, b", W, &[(W, 0x7fc0_0000), (W, 0x3f80_0000)], 0x3f80_0000),
    case("max.f32 d, a, b", W, &[(W, 0x3f80_0000), (W, 0x7fc0_0000)], 0x3f80_0000),
    case("max.f32 d, a, b", W, &[(W, 0xffc0_0000), (W, 0x7fc0_0000)], 0x7fff_ffff),
    case("max.NaN.f32 d, a, b", W, &[(W, 0x3f80_0000), (W, 0x7fc0_0000)], 0x7fff_ffff),
    case("min.NaN.f32 d, a, b", W, &[(W, 0x4000_0000), (W, 0x3f80_0000)], 0x3f80_0000),
    case("min.f32 d, a, b", W, &[(W, 0), (W, 1 << 31)], 1 << 31),
    case("min.f32 d, a, b", W, &[(W, 1 << 31), (W, 0)], 1 << 31),
    case("max.f32 d, a, b", W, &[(W, 1 << 31), (W, 0)], 0),
    case("neg.f32 d, a", W, &[(W, 0)], 1 << 31),
    // f64: rounded to nearest even once.
    case("add.rn.f64 d, a, b", D, &[(D, 0x3ff0000000000000), (D, 0x3ca0000000000000)], 0x3ff0000000000000),
    case("mul.rn.f64 d, a, b", D, &[(D, 0x3fb999999999999a), (D, 0x4008000000000000)], 0x3fd3333333333334),
    case("fma.rn.f64 d, a, b, c", D, &[(D, 0x3ff0000000400000), (D, 0x3ff0000000400000), (D, 0xbff0000000800000)], 0x3c30000000000000),
    case("cvt.f64.f32 d, a", D, &[(W, 0x3dcccccd)], 0x3fb99999a0000000),
    case("cvt.f64.f32 d, a", D, &[(W, 1)], 0x36a0000000000000),
    case("cvt.rn.f32.f64 d, a", W, &[(D, 0x3fb999999999999a)], 0x3dcccccd),
    case("cvt.rn.f32.f64 d, a", W, &[(D, 0x3ff0000010000000)], 0x3f800000),
    case("cvt.rn.f32.f64 d, a", W, &[(D, 0x7e37e43c8800759c)], 0x7f80_0000),
    case("cvt.rn.f64.u64 d, a", D, &[(D, u64::MAX)], 0x43f0000000000000),
    case("cvt.rpi.u64.f64 d, a", D, &[(D, 0x4270000000000400)], (1 << 40) + 1),
    case("st.shared.f64 [s+8], a; ld.shared.f64 d, [s+8]", D, &[(D, 0x3ff8000000000000)], 0x3ff8000000000000),
    // Float to integer: rounding as named, clamped, NaN to zero (or the top bit of 64).
    case("cvt.rni.s32.f32 d, a", W, &[(W, 0x4020_0000)], 2),
    case("cvt.rni.s32.f32 d, a", W, &[(W, 0x4060_0000)], 4),
    case("cvt.rzi.s32.f32 d, a", W, &[(W, 0xc039_999a)], -2i32 as u32 as u64),
    case("cvt.rni.s32.f32 d, a", W, &[(W, 0x4f32_d05e)], 0x7fff_ffff),
    case("cvt.rni.s32.f32 d, a", W, &[(W, 0x7fc0_0000)], 0),
    case("cvt.rzi.s64.f32 d, a", D, &[(W, 0x7fc0_0000)], 1 << 63),
    case("cvt.rni.f32.f32 d, a", W, &[(W, 0x4020_0000)], 0x4000_0000),
    // Integer to float and to integer.
    case("cvt.rn.f32.s32 d, a", W, &[(W, 0x0100_0001)], 0x4b80_0000),
    case("cvt.rn.f32.s32 d, a", W, &[(W, 0xffff_ffff)], 0xbf80_0000),
    case("cvt.u64.u32 d, a", D, &[(W, 0xffff_ffff)], 0xffff_ffff),
    case("cvt.u16.u32 d, a", H, &[(W, 0x12_3456)], 0x3456),
    case("cvt.pack.sat.s8.s32.b32 d, a, b, c", W, &[(W, 200), (W, -200i32 as u32 as u64), (W, 0x9999_1234)], 0x1234_7f80),
    // Halves.
    case("cvt.rn.bf16.f32 d, a", H, &[(W, 0x3f80_8000)], 0x3f80),
    case("cvt.rn.bf16.f32 d, a", H, &[(W, 0x3f81_8000)], 0x3f82),
    case("cvt.rn.bf16.f32 d, a", H, &[(W, 0x7f7f_ffff)], 0x7f80),
    case("cvt.rn.bf16.f32 d, a", H, &[(W, 0xff80_0001)], 0x7fff),
    case("cvt.rn.bf16x2.f32 d, a, b", W, &[(W, 0x3f80_0000), (W, 0x4000_0000)], 0x3f80_4000),
    case("fma.rn.bf16x2 d, a, b, c", W, &[(W, 0x4380_4300), (W, 0xbf80_bf80), (W, 0x4301_437f)], 0xc2fe_42fe),
    case("fma.rn.bf16x2 d, a, b, c", W, &[(W, 0x3f81_3f81), (W, 0x3f81_3f80), (W, 0x0080_bf81)], 0x3f82_0000),
    case("cvt.f32.f16 d, a", W, &[(H, 0x3555)], 0x3eaa_a000),
    case("cvt.f32.f16 d, a", W, &[(H, 0x8001)], 0xb380_0000),
    case("cvt.f32.f16 d, a", W, &[(H, 0x7bff)], 0x477f_e000),
    // Memory: sign extension, vectors, parts of words, atomics.
    case("red.global.add.u64 [g], b; ld.global.b64 d, [g]", D, &[(D, 0xffff_ffff), (D, 1)], 1 << 32),
    case("red.global.inc.u32 [g], b; ld.global.b32 d, [g]", W, &[(W, 5), (W, 5)], 0),

    case("atom.global.inc.u32 d, [g], b; ld.global.b32 a, [g]; mad.lo.u32 d, d, 1000, a", W, &[(W, 5), (W, 7)], 5006),
    case("st.shared.b32 [s], a; red.shared.add.u32 [s], b; ld.shared.b32 d, [s]", W, &[(W, 0xffff_ffff), (W, 2)], 1),
    case("st.shared.b32 [s], a; atom.shared.add.u32 c, [s], b; ld.shared.b32 e, [s]; mad.lo.u32 d, c, 1000, e", W, &[(W, 5), (W, 7), (W, 0), (W, 0)], 5012),
    case("st.shared.b64 [s], a; red.shared.add.u64 [s], b; ld.shared.b64 d, [s]", D, &[(D, 0xffff_ffff), (D, 1)], 1 << 32),
    // At least one case for every opcode that computes in a kernel.
    case("add.s32 d, a, b", W, &[(W, 0x7fff_ffff), (W, 1)], 1 << 31),
    case("sub.u32 d, a, b", W, &[(W, 0), (W, 1)], 0xffff_ffff),
    case("sub.u64 d, a, b", D, &[(D, 1 << 40), (D, 1)], (1 << 40) - 1),
    case("mad.lo.u32 d, a, b, c", W, &[(W, 3), (W, 0xffff_fffb), (W, 20)], 5),
    case("mad.lo.u64 d, a, b, c", D, &[(D, 1 << 33), (D, 3 << 31), (D, 5)], 5),
    case("rem.u32 d, a, b", W, &[(W, 0xffff_fff9), (W, 5)], 4),
    case("max.u32 d, a, b", W, &[(W, 0xffff_ffff), (W, 1)], 0xffff_ffff),
    case("and.b64 d, a, b", D, &[(D, 5 << 40), (D, 4 << 40 | 1)], 4 << 40),
    case("or.b32 d, a, b", W, &[(W, 0xff0f), (W, 0x0ff0)], 0xffff),
    case("mov.u64 d, a", D, &[(D, 1 << 40)], 1 << 40),
    case("cvt.u32.u16 d, a", W, &[(H, 0xffff)], 0xffff),
    case("cvt.u32.u64 d, a", W, &[(D, 1 << 40 | 7)], 7),
    case("cvt.rzi.u64.f64 d, a", D, &[(D, 0x4016000000000000)], 5),
    case("cvt.rzi.u64.f64 d, a", D, &[(D, 0xc016000000000000)], 0),
    case("mul.rn.f32 d, a, b", W, &[(W, 0x0080_0000), (W, 0x3f00_0000)], 0x0040_0000),
    case("mul.rn.f32 d, a, b", W, &[(W, 0x7f80_0000), (W, 0)], 0x7fff_ffff),
    case("sub.rn.f32 d, a, b", W, &[(W, 0x3f80_0000), (W, 0x4000_0000)], 0xbf80_0000),
    case("add.rn.f32 d, a, b", W, &[(W, 0x4b80_0000), (W, 0x3f80_0000)], 0x4b80_0000),
    case("add.rn.f32 d, a, b", W, &[(W, 1), (W, 0)], 1),
    case("setp.ne.u32 p, a, 0; selp.b16 d, b, c, p", H, &[(W, 5), (H, 1), (H, 2)], 1),
    case("setp.ne.u32 p, a, 0; selp.f32 d, b, c, p", W, &[(W, 0), (W, 1), (W, 2)], 2),
    case("setp.eq.u32 q, a, 1; setp.eq.or.u32 p, b, 9, q; selp.b32 d, 1, 0, p", W, &[(W, 1), (W, 3)], 1),
    case("setp.eq.u32 q, a, 1; setp.eq.or.f32 p, b, b, q; selp.b32 d, 1, 0, p", W, &[(W, 2), (W, 0x7fc0_0000)], 0),
    case("setp.eq.u32 q, a, 1; setp.ge.and.u32 p, b, 3, q; selp.b32 d, 1, 0, p", W, &[(W, 1), (W, 3)], 1),
    case("setp.eq.u32 q, a, 1; setp.ge.or.u32 p, b, 4, q; selp.b32 d, 1, 0, p", W, &[(W, 2), (W, 3)], 0),
    case("setp.eq.u32 q, a, 1; setp.ge.or.s32 p, b, 0, q; selp.b32 d, 1, 0, p", W, &[(W, 2), (W, 0xffff_ffff)], 0),
    case("setp.eq.u32 q, a, 1; setp.le.or.u32 p, b, 3, q; selp.b32 d, 1, 0, p", W, &[(W, 2), (W, 3)], 1),
    case("setp.eq.u32 q, a, 1; setp.gt.or.u32 p, b, 3, q; selp.b32 d, 1, 0, p", W, &[(W, 1), (W, 3)], 1),
    case("setp.eq.u32 q, a, 1; setp.le.and.u32 p, b, 3, q; selp.b32 d, 1, 0, p", W, &[(W, 1), (W, 3)], 1),
    case("setp.eq.u32 q, a, 1; setp.eq.and.u32 p, b, 3, q; selp.b32 d, 1, 0, p", W, &[(W, 1), (W, 4)], 0),
    case("setp.eq.u32 q, a, 1; setp.gt.and.u32 p, b, 3, q; selp.b32 d, 1, 0, p", W, &[(W, 1), (W, 0xffff_ffff)], 1),
    case("setp.eq.u32 q, c, 1; setp.lt.or.u32 p, a, b, q; selp.b32 d, 1, 0, p", W, &[(W, 1), (W, 1), (W, 0)], 0),
    case("setp.eq.u32 q, c, 1; setp.ne.or.u32 p, a, b, q; selp.b32 d, 1, 0, p", W, &[(W, 1), (W, 1), (W, 1)], 1),
    case("setp.eq.u32 q, c, 1; setp.ne.and.u32 p, a, b, q; selp.b32 d, 1, 0, p", W, &[(W, 1), (W, 2), (W, 1)], 1),
    case("setp.eq.u32 q, c, 1; setp.eq.and.u64 p, a, b, q; selp.b32 d, 1, 0, p", W, &[(D, 1 << 40), (D, 0), (W, 1)], 0),
    case("setp.eq.u32 q, c, 1; setp.ne.and.u64 p, a, b, q; selp.b32 d, 1, 0, p", W, &[(D, 1 << 40), (D, 0), (W, 1)], 1),
    case("setp.eq.u32 q, c, 1; setp.ge.and.u64 p, a, b, q; selp.b32 d, 1, 0, p", W, &[(D, 1 << 63), (D, 1), (W, 1)], 1),
    case("setp.eq.u32 q, c, 1; setp.gt.and.u64 p, a, b, q; selp.b32 d, 1, 0, p", W, &[(D, 1 << 63), (D, 1), (W, 0)], 0),
    case("setp.eq.u32 q, c, 1; setp.lt.and.u64 p, a, b, q; selp.b32 d, 1, 0, p", W, &[(D, 1), (D, 1 << 63), (W, 1)], 1),
    case("setp.eq.u32 q, c, 1; setp.ge.and.f32 p, a, b, q; selp.b32 d, 1, 0, p", W, &[(W, 0x7fc0_0000), (W, 0), (W, 1)], 0),
    case("setp.eq.u32 q, c, 1; setp.eq.and.f32 p, a, b, q; selp.b32 d, 1, 0, p", W, &[(W, 1 << 31), (W, 0), (W, 1)], 1),
    case("setp.eq.u32 q, c, 1; setp.lt.and.f32 p, a, b, q; selp.b32 d, 1, 0, p", W, &[(W, 0x7fc0_0000), (W, 0), (W, 1)], 0),
    case("setp.eq.u32 q, c, 1; setp.gt.or.f32 p, a, b, q; selp.b32 d, 1, 0, p", W, &[(W, 0x7fc0_0000), (W, 0), (W, 0)], 0),
    case("setp.eq.u32 q, c, 1; setp.le.and.f32 p, a, b, q; selp.b32 d, 1, 0, p", W, &[(W, 1 << 31), (W, 0), (W, 1)], 1),
    case("setp.eq.u32 q, c, 1; setp.ge.or.f32 p, a, b, q; selp.b32 d, 1, 0, p", W, &[(W, 0x7fc0_0000), (W, 0), (W, 1)], 1),
    case("setp.eq.u32 q, c, 1; setp.lt.or.f32 p, a, b, q; selp.b32 d, 1, 0, p", W, &[(W, 0), (W, 0x7fc0_0000), (W, 0)], 0),
    case("setp.eq.u32 q, c, 1; setp.nan.or.f32 p, a, b, q; selp.b32 d, 1, 0, p", W, &[(W, 0), (W, 0x7fc0_0000), (W, 0)], 1),
    case("setp.nan.f32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0x7f80_0000), (W, 0x7fc0_0000)], 1),
    case("setp.gt.s32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0xffff_ffff), (W, 1)], 0),
    case("setp.eq.u64 p, a, b; selp.b32 d, 1, 0, p", W, &[(D, 1 << 40), (D, 0)], 0),
    case("setp.ne.u64 p, a, b; selp.b32 d, 1, 0, p", W, &[(D, 1 << 40), (D, 0)], 1),
    case("setp.ge.u64 p, a, b; selp.b32 d, 1, 0, p", W, &[(D, 1 << 63), (D, 1)], 1),
    case("setp.gt.u64 p, a, b; selp.b32 d, 1, 0, p", W, &[(D, 1 << 63), (D, 1 << 63)], 0),
    case("setp.lt.u64 p, a, b; selp.b32 d, 1, 0, p", W, &[(D, 1 << 63), (D, 1)], 0),
    case("setp.ge.s32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0xffff_ffff), (W, 1)], 0),
    case("setp.ge.u32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 1), (W, 1)], 1),
    case("setp.gt.u32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0xffff_ffff), (W, 1)], 1),
    case("setp.le.u32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0xffff_ffff), (W, 1)], 0),
    case("setp.ge.f32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0x7fc0_0000), (W, 0)], 0),
    case("setp.gt.f32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0x3f80_0000), (W, 0x7fc0_0000)], 0),
    case("setp.lt.f32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 1 << 31), (W, 0)], 0),];

/// The header of a module, before its entries.
pub const HEADER: &str = ".version 7.4\n.target sm_80\n.address_size 64\n";

impl Instruction {
    /// Runs the case and compares the result. Its text stays in memory, like those of kernels.
    ///
    /// # Errors
    /// If the driver refuses it or the result differs.
    pub fn check<D: Driver>(&self, driver: &mut D) -> Result<(), String> {
        let &Instruction { text, sources, expected, .. } = self;
        match self.run(driver) {
            Ok(actual) if actual == expected => Ok(()),
            Ok(actual) => Err(format!("{text} on {sources:x?}: {actual:#x}, the manual says {expected:#x}")),
            Err(e) => Err(format!("{text}: {e}")),
        }
    }

    fn run<D: Driver>(&self, driver: &mut D) -> Result<u64, GpuError> {
        let kernel: &'static Kernel = Box::leak(Box::new(self.kernel()));
        let function = driver.load(kernel)?;
        let [g, o] = [driver.alloc(32, "an instruction's sources")?, driver.alloc(8, "its result")?];
        for (at, (_, bits)) in (g..).step_by(8).zip(self.sources) {
            driver.write(at, &bits.to_le_bytes())?;
        }
        let launch =
            Entry::of(kernel).launch(Grid { blocks: [1; 3], shared: 0 }, &[Arg::u64(g), Arg::u64(o)]);
        driver.launch(&launch, &function)?;
        let mut bytes = [0; 8];
        driver.read(o, &mut bytes)?;
        [g, o].into_iter().for_each(|address| driver.free(address));
        Ok(u64::from_le_bytes(bytes))
    }

    fn kernel(&self) -> Kernel {
        let name = "one";
        let text = Box::leak(format!("{HEADER}{}", self.entry(name)).into_boxed_str());
        Kernel { name, text, block: 1, shared: 32, dynamic: 0, registers: 255, conflicts: 100, machine: &[] }
    }

    /// The text of an entry `name(sources, result)` that loads the sources, executes the case and stores the result.
    pub fn entry(&self, name: &str) -> String {
        let mut body = String::new();
        for ((register, at), (bits, _)) in
            ["a", "b", "c", "e"].into_iter().zip((0..).step_by(8)).zip(self.sources)
        {
            body += &format!(".reg .b{bits} {register};\nld.global.b{bits} {register}, [g+{at}];\n");
        }
        format!(
            ".visible .entry {name}(.param .u64 {name}_g, .param .u64 {name}_d)\n{{\n\
             .reg .b64 g, o; .reg .pred p, q; .reg .b{0} d; .shared .align 16 .b32 s[8];\n\
             ld.param.u64 g, [{name}_g]; ld.param.u64 o, [{name}_d];\n{body}{1};\nst.global.b{0} [o], d;\nret;\n}}\n",
            self.width, self.text
        )
    }
}
