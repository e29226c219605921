use bitnet_kernels::{Ask, Drawn, Wanted};

use crate::{Output, SampleError, Sequence};

/// Maximum size of a vocabulary that a device can draw from.
const MOST_TOKENS: usize = 1 << 24;

/// How a device draws the token after the first `len` tokens of a sequence. `None` if nothing is drawn, or if the host
/// must see the logits: for penalties, biases, bans, constraints and log-probabilities.
fn of(s: &Sequence, len: usize, vocab: usize) -> Option<Ask> {
    let config = &s.request.config;
    let untouched = !config.changes_logits() && s.request.constraint.is_none();
    // Before that, tokens that would end the text are banned.
    let may_end = len - s.prompt_len() >= config.min_new_tokens;
    let plain = s.request.output == Output::Tokens
        && untouched
        && may_end
        && config.logprobs.is_none()
        && vocab < MOST_TOKENS;
    plain.then(|| Ask {
        temperature: config.temperature,
        top_k: u32::try_from(config.top_k).unwrap_or(0),
        top_p: config.top_p,
        min_p: config.min_p,
        seed: s.seed,
        choice: s.id.choice,
        position: len as u32,
    })
}

/// What is needed of the logits after the first `len` tokens of a sequence.
pub(crate) fn wanted(s: &Sequence, len: usize, vocab: usize, eos: &[u32]) -> Wanted {
    let config = &s.request.config;
    if let Some(ask) = of(s, len, vocab) {
        Wanted::Token(ask)
    } else if s.request.output == Output::Tokens && s.request.constraint.is_none() {
        config.looks_at(eos.len() + config.stop_tokens.len())
    } else {
        Wanted::All
    }
}

/// The token that a device drew.
pub(crate) fn token(drawn: Drawn) -> Result<u32, SampleError> {
    match drawn {
        Drawn::Token(token) => Ok(token),
        Drawn::NotANumber(token) => Err(SampleError::NotANumber { token }),
        Drawn::NothingAllowed => Err(SampleError::NothingAllowed),
    }
}
