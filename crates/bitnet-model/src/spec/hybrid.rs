//! What a hybrid model has besides attention: gated-delta layers ([`Hybrid`]), and weights in a rotated basis
//! ([`Rotation`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bitnet_kernels::DeltaShape;

use crate::{ModelError, spec::fields::Fields};

/// Gated-delta layers, which keep a recurrent state, and where they stand.
#[derive(Debug, Clone, PartialEq)]
pub struct Hybrid {
    /// Whether each layer attends, `[layers]`. The others are gated-delta layers.
    pub attends: Arc<[bool]>,
    /// Sizes of a gated-delta layer.
    pub delta: DeltaShape,
    /// Whether the projections to alpha and beta are float matrices. Otherwise they are ternary.
    pub float_alpha_beta: bool,
}

/// The basis in which weights are stored: the input of a product passes signs and a Walsh-Hadamard transform first, and
/// a row of the embedding passes the transform and the signs.
///
/// The transform is orthonormal and works on blocks: `y[i] = sum_j (-1)^popcount(i & j) x[j] / sqrt(block)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    /// Width of a block, a power of two that divides every rotated width.
    pub block: usize,
    /// The signs, -1 or 1, for every width of an input; none for inputs that have no signs.
    pub signs: BTreeMap<usize, Arc<[i8]>>,
    /// Hugging Face names of the rotated products, among them the output head.
    pub weights: BTreeSet<String>,
    /// Whether the rows of the embedding are rotated.
    pub embedding: bool,
    /// Whether the rotated embedding is also the output head.
    pub tied_output: bool,
    /// Whether the inputs of a rotated output of gated-delta layers are in groups of value heads with the same key
    /// head. Otherwise value head `j` uses key head `j % key_heads`, as everywhere else.
    pub grouped_values: bool,
}

/// Maximum width of a block of the transform; real models have 1024.
const MAX_BLOCK: usize = 1 << 15;
/// Maximum width of a head of a gated-delta layer; real models have 128.
const MAX_HEAD: usize = 1024;
/// Maximum number of taps of a convolution; real models have 4.
const MAX_TAPS: usize = 16;

/// Maximum number of layers of any model; a larger number is damaged.
pub(crate) const MAX_LAYERS: usize = 1 << 16;

/// Which of `layers` layers attend, if every `interval`-th does. `None` if the numbers are not those of a model.
pub(crate) fn attending(interval: usize, layers: usize) -> Option<Vec<bool>> {
    let valid = interval > 0 && layers <= MAX_LAYERS;
    valid.then(|| (1..=layers).map(|number| number.is_multiple_of(interval)).collect())
}

/// Which layers attend, if every `full_attention_interval`-th does.
pub(crate) fn attending_by_interval(c: &Fields<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    const INTERVAL: &str = "full_attention_interval";
    attending(c.size(INTERVAL)?.unwrap_or(4), layers)
        .ok_or_else(|| c.bad(INTERVAL, "is 0, or the model has too many layers"))
}

impl Hybrid {
    /// Checks the sizes of a model with `layers` layers; `limit` is the maximum of any width.
    pub(crate) fn check(&self, file: &str, layers: usize, limit: usize) -> Result<(), ModelError> {
        let DeltaShape { key_heads, value_heads, head_dim, taps } = self.delta;
        let fail = |field: &str, problem: String| Err(ModelError::field(file, field, problem));
        if self.attends.len() != layers {
            let problem = format!("covers {} of {layers} layers", self.attends.len());
            return fail("list of recurrent layers", problem);
        }
        let sizes = [
            ("number of key heads of gated-delta layers", key_heads, 1, limit),
            ("number of value heads of gated-delta layers", value_heads, 1, limit),
            ("head width of gated-delta layers", head_dim, 1, MAX_HEAD),
            ("width of the convolution", taps, 2, MAX_TAPS),
        ];
        for (field, value, least, most) in sizes {
            if !(least..=most).contains(&value) {
                return fail(field, format!("is {value}, not within {least} to {most}"));
            }
        }
        if !value_heads.is_multiple_of(key_heads) {
            let problem = format!("is {value_heads}, not a multiple of {key_heads} key heads");
            return fail("number of value heads of gated-delta layers", problem);
        }
        if value_heads.saturating_mul(head_dim) > limit {
            let problem = format!("is {head_dim}, too large for {value_heads} heads");
            return fail("head width of gated-delta layers", problem);
        }
        Ok(())
    }
}

impl Rotation {
    /// Checks that the transform fits inputs of this width.
    pub(crate) fn check(&self, file: &str, width: usize) -> Result<(), ModelError> {
        let fail = |field: &str, problem: String| Err(ModelError::field(file, field, problem));
        if !self.block.is_power_of_two() || self.block > MAX_BLOCK {
            let problem = format!("is {}, not a power of two up to {MAX_BLOCK}", self.block);
            return fail("prism.hadamard.block_size", problem);
        }
        if !width.is_multiple_of(self.block) {
            let problem = format!("is {}, which does not divide rows of {width} weights", self.block);
            return fail("prism.hadamard.block_size", problem);
        }
        match self.signs.get(&width) {
            None if self.signs.is_empty() => Ok(()),
            Some(signs) if signs.len() == width => Ok(()),
            _ => fail("prism.hadamard.sign_widths", format!("has no signs for rows of {width} weights")),
        }
    }
}
