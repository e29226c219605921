//! Mixtures of experts, sliding windows and pooling: what they are ([`Experts`], [`Windows`], [`Pooling`]), and how files
//! describe them.

use std::sync::Arc;

use serde_json::Value;

use crate::{ModelError, spec::fields::Fields};

/// A mixture of experts in place of every feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    /// Number of experts of a layer.
    pub count: usize,
    /// Number of experts that a token passes.
    pub used: usize,
}

/// Layers that slide: their tokens attend to the last keys only.
#[derive(Debug, Clone, PartialEq)]
pub struct Windows {
    /// Number of keys that a token of a sliding layer attends to, its own included.
    pub width: usize,
    /// Whether each layer slides, `[layers]`. The others attend to all keys.
    pub slides: Arc<[bool]>,
    /// Base of the rotary frequencies in the other layers; `None` if their heads are not rotated.
    pub full_theta: Option<f32>,
}

/// How a model that embeds texts makes one vector of the hidden states of a text, before it has length 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooling {
    /// The state of the last token.
    Last,
    /// The mean of the states of all tokens.
    Mean,
}

/// Maximum number of experts; real models have 256.
const MAX_EXPERTS: usize = 1 << 14;

impl Experts {
    /// Checks the numbers; `limit` is the maximum of the rows of all experts, of which each has `rows`.
    pub(crate) fn check(&self, file: &str, rows: usize, limit: usize) -> Result<(), ModelError> {
        let Experts { count, used } = *self;
        let fail = |field: &str, problem: String| Err(ModelError::field(file, field, problem));
        if !(1..=MAX_EXPERTS).contains(&count) || count.saturating_mul(rows) > limit {
            return fail("number of experts", format!("is {count} of {rows} rows, too many or none"));
        }
        if !(1..=count).contains(&used) {
            return fail("number of experts of a token", format!("is {used}, not within 1 to {count}"));
        }
        Ok(())
    }

    /// The experts of a `config.json`, all other fields of which must say what the family computes.
    pub(crate) fn of_config(c: &Fields<'_>) -> Result<Experts, ModelError> {
        for field in ["num_shared_experts", "n_shared_experts", "first_k_dense_replace"] {
            if let Some(other) = c.size(field)?.filter(|&n| n != 0) {
                return Err(c.unsupported(
                    field,
                    other,
                    "use a model without shared experts and dense layers",
                ));
            }
        }
        for (field, only) in [
            ("norm_topk_prob", true),
            ("use_qk_norm", true),
            ("use_rmsnorm", true),
            ("moe_router_enable_expert_bias", false),
            ("preaffine", false),
        ] {
            if c.flag(field)? == Some(!only) {
                return Err(c.unsupported(field, !only, &format!("use a model with {only}")));
            }
        }
        if let Some(factor) = c.float("routed_scaling_factor")?.filter(|&factor| factor != 1.0) {
            return Err(c.unsupported("routed_scaling_factor", factor, "use a model with 1"));
        }
        for field in ["n_group", "topk_group"] {
            if let Some(groups) = c.size(field)?.filter(|&groups| groups > 1) {
                return Err(c.unsupported(field, groups, "use a model whose experts have no groups"));
            }
        }
        Ok(Experts { count: c.need_size("num_experts")?, used: c.need_size("num_experts_per_tok")? })
    }

    /// The experts of a GGUF file, and the limit of their gate.
    pub(crate) fn of_gguf(c: &Fields<'_>, layers: usize) -> Result<(Experts, f32), ModelError> {
        for (field, only) in [
            ("expert_shared_count", &[0][..]),
            ("leading_dense_block_count", &[0]),
            ("expert_group_count", &[0, 1]),
            // A softmax, over all experts.
            ("expert_gating_func", &[0, 1]),
        ] {
            if let Some(other) = c.size(field)?.filter(|n| !only.contains(n)) {
                let cure =
                    "use a model whose experts are chosen by a softmax, without shared ones and groups";
                return Err(c.unsupported(field, other, cure));
            }
        }
        if c.flag("expert_weights_norm")? == Some(false) {
            return Err(c.unsupported("expert_weights_norm", false, "use a model whose weights add up to 1"));
        }
        if let Some(scale) = c.float("expert_weights_scale")?.filter(|scale| ![0.0, 1.0].contains(scale)) {
            return Err(c.unsupported("expert_weights_scale", scale, "use a model with 1"));
        }
        let limits = c.list(CLAMP, "a list of numbers", |v| Some(v.as_f64()? as f32))?;
        let limits = limits.unwrap_or_default();
        if !limits.is_empty() && limits.len() < layers {
            return Err(c.bad(CLAMP, format!("is a list of {}, fewer than {layers} layers", limits.len())));
        }
        let limit = limits.first().copied().unwrap_or(USUAL_LIMIT);
        if let Some(other) = limits.iter().take(layers).find(|&&other| other != limit) {
            let value = format!("a list ({limit}, and {other})");
            return Err(c.unsupported(CLAMP, value, "use a model in which it is the same in every layer"));
        }
        let count = c.need_size("expert_count")?;
        let used = c.need_size("expert_used_count")?;
        Ok((Experts { count, used }, limit))
    }
}

/// The limit of gates in a file that names none.
pub(crate) const USUAL_LIMIT: f32 = 7.0;

/// Lists in the metadata of a GGUF file.
pub(crate) const CLAMP: &str = "swiglu_clamp_exp";
pub(crate) const PATTERN: &str = "attention.sliding_window_pattern";

