//! The Python package `bitnet`: a thin layer over the crate of the same name.
//!
//! Exceptions, options and what waits in an event loop are in `python/bitnet/__init__.py`. The types of these classes
//! are in `python/bitnet/_bitnet.pyi`, whose documentation the tests compare with this.

mod answer;
mod bridge;
mod embeddings;
mod errors;
mod logits;
mod model;
mod options;
mod process;
mod prompts;
mod stream;
mod wait;

#[pyo3::pymodule]
mod _bitnet {
    #[pymodule_export]
    use crate::{answer::Answer, model::Model, stream::Stream};
}
