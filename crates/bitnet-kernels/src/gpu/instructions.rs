//! One instruction a case: bits in, bits out, as the PTX manual has it. What the simulator gives is held to this
//! table, and so is a GPU: `bitnet doctor` puts it to the one it finds.

use super::{Arg, Driver, Entry, GpuError, Grid, table::Kernel};

/// An instruction, or a few, with its sources and its result.
#[derive(Debug, Clone, Copy)]
pub struct Instruction {
    /// Sources are in registers `a`, `b`, `c`, `e`; the result is taken from `d`. `p` and `q` are predicates, `g` is the
    /// address of the sources, eight bytes each, `s` a shared array.
    pub text: &'static str,
    /// Bits of the result's register.
    width: usize,
    /// Bits of each source's register, and what is in it.
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

/// Results are to be equal bit for bit.
#[rustfmt::skip]
pub static INSTRUCTIONS: &[Instruction] = &[
    // Integer arithmetic wraps; products keep the half they name.
    case("add.u32 d, a, b", W, &[(W, 0xffff_ffff), (W, 2)], 1),
    case("add.s16 d, a, b", H, &[(H, 0x7fff), (H, 1)], 0x8000),
    case("add.u64 d, a, b", D, &[(D, u64::MAX), (D, 1 << 40)], (1 << 40) - 1),
    case("sub.s32 d, a, b", W, &[(W, 0), (W, 1)], 0xffff_ffff),
    case("mul.lo.u32 d, a, b", W, &[(W, 0x1_0001), (W, 0x1_0001)], 0x2_0001),
    case("mul.lo.u64 d, a, b", D, &[(D, 1 << 33), (D, 3 << 31)], 0),
    case("mul.hi.u32 d, a, b", W, &[(W, 0xffff_ffff), (W, 0xffff_ffff)], 0xffff_fffe),
    case("mul.hi.s32 d, a, b", W, &[(W, 0xffff_ffff), (W, 5)], 0xffff_ffff),
    case("mul.hi.u64 d, a, b", D, &[(D, 1 << 63), (D, 4)], 2),
    case("mul.hi.s64 d, a, b", D, &[(D, 1 << 63), (D, 2)], u64::MAX),
    case("mul.wide.u32 d, a, b", D, &[(W, 0xffff_ffff), (W, 2)], 0x1_ffff_fffe),
    case("mul.wide.s32 d, a, b", D, &[(W, 0xffff_ffff), (W, 2)], u64::MAX - 1),
    case("mul.wide.u16 d, a, b", W, &[(H, 0x8000), (H, 2)], 0x1_0000),
    case("mul.wide.s16 d, a, b", W, &[(H, 0x8000), (H, 2)], 0xffff_0000),
    case("mad.lo.s32 d, a, b, c", W, &[(W, 3), (W, 0xffff_fffb), (W, 20)], 5),
    case("mad.hi.u32 d, a, b, c", W, &[(W, 1 << 31), (W, 4), (W, 1)], 3),
    case("mad.wide.u32 d, a, b, c", D, &[(W, 0xffff_ffff), (W, 0xffff_ffff), (D, 1)], 0xffff_fffe_0000_0002),
    case("div.s32 d, a, b", W, &[(W, -7i32 as u32 as u64), (W, 2)], -3i32 as u32 as u64),
    case("rem.s32 d, a, b", W, &[(W, -7i32 as u32 as u64), (W, 2)], -1i32 as u32 as u64),
    case("div.u32 d, a, b", W, &[(W, 0xffff_fff9), (W, 2)], 0x7fff_fffc),
    case("rem.u64 d, a, b", D, &[(D, 1 << 40), (D, 1000)], 776),
    case("min.s32 d, a, b", W, &[(W, 0xffff_ffff), (W, 1)], 0xffff_ffff),
    case("min.u32 d, a, b", W, &[(W, 0xffff_ffff), (W, 1)], 1),
    case("max.s64 d, a, b", D, &[(D, u64::MAX), (D, 1)], 1),
    case("max.u64 d, a, b", D, &[(D, u64::MAX), (D, 1)], u64::MAX),
    case("abs.s32 d, a", W, &[(W, 0xffff_fffb)], 5),
    case("neg.s32 d, a", W, &[(W, 5)], 0xffff_fffb),
    case("sad.u32 d, a, b, c", W, &[(W, 5), (W, 9), (W, 1)], 5),
    case("sad.s32 d, a, b, c", W, &[(W, 0xffff_ffff), (W, 2), (W, 1)], 4),
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
    case("shr.s16 d, a, b", H, &[(H, 0x8000), (W, 15)], 0xffff),
    case("popc.b32 d, a", W, &[(W, 0xf0f1)], 9),
    case("popc.b64 d, a", W, &[(D, u64::MAX)], 64),
    case("clz.b32 d, a", W, &[(W, 0)], 32),
    case("clz.b64 d, a", W, &[(D, 1)], 63),
    case("brev.b32 d, a", W, &[(W, 0xb)], 0xd000_0000),
    case("bfe.u32 d, a, b, c", W, &[(W, 0xabcd_1234), (W, 8), (W, 8)], 0x12),
    case("bfe.s32 d, a, b, c", W, &[(W, 0x80), (W, 4), (W, 4)], 0xffff_fff8),
    case("bfe.s32 d, a, b, c", W, &[(W, 1 << 31), (W, 28), (W, 8)], 0xffff_fff8),
    case("bfe.s32 d, a, b, c", W, &[(W, 1 << 31), (W, 40), (W, 4)], 0xffff_ffff),
    case("bfe.u32 d, a, b, c", W, &[(W, 0xffff_ffff), (W, 4), (W, 0)], 0),
    case("bfe.u64 d, a, b, c", D, &[(D, 0xab << 40), (W, 40), (W, 60)], 0xab),
    case("bfi.b32 d, a, b, c, e", W, &[(W, 0xf5), (W, 0xffff_ffff), (W, 4), (W, 4)], 0xffff_ff5f),
    case("bfi.b32 d, a, b, c, e", W, &[(W, 0xf5), (W, 0x1234), (W, 32), (W, 4)], 0x1234),
    case("bfi.b64 d, a, b, c, e", D, &[(D, 0xf5), (D, 0), (W, 40), (W, 8)], 0xf5 << 40),
    case("prmt.b32 d, a, b, c", W, &[(W, 0x3322_1100), (W, 0x7766_5544), (W, 0x7531)], 0x7755_3311),
    case("prmt.b32 d, a, b, c", W, &[(W, 0x80), (W, 0), (W, 0x8)], 0x8080_80ff),
    case("lop3.b32 d, a, b, c, 0xEA", W, &[(W, 0xff00_ff00), (W, 0x0ff0_0ff0), (W, 0xf)], 0x0f00_0f0f),
    case("lop3.b32 d, a, b, c, 0x96", W, &[(W, 0xff00), (W, 0x0ff0), (W, 0x3c)], 0xf0cc),
    case("lop3.b32 d, a, b, c, 0x02", W, &[(W, 0xff00), (W, 0xf0f0), (W, 0xffff)], 0x000f),
    case("shf.l.wrap.b32 d, a, b, c", W, &[(W, 1 << 31), (W, 1), (W, 33)], 3),
    case("shf.l.clamp.b32 d, a, b, c", W, &[(W, 0x8000_0000), (W, 1), (W, 33)], 0x8000_0000),
    case("shf.r.wrap.b32 d, a, b, c", W, &[(W, 2), (W, 1), (W, 33)], 0x8000_0001),
    case("shf.r.clamp.b32 d, a, b, c", W, &[(W, 2), (W, 1), (W, 33)], 1),
    case("dp4a.u32.s32 d, a, b, c", W, &[(W, 0x0201_02fe), (W, 0xff01_ff01), (W, 10)], 10 + 254 - 2 + 1 - 2),
    case("dp4a.s32.s32 d, a, b, c", W, &[(W, 0x8080_8080), (W, 0x7f7f_7f7f), (W, 0)], 0xffff_0200),
    case("dp4a.u32.u32 d, a, b, c", W, &[(W, 0xffff_ffff), (W, 0xffff_ffff), (W, 1)], 4 * 255 * 255 + 1),
    case("dp4a.s32.u32 d, a, b, c", W, &[(W, 0xffff_ffff), (W, 0xffff_ffff), (W, 0)], -1020i32 as u32 as u64),
    // Moves.
    case("mov.b64 d, {a, b}", D, &[(W, 1), (W, 2)], 2 << 32 | 1),
    case("mov.b64 {_, d}, a", W, &[(D, 7 << 32 | 5)], 7),
    case("mov.b32 d, {a, b}", W, &[(H, 0x1234), (H, 0xabcd)], 0xabcd_1234),
    case("mov.b32 {d, _}, a", H, &[(W, 0xabcd_1234)], 0x1234),
    case("mov.f32 d, 0f3F800000", W, &[], 0x3f80_0000),
    case("mov.u32 d, -1", W, &[], 0xffff_ffff),
    case("mov.u32 d, s; sub.u32 d, d, s", W, &[], 0),
    case("setp.ne.u32 p, a, 0; selp.b32 d, a, b, p", W, &[(W, 5), (W, 9)], 5),
    case("setp.eq.u32 p, a, 0; selp.b64 d, b, c, p", D, &[(W, 5), (D, 8), (D, 1 << 50)], 1 << 50),
    // Comparisons: signedness, and what NaN does.
    case("setp.lt.s32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0xffff_ffff), (W, 1)], 1),
    case("setp.lt.u32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0xffff_ffff), (W, 1)], 0),
    case("setp.hs.u32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 1), (W, 1)], 1),
    case("setp.eq.f32 p, a, a; selp.b32 d, 1, 0, p", W, &[(W, 0x7fc0_0000)], 0),
    case("setp.ne.f32 p, a, a; selp.b32 d, 1, 0, p", W, &[(W, 0x7fc0_0000)], 0),
    case("setp.neu.f32 p, a, a; selp.b32 d, 1, 0, p", W, &[(W, 0x7fc0_0000)], 1),
    case("setp.gtu.f32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0x7fc0_0000), (W, 0)], 1),
    case("setp.geu.f32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0), (W, 0x3f80_0000)], 0),
    case("setp.nan.f32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0), (W, 0x7fc0_0000)], 1),
    case("setp.num.f32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0), (W, 0x7fc0_0000)], 0),
    case("setp.eq.f32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0), (W, 1 << 31)], 1),
    case("setp.eq.ftz.f32 p, a, b; selp.b32 d, 1, 0, p", W, &[(W, 0), (W, 1)], 1),
    case("setp.eq.u32 p, a, 1; setp.lt.and.u32 q, b, 9, !p; selp.b32 d, 1, 0, q", W, &[(W, 2), (W, 3)], 1),
    case("setp.eq.u32 p|q, a, b; selp.b32 d, 1, 0, q", W, &[(W, 2), (W, 3)], 1),
    case("setp.eq.u32 p, a, a; not.pred q, p; xor.pred p, p, q; selp.b32 d, 1, 0, p", W, &[(W, 2)], 1),
    // f32: rounded to nearest even once; NaNs are canonical; subnormals live unless flushed.
    case("add.f32 d, a, b", W, &[(W, 0x4b80_0000), (W, 0x3f80_0000)], 0x4b80_0000),
    case("add.rn.f32 d, a, b", W, &[(W, 0x7f80_0000), (W, 0xff80_0000)], 0x7fff_ffff),
    case("add.f32 d, a, b", W, &[(W, 1), (W, 0)], 1),
    case("add.ftz.f32 d, a, b", W, &[(W, 1), (W, 0)], 0),
    case("add.sat.f32 d, a, b", W, &[(W, 0x3f40_0000), (W, 0x3f40_0000)], 0x3f80_0000),
    case("mul.sat.f32 d, a, b", W, &[(W, 0x7fc0_0000), (W, 0x3f40_0000)], 0),
    case("mul.f32 d, a, b", W, &[(W, 0x0080_0000), (W, 0x3f00_0000)], 0x0040_0000),
    case("mul.ftz.f32 d, a, b", W, &[(W, 0x0080_0000), (W, 0xbf00_0000)], 1 << 31),
    case("mul.ftz.f32 d, a, b", W, &[(W, 1), (W, 0x7180_0000)], 0),
    case("fma.rn.f32 d, a, b, c", W, &[(W, 0x3f80_0800), (W, 0x3f80_0800), (W, 0xbf80_1000)], 0x3380_0000),
    case("sub.f32 d, a, b", W, &[(W, 0x3f80_0000), (W, 0x4000_0000)], 0xbf80_0000),
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
    case("abs.f32 d, a", W, &[(W, 0xbf80_0000)], 0x3f80_0000),
    case("neg.f32 d, a", W, &[(W, 0)], 1 << 31),
    // f64: rounded to nearest even once.
    case("add.rn.f64 d, a, b", D, &[(D, 0x3ff0000000000000), (D, 0x3ca0000000000000)], 0x3ff0000000000000),
    case("add.f64 d, a, b", D, &[(D, 0x3ff0000000000000), (D, 0x3cb0000000000000)], 0x3ff0000000000001),
    case("sub.rn.f64 d, a, b", D, &[(D, 0x3ff0000000000000), (D, 0x4008000000000000)], 0xc000000000000000),
    case("mul.rn.f64 d, a, b", D, &[(D, 0x3fb999999999999a), (D, 0x4008000000000000)], 0x3fd3333333333334),
    case("fma.rn.f64 d, a, b, c", D, &[(D, 0x3ff0000000400000), (D, 0x3ff0000000400000), (D, 0xbff0000000800000)], 0x3c30000000000000),
    case("neg.f64 d, a", D, &[(D, 0)], 1 << 63),
    case("abs.f64 d, a", D, &[(D, 0xc004000000000000)], 0x4004000000000000),
    case("cvt.f64.f32 d, a", D, &[(W, 0x3dcccccd)], 0x3fb99999a0000000),
    case("cvt.f64.f32 d, a", D, &[(W, 1)], 0x36a0000000000000),
    case("cvt.rn.f32.f64 d, a", W, &[(D, 0x3fb999999999999a)], 0x3dcccccd),
    case("cvt.rn.f32.f64 d, a", W, &[(D, 0x3ff0000010000000)], 0x3f800000),
    case("cvt.rn.f32.f64 d, a", W, &[(D, 0x7e37e43c8800759c)], 0x7f80_0000),
    case("cvt.rn.f64.u64 d, a", D, &[(D, u64::MAX)], 0x43f0000000000000),
    case("cvt.rn.f64.s32 d, a", D, &[(W, 0xffff_fffe)], 0xc000000000000000),
    case("cvt.rpi.u64.f64 d, a", D, &[(D, 0x4270000000000400)], (1 << 40) + 1),
    case("cvt.rzi.s32.f64 d, a", W, &[(D, 0xc006000000000000)], 0xffff_fffe),
    case("cvt.rni.u64.f64 d, a", D, &[(D, 0xc008000000000000)], 0),
    case("setp.lt.f64 p, a, b; selp.b32 d, 1, 0, p", W, &[(D, 0xbff0000000000000), (D, 0x3fe0000000000000)], 1),
    case("setp.gtu.f64 p, a, b; selp.b32 d, 1, 0, p", W, &[(D, 0x7ff8_0000_0000_0000), (D, 0)], 1),
    case("setp.eq.f64 p, a, a; selp.b32 d, 1, 0, p", W, &[(D, 0x7ff8_0000_0000_0000)], 0),
    case("setp.eq.f64 p, a, a; selp.f64 d, a, b, p", D, &[(D, 0x3ff0000000000000), (D, 0x4000000000000000)], 0x3ff0000000000000),
    case("st.shared.f64 [s+8], a; ld.shared.f64 d, [s+8]", D, &[(D, 0x3ff8000000000000)], 0x3ff8000000000000),
    case("mov.f64 d, a", D, &[(D, 0x3ff8000000000000)], 0x3ff8000000000000),
    // Float to integer: rounding as named, clamped, NaN to zero (or the top bit of 64).
    case("cvt.rni.s32.f32 d, a", W, &[(W, 0x4020_0000)], 2),
    case("cvt.rni.s32.f32 d, a", W, &[(W, 0x4060_0000)], 4),
    case("cvt.rzi.s32.f32 d, a", W, &[(W, 0xc039_999a)], -2i32 as u32 as u64),
    case("cvt.rmi.s32.f32 d, a", W, &[(W, 0xc006_6666)], -3i32 as u32 as u64),
    case("cvt.rpi.s32.f32 d, a", W, &[(W, 0x4006_6666)], 3),
    case("cvt.rni.s32.f32 d, a", W, &[(W, 0x4f32_d05e)], 0x7fff_ffff),
    case("cvt.rni.s32.f32 d, a", W, &[(W, 0x7fc0_0000)], 0),
    case("cvt.rzi.u32.f32 d, a", W, &[(W, 0xbf80_0000)], 0),
    case("cvt.rzi.s64.f32 d, a", D, &[(W, 0x7fc0_0000)], 1 << 63),
    case("cvt.rni.sat.s8.f32 d, a", W, &[(W, 0x4348_0000)], 127),
    case("cvt.rni.sat.s8.f32 d, a", W, &[(W, 0xc348_0000)], 0xffff_ff80),
    case("cvt.rni.f32.f32 d, a", W, &[(W, 0x4020_0000)], 0x4000_0000),
    case("cvt.sat.f32.f32 d, a", W, &[(W, 0x3fc0_0000)], 0x3f80_0000),
    // Integer to float and to integer.
    case("cvt.rn.f32.s32 d, a", W, &[(W, 0x0100_0001)], 0x4b80_0000),
    case("cvt.rn.f32.s32 d, a", W, &[(W, 0xffff_ffff)], 0xbf80_0000),
    case("cvt.rn.f32.u32 d, a", W, &[(W, 0xffff_ffff)], 0x4f80_0000),
    case("cvt.rn.f32.u64 d, a", W, &[(D, 1 << 63)], 0x5f00_0000),
    case("cvt.u32.u8 d, a", W, &[(W, 0x1ff)], 0xff),
    case("cvt.s32.s8 d, a", W, &[(W, 0x180)], 0xffff_ff80),
    case("cvt.u64.u32 d, a", D, &[(W, 0xffff_ffff)], 0xffff_ffff),
    case("cvt.s64.s32 d, a", D, &[(W, 0xffff_ffff)], u64::MAX),
    case("cvt.u16.u32 d, a", H, &[(W, 0x12_3456)], 0x3456),
    case("cvt.s8.s32 d, a", W, &[(W, 0x1ff)], 0xffff_ffff),
    case("cvt.sat.u8.s32 d, a", W, &[(W, 0xffff_fffb)], 0),
    case("cvt.sat.s8.u32 d, a", W, &[(W, 200)], 127),
    case("cvt.pack.sat.s8.s32.b32 d, a, b, c", W, &[(W, 200), (W, -200i32 as u32 as u64), (W, 0x9999_1234)], 0x1234_7f80),
    case("cvt.pack.sat.u8.s32.b32 d, a, b, c", W, &[(W, 300), (W, 0xffff_fffb), (W, 1)], 0x1_ff00),
    case("cvt.pack.sat.s16.s32 d, a, b", W, &[(W, 40000), (W, -40000i32 as u32 as u64)], 0x7fff_8000),
    case("cvt.pack.sat.u16.s32 d, a, b", W, &[(W, 70000), (W, 0xffff_ffff)], 0xffff_0000),
    // Halves.
    case("cvt.rn.bf16.f32 d, a", H, &[(W, 0x3f80_8000)], 0x3f80),
    case("cvt.rn.bf16.f32 d, a", H, &[(W, 0x3f81_8000)], 0x3f82),
    case("cvt.rz.bf16.f32 d, a", H, &[(W, 0xbf81_ffff)], 0xbf81),
    case("cvt.rn.bf16.f32 d, a", H, &[(W, 0x7f7f_ffff)], 0x7f80),
    case("cvt.rn.bf16.f32 d, a", H, &[(W, 0xff80_0001)], 0x7fff),
    case("cvt.rn.relu.bf16.f32 d, a", H, &[(W, 0xbf80_0000)], 0),
    case("cvt.rn.bf16x2.f32 d, a, b", W, &[(W, 0x3f80_0000), (W, 0x4000_0000)], 0x3f80_4000),
    case("cvt.rn.f16x2.f32 d, a, b", W, &[(W, 0x3f80_0000), (W, 0xc000_0000)], 0x3c00_c000),
    case("cvt.rn.f16.f32 d, a", H, &[(W, 0x477f_f000)], 0x7c00),
    case("cvt.rz.f16.f32 d, a", H, &[(W, 0x477f_f000)], 0x7bff),
    case("cvt.rn.f16.f32 d, a", H, &[(W, 0x3f80_1000)], 0x3c00),
    case("cvt.rn.f16.f32 d, a", H, &[(W, 0x3f80_3000)], 0x3c02),
    case("cvt.rn.f16.f32 d, a", H, &[(W, 0x3380_0000)], 1),
    case("cvt.rn.f16.f32 d, a", H, &[(W, 0xb300_0000)], 0x8000),
    case("cvt.f32.f16 d, a", W, &[(H, 0x0001)], 0x3380_0000),
    case("cvt.f32.f16 d, a", W, &[(H, 0xb555)], 0xbeaa_a000),
    case("cvt.f32.f16 d, a", W, &[(H, 0xfc00)], 0xff80_0000),
    // Memory: sign extension, vectors, parts of words, atomics.
    case("ld.global.s8 d, [g+1]", W, &[(W, 0x8000)], 0xffff_ff80),
    case("ld.global.u8 d, [g+1]", W, &[(W, 0x8000)], 0x80),
    case("ld.global.nc.L1::no_allocate.v2.u32 {_, d}, [g]", W, &[(D, 9 << 32)], 9),
    case("st.shared.v2.b32 [s+8], {a, b}; st.shared.b8 [s+13], a; ld.shared.b64 d, [s+8]", D, &[(W, 0xaabb), (W, 0x1122_3344)], 0x1122_bb44_0000_aabb),
    case("st.shared.b16 [s+2], a; ld.shared.s16 d, [s+2]", W, &[(W, 0xff_8001)], 0xffff_8001),
    case("atom.global.add.u32 d, [g], b; ld.global.u32 a, [g]; mad.lo.u32 d, d, 1000, a", W, &[(W, 5), (W, 7)], 5012),
    case("red.global.add.f32 [g], b; ld.global.b32 d, [g]", W, &[(W, 0x3f80_0000), (W, 0x4000_0000)], 0x4040_0000),
    case("red.global.min.s32 [g], b; ld.global.b32 d, [g]", W, &[(W, 1), (W, 0xffff_ffff)], 0xffff_ffff),
    case("red.global.max.u32 [g], b; ld.global.b32 d, [g]", W, &[(W, 1), (W, 0xffff_ffff)], 0xffff_ffff),
    case("atom.global.max.s64 d, [g], b; ld.global.b64 d, [g]", D, &[(D, 1), (D, u64::MAX)], 1),
    case("atom.global.exch.b64 d, [g], b; ld.global.b64 a, [g]; xor.b64 d, d, a", D, &[(D, 1 << 40), (D, 6)], 1 << 40 | 6),
    case("atom.global.cas.b32 d, [g], b, c; ld.global.b32 d, [g]", W, &[(W, 5), (W, 5), (W, 9)], 9),
    case("atom.global.cas.b32 d, [g], b, c; ld.global.b32 d, [g]", W, &[(W, 5), (W, 6), (W, 9)], 5),
    case("red.global.add.u64 [g], b; ld.global.b64 d, [g]", D, &[(D, 0xffff_ffff), (D, 1)], 1 << 32),
    case("red.global.inc.u32 [g], b; ld.global.b32 d, [g]", W, &[(W, 5), (W, 5)], 0),
    case("red.global.dec.u32 [g], b; ld.global.b32 d, [g]", W, &[(W, 0), (W, 5)], 5),
    case("red.global.and.b32 [g], b; red.global.or.b32 [g], 1; red.global.xor.b32 [g], 3; ld.global.b32 d, [g]", W, &[(W, 0xff), (W, 0xf0)], 0xf2),
    case("st.shared.b32 [s], a; atom.shared.add.s32 d, [s], b; ld.shared.b32 d, [s]", W, &[(W, 5), (W, 0xffff_ffff)], 4),
];

/// What a driver made of an instruction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstructionError {
    /// Another result.
    #[error("{text} on {sources:x?}: {actual:#x}, the manual says {expected:#x}")]
    Differs {
        /// The instruction.
        text: &'static str,
        /// Bits of each source's register, and what was in it.
        sources: &'static [(usize, u64)],
        /// What came out.
        actual: u64,
        /// What was to come out.
        expected: u64,
    },
    /// It did not run.
    #[error("{text}: {source}")]
    Driver {
        /// The instruction.
        text: &'static str,
        /// Why.
        source: GpuError,
    },
}

impl Instruction {
    /// Runs it and compares the result. Its text stays in memory, as kernels' texts do.
    ///
    /// # Errors
    /// If the driver refuses it, or the result is another.
    pub fn check<D: Driver>(&self, driver: &mut D) -> Result<(), InstructionError> {
        let &Instruction { text, sources, expected, .. } = self;
        match self.run(driver) {
            Ok(actual) if actual == expected => Ok(()),
            Ok(actual) => Err(InstructionError::Differs { text, sources, actual, expected }),
            Err(source) => Err(InstructionError::Driver { text, source }),
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
            Entry::of(kernel).launch(Grid { blocks: [1; 3], shared: 0 }, &[Arg::U64(g), Arg::U64(o)]);
        driver.launch(&launch, &function)?;
        let mut bytes = [0; 8];
        driver.read(o, &mut bytes)?;
        [g, o].into_iter().for_each(|address| driver.free(address));
        Ok(u64::from_le_bytes(bytes))
    }

    /// `one(sources, result)`: loads the sources, executes the text, stores the result.
    fn kernel(&self) -> Kernel {
        let mut body = String::new();
        for ((name, at), (bits, _)) in
            ["a", "b", "c", "e"].into_iter().zip((0..).step_by(8)).zip(self.sources)
        {
            body += &format!(".reg .b{bits} {name};\nld.global.b{bits} {name}, [g+{at}];\n");
        }
        let text = format!(
            ".version 7.4\n.target sm_80\n.address_size 64\n\
             .visible .entry one(.param .u64 pg, .param .u64 pd)\n{{\n\
             .reg .b64 g, o; .reg .pred p, q; .reg .b{0} d; .shared .align 16 .b32 s[8];\n\
             ld.param.u64 g, [pg]; ld.param.u64 o, [pd];\n{body}{1};\nst.global.b{0} [o], d;\nret;\n}}\n",
            self.width, self.text
        );
        let (name, text) = ("one", Box::leak(text.into_boxed_str()));
        Kernel { name, text, block: 1, shared: 32, dynamic: 0, registers: 255, conflicts: 100, machine: &[] }
    }
}
