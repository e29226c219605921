//! The sizes and switches of a model: everything that the forward pass must know besides the weights.
//! [`ModelSpec::check`] refuses numbers that no model has.

use std::sync::Arc;

use bitnet_kernels::DeltaShape;
pub use bitnet_kernels::Gate as Activation;

use crate::{
    ModelError,
    spec::{Experts, Hybrid, Pooling, Rotation, Windows, hybrid::MAX_LAYERS},
};

/// Everything about a model except its weights: sizes and switches, read from its metadata and never guessed.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// Architecture as named in the file: `bitnet`, `llama`, `bitnet-b1.58`, ...
    pub architecture: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward layer, or of each expert.
    pub ffn: usize,
    /// Number of transformer layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; `heads` is a multiple of this.
    pub kv_heads: usize,
    /// Width of a head, from the metadata; not always `hidden / heads`.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Maximum length of a sequence, in tokens.
    pub context: usize,
    /// Added to the mean square in every RMSNorm.
    pub rms_eps: f32,
    /// Rotary position embedding.
    pub rope: Rope,
    /// Activation function of the feed-forward gate.
    pub activation: Activation,
    /// Whether the attention output and the gated activation pass an RMSNorm before their projection.
    pub sub_norms: bool,
    /// Whether the outputs of attention and feed-forward pass an RMSNorm before they are added to the residual stream.
    pub post_norms: bool,
    /// Epsilon of the RMSNorm before every single projection (`use_rms_norm`), if the model has them.
    pub linear_norms: Option<f32>,
    /// Whether every query and key head passes an RMSNorm before rope.
    pub head_norms: bool,
    /// Whether the output of attention is multiplied by the sigmoid of a projection of its input.
    pub output_gate: bool,
    /// Experts in place of feed-forward layers, if the model has them.
    pub experts: Option<Experts>,
    /// Layers that slide, if the model has any. [`ModelSpec::rope`] is theirs.
    pub windows: Option<Windows>,
    /// Gated-delta layers, if the model has them.
    pub hybrid: Option<Hybrid>,
    /// The basis of the weights, if it is not the plain one.
    pub rotation: Option<Arc<Rotation>>,
    /// Which matrices have a scale for every group of weights.
    pub grouped: Grouped,
    /// Constants that scale activations.
    pub multipliers: Multipliers,
    /// Whether the embedding is also the output head.
    pub tied_head: bool,
    /// Whether the model has a head that drafts tokens (multi-token prediction), which is loaded with it. It changes no
    /// logits.
    pub draft_head: bool,
    /// How the hidden states of a text become its embedding, if the model embeds texts.
    pub embeds: Option<Pooling>,
    /// Tokens that end a text. They are part of the model so that no program can forget them.
    pub eos: Vec<u32>,
}

/// How rotary frequencies are stretched for contexts longer than the one trained on.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// No stretching.
    None,
    /// Every frequency is divided by `factor`.
    Linear {
        /// Ratio of the new context to the trained one.
        factor: f32,
    },
    /// Llama 3: low frequencies are divided by `factor`, high ones kept, with a smooth ramp between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f32,
        /// Wavelengths above `original_context / low_freq_factor` are divided.
        low_freq_factor: f32,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context of the original training, in tokens.
        original_context: f32,
    },
    /// YaRN: frequencies with few turns within the original context are divided by `factor`, those with many are kept,
    /// with a ramp between.
    Yarn {
        /// Divisor of the low frequencies.
        factor: f32,
        /// Context of the original training, in tokens.
        original_context: f32,
        /// A frequency with at least this many turns within the original context is kept.
        beta_fast: f32,
        /// A frequency with at most this many turns within the original context is divided by `factor`.
        beta_slow: f32,
        /// Multiplies cosines and sines.
        attention_factor: f32,
    },
    /// LongRoPE: a divisor for each frequency.
    LongRope {
        /// Divisors of the frequencies, `[width / 2]`: the short ones, because the context is the original one.
        factors: Arc<[f32]>,
        /// Multiplies cosines and sines.
        attention_factor: f32,
    },
}

/// Rotary position embedding: dimensions `i` and `i + width / 2` of a head rotate together.
///
/// Files with interleaved pairs (GGUF architectures `llama` and `minicpm`) have their q and k rows reordered when read.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Base of the frequencies, `theta^(-2i / width)`.
    pub theta: f32,
    /// Stretching for long contexts.
    pub scaling: RopeScaling,
    /// Number of dimensions of a head that rotate, its first ones; all if `None`.
    pub width: Option<usize>,
    /// How many of the rotating pairs turn by each coordinate of a position in a picture or video, if the family has
    /// such positions. All coordinates of a token of text are equal, so these change no result; conversion keeps them.
    pub sections: Option<[u32; 4]>,
}

/// Which matrices have a scale for every group of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grouped {
    /// The projections. Activations are then quantised in groups too, not in rows.
    pub projections: bool,
    /// The embedding.
    pub embedding: bool,
    /// The output head, which may be the embedding itself.
    pub head: bool,
}

/// Constants that scale activations (maximal update parametrisation, as in MiniCPM).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Multipliers {
    /// Multiplies the embedding of every token.
    pub embedding: f32,
    /// Multiplies the outputs of attention and feed-forward before they are added to the residual stream.
    pub residual: f32,
    /// Divides the logits.
    pub logit_divisor: f32,
}

impl Multipliers {
    /// All ones: nothing is scaled.
    pub const NONE: Multipliers = Multipliers { embedding: 1.0, residual: 1.0, logit_divisor: 1.0 };
}

