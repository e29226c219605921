use std::sync::Arc;

pub use bitnet_kernels::Gate as Activation;

use crate::ModelError;

/// How rotary frequencies are stretched for contexts longer than those trained on.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// Ratio of the new context to the trained one.
        factor: f32,
    },
    /// Llama 3: low frequencies divided by `factor`, high ones kept, a smooth ramp between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f32,
        /// Wavelengths above `original_context / low_freq_factor` are divided.
        low_freq_factor: f32,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context that the model was trained on first.
        original_context: f32,
    },
    /// YaRN: frequencies that turn seldom within the original context divided by `factor`, those that turn often kept, a
    /// ramp between.
    Yarn {
        /// Divisor of the low frequencies.
        factor: f32,
        /// Context that the model was trained on first.
        original_context: f32,
        /// Turns within the original context from which a frequency is kept.
        beta_fast: f32,
        /// Turns within the original context up to which a frequency is divided by `factor`.
        beta_slow: f32,
        /// Multiplies cosines and sines.
        attention_factor: f32,
    },
    /// LongRoPE: a divisor for each frequency.
    LongRope {
        /// Divisors of the frequencies, `[head_dim / 2]`: the short ones, because texts end at the original context.
        factors: Arc<[f32]>,
        /// Multiplies cosines and sines.
        attention_factor: f32,
    },
}

/// Rotary position embedding: dimension `i` of a head turns together with `i + head_dim / 2`.
///
/// Files with interleaved pairs (GGUF architectures `llama` and `minicpm`) have their q and k rows put into this order when
/// read.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Base of the frequencies, `theta^(-2i / head_dim)`.
    pub theta: f32,
    /// Stretching for long contexts.
    pub scaling: RopeScaling,
}

/// Which matrices have a scale for every group of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grouped {
    /// The projections. Activations are then quantised by groups too, not by rows.
    pub projections: bool,
    /// The embedding.
    pub embedding: bool,
    /// The output head, which may be the embedding.
    pub head: bool,
}

/// Constants that a model multiplies activations with (maximal update parametrisation, as in MiniCPM).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Multipliers {
    /// Multiplies the embedding of every token.
    pub embedding: f32,
    /// Multiplies what attention and feed-forward add to the residual stream.
    pub residual: f32,
    /// Divides the logits.
    pub logit_divisor: f32,
}

impl Multipliers {
    /// No multiplication at all.
    pub const NONE: Multipliers = Multipliers { embedding: 1.0, residual: 1.0, logit_divisor: 1.0 };
}

/// Everything about a model but its weights: sizes and switches, read from its metadata and never guessed.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// Architecture as the file names it: `bitnet`, `llama`, `bitnet-b1.58`, ...
    pub architecture: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Number of transformer layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; `heads` is a multiple.
    pub kv_heads: usize,
    /// Width of one head, from the metadata; not always `hidden / heads`.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Longest sequence the model was made for, in tokens.
    pub context: usize,
    /// Added to the mean square in every RMSNorm.
    pub rms_eps: f32,
    /// Rotary position embedding.
    pub rope: Rope,
    /// Gate of the feed-forward layer.
    pub activation: Activation,
    /// Whether attention output and gated activation pass an RMSNorm before they are projected.
    pub sub_norms: bool,
    /// Epsilon of an RMSNorm of its own before every projection (`use_rms_norm`), if the model has them.
    pub linear_norms: Option<f32>,
    /// Whether every query and key head passes an RMSNorm before it is turned.
    pub head_norms: bool,
    /// Which matrices have a scale for every group of weights.
    pub grouped: Grouped,
    /// Constants that activations are multiplied with.
    pub multipliers: Multipliers,
    /// Whether the embedding also is the output head.
    pub tied_head: bool,
    /// Tokens that end a text. They come with the model, so that no program can forget them.
    pub eos: Vec<u32>,
}

impl ModelSpec {
    /// Width of all query heads.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key (or value) heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// No model of this kind is anywhere near; what is larger is a damaged number.
const MAX_WIDTH: usize = 1 << 24;
const MAX_LAYERS: usize = 1 << 16;
const MAX_CONTEXT: usize = 1 << 30;

impl ModelSpec {
    /// Checks that the sizes are possible and agree with one another.
    ///
    /// # Errors
    /// [`ModelError::Field`] with the first field that does not; `file` completes the message.
    pub fn check(&self, file: &str) -> Result<(), ModelError> {
        let sizes = [
            ("hidden size", self.hidden, MAX_WIDTH),
            ("feed-forward size", self.ffn, MAX_WIDTH),
            ("number of layers", self.layers, MAX_LAYERS),
            ("number of heads", self.heads, MAX_WIDTH),
            ("number of key-value heads", self.kv_heads, MAX_WIDTH),
            ("head width", self.head_dim, MAX_WIDTH),
            ("vocabulary size", self.vocab, MAX_WIDTH),
            ("context length", self.context, MAX_CONTEXT),
        ];
        for (field, value, limit) in sizes {
            if value == 0 || value > limit {
                return Err(ModelError::field(file, field, format!("is {value}, not within 1 to {limit}")));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let problem = format!("is {}, which does not divide {} heads", self.kv_heads, self.heads);
            return Err(ModelError::field(file, "number of key-value heads", problem));
        }
        if !self.head_dim.is_multiple_of(2) || self.q_width() > MAX_WIDTH {
            let problem = format!("is {} with {} heads, not even or too large", self.head_dim, self.heads);
            return Err(ModelError::field(file, "head width", problem));
        }
        let mut positive = vec![("RMSNorm epsilon", self.rms_eps), ("rope theta", self.rope.theta)];
        positive.extend(self.linear_norms.map(|eps| ("RMSNorm epsilon of the projections", eps)));
        positive.extend([
            ("embedding multiplier", self.multipliers.embedding),
            ("residual multiplier", self.multipliers.residual),
            ("logit divisor", self.multipliers.logit_divisor),
        ]);
        match self.rope.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => positive.push(("rope factor", factor)),
            RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor } => {
                positive.extend([
                    ("rope factor", factor),
                    ("rope original context", original_context),
                    ("rope beta_fast", beta_fast),
                    ("rope beta_slow", beta_slow),
                    ("rope attention factor", attention_factor),
                    ("rope theta - 1", self.rope.theta - 1.0),
                ]);
            }
            RopeScaling::LongRope { ref factors, attention_factor } => {
                if factors.len() != self.head_dim / 2 {
                    let problem = format!("has {} values for heads of {}", factors.len(), self.head_dim);
                    return Err(ModelError::field(file, "list of rope factors", problem));
                }
                positive.push(("rope attention factor", attention_factor));
                positive.extend(factors.iter().map(|&factor| ("list of rope factors", factor)));
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                positive.extend([
                    ("rope factor", factor),
                    ("rope low_freq_factor", low_freq_factor),
                    ("rope high_freq_factor", high_freq_factor),
                    ("rope high_freq_factor - low_freq_factor", high_freq_factor - low_freq_factor),
                    ("rope original context", original_context),
                ]);
            }
        }
        for (field, value) in positive {
            if !(value.is_finite() && value > 0.0) {
                return Err(ModelError::field(file, field, format!("is {value}, not a positive number")));
            }
        }
        Ok(())
    }
}
