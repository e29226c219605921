//! Errors as Python exceptions of the classes in `python/bitnet/__init__.py`.

use std::{fmt, io};

use bitnet::{
    Error,
    hub::HubError,
    inference::{GenerationError, RequestError, SubmitError},
    kernels::{KernelError, gpu::GpuError},
    model::ModelError,
};
use pyo3::{
    exceptions::{PyOverflowError, PyTypeError},
    prelude::*,
};

/// Turns an error into its exception.
pub(crate) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Into<Error>> OrRaise<T> for Result<T, E> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raised(py, &error.into()))
    }
}

/// The exception for an error.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    exception(py, class(error), &error.to_string(), &error.cure())
}

/// The exception for an argument whose value is not allowed.
pub(crate) fn refused(py: Python<'_>, what: impl fmt::Display, argument: &str, cure: &str) -> PyErr {
    exception(py, "InvalidRequest", &format!("{what} ({argument}): {cure}"), cure)
}

/// The exception for a model or stream that cannot be used any more.
pub(crate) fn unusable(py: Python<'_>, what: &str, cure: &str) -> PyErr {
    exception(py, "BitnetError", &format!("{what}: {cure}"), cure)
}

/// Adds the name of an argument to the error of converting its value.
pub(crate) fn named(py: Python<'_>, argument: &str, value: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    if error.is_instance_of::<PyTypeError>(py) {
        return PyTypeError::new_err(format!("{argument}: {}", error.value(py)));
    }
    // Numbers out of range have no cure of their own.
    if error.is_instance_of::<PyOverflowError>(py) { refused(
            py,
            format_args!("{argument} is {value:?}: {}", error.value(py)),
            argument,
            "give another number",
        ) } else { error }
}

fn exception(py: Python<'_>, class: &str, message: &str, cure: &str) -> PyErr {
    let made = || py.import("bitnet")?.getattr(class)?.call1((message, cure));
    made().map_or_else(|error| error, PyErr::from_value)
}

fn class(error: &Error) -> &'static str {
    match error {
        Error::Model(ModelError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            "ModelNotFound"
        }
        Error::Model(ModelError::NotAModel { .. } | ModelError::UnknownSynthetic { .. }) => "ModelNotFound",
        Error::Hub(HubError::NoModel { .. } | HubError::NoFile { .. } | HubError::Offline { .. }) => {
            "ModelNotFound"
        }
        Error::Memory { .. } | Error::MemoryLimit { .. } => "OutOfMemory",
        Error::Kernel(KernelError::OutOfMemory { .. })
        | Error::Model(ModelError::Kernel(KernelError::OutOfMemory { .. }))
        | Error::Gpu(GpuError::OutOfMemory { .. }) => "OutOfMemory",
        Error::Request(GenerationError::Request(RequestError::Timeout)) => "RequestTimeout",
        Error::Request(GenerationError::Submit(SubmitError::Invalid(_) | SubmitError::NeverFits { .. })) => {
            "InvalidRequest"
        }
        Error::Model(
            ModelError::Template { .. } | ModelError::Message { .. } | ModelError::TokenId { .. },
        ) => "InvalidRequest",
        Error::Schema { .. } => "InvalidRequest",
        Error::NoTokenizer { .. } | Error::NoEmbeddings { .. } => "InvalidRequest",
        Error::GpuCache { .. } | Error::MemoryUnknown | Error::Start(_) => "InvalidRequest",
        _ => "BitnetError",
    }
}
