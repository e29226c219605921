//! Prompts as Python gives them, texts or token ids, to the token ids that the engine takes.

use bitnet::{Error, model::Tokenizer};
use pyo3::{exceptions::PyTypeError, prelude::*};

use crate::errors::OrRaise;

/// The tokenizer of a model.
pub(crate) fn tokenizer(model: &bitnet::Model) -> Result<&Tokenizer, Error> {
    model.tokenizer().ok_or_else(|| Error::NoTokenizer { model: model.checkpoint().name.clone() })
}

/// The token ids of a prompt or of several, and whether it is one.
pub(crate) fn one_or_many(
    py: Python<'_>,
    model: &bitnet::Model,
    prompt: &Bound<'_, PyAny>,
) -> PyResult<(Vec<Vec<u32>>, bool)> {
    let one =
        prompt.extract::<&str>().is_ok() || prompt.extract::<Vec<u32>>().is_ok_and(|ids| !ids.is_empty());
    if one {
        return Ok((vec![ids(py, model, prompt)?], true));
    }
    let prompts = prompt.try_iter()?.map(|prompt| ids(py, model, &prompt?));
    Ok((prompts.collect::<PyResult<_>>()?, false))
}

/// The token ids of one prompt.
pub(crate) fn ids(py: Python<'_>, model: &bitnet::Model, prompt: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    if let Ok(text) = prompt.extract::<&str>() {
        let encoded = py.detach(|| -> Result<_, Error> { Ok(tokenizer(model)?.encode(text, true)?) });
        return encoded.or_raise(py);
    }
    let refused = |_| PyTypeError::new_err("prompt: it must be a text or a list of token ids");
    prompt.extract().map_err(refused)
}
