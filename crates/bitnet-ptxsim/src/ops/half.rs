//! Conversions between `f32` and the 16-bit floats.

/// The NaN that conversions to f16 and bf16 produce.
const NAN: u16 = 0x7fff;

pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let size = match exponent {
        31 if fraction != 0.0 => return f32::NAN,
        31 => f64::INFINITY,
        0 => fraction * (-24f64).exp2(),
        e => (1024.0 + fraction) * f64::from(e - 25).exp2(),
    };
    (if bits >> 15 == 1 { -size } else { size }) as f32
}

/// To nearest even, or towards zero.
pub(crate) fn f32_to_f16(x: f32, to_zero: bool) -> u16 {
    let sign = (x.to_bits() >> 31 << 15) as u16;
    let size = f64::from(x.abs());
    if x.is_nan() {
        return NAN;
    }
    if size >= 65536.0 || (size >= 65520.0 && !to_zero) {
        return sign | if to_zero && x.is_finite() { 0x7bff } else { 0x7c00 };
    }
    // Multiples of 2^(e - 10), the spacing of f16 around `size`; a carry into the exponent comes out right.
    let e = ((size.to_bits() >> 52) as i32 - 1023).max(-14);
    let scaled = size * f64::from(10 - e).exp2();
    let multiple = if to_zero { scaled.trunc() } else { scaled.round_ties_even() } as u16;
    sign | ((((e + 14) as u16) << 10) + multiple)
}

/// To nearest even, or towards zero.
pub(crate) fn f32_to_bf16(x: f32, to_zero: bool) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return NAN;
    }
    // Towards zero a finite value stays finite; to nearest it may carry into infinity, as it should.
    let round = if to_zero { 0 } else { 0x7fff + (bits >> 16 & 1) };
    ((bits + round) >> 16) as u16
}

pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
