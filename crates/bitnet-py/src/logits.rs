//! Logits and log-probabilities as NumPy arrays.

use bitnet::{
    Error,
    inference::{Completion, GenerationConfig, Output, Request},
};
use pyo3::{
    prelude::*,
    types::{PyByteArray, PyDict},
};

use crate::{
    errors::OrRaise,
    prompts::{ids, one_or_many},
    wait::wait,
};

/// The logits that follow a prompt, with shape `(vocab,)`, or each of several prompts, with shape `(prompts, vocab)`.
pub(crate) fn after<'py>(
    py: Python<'py>,
    model: &bitnet::Model,
    prompt: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let (prompts, one) = one_or_many(py, model, prompt)?;
    let (rows, vocab) = (prompts.len(), model.engine().vocab());
    let done = wait(py, completions(model, prompts, Output::Logits))?.or_raise(py)?;
    let logits = done.into_iter().flat_map(|completion| completion.logits.unwrap_or_default());
    let logits = array(py, logits, (rows, vocab))?;
    if one { logits.get_item(0) } else { Ok(logits) }
}

/// The log-probability of every token of a prompt except the first, with shape `(tokens - 1,)`.
pub(crate) fn within<'py>(
    py: Python<'py>,
    model: &bitnet::Model,
    prompt: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let done = wait(py, completions(model, vec![ids(py, model, prompt)?], Output::Scored))?.or_raise(py)?;
    let scored: Vec<f32> = done.iter().flat_map(|done| &done.scored).map(|token| token.logprob).collect();
    let shape = (scored.len(),);
    array(py, scored, shape)
}

async fn completions(
    model: &bitnet::Model,
    prompts: Vec<Vec<u32>>,
    output: Output,
) -> Result<Vec<Completion>, Error> {
    let config = GenerationConfig { max_new_tokens: 0, ..GenerationConfig::default() };
    let request = |prompt| Request { output, ..Request::new(prompt, config.clone()) };
    let handles = model.engine().submit_all_async(prompts.into_iter().map(request).collect()).await?;
    let mut done = Vec::with_capacity(handles.len());
    for handle in handles {
        done.push(handle.wait_async().await?);
    }
    Ok(done)
}

/// A new NumPy array of float32.
pub(crate) fn array<'py>(
    py: Python<'py>,
    values: impl IntoIterator<Item = f32>,
    shape: impl IntoPyObject<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_ne_bytes).collect();
    let about = PyDict::new(py);
    about.set_item("shape", shape)?;
    about.set_item("dtype", "float32")?;
    about.set_item("buffer", PyByteArray::new(py, &bytes))?;
    py.import("numpy")?.getattr("ndarray")?.call((), Some(&about))
}
