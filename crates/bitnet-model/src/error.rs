//! The one error type of this crate: [`ModelError`], one line a message.
//! Text that comes from a file is escaped by [`one_line`].

use std::path::{Path, PathBuf};

use bitnet_tensor::TensorError;

/// Why a model could not be read, inspected or written.
///
/// Every message is one line of the form `<what> (<where>): <cure>`. Text that comes from a file is escaped, so no
/// file can break the line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "every message names its fields")]
pub enum ModelError {
    /// The operating system reported an error.
    #[error("cannot {action} ({}): {}: check the path and its permissions", .path.display(), one_line(.source))]
    Io {
        /// What failed: `open`, `read`, `map`, `create` or `write`.
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// The path is neither a GGUF file nor a Hugging Face folder.
    #[error("not a model ({}): {problem}: give a .gguf file, or a folder with config.json and *.safetensors", .path.display())]
    NotAModel { path: PathBuf, problem: &'static str },
    /// The file is a Git LFS pointer; its content was never fetched.
    #[error(
        "the file is a Git LFS pointer of {size} bytes ({file}): fetch the content with `git lfs pull`, or download it again"
    )]
    LfsPointer { file: String, size: usize },
    /// A file is larger than any real one.
    #[error(
        "{size} bytes, more than the maximum of {limit} ({file}): this is not a model file; download it again"
    )]
    TooLarge { file: String, size: u64, limit: u64 },
    /// The file is truncated or malformed.
    #[error("damaged file: {problem} ({file}): download or convert it again")]
    Damaged { file: String, problem: String },
    /// A metadata field is missing.
    #[error("field {field} is missing ({file}): add it, or convert the model again with a current tool")]
    MissingField { file: String, field: String },
    /// A metadata field has an invalid value.
    #[error("field {field} {problem} ({file}): correct the field, or download the file again")]
    Field { file: String, field: String, problem: String },
    /// The model needs something that is not supported.
    #[error("{field} is {value}, which is not supported ({file}): {cure}")]
    Unsupported { file: String, field: String, value: String, cure: String },
    /// The file lacks a tensor that the architecture needs.
    #[error(
        "tensor {tensor} is missing ({file}): the download is incomplete or the model has a different architecture; download the whole model again"
    )]
    MissingTensor { file: String, tensor: String },
    /// A model is stored in several files, and some are not there.
    #[error("parts of the model are missing: {missing} ({file}): put all {count} parts into one folder")]
    MissingParts { file: String, missing: String, count: u64 },
    /// A tensor's shape disagrees with the metadata.
    #[error(
        "tensor {tensor} has shape {actual:?}, expected {expected:?} ({file}): metadata and weights belong to different models; download both again"
    )]
    TensorShape { file: String, tensor: String, expected: Vec<usize>, actual: Vec<usize> },
    /// A tensor is stored in a form that cannot be read.
    #[error("tensor {tensor}: {problem} ({file}): {cure}")]
    Tensor { file: String, tensor: String, problem: String, cure: &'static str },
    /// A tensor has a scale for every group of weights, but the architecture uses one scale a tensor.
    #[error(
        "tensor {tensor} is {called} (type {id}), with a scale for every {group} weights ({file}): models of this architecture have one scale a tensor; use a file in I2_S, TQ1_0, TQ2_0 or packed safetensors"
    )]
    GroupScales { file: String, tensor: String, called: String, id: u32, group: usize },
    /// A tensor holds values that its type does not allow.
    #[error("tensor {tensor}: {source} ({file}): the file is damaged; download or convert it again")]
    TensorData { file: String, tensor: String, source: TensorError },
    /// The tokenizer cannot be built or cannot encode a text.
    #[error("tokenizer: {problem} ({file}): {cure}")]
    Tokenizer { file: String, problem: String, cure: &'static str },
    /// A token id outside the vocabulary.
    #[error("token id {id} is not in the vocabulary of {vocab} (token ids): use ids below {vocab}")]
    TokenId { id: u32, vocab: usize },
    /// The chat template does not parse or does not render.
    #[error("chat template: {problem} (chat_template): {cure}")]
    Template { problem: String, cure: &'static str },
    /// The system refused memory.
    #[error("no memory for {what} ({bytes} bytes): lower --memory or the context, or free memory")]
    Memory { what: &'static str, bytes: usize },
    /// A message that the chat template cannot render.
    #[error("messages[{index}]: {problem} (chat_template): {cure}")]
    Message { index: usize, problem: String, cure: &'static str },
    /// The model cannot be written in the requested format.
    #[error("cannot convert to {format}: {problem} ({what}): {cure}")]
    Convert { what: String, format: String, problem: String, cure: &'static str },
    /// There is no synthetic model with this name.
    #[error("no synthetic model '{name}' (synthetic:NAME): choose one of {known}")]
    UnknownSynthetic { name: String, known: String },
    /// The backend refused the weights.
    #[error(transparent)]
    Kernel(#[from] bitnet_kernels::KernelError),
}

/// Checks the shape of a tensor of a file.
pub(crate) fn check_shape(
    file: &str,
    tensor: &str,
    expected: &[usize],
    actual: &[usize],
) -> Result<(), ModelError> {
    if expected == actual {
        return Ok(());
    }
    Err(ModelError::TensorShape {
        file: file.into(),
        tensor: tensor.into(),
        expected: expected.into(),
        actual: actual.into(),
    })
}

impl ModelError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ModelError {
        move |source| ModelError::Io { action, path: path.into(), source }
    }

    pub(crate) fn damaged(file: &str, problem: impl ToString) -> ModelError {
        ModelError::Damaged { file: file.into(), problem: one_line(problem) }
    }

    pub(crate) fn missing_field(file: &str, field: impl Into<String>) -> ModelError {
        ModelError::MissingField { file: file.into(), field: field.into() }
    }

    pub(crate) fn field(file: &str, field: impl Into<String>, problem: impl ToString) -> ModelError {
        ModelError::Field { file: file.into(), field: field.into(), problem: one_line(problem) }
    }

    pub(crate) fn unsupported(
        file: &str,
        field: impl Into<String>,
        value: impl ToString,
        cure: impl Into<String>,
    ) -> ModelError {
        ModelError::Unsupported {
            file: file.into(),
            field: field.into(),
            value: one_line(value),
            cure: cure.into(),
        }
    }

    pub(crate) fn tensor(file: &str, tensor: &str, problem: impl ToString, cure: &'static str) -> ModelError {
        ModelError::Tensor { file: file.into(), tensor: one_line(tensor), problem: one_line(problem), cure }
    }

    pub(crate) fn data(file: &str, tensor: &str) -> impl FnOnce(TensorError) -> ModelError {
        move |source| ModelError::TensorData { file: file.into(), tensor: one_line(tensor), source }
    }
}

/// Maximum number of characters of foreign text in a message.
const MAX_QUOTED: usize = 300;

/// Makes text of unknown origin safe for a message: escapes control characters and cuts long text.
pub(crate) fn one_line(text: impl ToString) -> String {
    let text = text.to_string();
    let mut line = String::new();
    for (i, c) in text.trim().chars().enumerate() {
        if i == MAX_QUOTED {
            line.push_str("...");
            break;
        }
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}
