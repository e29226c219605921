/// Log-probabilities (natural logarithm) at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Log-probability of the drawn token.
    pub logprob: f32,
    /// The most likely tokens with their log-probabilities, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// Why no token could be drawn from a row of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "every message names its fields")]
pub enum SampleError {
    /// A logit is NaN.
    #[error("the logit of token {token} is not a number")]
    NotANumber { token: u32 },
    /// Every token has probability zero.
    #[error("every token is forbidden")]
    NothingAllowed,
}

/// Loss of a row of logits for the actual next token: `-ln softmax(row)[token]`.
pub fn loss_in_nats(row: &[f32], token: u32) -> f64 {
    let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = row.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    sum.ln() + max - f64::from(row[token as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_lose_the_logarithm_of_their_number() {
        assert!((loss_in_nats(&[3.0; 8], 5) - 8f64.ln()).abs() < 1e-12);
        assert!((loss_in_nats(&[1e30, 0.0], 0)).abs() < 1e-12);
    }
}
