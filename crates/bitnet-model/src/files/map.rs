//! The memory map of a model file: the only `unsafe` in this crate.

use std::{fs::File, path::Path};

use bitnet_tensor::SharedBytes;
use memmap2::Mmap;

use crate::ModelError;

/// Maps a whole file read-only.
///
/// The file must not change while the model is in use: if another program truncates it, this process dies of a bus
/// error, as does every program that maps its weights.
#[expect(unsafe_code, reason = "mapping a file is unsafe; see the SAFETY argument")]
pub(crate) fn map(path: &Path) -> Result<SharedBytes, ModelError> {
    let file = File::open(path).map_err(ModelError::io("open", path))?;
    let length = file.metadata().map_err(ModelError::io("read", path))?;
    if !length.is_file() {
        return Err(ModelError::NotAModel { path: path.into(), problem: "it is not a regular file" });
    }
    if length.len() == 0 {
        // An empty file cannot be mapped.
        return Ok(SharedBytes::new(Vec::new()));
    }
    // SAFETY: the map is private to this process, read-only, and only ever seen as `&[u8]`, for which every bit
    // pattern is valid. Its contents change only if another program writes into the file while it is mapped. Model
    // files are not written in place (downloads and conversions write a second file and rename it), and the docs of
    // this function and of `Checkpoint::open` ask users not to. Memory safety does not rely on earlier checks of the
    // contents: all later accesses go through bounds-checked slices.
    let map = unsafe { Mmap::map(&file) }.map_err(ModelError::io("map", path))?;
    // Decoding reads weights faster from huge pages. This requests them for a file that is not in memory yet; a system
    // without them is no error.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(SharedBytes::new(map))
}
