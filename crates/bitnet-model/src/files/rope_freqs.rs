//! Llama 3's rope scaling as llama.cpp stores it: the tensor `rope_freqs.weight`, with a divisor for each frequency.

use crate::spec::{ModelSpec, RopeScaling};

/// Maximum relative difference between stored f32 divisors and those of matching parameters.
const TOLERANCE: f32 = 1e-5;

/// The divisors of a model's frequencies, `[width / 2]`; empty if it has no Llama 3 scaling.
///
/// Source: `generate_extra_tensors` of `LlamaModel` in llama.cpp's `convert_hf_to_gguf.py`.
pub(crate) fn divisors(spec: &ModelSpec) -> Vec<f32> {
    let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } =
        spec.rope.scaling
    else {
        return Vec::new();
    };
    let half = spec.rotary_width() / 2;
    let divisor = |i: usize| {
        let wavelength = std::f64::consts::TAU * f64::from(spec.rope.theta).powf(i as f64 / half as f64);
        let (factor, context) = (f64::from(factor), f64::from(original_context));
        let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
        if wavelength < context / high {
            1.0
        } else if wavelength > context / low {
            factor as f32
        } else {
            let kept = (context / wavelength - low) / (high - low);
            (1.0 / ((1.0 - kept) / factor + kept)) as f32
        }
    };
    (0..half).map(divisor).collect()
}

/// The parameters that give these divisors: Llama 3's frequency factors of 1 and 4, the largest divisor as the
/// factor, and the power of two as original context that reproduces all divisors. `None` if there is none.
pub(crate) fn scaling(divisors: &[f32], spec: &ModelSpec) -> Option<RopeScaling> {
    if divisors.len() != spec.rotary_width() / 2 || !divisors.iter().all(|d| d.is_finite() && *d >= 1.0) {
        return None;
    }
    let factor = divisors.iter().copied().fold(1.0, f32::max);
    let candidates = (4..=24).map(|bits| RopeScaling::Llama3 {
        factor,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: (1u32 << bits) as f32,
    });
    candidates.into_iter().find(|scaling| {
        let mut candidate = spec.clone();
        candidate.rope.scaling = scaling.clone();
        self::divisors(&candidate).iter().zip(divisors).all(|(a, b)| (a - b).abs() <= TOLERANCE * b)
    })
}
