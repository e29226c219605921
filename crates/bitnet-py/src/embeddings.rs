//! Embeddings as NumPy arrays.

use bitnet::{Embedding, Error, Request};
use pyo3::prelude::*;

use crate::{
    errors::{OrRaise, refused},
    logits::array,
    prompts::one_or_many,
    wait::wait,
};

/// The embedding of a text, with shape `(dimensions,)`, or each of several texts, with shape `(texts, dimensions)`.
pub(crate) fn of<'py>(
    py: Python<'py>,
    model: &bitnet::Model,
    texts: &Bound<'py, PyAny>,
    dimensions: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    let width = model.checkpoint().spec.hidden;
    let dimensions = dimensions.unwrap_or(width);
    if !(1..=width).contains(&dimensions) {
        let cure = format!("give a number from 1 to {width}");
        return Err(refused(py, format_args!("dimensions is {dimensions}"), "dimensions", &cure));
    }
    if !model.embeds() {
        return Err(Error::NoEmbeddings { model: model.checkpoint().name.clone() }).or_raise(py);
    }
    let (texts, one) = one_or_many(py, model, texts)?;
    let rows = texts.len();
    let done = wait(py, model.embed_batch_async(texts.into_iter().map(Request::tokens)))?;
    let done: Vec<Embedding> = done.into_iter().collect::<Result<_, _>>().or_raise(py)?;
    let values = done.into_iter().flat_map(|embedding| embedding.truncated(dimensions).values);
    let embeddings = array(py, values, (rows, dimensions))?;
    if one { embeddings.get_item(0) } else { Ok(embeddings) }
}