impl Windows {
    /// Checks the window of a model with `layers` layers.
    pub(crate) fn check(&self, file: &str, layers: usize, limit: usize) -> Result<(), ModelError> {
        let fail = |field: &str, problem: String| Err(ModelError::field(file, field, problem));
        if self.slides.len() != layers {
            let problem = format!("covers {} of {layers} layers", self.slides.len());
            return fail("list of sliding layers", problem);
        }
        if !(1..=limit).contains(&self.width) {
            return fail("sliding window", format!("is {}, not within 1 to {limit}", self.width));
        }
        match self.full_theta {
            Some(theta) if !(theta.is_finite() && theta > 0.0) => {
                fail("rope theta of layers with full attention", format!("is {theta}, not a positive number"))
            }
            _ => Ok(()),
        }
    }

    /// The windows of a `config.json`, if any layer slides: by `layer_types`, or every layer but each
    /// `sliding_window_pattern`-th. `full_theta` is as in [`Windows`].
    pub(crate) fn of_config(
        c: &Fields<'_>,
        layers: usize,
        full_theta: Option<f32>,
    ) -> Result<Option<Windows>, ModelError> {
        const TYPES: &str = "layer_types";
        let slides: Vec<bool> = match c.list(TYPES, "a list of strings", Value::as_str)? {
            Some(kinds) => kinds.into_iter().map(|kind| kind == SLIDING).collect(),
            None => match c.size("sliding_window_pattern")? {
                Some(every) => every_but(every, layers).ok_or_else(|| {
                    c.bad("sliding_window_pattern", "is 0, or the model has too many layers")
                })?,
                None => return Ok(None),
            },
        };
        if !slides.contains(&true) && full_theta.is_some() {
            return Ok(None);
        }
        let width = c.need_size("sliding_window")?;
        Ok(Some(Windows { width, slides: slides.into(), full_theta }))
    }

    /// The windows of a GGUF file, if it names a window. Without a pattern, every `usual`-th layer has full attention.
    pub(crate) fn of_gguf(
        c: &Fields<'_>,
        layers: usize,
        usual: Option<usize>,
        full_theta: Option<f32>,
    ) -> Result<Option<Windows>, ModelError> {
        let Some(width) = c.size("attention.sliding_window")?.filter(|&width| width > 0) else {
            return Ok(None);
        };
        let bad = || c.bad(PATTERN, "is no list of booleans and no number of layers");
        let slides = match (c.get(PATTERN), usual) {
            (Some(Value::Array(list)), _) if list.len() < layers => {
                let problem = format!("is a list of {}, fewer than {layers} layers", list.len());
                return Err(c.bad(PATTERN, problem));
            }
            (Some(Value::Array(list)), _) => {
                // Some tools write 0 and 1.
                let one = |v: &Value| v.as_bool().or_else(|| v.as_u64().map(|n| n != 0));
                list.iter().take(layers).map(one).collect::<Option<Vec<bool>>>().ok_or_else(bad)?
            }
            (Some(_), _) => {
                let every = c.size(PATTERN).map_err(|_| bad())?.unwrap_or(0);
                every_but(every, layers).ok_or_else(bad)?
            }
            (None, Some(every)) => every_but(every, layers).ok_or_else(bad)?,
            (None, None) => return Err(c.missing(PATTERN)),
        };
        Ok(Some(Windows { width, slides: slides.into(), full_theta }))
    }
}

/// The kind of layers that slide, in `layer_types`.
pub(crate) const SLIDING: &str = "sliding_attention";

/// Which of `layers` layers slide, if each `every`-th does not. `None` if the numbers are not those of a model.
fn every_but(every: usize, layers: usize) -> Option<Vec<bool>> {
    super::hybrid::attending(every, layers).map(|full| full.into_iter().map(|full| !full).collect())
}

impl Pooling {
    /// What `1_Pooling/config.json` says.
    pub(crate) fn of_json(c: &Fields<'_>) -> Result<Pooling, ModelError> {
        let mut chosen = Vec::new();
        for (field, pooling) in [
            ("pooling_mode_mean_tokens", Some(Pooling::Mean)),
            ("pooling_mode_lasttoken", Some(Pooling::Last)),
            ("pooling_mode_cls_token", None),
            ("pooling_mode_max_tokens", None),
            ("pooling_mode_mean_sqrt_len_tokens", None),
            ("pooling_mode_weightedmean_tokens", None),
        ] {
            if c.flag(field)? == Some(true) {
                chosen.push((field, pooling));
            }
        }
        match chosen[..] {
            [(_, Some(pooling))] => Ok(pooling),
            [] => Err(c.missing("pooling_mode_mean_tokens")),
            [(field, _), ..] => {
                let cure = "use a model that pools the mean of all tokens, or the last token";
                Err(c.unsupported(field, format!("true ({} modes)", chosen.len()), cure))
            }
        }
    }

    /// What `pooling_type` of a GGUF file says; `None` if it says nothing.
    pub(crate) fn of_gguf(c: &Fields<'_>) -> Result<Option<Pooling>, ModelError> {
        match c.size("pooling_type")? {
            None | Some(0) => Ok(None),
            Some(1) => Ok(Some(Pooling::Mean)),
            Some(3) => Ok(Some(Pooling::Last)),
            Some(other) => {
                let cure =
                    "use a model that pools the mean of all tokens (type 1), or the last token (type 3)";
                Err(c.unsupported("pooling_type", other, cure))
            }
        }
    }

    /// The type of a GGUF file.
    pub(crate) fn gguf_type(self) -> u32 {
        match self {
            Pooling::Mean => 1,
            Pooling::Last => 3,
        }
    }
}
