use std::fmt;

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended the text: one of its end tokens.
    Eos,
    /// One of the request's stop tokens.
    StopToken(u32),
    /// One of the request's stop strings, by index.
    StopString(usize),
    /// `max_new_tokens` were generated.
    Length,
    /// The sequence reached the model's context length.
    Context,
    /// The caller cancelled it or dropped its handle.
    Cancelled,
    /// It failed; the error says how.
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
