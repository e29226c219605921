//! How to generate text: lengths, sampling, penalties and what ends a text.
//! [`GenerationConfig::validate`] checks every field.

use std::fmt;

/// How to generate text for a request. The default is greedy decoding without penalties. Begin with
/// `..GenerationConfig::default()`: fields may be added.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationConfig {
    /// Maximum number of tokens to generate; 0 gives an empty result without a forward pass.
    pub max_new_tokens: usize,
    /// Until this many tokens are generated, no end or stop token is drawn and no stop string is looked for.
    pub min_new_tokens: usize,
    /// Divides the logits; 0 always takes the most likely token.
    pub temperature: f32,
    /// Keeps only this many of the most likely tokens; 0 keeps all, 1 always takes the most likely token.
    pub top_k: usize,
    /// Keeps only the smallest set of most likely tokens whose total probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keeps only tokens with at least this fraction of the most likely token's probability; 0 keeps all.
    pub min_p: f32,
    /// Divides the positive logits of tokens in the prompt or text so far, and multiplies their other logits; 1 is
    /// neutral.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens generated so far.
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens generated so far, once for each occurrence.
    pub frequency_penalty: f32,
    /// Token ids, and what is added to their logits.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers. If unset, one is chosen when the request is submitted, and reported.
    pub seed: Option<u64>,
    /// Tokens that end the text, in addition to the model's own; not part of the result.
    pub stop_tokens: Vec<u32>,
    /// Strings that end the text; not part of the result.
    pub stop_strings: Vec<String>,
    /// Whether to treat the model's own end tokens as ordinary tokens.
    pub ignore_eos: bool,
    /// If set, reports the log-probability of each token and of this many most likely tokens.
    pub logprobs: Option<usize>,
    /// Number of choices to generate from the prompt.
    pub n: usize,
    /// Whether results begin with the prompt.
    pub echo: bool,
}

impl Default for GenerationConfig {
    fn default() -> Self {
        GenerationConfig {
            max_new_tokens: 256,
            min_new_tokens: 0,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            stop_tokens: Vec::new(),
            stop_strings: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            n: 1,
            echo: false,
        }
    }
}

/// A field of a [`GenerationConfig`] is out of range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{field} is {value}: it must be {allowed}")]
pub struct InvalidConfig {
    /// Name of the field.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// The values that are allowed.
    pub allowed: String,
}

impl GenerationConfig {
    /// Maximum number of choices in a request.
    pub const MAX_CHOICES: usize = 128;
    /// Maximum number of most likely tokens reported with each token.
    pub const MAX_LOGPROBS: usize = 20;
    /// Maximum number of stop strings.
    pub const MAX_STOP_STRINGS: usize = 16;

    /// Whether the most likely token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// Whether penalties make the logits depend on earlier tokens.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Whether penalties or biases change the model's logits before a token is drawn.
    pub(crate) fn changes_logits(&self) -> bool {
        self.has_penalties() || !self.logit_bias.is_empty()
    }

    /// Checks every field for a model of `vocab` tokens.
    pub fn validate(&self, vocab: usize) -> Result<(), InvalidConfig> {
        range("temperature", self.temperature, 0.0, 100.0)?;
        range("min_p", self.min_p, 0.0, 1.0)?;
        range("presence_penalty", self.presence_penalty, -100.0, 100.0)?;
        range("frequency_penalty", self.frequency_penalty, -100.0, 100.0)?;
        range("repetition_penalty", self.repetition_penalty, 0.01, 100.0)?;
        require(self.top_p > 0.0 && self.top_p <= 1.0, "top_p", self.top_p, "above 0 and at most 1")?;
        for &(token, bias) in &self.logit_bias {
            in_vocab("logit_bias token", token, vocab)?;
            range("logit_bias value", bias, -100.0, 100.0)?;
        }
        for &token in &self.stop_tokens {
            in_vocab("stop_tokens", token, vocab)?;
        }
        at_most("min_new_tokens", self.min_new_tokens, 0, self.max_new_tokens)?;
        at_most("logprobs", self.logprobs.unwrap_or(0), 0, Self::MAX_LOGPROBS.min(vocab))?;
        at_most("n", self.n, 1, Self::MAX_CHOICES)?;
        at_most("stop_strings", self.stop_strings.len(), 0, Self::MAX_STOP_STRINGS)?;
        for stop in &self.stop_strings {
            let allowed = "strings of 1 to 256 bytes";
            require((1..=256).contains(&stop.len()), "stop_strings", format!("{stop:?}"), allowed)?;
        }
        Ok(())
    }
}

fn require(
    ok: bool,
    field: &'static str,
    value: impl fmt::Display,
    allowed: impl fmt::Display,
) -> Result<(), InvalidConfig> {
    if ok {
        Ok(())
    } else {
        Err(InvalidConfig { field, value: value.to_string(), allowed: allowed.to_string() })
    }
}

fn range(field: &'static str, value: f32, low: f32, high: f32) -> Result<(), InvalidConfig> {
    require(value >= low && value <= high, field, value, format_args!("from {low} to {high}"))
}

fn at_most(field: &'static str, value: usize, low: usize, high: usize) -> Result<(), InvalidConfig> {
    require(value >= low && value <= high, field, value, format_args!("from {low} to {high}"))
}

fn in_vocab(field: &'static str, token: u32, vocab: usize) -> Result<(), InvalidConfig> {
    require((token as usize) < vocab, field, token, format_args!("below the vocabulary size of {vocab}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_out_of_range_is_named_with_its_range() {
        let d = GenerationConfig::default;
        let cases: Vec<(&str, GenerationConfig)> = vec![
            ("temperature", GenerationConfig { temperature: -0.1, ..d() }),
            ("temperature", GenerationConfig { temperature: f32::NAN, ..d() }),
            ("temperature", GenerationConfig { temperature: f32::INFINITY, ..d() }),
            ("top_p", GenerationConfig { top_p: 0.0, ..d() }),
            ("top_p", GenerationConfig { top_p: 1.1, ..d() }),
            ("top_p", GenerationConfig { top_p: f32::NAN, ..d() }),
            ("min_p", GenerationConfig { min_p: 2.0, ..d() }),
            ("repetition_penalty", GenerationConfig { repetition_penalty: 0.0, ..d() }),
            ("presence_penalty", GenerationConfig { presence_penalty: f32::NAN, ..d() }),
            ("frequency_penalty", GenerationConfig { frequency_penalty: 1e9, ..d() }),
            ("logit_bias token", GenerationConfig { logit_bias: vec![(10, 1.0)], ..d() }),
            ("logit_bias value", GenerationConfig { logit_bias: vec![(9, f32::NAN)], ..d() }),
            ("stop_tokens", GenerationConfig { stop_tokens: vec![10], ..d() }),
            ("min_new_tokens", GenerationConfig { min_new_tokens: 257, ..d() }),
            ("logprobs", GenerationConfig { logprobs: Some(11), ..d() }),
            ("n", GenerationConfig { n: 0, ..d() }),
            ("n", GenerationConfig { n: 129, ..d() }),
            ("stop_strings", GenerationConfig { stop_strings: vec![String::new()], ..d() }),
            ("stop_strings", GenerationConfig { stop_strings: vec!["x".into(); 17], ..d() }),
        ];
        for (field, config) in cases {
            let error = config.validate(10).expect_err(field);
            assert_eq!(error.field, field);
            assert!(error.to_string().contains("must be"), "{error}");
        }
        assert_eq!(d().validate(10), Ok(()));
    }
}
