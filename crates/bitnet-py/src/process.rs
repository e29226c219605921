use std::process;

use pyo3::prelude::*;

use crate::errors::unusable;

/// A value that only the process that made it may use. A fork has a copy, but none of the threads that belong to it, so
/// a fork can neither use the copy nor drop it.
pub(crate) struct Mine<T> {
    process: u32,
    value: Option<T>,
}

impl<T> Mine<T> {
    pub(crate) fn new(value: T) -> Mine<T> {
        Mine { process: process::id(), value: Some(value) }
    }

    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<&T> {
        let value = self.value.as_ref().filter(|_| self.process == process::id());
        value.ok_or_else(|| {
            let cure = "load the model in the process that uses it, or start processes with `spawn`";
            unusable(py, "the model was loaded before this process was forked (fork)", cure)
        })
    }
}

impl<T> Drop for Mine<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        if self.process != process::id() {
            std::mem::forget(value);
        }
    }
}
