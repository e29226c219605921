//! Rotary position embedding: cosines and sines of every position, with the stretchings for long contexts.
//! [`tables`] follows transformers' rounding, because models were trained with it.

use serde_json::Value;

use crate::{
    ModelError,
    spec::{ModelSpec, RopeScaling, fields::Fields},
};

/// Cosines and sines of all positions up to `context`, `[context][width / 2]` each, for the dimensions that rotate.
///
/// Frequencies and angles are rounded to f32 as in Hugging Face's `LlamaRotaryEmbedding`, because at long distances the
/// model was trained with that rounding. Sine and cosine themselves are exact to f32.
pub(crate) fn tables(spec: &ModelSpec, context: usize) -> (Vec<f32>, Vec<f32>) {
    let (frequencies, amplitude) = (frequencies(spec), amplitude(&spec.rope.scaling));
    let angles = (0..context).flat_map(|p| frequencies.iter().map(move |f| f64::from(p as f32 * f)));
    angles.map(|angle| (angle.cos() as f32 * amplitude, angle.sin() as f32 * amplitude)).unzip()
}

/// The factor of cosines and sines.
fn amplitude(scaling: &RopeScaling) -> f32 {
    match *scaling {
        RopeScaling::Yarn { attention_factor, .. } | RopeScaling::LongRope { attention_factor, .. } => {
            attention_factor
        }
        RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } => 1.0,
    }
}

/// The sections of a model that names none: the pairs of `width` rotating dimensions in thirds, and none for a fourth
/// coordinate.
pub(crate) fn usual_sections(width: usize) -> [u32; 4] {
    let pairs = (width / 2).min(MAX_SECTION as usize) as u32;
    let third = |more: u32| (pairs + more) / 3;
    [third(2), third(1), third(0), 0]
}

/// Maximum number of pairs in a section; real models have 11.
const MAX_SECTION: u32 = 1 << 16;

/// How the rotating pairs of a head, of which `width` dimensions rotate, are divided among the coordinates of a
/// position: three or four counts.
pub(crate) fn sections(c: &Fields<'_>, field: &str, width: usize) -> Result<[u32; 4], ModelError> {
    let wrong = || c.bad(field, "is not a list of three or four numbers of rotating pairs");
    let count = |value: &Value| value.as_u64()?.try_into().ok().filter(|&pairs: &u32| pairs <= MAX_SECTION);
    let Some(stored) = c.get(field) else { return Ok(usual_sections(width)) };
    let stored: Option<Vec<u32>> = stored.as_array().and_then(|list| list.iter().map(count).collect());
    match stored.as_deref() {
        Some(&[a, b, c]) => Ok([a, b, c, 0]),
        Some(&[a, b, c, d]) => Ok([a, b, c, d]),
        _ => Err(wrong()),
    }
}

/// YaRN keeps frequencies with at least this many turns, if the model sets no value.
pub(crate) const YARN_BETA_FAST: f32 = 32.0;
/// YaRN divides frequencies with at most this many turns by the whole factor, if the model sets no value.
pub(crate) const YARN_BETA_SLOW: f32 = 1.0;

/// YaRN's attention factor if the model sets none (`get_mscale` in the paper's code).
pub(crate) fn yarn_attention_factor(factor: f32) -> f32 {
    if factor <= 1.0 { 1.0 } else { (0.1 * f64::from(factor).ln() + 1.0) as f32 }
}

/// LongRoPE's attention factor if the model sets none, for a context `factor` times the original one.
pub(crate) fn long_rope_attention_factor(factor: f64, original_context: f64) -> f32 {
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original_context.ln()).sqrt() as f32 }
}

