//! One request on a model of its own, step by step.

use std::ops::ControlFlow;

use bitnet_model::{Batch, Logits};

use crate::{
    Draw, FinishReason, ForwardError, GenerationConfig, InvalidConfig, Model, SampleError, Sampler, Scan,
    StopMatcher, TokenText,
};

/// What was generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// New tokens only, without the one that ended the text.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: FinishReason,
    /// Text before a stop string that belongs to no returned token.
    pub tail: Vec<u8>,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Why generation failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// A field of the configuration is out of range.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// There is nothing to continue.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The model has no such token.
    #[error("token {token} at position {position} of the prompt is not below the vocabulary of {vocab}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Where it is.
        position: usize,
        /// Tokens the model has.
        vocab: usize,
    },
    /// The prompt leaves no room for a new token.
    #[error("the prompt has {tokens} tokens, and the model holds {context}")]
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// Stop strings cannot be found without the tokens' text.
    #[error("stop strings need a tokenizer")]
    NoText,
    /// The model failed.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// The logits gave no token.
    #[error(transparent)]
    Sample(#[from] SampleError),
}

/// Continues `prompt`. `on_token` sees each token as soon as it is final, and may end the text.
pub fn generate(
    model: &mut dyn Model,
    prompt: &[u32],
    config: &GenerationConfig,
    eos: &[u32],
    text: Option<&dyn TokenText>,
    mut on_token: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Generated, GenerateError> {
    let (limits, vocab) = (model.limits(), model.spec().vocab);
    let context = model.spec().context.min(limits.kv_blocks * Batch::BLOCK_TOKENS);
    config.validate(vocab)?;
    if prompt.is_empty() {
        return Err(GenerateError::EmptyPrompt);
    }
    if let Some(position) = prompt.iter().position(|&t| t as usize >= vocab) {
        return Err(GenerateError::UnknownToken { token: prompt[position], position, vocab });
    }
    if prompt.len() >= context {
        return Err(GenerateError::TooLong { tokens: prompt.len(), context });
    }
    if !config.stop_strings.is_empty() && text.is_none() {
        return Err(GenerateError::NoText);
    }

    let seed = config.seed.unwrap_or_else(crate::random::fresh_seed);
    let eos = if config.ignore_eos { &[] } else { eos };
    let ends: Vec<u32> = eos.iter().chain(&config.stop_tokens).copied().collect();
    let mut matcher = StopMatcher::new(&config.stop_strings);
    let table: Vec<u32> = (0..context.div_ceil(Batch::BLOCK_TOKENS) as u32).collect();
    let (mut batch, mut logits, mut sampler) = (Batch::new(), Logits::default(), Sampler::new(vocab));
    let (mut tokens, mut computed, mut out) = (prompt.to_vec(), 0, Vec::new());
    let mut emitted = Vec::new();

    let finish = loop {
        let generated = tokens.len() - prompt.len();
        if generated == config.max_new_tokens {
            break FinishReason::Length;
        }
        if tokens.len() == context {
            break FinishReason::Context;
        }
        while computed < tokens.len() {
            let end = tokens.len().min(computed + limits.max_tokens);
            let last = end == tokens.len();
            let rows = if last { end - computed - 1..end - computed } else { 0..0 };
            batch.clear();
            batch.push(&tokens[computed..end], computed, &table[..end.div_ceil(Batch::BLOCK_TOKENS)], rows);
            model.forward(&batch, &mut logits)?;
            computed = end;
        }
        let banned = if generated < config.min_new_tokens { &ends[..] } else { &[] };
        let at = Draw { config, tokens: &tokens, prompt_len: prompt.len(), banned, seed, choice: 0 };
        let token = sampler.draw(logits.row(0), &at)?;
        if eos.contains(&token) {
            break FinishReason::Eos;
        }
        if config.stop_tokens.contains(&token) {
            break FinishReason::StopToken(token);
        }
        tokens.push(token);
        let scan = match text {
            Some(text) if generated >= config.min_new_tokens => matcher.push(token, text, &mut out),
            _ => {
                out.push(token);
                Scan::Open
            }
        };
        emitted.extend_from_slice(&out);
        let cancelled = out.drain(..).any(|token| on_token(token).is_break());
        if let Scan::Stop(index) = scan {
            break FinishReason::StopString(index);
        }
        if cancelled {
            break FinishReason::Cancelled;
        }
    };
    let mut tail = Vec::new();
    if let FinishReason::StopString(_) = finish {
        tail.extend_from_slice(matcher.tail());
    } else {
        matcher.flush(&mut out);
        emitted.extend_from_slice(&out);
        let _ = out.drain(..).try_for_each(on_token);
    }
    Ok(Generated { tokens: emitted, finish, tail, seed })
}
