use pyo3::prelude::*;

/// A complete answer. `str(answer)` is its text.
#[pyclass(frozen, eq, get_all, module = "bitnet")]
#[derive(Clone, PartialEq)]
pub(crate) struct Answer {
    /// The new text, without the prompt and the thought; empty for a model without a tokenizer.
    text: String,
    /// What the model thought before its answer to a conversation; empty if it did not think.
    thought: String,
    /// The new token ids, those of the thought included, without the one that ended the text.
    tokens: Vec<u32>,
    /// Number of tokens in the prompt.
    prompt_tokens: usize,
    /// Number of tokens of the thought, markers included.
    thought_tokens: usize,
    /// Why the answer ended: `stop`, `length`, `context` or `cancelled`.
    finish_reason: String,
    /// The seed, which gives the same text again.
    seed: u64,
}

#[pymethods]
impl Answer {
    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let Answer { text, tokens, finish_reason, seed, .. } = self;
        let text = text.into_pyobject(py)?.repr()?;
        Ok(format!(
            "Answer(text={text}, tokens={}, finish_reason='{finish_reason}', seed={seed})",
            tokens.len()
        ))
    }
}

impl From<bitnet::Answer> for Answer {
    fn from(answer: bitnet::Answer) -> Answer {
        let finish_reason = answer.finish.to_string();
        let bitnet::Answer { text, thought, tokens, prompt_tokens, thought_tokens, seed, .. } = answer;
        Answer { text, thought, tokens, prompt_tokens, thought_tokens, finish_reason, seed }
    }
}
