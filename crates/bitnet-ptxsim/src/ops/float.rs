//! `f32` and `f64` arithmetic. Everything here rounds to nearest even, subnormals kept; `.ftz` and `.sat` are applied
//! around these functions.

use super::{Shape, approx, lanes};
use crate::inst::{AluFn, Lanes};
use crate::types::Type;

/// The one NaN instructions produce.
pub(crate) const NAN_BITS: u32 = 0x7fff_ffff;
pub(crate) const NAN_BITS_F64: u64 = 0x7fff_ffff_ffff_ffff;

/// How an instruction rounds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accuracy {
    /// Correctly rounded, to nearest even.
    Rn,
    /// `.approx` or `.full`.
    Approx,
}

/// `name{.accuracy}.f32`; `accuracy` is `None` when the text gives none.
pub(crate) fn arithmetic(name: &str, accuracy: Option<Accuracy>) -> Option<Shape> {
    use Accuracy::{Approx, Rn};
    let shape = |n: usize, f: AluFn| Some(Shape { f, d: Type::F32, s: vec![Type::F32; n] });
    match (name, accuracy) {
        ("add", None | Some(Rn)) => shape(2, lanes!(|a: f32, b: f32| a + b)),
        ("sub", None | Some(Rn)) => shape(2, lanes!(|a: f32, b: f32| a - b)),
        ("mul", None | Some(Rn)) => shape(2, lanes!(|a: f32, b: f32| a * b)),
        ("fma" | "mad", Some(Rn)) => shape(3, lanes!(|a: f32, b: f32, c: f32| a.mul_add(b, c))),
        ("div", Some(Rn | Approx)) => shape(2, lanes!(|a: f32, b: f32| a / b)),
        ("rcp", Some(Rn | Approx)) => shape(1, lanes!(|a: f32| 1.0 / a)),
        ("sqrt", Some(Rn | Approx)) => shape(1, lanes!(|a: f32| a.sqrt())),
        ("rsqrt", Some(Approx)) => shape(1, lanes!(|a: f32| approx::rsqrt(a))),
        ("ex2", Some(Approx)) => shape(1, lanes!(|a: f32| approx::ex2(a))),
        ("lg2", Some(Approx)) => shape(1, lanes!(|a: f32| approx::lg2(a))),
        ("min", None) => shape(2, lanes!(|a: f32, b: f32| least(a, b))),
        ("max", None) => shape(2, lanes!(|a: f32, b: f32| -least(-a, -b))),
        // Sign operations act on the bits: they make no NaN canonical.
        ("abs", None) => shape(1, lanes!(|a: u32| a & 0x7fff_ffff)),
        ("neg", None) => shape(1, lanes!(|a: u32| a ^ 0x8000_0000)),
        _ => None,
    }
}

/// `name{.rn}.f64`, of which there is nothing approximate here.
pub(crate) fn double(name: &str, accuracy: Option<Accuracy>) -> Option<Shape> {
    use Accuracy::Rn;
    let shape = |n: usize, f: AluFn| Some(Shape { f, d: Type::F64, s: vec![Type::F64; n] });
    match (name, accuracy) {
        ("add", None | Some(Rn)) => shape(2, lanes!(|a: f64, b: f64| a + b)),
        ("sub", None | Some(Rn)) => shape(2, lanes!(|a: f64, b: f64| a - b)),
        ("mul", None | Some(Rn)) => shape(2, lanes!(|a: f64, b: f64| a * b)),
        ("fma" | "mad", Some(Rn)) => shape(3, lanes!(|a: f64, b: f64, c: f64| a.mul_add(b, c))),
        ("abs", None) => shape(1, lanes!(|a: u64| a & (u64::MAX >> 1))),
        ("neg", None) => shape(1, lanes!(|a: u64| a ^ (1 << 63))),
        _ => None,
    }
}

/// `min.NaN.f32` or `max.NaN.f32`: a NaN on either side is the result.
pub(crate) fn nan_min_max(max: bool) -> Shape {
    let f = if max {
        lanes!(|a: f32, b: f32| if a.is_nan() || b.is_nan() { f32::NAN } else { -least(-a, -b) })
    } else {
        lanes!(|a: f32, b: f32| if a.is_nan() || b.is_nan() { f32::NAN } else { least(a, b) })
    };
    Shape { f, d: Type::F32, s: vec![Type::F32; 2] }
}

/// The smaller number; a NaN gives way to a number; -0 is below +0.
fn least(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        b
    } else if a < b || b.is_nan() || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    }
}

/// Subnormals become zero of their sign.
pub(crate) fn flush(lanes: &Lanes) -> Lanes {
    lanes.map(|raw| if raw as u32 & 0x7f80_0000 == 0 { raw & 0x8000_0000 } else { raw })
}

/// Clamped to [0, 1]; NaN becomes +0.
pub(crate) fn saturate(lanes: &Lanes) -> Lanes {
    lanes.map(|raw| {
        let x = f32::from_bits(raw as u32);
        u64::from(if x > 0.0 { x.min(1.0).to_bits() } else { 0 })
    })
}
