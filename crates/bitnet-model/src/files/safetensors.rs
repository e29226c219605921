//! The safetensors container: a single file, or several with an index.
//! [`open_folder`] maps them; nothing is copied.

use std::{collections::HashMap, path::Path};

use bitnet_tensor::{DType, SharedBytes};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::{file_name, map::map, read_small, refuse_lfs_pointer};
use crate::{ModelError, spec::fields::without_mark};

/// Maximum size in bytes of a JSON header. A 70B model's has about 1 MiB; parsing takes up to 16 times its size.
const MAX_HEADER: u64 = 4 << 20;
/// Maximum size in bytes of an index of shards.
const MAX_INDEX: u64 = 8 << 20;
/// A draft head in a file of its own, beside those of the model.
pub(crate) const DRAFT_HEAD: &str = "model_mtp.safetensors";
const INDEX: &str = "model.safetensors.index.json";

#[derive(Debug, Clone)]
pub(crate) struct Stored {
    /// Name of its file.
    pub file: String,
    pub name: String,
    /// `None` for a type that no supported model uses.
    pub dtype: Option<DType>,
    /// The type's name in safetensors.
    pub dtype_name: String,
    pub shape: Vec<usize>,
    pub bytes: SharedBytes,
}

/// Reads the header of one file.
pub(crate) fn read(file: &str, bytes: &SharedBytes) -> Result<Vec<Stored>, ModelError> {
    refuse_lfs_pointer(file, bytes)?;
    let header = bytes.first_chunk().map_or(0, |n| u64::from_le_bytes(*n));
    if header > MAX_HEADER {
        let problem = format!("the header claims {header} bytes, more than {MAX_HEADER}");
        return Err(ModelError::damaged(file, problem));
    }
    let (header, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| ModelError::damaged(file, e))?;
    let data = 8 + header;
    let mut tensors = Vec::new();
    for (name, info) in metadata.tensors() {
        let (start, end) = info.data_offsets;
        // The crate checked that the ranges are contiguous and fill the file.
        let bytes = bytes
            .slice(data + start..data + end)
            .ok_or_else(|| ModelError::damaged(file, format!("tensor {name} lies outside the file")))?;
        tensors.push(Stored {
            file: file.into(),
            name,
            dtype: dtype(info.dtype),
            dtype_name: format!("{:?}", info.dtype).to_lowercase(),
            shape: info.shape.clone(),
            bytes,
        });
    }
    Ok(tensors)
}

/// Maps all weights of a folder: `model.safetensors`, or the shards named in its index. As in transformers, an index
/// beside a single file is left over and not read. A draft head in a file of its own is read with them.
pub(crate) fn open_folder(folder: &Path) -> Result<Vec<Stored>, ModelError> {
    let mut tensors = model(folder)?;
    let head = folder.join(DRAFT_HEAD);
    let of_head = |t: &Stored| t.name.contains("mtp.");
    if head.exists() && !tensors.iter().any(of_head) {
        tensors.extend(read(DRAFT_HEAD, &map(&head)?)?.into_iter().filter(of_head));
    }
    Ok(tensors)
}

fn model(folder: &Path) -> Result<Vec<Stored>, ModelError> {
    let single = folder.join("model.safetensors");
    if single.exists() {
        return read("model.safetensors", &map(&single)?);
    }
    let Some(index) = read_small(&folder.join(INDEX), MAX_INDEX)? else {
        let problem = "it has neither model.safetensors nor model.safetensors.index.json";
        return Err(ModelError::NotAModel { path: folder.into(), problem });
    };
    let mut tensors = Vec::new();
    for shard in shards(&index)? {
        let path = folder.join(&shard);
        tensors.extend(read(&file_name(&path), &map(&path)?)?);
    }
    Ok(tensors)
}

/// The files named in an index, sorted, without duplicates.
fn shards(index: &[u8]) -> Result<Vec<String>, ModelError> {
    let json: Value =
        serde_json::from_slice(without_mark(index)).map_err(|e| ModelError::damaged(INDEX, e))?;
    let map = json
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| ModelError::missing_field(INDEX, "weight_map"))?;
    let mut names: Vec<String> = Vec::new();
    for (tensor, file) in map {
        let bad = |problem| {
            ModelError::field(INDEX, format!("weight_map.{}", crate::error::one_line(tensor)), problem)
        };
        let file = file.as_str().ok_or_else(|| bad("is not a file name"))?;
        // Shards must be in the folder of the index; a path could lead anywhere.
        if file.is_empty() || file == ".." || file.contains(['/', '\\']) {
            return Err(bad("is not a plain file name"));
        }
        names.push(file.into());
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Tensors by name; a name in two shards is an error.
pub(crate) fn by_name(tensors: Vec<Stored>) -> Result<HashMap<String, Stored>, ModelError> {
    let mut all = HashMap::with_capacity(tensors.len());
    for t in tensors {
        if let Some(first) = all.insert(t.name.clone(), t) {
            let problem = format!("tensor {} is stored twice", first.name);
            return Err(ModelError::damaged(&first.file, problem));
        }
    }
    Ok(all)
}

fn dtype(stored: Dtype) -> Option<DType> {
    Some(match stored {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I8 => DType::I8,
        Dtype::U8 => DType::U8,
        Dtype::I32 => DType::I32,
        Dtype::U32 => DType::U32,
        Dtype::I64 => DType::I64,
        _ => return None,
    })
}
