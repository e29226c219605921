use std::fmt;

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model drew one of its end tokens.
    Eos,
    /// The model drew one of the request's stop tokens.
    StopToken(u32),
    /// The text reached one of the request's stop strings, given by index.
    StopString(usize),
    /// `max_new_tokens` were generated.
    Length,
    /// The sequence reached the maximum length of the model's context.
    Context,
    /// The caller cancelled the request or dropped its handle.
    Cancelled,
    /// The generation failed; the error says why.
    Error,
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FinishReason::Eos | FinishReason::StopToken(_) | FinishReason::StopString(_) => "stop",
            FinishReason::Length => "length",
            FinishReason::Context => "context",
            FinishReason::Cancelled => "cancelled",
            FinishReason::Error => "error",
        })
    }
}
