//! Which logits a row needs: all, the highest few, or only the token that the device draws from them.

use bitnet_kernels::{SamplingParams, Wanted};

use super::sequence::Sequence;
use crate::request::{GenerationConfig, Output, Request};

/// Vocabularies of this size and more are too large for a device to draw from.
pub(crate) const VOCAB_LIMIT: usize = 1 << 24;

/// What is needed of the logits of a choice once its text may end. Penalties, biases, constraints and log-probabilities
/// need all of them, unless [`drawn_after_changes`] asks for the token itself.
pub(crate) fn once_it_may_end(request: &Request, seed: u64, choice: u32) -> Wanted {
    let Request { config, output, constraint, .. } = request;
    match output {
        Output::Hidden | Output::MeanHidden => Wanted::Hidden,
        Output::Tokens if constraint.is_none() && !config.changes_logits() && config.logprobs.is_none() => {
            Wanted::Token(sampling(config, seed, choice))
        }
        _ => Wanted::All,
    }
}

/// What is needed of the logits after the first `len` tokens of a sequence. Until the text may end, the tokens that
/// would end it are banned, and one more of the highest logits is needed for each.
pub(crate) fn needed(s: &Sequence, len: usize, vocab: usize, eos: &[u32]) -> Wanted {
    if s.request.config.logprobs.is_none() && closing(s, len).is_some() {
        return Wanted::Top(1);
    }
    let Wanted::Token(params) = s.wanted else { return s.wanted };
    if len >= s.may_end && vocab < VOCAB_LIMIT {
        return Wanted::Token(SamplingParams { position: len as u32, ..params });
    }
    let config = &s.request.config;
    let banned = eos.len() + config.stop_tokens.len();
    match (config.is_greedy(), config.top_k) {
        (true, _) => Wanted::Top(1 + banned),
        (false, 0) => Wanted::All,
        (false, k) => Wanted::Top(k.saturating_add(banned)),
    }
}

/// The token with which a thought ends after the first `len` tokens of a sequence, whatever the logits are.
pub(crate) fn closing(s: &Sequence, len: usize) -> Option<u32> {
    s.thought.as_ref().filter(|_| len == s.confirmed())?.forced()
}

/// The tokens that must not follow the first `len` tokens of a sequence, because they would end it.
pub(crate) fn bans<'s>(s: &'s Sequence, len: usize, eos: &'s [u32]) -> impl Iterator<Item = u32> + use<'s> {
    let config = &s.request.config;
    let early = len < s.may_end;
    let eos = if config.ignore_eos { &[] } else { eos };
    eos.iter().chain(&config.stop_tokens).copied().filter(move |_| early)
}

/// How to draw the token after the first `len` tokens of a sequence if penalties, biases, bans or a constraint change its
/// logits before, and if the row is needed for nothing else.
pub(crate) fn drawn_after_changes(s: &Sequence, len: usize) -> Option<SamplingParams> {
    let Request { config, output, constraint, .. } = &*s.request;
    if closing(s, len).is_some() {
        return None;
    }
    let bans = len < s.may_end && !config.is_greedy() && config.top_k == 0;
    let changes = config.changes_logits() || bans || constraint.is_some();
    let tokens = matches!(output, Output::Tokens);
    (changes && tokens && config.logprobs.is_none() && !s.scores())
        .then(|| SamplingParams { position: len as u32, ..sampling(config, s.seed, s.id.choice) })
}

fn sampling(config: &GenerationConfig, seed: u64, choice: u32) -> SamplingParams {
    SamplingParams {
        temperature: config.temperature,
        top_k: u32::try_from(config.top_k).unwrap_or(0),
        top_p: config.top_p,
        min_p: config.min_p,
        seed,
        choice,
        position: 0,
    }
}
