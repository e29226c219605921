//! `f32` and `f64` arithmetic. Everything rounds to nearest even and keeps subnormals.

// The C library of Windows' GNU tools rounds these twice.
#[cfg(all(windows, target_env = "gnu"))]
use libm::{fma, fmaf};

use super::convert::to_bf16;
use super::{Shape, lanes};
use crate::inst::AluFn;
use crate::types::Type;

/// The only NaN that instructions produce.
pub(crate) const NAN_BITS: u32 = 0x7fff_ffff;
pub(crate) const NAN_BITS_F64: u64 = 0x7fff_ffff_ffff_ffff;

/// `name.f32`, with its rounding.
pub(crate) fn single(name: &str) -> Option<Shape> {
    let shape = |n: usize, f: AluFn| Some(Shape { f, d: Type::F32, s: vec![Type::F32; n] });
    match name {
        "add.rn" => shape(2, lanes!(|a: f32, b: f32| a + b)),
        "sub.rn" => shape(2, lanes!(|a: f32, b: f32| a - b)),
        "mul.rn" => shape(2, lanes!(|a: f32, b: f32| a * b)),
        "fma.rn" => shape(3, lanes!(|a: f32, b: f32, c: f32| fmaf(a, b, c))),
        "div.rn" => shape(2, lanes!(|a: f32, b: f32| a / b)),
        "rcp.rn" => shape(1, lanes!(|a: f32| 1.0 / a)),
        "sqrt.rn" => shape(1, lanes!(|a: f32| a.sqrt())),
        "min" => shape(2, lanes!(|a: f32, b: f32| least(a, b))),
        "max" => shape(2, lanes!(|a: f32, b: f32| -least(-a, -b))),
        // If either side is NaN, so is the result.
        "min.NaN" => shape(2, lanes!(|a: f32, b: f32| nan_or(a, b, least(a, b)))),
        "max.NaN" => shape(2, lanes!(|a: f32, b: f32| nan_or(a, b, -least(-a, -b)))),
        // Acts on the bits, so it does not make a NaN canonical.
        "neg" => shape(1, lanes!(|a: u32| a ^ 0x8000_0000)),
        _ => None,
    }
}

/// `name.f64`, with its rounding.
pub(crate) fn double(name: &str) -> Option<Shape> {
    let shape = |n: usize, f: AluFn| Some(Shape { f, d: Type::F64, s: vec![Type::F64; n] });
    match name {
        "add.rn" => shape(2, lanes!(|a: f64, b: f64| a + b)),
        "mul.rn" => shape(2, lanes!(|a: f64, b: f64| a * b)),
        "fma.rn" => shape(3, lanes!(|a: f64, b: f64, c: f64| fma(a, b, c))),
        _ => None,
    }
}

/// `name.bf16x2`, with its rounding: both halves by themselves.
pub(crate) fn halves(name: &str) -> Option<Shape> {
    let f = match name {
        "fma.rn" => lanes!(|a: u32, b: u32, c: u32| {
            let high = fused(a & 0xffff_0000, b & 0xffff_0000, c & 0xffff_0000);
            u32::from(high) << 16 | u32::from(fused(a << 16, b << 16, c << 16))
        }),
        _ => return None,
    };
    Some(Shape { f, d: Type::Bf16x2, s: vec![Type::Bf16x2; 3] })
}

/// `a * b + c` of the bits of three floats that are bf16, rounded once: what f64 and f32 cannot hold is kept as an odd last
/// bit, which rounds to bf16 as the exact sum does.
fn fused(a: u32, b: u32, c: u32) -> u16 {
    let [a, b, c] = [a, b, c].map(|bits| f64::from(f32::from_bits(bits)));
    let product = a * b;
    let sum = product + c;
    let of_product = sum - c;
    let lost = (product - of_product) + (c - (sum - of_product));
    let mut bits = sum.to_bits();
    if lost != 0.0 && lost.is_finite() && bits & 1 == 0 {
        bits = if (lost > 0.0) == (sum > 0.0) { bits + 1 } else { bits - 1 };
    }
    let sum = f64::from_bits(bits);
    let mut bits = (sum as f32).to_bits();
    let rounded = f64::from(f32::from_bits(bits));
    if rounded != sum && rounded.is_finite() && bits & 1 == 0 {
        bits = if rounded.abs() < sum.abs() { bits + 1 } else { bits - 1 };
    }
    to_bf16(f32::from_bits(bits))
}

fn nan_or(a: f32, b: f32, otherwise: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::NAN } else { otherwise }
}

/// The smaller number; a number wins over NaN; -0 is below +0.
fn least(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        b
    } else if a < b || b.is_nan() || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    }
}

#[cfg(not(all(windows, target_env = "gnu")))]
fn fma(a: f64, b: f64, c: f64) -> f64 {
    a.mul_add(b, c)
}

#[cfg(not(all(windows, target_env = "gnu")))]
fn fmaf(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}
