use crate::{ModelSpec, RopeScaling};

/// Cosines and sines of all positions up to `context`, `[context][head_dim / 2]` each.
///
/// Frequencies and angles are rounded to f32 as Hugging Face's `LlamaRotaryEmbedding` rounds them, because at
/// long distances that rounding is what a model was trained with; the functions themselves are exact to f32.
pub(crate) fn tables(spec: &ModelSpec, context: usize) -> (Vec<f32>, Vec<f32>) {
    let frequencies = frequencies(spec);
    let angles = (0..context).flat_map(|p| frequencies.iter().map(move |f| f64::from(p as f32 * f)));
    angles.map(|angle| (angle.cos() as f32, angle.sin() as f32)).unzip()
}

/// `theta^(-2i / head_dim)` for `i < head_dim / 2`, stretched as the model asks.
fn frequencies(spec: &ModelSpec) -> Vec<f32> {
    let dim = spec.head_dim as f32;
    (0..spec.head_dim / 2)
        .map(|i| {
            let exponent = (2 * i) as f32 / dim;
            let f = 1.0 / f64::from(spec.rope.theta).powf(f64::from(exponent)) as f32;
            match spec.rope.scaling {
                RopeScaling::None => f,
                RopeScaling::Linear { factor } => f / factor,
                RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
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
                }
            }
        })
        .collect()
}
