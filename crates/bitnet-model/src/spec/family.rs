//! What the models of a family have in common, whatever file they come from.
//! A new family is one constant of [`Family`].

use crate::{
    ModelError,
    spec::{Activation, Grouped, ModelSpec, experts::USUAL_LIMIT, fields::Fields},
};

/// What the models of a family compute, whatever file they come from and however large they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Family {
    pub activation: Activation,
    /// Whether the attention output and the gated activation pass an RMSNorm before their projection.
    pub sub_norms: bool,
    /// Whether every query and key head passes an RMSNorm.
    pub head_norms: bool,
    /// Whether every group of weights has its own scale.
    pub grouped: bool,
    /// Whether constants multiply activations.
    pub multipliers: bool,
    /// Whether attention has output gates and rope over a part of a head, and most layers are gated-delta layers.
    pub hybrid: bool,
    /// Whether experts take the place of feed-forward layers, most layers slide, and rope rotates a part of their heads
    /// and none of the others.
    pub experts: bool,
    /// Whether the outputs of attention and feed-forward pass a norm before they are added, and embeddings are multiplied
    /// by the square root of their width.
    pub post_norms: bool,
}

impl Family {
    /// Llama with BitLinear.
    pub(crate) const LLAMA: Family = Family {
        activation: Activation::Silu,
        sub_norms: false,
        head_norms: false,
        grouped: false,
        multipliers: false,
        hybrid: false,
        experts: false,
        post_norms: false,
    };
    /// BitNet b1.58.
    pub(crate) const BITNET: Family =
        Family { activation: Activation::SquaredRelu, sub_norms: true, ..Family::LLAMA };
    /// Ternary Bonsai.
    pub(crate) const QWEN3: Family = Family { head_norms: true, grouped: true, ..Family::LLAMA };
    /// Ternary Bonsai with recurrent layers.
    pub(crate) const QWEN35: Family = Family { hybrid: true, ..Family::QWEN3 };
    /// BitCPM.
    pub(crate) const MINICPM: Family = Family { grouped: true, multipliers: true, ..Family::LLAMA };

    /// Maple.
    pub(crate) const MAPLE: Family =
        Family { activation: Activation::ClampedSilu { limit: USUAL_LIMIT }, experts: true, ..Family::QWEN3 };
    /// Gemma 3 with BitLinear: BitNet embedding models.
    pub(crate) const GEMMA: Family =
        Family { activation: Activation::Gelu, head_norms: true, post_norms: true, ..Family::LLAMA };

    /// A model of the family without any size.
    pub(crate) fn spec(self, architecture: &str) -> ModelSpec {
        ModelSpec {
            activation: self.activation,
            sub_norms: self.sub_norms,
            head_norms: self.head_norms,
            output_gate: self.hybrid,
            post_norms: self.post_norms,
            grouped: Grouped { projections: self.grouped, ..Grouped::default() },
            ..ModelSpec::without_layers(architecture, 0, 0)
        }
    }
}

/// The width of a head, from the first of these fields or, without it, the number of heads, which the second has.
pub(crate) fn head_dim(
    c: &Fields<'_>,
    fields: [&str; 2],
    hidden: usize,
    heads: usize,
) -> Result<usize, ModelError> {
    match c.size(fields[0])? {
        Some(dim) => Ok(dim),
        None if heads > 0 && hidden.is_multiple_of(heads) => Ok(hidden / heads),
        None => Err(c.bad(fields[1], format!("is {heads}, which does not divide {hidden}"))),
    }
}
