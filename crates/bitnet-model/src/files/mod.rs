//! What reads and writes model files: containers (GGUF, safetensors), the tensors in them, and an opened model.

mod checkpoint;
mod defaults;
mod demo;
mod file_source;
pub(crate) mod ggml_type;
pub(crate) mod gguf;
pub(crate) mod gguf_spec;
mod gguf_value;
mod map;
mod output_file;
pub(crate) mod panels;
pub(crate) mod read_ahead;
mod reorder;
pub(crate) mod rope_freqs;
mod safetensors;
mod source;
mod split;

use std::path::Path;

use bitnet_tensor::SharedBytes;
pub use checkpoint::{Checkpoint, ModelFiles};
pub use defaults::GenerationDefaults;
pub use output_file::OutputFile;
pub use source::{PackedSource, TensorEntry, TensorKind, TensorSource};

use crate::ModelError;

/// Reads a small companion file (JSON, template), or returns `None` if there is none.
pub(crate) fn read_small(path: &Path, limit: u64) -> Result<Option<SharedBytes>, ModelError> {
    let bytes = match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(ModelError::io("open", path)(e)),
        Ok(about) if about.len() > limit => {
            return Err(ModelError::TooLarge { file: file_name(path), size: about.len(), limit });
        }
        Ok(_) => std::fs::read(path).map_err(ModelError::io("read", path))?,
    };
    refuse_lfs_pointer(&file_name(path), &bytes)?;
    Ok(Some(SharedBytes::new(bytes)))
}

/// Refuses the text of about 130 bytes that Git LFS leaves in place of a file that was not fetched.
pub(crate) fn refuse_lfs_pointer(file: &str, bytes: &[u8]) -> Result<(), ModelError> {
    if bytes.starts_with(b"version https://git-lfs.github.com/spec/") {
        return Err(ModelError::LfsPointer { file: file.into(), size: bytes.len() });
    }
    Ok(())
}

/// The last part of a path, for messages.
pub(crate) fn file_name(path: &Path) -> String {
    crate::error::one_line(path.file_name().unwrap_or(path.as_os_str()).to_string_lossy())
}
