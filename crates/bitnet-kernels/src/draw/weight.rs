//! The weight of a token in a draw, and its place in the order of tokens.

/// Weight of the most likely token; other weights are relative to it.
pub const ONE: u64 = 1 << 40;

/// `2^40 * exp((logit - max) / temperature)`, where `max` is the highest logit of the row; 0 if that is below 1. The
/// highest logit has [`ONE`], even if it is infinite.
#[inline(always)]
pub fn weight(logit: f32, max: f32, temperature: f32) -> f32 {
    let x = below_max(logit, max) / temperature;
    let weight = if x < -27.8 { 0.0 } else { exp(x) * ONE as f32 };
    if weight < 1.0 { 0.0 } else { weight }
}

/// A weight as an integer, rounded down: sums of these are exact in any order.
#[inline(always)]
pub fn units(weight: f32) -> u64 {
    weight as i64 as u64
}

/// A logit minus the highest; 0 for the highest itself, even if it is infinite.
#[inline(always)]
pub fn below_max(logit: f32, max: f32) -> f32 {
    if logit == max { 0.0 } else { logit - max }
}

/// The least integer weight that `min_p` keeps.
pub fn least_kept(min_p: f32) -> u64 {
    (f64::from(min_p) * ONE as f64) as u64
}

/// How far below the highest logit, in temperatures, tokens are certainly kept with `min_p`, and beyond which they are
/// certainly not, but for roundings: weights below about exp(-27.7) are rounded to 0.
pub fn kept_below(min_p: f32) -> [f64; 2] {
    [27.0, 28.0].map(|most| (-f64::from(min_p).ln()).min(most))
}

/// The sort key of a token: a higher key comes earlier in the order, which is by logit, highest first, and by id, lowest
/// first, for equal logits.
#[inline(always)]
pub fn key(logit: f32, token: usize) -> u64 {
    let bits = (logit + 0.0).to_bits(); // -0 becomes +0
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!(token as u32))
}

/// The token of a key.
#[inline(always)]
pub fn token_of(key: u64) -> u32 {
    !(key as u32)
}

/// `e^x` in f32 for `x <= 0`; 0 below -87. It uses only multiplications and additions in a fixed order, so every
/// machine gets the same bits, which the C library does not promise, and compilers vectorise it on every machine. The
/// error is below 2 ulp.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x < -87.0 { -87.0 } else { x };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.987_569_2e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_6e-1;
    p = p * r + 0.5;
    let e = p * r * r + r + 1.0;
    // The lowest bits of `shifted` are `n`, and become the exponent: integers that every instruction set has as vectors.
    let scale = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x < -87.0 { 0.0 } else { e * scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_ulp_of_the_true_value() {
        for i in 0..=870_000 {
            let x = -(i as f32) * 1e-4;
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            assert!(((got - want) / want).abs() < 2.4e-7, "exp({x}) = {got}, not {want}");
        }
    }

    #[test]
    fn exp_of_zero_is_one_and_of_minus_infinity_is_zero() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn weights_end_at_one_and_the_highest_logit_has_the_most_even_if_infinite() {
        assert_eq!(weight(f32::INFINITY, f32::INFINITY, 0.5), ONE as f32);
        assert_eq!(weight(3.0, f32::INFINITY, 0.5), 0.0);
        assert_eq!(weight(1.0, 28.0, 1.0) as u64, units(weight(1.0, 28.0, 1.0)));
        assert_eq!(weight(0.0, 27.79, 1.0), 0.0);
    }
}
