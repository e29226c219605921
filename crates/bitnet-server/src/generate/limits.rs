//! Bounds of a request: what is too large to run, even on an idle server.

use bitnet::inference::{GenerationConfig, Output, Request};

use super::{parsed::Parsed, round_robin::MAX_WAITING};
use crate::{http::error::ApiError, service::Service};

/// Maximum number of choices for all prompts of a request together.
const MAX_CHOICES: usize = GenerationConfig::MAX_CHOICES;

/// Maximum number of log-probabilities returned for the prompts of a request, including those of other likely tokens.
const MAX_SCORED: usize = 1 << 21;

/// Checks that an answer whose first tokens another server has generated can continue exactly as it would have there.
pub(super) fn check_generated(parsed: &Parsed, seeded: bool) -> Result<(), ApiError> {
    let config = &parsed.config;
    let problem = match parsed.generated {
        0 => return Ok(()),
        _ if parsed.prompts.len() > 1 => "it needs a single prompt",
        _ if config.n > 1 => "it needs a single choice: leave out n and best_of",
        _ if !config.stop_strings.is_empty() => {
            "it cannot be combined with stop: a stop string may begin in these tokens"
        }
        _ if !seeded && config.temperature > 0.0 => "it needs the seed of the answer's beginning",
        _ => return Ok(()),
    };
    Err(ApiError::field("generated_tokens", problem))
}

/// Refuses requests that are too large to run, even on an idle server.
pub(super) fn check_size(
    requests: &[Request],
    n: usize,
    stream: bool,
    service: &Service,
) -> Result<(), ApiError> {
    let (prompts, choices) = (requests.len(), requests.len().saturating_mul(n));
    if choices > MAX_CHOICES {
        let problem = format!("{prompts} prompts with {n} choices each are over {MAX_CHOICES}");
        return Err(ApiError::field("n", problem));
    }
    requests.iter().try_for_each(|r| service.engine.validate(r))?;
    let scored = |r: &Request| r.prompt.len() * (1 + r.config.logprobs.unwrap_or(0)) * r.config.n;
    let total: usize = requests.iter().filter(|r| r.output == Output::Scored).map(scored).sum();
    if total > MAX_SCORED {
        let problem =
            format!("{total} log-probabilities of prompts are over {MAX_SCORED}: send fewer at a time");
        return Err(ApiError::field("echo", problem));
    }
    let room = |r: &Request| (service.engine.context() - r.prompt.len()).min(r.config.max_new_tokens);
    let tokens = n * requests.iter().map(room).sum::<usize>();
    if stream && choices > 1 && tokens > MAX_WAITING {
        let problem = format!("{choices} choices of up to {tokens} tokens together are over {MAX_WAITING}");
        return Err(ApiError::field("max_tokens", problem));
    }
    Ok(())
}