/// `theta^(-2i / width)` for `i < width / 2`, stretched as the model specifies.
fn frequencies(spec: &ModelSpec) -> Vec<f32> {
    let power = |i: usize| {
        let exponent = (2 * i) as f32 / spec.rotary_width() as f32;
        f64::from(spec.rope.theta).powf(f64::from(exponent)) as f32
    };
    let half = 0..spec.rotary_width() / 2;
    match &spec.rope.scaling {
        RopeScaling::None => half.map(|i| 1.0 / power(i)).collect(),
        RopeScaling::Linear { factor } => half.map(|i| 1.0 / power(i) / factor).collect(),
        &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => half
            .map(|i| {
                let f = 1.0 / power(i);
                let wavelength = 2.0 * std::f32::consts::PI / f;
                if wavelength > original_context / low_freq_factor {
                    f / factor
                } else if wavelength < original_context / high_freq_factor {
                    f
                } else {
                    let kept = (original_context / wavelength - low_freq_factor)
                        / (high_freq_factor - low_freq_factor);
                    (1.0 - kept) * f / factor + kept * f
                }
            })
            .collect(),
        &RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, .. } => {
            let ramp = yarn_ramp(spec, original_context, beta_fast, beta_slow);
            half.map(|i| {
                let (power, kept) = (power(i), 1.0 - ramp(i));
                1.0 / (factor * power) * (1.0 - kept) + 1.0 / power * kept
            })
            .collect()
        }
        RopeScaling::LongRope { factors, .. } => half.map(|i| 1.0 / (factors[i] * power(i))).collect(),
    }
}

/// A ramp from 0 at frequencies with at least `fast` turns within the original context to 1 at those with at most
/// `slow`. Source: `_compute_yarn_parameters` in transformers' `modeling_rope_utils.py`.
fn yarn_ramp(spec: &ModelSpec, original_context: f32, fast: f32, slow: f32) -> impl Fn(usize) -> f32 {
    let dim = spec.rotary_width() as f64;
    let dimension = |turns: f32| {
        let context = f64::from(original_context) / (f64::from(turns) * std::f64::consts::TAU);
        dim * context.ln() / (2.0 * f64::from(spec.rope.theta).ln())
    };
    let low = dimension(fast).floor().max(0.0);
    let mut high = dimension(slow).ceil().min(dim - 1.0);
    if low == high {
        high += 0.001;
    }
    move |i| ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::Synthetic;

    fn spec(scaling: RopeScaling) -> ModelSpec {
        let mut spec = Synthetic::named("tiny").expect("a known name").spec().clone();
        (spec.rope.theta, spec.rope.scaling, spec.head_dim) = (1e6, scaling, 64);
        spec
    }

    #[test]
    fn yarn_keeps_fast_frequencies_and_divides_slow_ones() {
        let yarn = RopeScaling::Yarn {
            factor: 4.0,
            original_context: 64.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.25,
        };
        let plain = frequencies(&spec(RopeScaling::None));
        let stretched = frequencies(&spec(yarn.clone()));
        assert_eq!(plain[0], stretched[0]);
        // Dimension 64 ln(64 / tau) / (2 ln 1e6), 5.4 rounded up, turns once in 64 tokens.
        for i in 6..32 {
            assert!((plain[i] / stretched[i] - 4.0).abs() < 1e-5, "{i}");
        }
        assert!((1..6).all(|i| stretched[i] < plain[i] && stretched[i] > plain[i] / 4.0));
        let (cos, sin) = tables(&spec(yarn), 1);
        assert!(cos.iter().all(|&c| c == 1.25) && sin.iter().all(|&s| s == 0.0));
    }

    #[test]
    fn attention_factors_follow_the_ratio_of_contexts() {
        assert_eq!(yarn_attention_factor(4.0), 1.138_629_4);
        assert_eq!(yarn_attention_factor(1.0), 1.0);
        assert_eq!(long_rope_attention_factor(1.0, 4096.0), 1.0);
        assert!((long_rope_attention_factor(32.0, 4096.0) - 1.190_238).abs() < 1e-6);
    }

    #[test]
    fn long_rope_divides_each_frequency_by_its_own_factor() {
        let factors: Vec<f32> = (0..32).map(|i| 1.0 + i as f32).collect();
        let long = RopeScaling::LongRope { factors: factors.clone().into(), attention_factor: 1.0 };
        let plain = frequencies(&spec(RopeScaling::None));
        let long = frequencies(&spec(long));
        for i in 0..32 {
            assert!((plain[i] / long[i] / factors[i] - 1.0).abs() < 1e-6, "{i}");
        }
    }
}
