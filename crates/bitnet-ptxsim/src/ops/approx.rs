//! The approximate functions, as one fixed computation in `f64`, independent of the platform's libm.
//!
//! Results here are the exact value rounded to `f32` (the `f64` error is below 2^-48 relative, so at worst one
//! value in 2^20 falls on the other side of a rounding boundary). Hardware may differ from them by what the PTX
//! manual allows, and a comparison with hardware must allow for it:
//!
//! | instruction     | greatest error of hardware                                     |
//! |-----------------|----------------------------------------------------------------|
//! | `ex2.approx`    | 2^-22 relative                                                 |
//! | `lg2.approx`    | 2^-22 absolute for x in (0.5, 2), else 2^-22 relative          |
//! | `rsqrt.approx`  | 2^-22.9 relative                                               |
//! | `rcp.approx`    | 1 ulp                                                          |
//! | `sqrt.approx`   | 2^-23 relative                                                 |
//! | `div.approx`, `div.full` | 2 ulp (`approx`: for divisors in 2^-126 to 2^126)     |

/// 2^x.
pub(crate) fn ex2(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    // Beyond these the result is infinite or zero whatever the fraction.
    let x = f64::from(x.clamp(-160.0, 130.0));
    let whole = x.round_ties_even();
    let t = (x - whole) * std::f64::consts::LN_2;
    // Taylor series of e^t, |t| <= 0.35: the first term left out is below 2^-54.
    let series = (1..=13).rev().fold(1.0, |sum, k| 1.0 + sum * t / f64::from(k));
    (series * power_of_two(whole as i64)) as f32
}

/// log2(x).
pub(crate) fn lg2(x: f32) -> f32 {
    if x.is_nan() || x < 0.0 {
        return f32::NAN;
    }
    if x == 0.0 || x.is_infinite() {
        return if x == 0.0 { f32::NEG_INFINITY } else { x };
    }
    // x = m * 2^e with m in [1, 2), then halved above sqrt(2) to keep the series short.
    let bits = f64::from(x).to_bits();
    let (mut e, mut m) = ((bits >> 52) as i64 - 1023, f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52));
    if m > std::f64::consts::SQRT_2 {
        (e, m) = (e + 1, m / 2.0);
    }
    // ln m = 2 atanh(s), |s| <= 0.172.
    let s = (m - 1.0) / (m + 1.0);
    let series = (0..=11).rev().fold(0.0, |sum, k| sum * s * s + 1.0 / f64::from(2 * k + 1));
    (e as f64 + 2.0 * s * series / std::f64::consts::LN_2) as f32
}

/// 1 / sqrt(x).
pub(crate) fn rsqrt(x: f32) -> f32 {
    (1.0 / f64::from(x).sqrt()) as f32
}

fn power_of_two(e: i64) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}
