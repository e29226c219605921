//! The result of each request alone, and other ways in which it can end.

use super::*;

/// The end of a text without tokens.
const NOTHING: End = End {
    finish: FinishReason::Length,
    tail: Vec::new(),
    end_token: None,
    thought_tokens: 0,
    cached_tokens: 0,
    predicted: None,
};

impl World {
    /// Compares the events of a sequence, once it has ended.
    pub(super) fn compare(&self, id: SeqId) -> Result<(), String> {
        let (request, seed) = &self.requests[&id.request];
        let Received { tokens, end } = &self.received[&id];
        let end = end.as_ref().expect("it has ended");
        let wrong = |what: &str| Err(format!("{id:?} {what}: {tokens:?} {end:?}"));
        let (alone, alone_end) = self.alone(request, *seed, id.choice);
        match end {
            Ok(end) if end.finish != FinishReason::Cancelled => {
                // What is cached depends on the others.
                if *tokens != alone || (End { cached_tokens: 0, ..end.clone() }) != alone_end {
                    return wrong(&format!("differs from {alone:?} {alone_end:?} alone"));
                }
            }
            Err(RequestError::Sample(SampleError::NotANumber { token: 3 })) if request.prompt[0] == NAN => {}
            Err(RequestError::Panic { .. }) if !request.config.logit_bias.is_empty() => {}
            Err(RequestError::Forward(_) | RequestError::Panic { .. }) if request.prompt[0] == FAILS => {}
            Err(RequestError::Timeout) if request.timeout.is_some() => {}
            Err(RequestError::SlowReader) if self.paused => {}
            Err(RequestError::Stopped) if self.aborted.contains(&id.request) => {}
            Ok(_) if self.cancelled.contains(&id.request) => {}
            _ => return wrong("ended without cause"),
        }
        if alone.starts_with(tokens) { Ok(()) } else { wrong(&format!("is not the beginning of {alone:?}")) }
    }

    /// The result of a request on an idle model without a cache.
    fn alone(&self, request: &Request, seed: u64, choice: u32) -> (Vec<u32>, End) {
        let mut config = request.config.clone();
        config.logit_bias.retain(|(token, _)| (*token as usize) < VOCAB);
        let config = &config;
        let recurrent = self.scheduler.config.state_slots > 0;
        let oracle = if recurrent { Oracle::recurrent() } else { Oracle::default() };
        let mut oracle = oracle.within(self.window);
        let (mut row, mut sampler) = (vec![0.0; VOCAB], Sampler::new(VOCAB));
        let mut matcher = StopMatcher::new(&config.stop_strings);
        let mut out = Vec::new();
        let mut tokens = request.prompt.clone();
        tokens.iter().for_each(|&t| oracle.push(t));
        let mut ends = config.stop_tokens.clone();
        ends.extend((!config.ignore_eos).then_some(EOS));
        let end = |finish, tail: &[u8]| End { finish, tail: tail.to_vec(), ..NOTHING };
        loop {
            let generated = tokens.len() - request.prompt.len();
            if generated == config.max_new_tokens || !request.output.draws() {
                matcher.flush(&mut out);
                return (out, end(FinishReason::Length, b""));
            }
            if tokens.len() == self.context {
                matcher.flush(&mut out);
                return (out, end(FinishReason::Context, b""));
            }
            oracle.logits(&mut row);
            let banned = if generated < config.min_new_tokens { &ends[..] } else { &[] };
            let at = Draw {
                config,
                tokens: &tokens,
                prompt_len: request.prompt.len(),
                banned,
                allowed: None,
                seed,
                choice,
            };
            let token = sampler.draw(&row, &at).expect("plain numbers");
            if ends.contains(&token) {
                matcher.flush(&mut out);
                let eos = token == EOS && !config.ignore_eos;
                let finish = if eos { FinishReason::Eos } else { FinishReason::StopToken(token) };
                return (out, End { end_token: Some((token, None)), ..end(finish, b"") });
            }
            tokens.push(token);
            oracle.push(token);
            if generated < config.min_new_tokens {
                out.push(token);
            } else if let Scan::Stop(index) = matcher.push(token, &Letters, &mut out) {
                return (out, end(FinishReason::StopString(index), matcher.tail()));
            }
        }
    }
}
