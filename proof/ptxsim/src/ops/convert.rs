//! `cvt`: the supported conversions and their results.

use super::{Shape, lanes};
use crate::inst::AluFn;
use crate::types::Type;

/// `cvt{.round}.to.from`. Float to integer clamps to the integer's range; NaN gives 0, or the top bit in 64 bits.
pub(crate) fn conversion(round: &str, to: Type, from: Type) -> Option<Shape> {
    let shape = |n: usize, f: AluFn| Some(Shape { f, d: to, s: vec![from; n] });
    match (round, to, from) {
        ("", Type::F32, Type::F16) => shape(1, lanes!(|a: u16| from_f16(a))),
        ("", Type::F64, Type::F32) => shape(1, lanes!(|a: f32| f64::from(a))),
        ("rn", Type::F32, Type::F64) => shape(1, lanes!(|a: f64| a as f32)),
        ("rn", Type::F32, Type::S32) => shape(1, lanes!(|a: i32| a as f32)),
        ("rn", Type::F64, Type::U64) => shape(1, lanes!(|a: u64| a as f64)),
        ("rn", Type::Bf16, Type::F32) => shape(1, lanes!(|a: f32| to_bf16(a))),
        // The first source is the upper half.
        ("rn", Type::Bf16x2, Type::F32) => {
            shape(2, lanes!(|a: f32, b: f32| u32::from(to_bf16(a)) << 16 | u32::from(to_bf16(b))))
        }
        ("rni", Type::F32, Type::F32) => shape(1, lanes!(|a: f32| a.round_ties_even())),
        ("rni", Type::S32, Type::F32) => shape(1, lanes!(|a: f32| a.round_ties_even() as i32)),
        ("rzi", Type::S32, Type::F32) => shape(1, lanes!(|a: f32| a as i32)),
        ("rzi", Type::S64, Type::F32) => {
            shape(1, lanes!(|a: f32| if a.is_nan() { i64::MIN } else { a as i64 }))
        }
        ("rpi", Type::U64, Type::F64) => {
            shape(1, lanes!(|a: f64| if a.is_nan() { 1 << 63 } else { a.ceil() as u64 }))
        }
        ("rzi", Type::U64, Type::F64) => {
            shape(1, lanes!(|a: f64| if a.is_nan() { 1 << 63 } else { a as u64 }))
        }
        ("", Type::U16, Type::U32) => shape(1, lanes!(|a: u32| a as u16)),
        ("", Type::U32, Type::U16) => shape(1, lanes!(|a: u16| u32::from(a))),
        ("", Type::U32, Type::U64) => shape(1, lanes!(|a: u64| a as u32)),
        ("", Type::U64, Type::U32) => shape(1, lanes!(|a: u32| u64::from(a))),
        _ => None,
    }
}

/// `cvt.pack.sat.s8.s32.b32`: clamps two numbers and packs them below the value of `c`.
pub(crate) fn pack() -> Shape {
    let f = lanes!(|a: i32, b: i32, c: u32| {
        c << 16 | (a.clamp(-128, 127) as u8 as u32) << 8 | b.clamp(-128, 127) as u8 as u32
    });
    Shape { f, d: Type::U32, s: vec![Type::S32, Type::S32, Type::B32] }
}

/// Rounds to nearest even; a large finite value correctly rounds to infinity.
pub(super) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() { 0x7fff } else { ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16 }
}

fn from_f16(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (fraction + 1024.0) * 2f32.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}