impl ModelSpec {
    /// A model without layers, for one that computes logits by other means, or as a base for other sizes.
    pub fn without_layers(architecture: &str, vocab: usize, context: usize) -> Self {
        ModelSpec {
            architecture: architecture.into(),
            hidden: 0,
            ffn: 0,
            layers: 0,
            heads: 0,
            kv_heads: 0,
            head_dim: 0,
            vocab,
            context,
            rms_eps: 0.0,
            rope: Rope { theta: 1.0, scaling: RopeScaling::None, width: None, sections: None },
            activation: Activation::Silu,
            sub_norms: false,
            post_norms: false,
            linear_norms: None,
            head_norms: false,
            output_gate: false,
            experts: None,
            windows: None,
            hybrid: None,
            rotation: None,
            grouped: Grouped::default(),
            multipliers: Multipliers::NONE,
            tied_head: true,
            draft_head: false,
            embeds: None,
            eos: Vec::new(),
        }
    }

    /// Total width of the query heads.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Total width of the key heads, and of the value heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Number of dimensions of a head that rotary position embedding rotates.
    pub fn rotary_width(&self) -> usize {
        self.rope.width.unwrap_or(self.head_dim)
    }

    /// Whether a layer attends. One that does not has a recurrent state instead of keys and values. The layer of a draft
    /// head, which comes after the last, always attends.
    pub fn attends(&self, layer: usize) -> bool {
        self.hybrid.as_ref().is_none_or(|hybrid| hybrid.attends.get(layer).copied().unwrap_or(true))
    }

    /// Number of keys that a token of a layer attends to, its own included; all if `None`.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.windows.as_ref().filter(|windows| windows.slides[layer]).map(|windows| windows.width)
    }

    /// Number of keys that a token attends to in the layers that slide; `None` if no layer does.
    pub fn sliding_window(&self) -> Option<usize> {
        self.windows.as_ref().filter(|windows| windows.slides.contains(&true)).map(|windows| windows.width)
    }

    /// Number of layers that slide.
    pub fn sliding_layers(&self) -> usize {
        self.windows.as_ref().map_or(0, |windows| windows.slides.iter().filter(|&&slides| slides).count())
    }

    /// Number of layers that attend, and so keep keys and values.
    pub fn attention_layers(&self) -> usize {
        self.hybrid.as_ref().map_or(self.layers, |hybrid| hybrid.attends.iter().filter(|&&a| a).count())
    }

    /// Number of layers that keep keys and values, with that of a draft head.
    pub fn cached_layers(&self) -> usize {
        self.attention_layers() + usize::from(self.draft_head)
    }

    /// Number of layers that have a recurrent state instead of keys and values.
    pub fn recurrent_layers(&self) -> usize {
        self.layers.saturating_sub(self.attention_layers())
    }

    /// Shape of the recurrent layers; `None` in a model without any.
    pub fn delta(&self) -> Option<DeltaShape> {
        self.hybrid.as_ref().filter(|_| self.recurrent_layers() > 0).map(|hybrid| hybrid.delta)
    }

    /// Bytes of recurrent state that a sequence keeps in all layers; 0 in a model without recurrent layers.
    pub fn state_bytes(&self) -> usize {
        self.delta().map_or(0, |delta| self.recurrent_layers() * 4 * delta.state_len())
    }
}

/// Limits far above any real model; a larger number is damaged.
const MAX_WIDTH: usize = 1 << 24;
const MAX_CONTEXT: usize = 1 << 30;

impl ModelSpec {
    /// Checks that the sizes are valid and agree with one another.
    ///
    /// # Errors
    /// [`ModelError::Field`] with the first invalid field; `file` is named in the message.
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
        let rotary = self.rotary_width();
        if !rotary.is_multiple_of(2) || !(2..=self.head_dim).contains(&rotary) {
            let problem = format!("is {rotary}, not an even part of heads of {}", self.head_dim);
            return Err(ModelError::field(file, "rotary width", problem));
        }
        if let Some(hybrid) = &self.hybrid {
            hybrid.check(file, self.layers, MAX_WIDTH)?;
        }
        if let Some(experts) = &self.experts {
            experts.check(file, self.hidden.max(self.ffn), MAX_WIDTH)?;
        }
        if let Some(windows) = &self.windows {
            windows.check(file, self.layers, MAX_CONTEXT)?;
        }
        if let Activation::ClampedSilu { limit } = self.activation
            && !(limit.is_finite() && limit > 0.0)
        {
            return Err(ModelError::field(
                file,
                "limit of gates",
                format!("is {limit}, not a positive number"),
            ));
        }
        let mut positive = vec![("RMSNorm epsilon", self.rms_eps), ("rope theta", self.rope.theta)];
        positive.extend(self.linear_norms.map(|eps| ("RMSNorm epsilon of the projections", eps)));
        positive.extend([
            ("embedding multiplier", self.multipliers.embedding),
            ("residual multiplier", self.multipliers.residual),
            ("logit divisor", self.multipliers.logit_divisor),
        ]);
        positive.extend(self.positive_of_rope(file)?);
        for (field, value) in positive {
            if !(value.is_finite() && value > 0.0) {
                return Err(ModelError::field(file, field, format!("is {value}, not a positive number")));
            }
        }
        Ok(())
    }

    /// The values of rope scaling that must be positive, after a check of the list of its factors.
    fn positive_of_rope(&self, file: &str) -> Result<Vec<(&'static str, f32)>, ModelError> {
        let (rotary, mut positive) = (self.rotary_width(), Vec::new());
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
                if factors.len() != rotary / 2 {
                    let problem = format!("has {} values for heads of {rotary}", factors.len());
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
        Ok(positive)
    }
}
