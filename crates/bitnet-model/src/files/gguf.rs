//! The GGUF container, versions 2 and 3: header, metadata, tensor descriptors, data.
//!
//! Source: the GGUF specification (`docs/gguf.md` of ggml). gguf-rs-lib reads the header and the values. Keys and
//! descriptors are read here, because its own loops refuse the hyphen in `bitnet-b1.58.*` and tensor type 36.

use std::collections::{HashMap, HashSet};

use bitnet_tensor::SharedBytes;
use gguf_rs_lib::format::{GGUFHeader, GGUFValueType};

use super::{
    ggml_type::{GgmlType, Q2_0Tensor, q2_0_layout},
    gguf_value::{Array, Value, Walker},
    refuse_lfs_pointer,
};
use crate::{ModelError, error::one_line};

/// The first four bytes of a file.
pub(crate) const MAGIC: &[u8; 4] = b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
/// Maximum length of a key in bytes, by the specification.
const MAX_KEY: usize = 65_535;
const MAX_NAME: usize = 1024;
const MAX_DIMS: u32 = 4;
/// Maximum number of values in the lists that describe a model; real models have 29,000.
const MAX_LISTED: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Gguf {
    /// Name for messages.
    pub file: String,
    pub bytes: SharedBytes,
    metadata: HashMap<String, Value>,
    /// In the order of the file.
    pub tensors: Vec<Descriptor>,
}

#[derive(Debug, Clone)]
pub(crate) struct Descriptor {
    pub name: String,
    /// Outermost dimension first, the reverse of the file's order.
    pub shape: Vec<usize>,
    pub type_id: u32,
    /// The type, if known.
    pub kind: Option<GgmlType>,
    /// Offset of the data in the file, in bytes.
    pub start: usize,
    /// The data; empty for a type of unknown size.
    pub bytes: SharedBytes,
}

impl Gguf {
    pub(crate) fn read(file: &str, bytes: SharedBytes) -> Result<Gguf, ModelError> {
        refuse_lfs_pointer(file, &bytes)?;
        let damaged = |problem: String| ModelError::damaged(file, problem);
        let header = header(file, &bytes)?;
        let mut walker = Walker { bytes: &bytes, at: GGUFHeader::size() };
        let mut metadata = HashMap::new();
        for i in 0..header.metadata_kv_count {
            let (key, value) = entry(&mut walker, &bytes)
                .map_err(|e| damaged(format!("metadata entry {i} of {}: {e}", header.metadata_kv_count)))?;
            if let Some((key, _)) = metadata.insert(key.clone(), value).map(|v| (key, v)) {
                return Err(damaged(format!("metadata key {} appears twice", one_line(key))));
            }
        }
        let mut raw = Vec::new();
        for i in 0..header.tensor_count {
            raw.push(
                descriptor(&mut walker)
                    .map_err(|e| damaged(format!("tensor descriptor {i} of {}: {e}", header.tensor_count)))?,
            );
        }
        let end = walker.at;
        let gguf = Gguf { file: file.into(), bytes, metadata, tensors: Vec::new() };
        let alignment = gguf.opt_u64("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
        if !alignment.is_power_of_two() || !(8..=1 << 20).contains(&alignment) {
            return Err(ModelError::field(
                file,
                "general.alignment",
                format!("is {alignment}, not a power of two"),
            ));
        }
        let tensors = place(&gguf.bytes, end, alignment, raw).map_err(damaged)?;
        Ok(Gguf { tensors, ..gguf })
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// The value of `key` converted by `read`, `None` if the key is absent, or an error if the value has another type.
    fn typed<'a, T>(
        &'a self,
        key: &str,
        kind: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        self.get(key)
            .map(|v| read(v).ok_or_else(|| ModelError::field(&self.file, key, format!("is not {kind}"))))
            .transpose()
    }

    pub(crate) fn opt_str(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.typed(key, "a string", Value::as_str)
    }

    pub(crate) fn opt_u64(&self, key: &str) -> Result<Option<u64>, ModelError> {
        self.typed(key, "a whole number", Value::as_u64)
    }

    /// A whole number of any type and sign.
    pub(crate) fn opt_integer(&self, key: &str) -> Result<Option<i128>, ModelError> {
        let read = |v: &Value| v.as_i64().map(i128::from).or(v.as_u64().map(i128::from));
        self.typed(key, "a whole number", read)
    }

    pub(crate) fn opt_bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub(crate) fn opt_array(&self, key: &str) -> Result<Option<&Array>, ModelError> {
        self.typed(key, "an array", Value::as_array)
    }

    /// Adds the tensors of another part of the same model, whose metadata is not needed.
    pub(crate) fn append(&mut self, part: Gguf) -> Result<(), ModelError> {
        let names: HashSet<&str> = self.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        if let Some(twice) = part.tensors.iter().find(|tensor| names.contains(tensor.name.as_str())) {
            return Err(ModelError::damaged(
                &part.file,
                format!("tensor {} is in another part too", twice.name),
            ));
        }
        self.tensors.extend(part.tensors);
        self.metadata.remove("split.count");
        Ok(())
    }

    /// The metadata whose keys begin with `prefix`, by the rest of the keys, as JSON. Of the lists, only `lists` are read,
    /// and only [`MAX_LISTED`] values; any other is a list of nothing.
    pub(crate) fn json(&self, prefix: &str, lists: &[&str]) -> serde_json::Value {
        let (mut fields, mut room) = (serde_json::Map::new(), MAX_LISTED);
        for (key, value) in &self.metadata {
            if let Some(name) = key.strip_prefix(prefix) {
                fields.insert(name.to_owned(), value.to_json());
            }
        }
        for &name in lists {
            let Some(Value::Array(array)) = self.get(&format!("{prefix}{name}")) else { continue };
            if let Some(rest) = room.checked_sub(array.len) {
                room = rest;
                fields.insert(name.to_owned(), array.to_json());
            }
        }
        fields.into()
    }

    pub(crate) fn tensor(&self, name: &str) -> Option<&Descriptor> {
        self.tensors.iter().find(|t| t.name == name)
    }
}

fn header(file: &str, bytes: &[u8]) -> Result<GGUFHeader, ModelError> {
    if !bytes.starts_with(MAGIC) {
        return Err(ModelError::damaged(file, "it does not begin with GGUF"));
    }
    let version = bytes.get(4..8).and_then(|b| b.first_chunk()).map(|b| u32::from_le_bytes(*b));
    match version {
        // Version 3 added big-endian files and changed nothing else.
        Some(2 | 3) => {}
        Some(v) if v.swap_bytes() <= 3 => {
            let cure = "convert the model to little-endian GGUF";
            return Err(ModelError::unsupported(file, "byte order", "big-endian", cure));
        }
        Some(v) => {
            let cure = "convert the original model again: versions 2 and 3 can be read";
            return Err(ModelError::unsupported(file, "GGUF version", v, cure));
        }
        None => return Err(ModelError::damaged(file, "it ends within the header")),
    }
    let mut counts = Walker { bytes, at: 8 };
    let (tensors, entries) = (counts.u64(), counts.u64());
    let cut = || ModelError::damaged(file, "it ends within the header");
    Ok(GGUFHeader::new(tensors.ok_or_else(cut)?, entries.ok_or_else(cut)?))
}

fn entry(walker: &mut Walker<'_>, file: &SharedBytes) -> Result<(String, Value), String> {
    let key = walker.string().ok_or("the file ends within its key")?;
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(format!("a key has {} bytes", key.len()));
    }
    let key = str::from_utf8(key).map_err(|_| "its key is not UTF-8")?.to_string();
    let kind = walker.u32().ok_or("the file ends within its type")?;
    let value = GGUFValueType::from_u32(kind)
        .map_err(|e| e.to_string())
        .and_then(|kind| walker.value(file, kind))
        .map_err(|e| format!("{key}: {e}"))?;
    Ok((key, value))
}

/// A descriptor with its offset from the start of the data.
struct Raw {
    name: String,
    shape: Vec<usize>,
    type_id: u32,
    offset: u64,
}

fn descriptor(walker: &mut Walker<'_>) -> Result<Raw, String> {
    let cut = "the file ends within it";
    let name = walker.string().ok_or(cut)?;
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(format!("a name has {} bytes", name.len()));
    }
    let name = str::from_utf8(name).map_err(|_| "its name is not UTF-8")?.to_string();
    let dims = walker.u32().ok_or(cut)?;
    if !(1..=MAX_DIMS).contains(&dims) {
        return Err(format!("{name} has {dims} dimensions"));
    }
    let mut shape = Vec::new();
    for _ in 0..dims {
        let dim = walker.u64().ok_or(cut)?;
        shape.push(
            usize::try_from(dim).ok().filter(|&d| d > 0).ok_or(format!("{name} has a dimension of {dim}"))?,
        );
    }
    shape.reverse();
    let type_id = walker.u32().ok_or(cut)?;
    let offset = walker.u64().ok_or(cut)?;
    Ok(Raw { name, shape, type_id, offset })
}

/// Locates the data of every tensor, and checks names, alignment and ranges.
fn place(bytes: &SharedBytes, end: usize, alignment: u64, raw: Vec<Raw>) -> Result<Vec<Descriptor>, String> {
    let start = (end as u64).next_multiple_of(alignment);
    let mut names = HashSet::new();
    let mut starts = Vec::new();
    for Raw { name, offset, .. } in &raw {
        if !names.insert(name) {
            return Err(format!("tensor {name} appears twice"));
        }
        if !offset.is_multiple_of(alignment) {
            return Err(format!("tensor {name} at offset {offset} is not aligned to {alignment}"));
        }
        let from = start.checked_add(*offset).and_then(|from| usize::try_from(from).ok());
        let have = bytes.len();
        let from = from.filter(|&from| from <= have);
        starts.push(
            from.ok_or(format!("tensor {name} begins at {start} + {offset}, the file has {have} bytes"))?,
        );
    }
    let layout = layout_of_42(bytes.len(), alignment as usize, &raw, &starts)?;
    let mut ranges = Vec::new();
    let mut tensors = Vec::new();
    for (raw, &from) in raw.into_iter().zip(&starts) {
        let (rows, cols) = raw.matrix()?;
        let Raw { name, shape, type_id, offset } = raw;
        let kind = GgmlType::from_id(type_id).map(|kind| if type_id == 42 { layout } else { kind });
        let length = match kind {
            Some(kind) => kind.byte_len(rows, cols).map_err(|e| format!("tensor {name}: {e}"))?,
            None => 0,
        };
        let range = from.checked_add(length).map(|to| from..to);
        let Some((data, range)) = range.and_then(|range| Some((bytes.slice(range.clone())?, range))) else {
            let have = bytes.len();
            return Err(format!(
                "tensor {name} needs {length} bytes at {start} + {offset}, the file has {have} bytes"
            ));
        };
        ranges.push((range.start, range.end, tensors.len()));
        tensors.push(Descriptor { name, shape, type_id, kind, start: range.start, bytes: data });
    }
    ranges.sort_unstable();
    if let Some(pair) = ranges.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        let (a, b) = (&tensors[pair[0].2].name, &tensors[pair[1].2].name);
        return Err(format!("tensors {a} and {b} overlap"));
    }
    Ok(tensors)
}

impl Raw {
    /// Rows and columns.
    fn matrix(&self) -> Result<(usize, usize), String> {
        let name = &self.name;
        let [outer @ .., cols] = &self.shape[..] else {
            return Err(format!("tensor {name} has no dimensions"));
        };
        let rows = outer.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        Ok((rows.ok_or(format!("the shape of tensor {name} overflows"))?, *cols))
    }
}

/// The layout of the tensors with type id 42 in a file of `size` bytes; an arbitrary one if there are none.
fn layout_of_42(size: usize, alignment: usize, raw: &[Raw], starts: &[usize]) -> Result<GgmlType, String> {
    let mut sorted = starts.to_vec();
    sorted.sort_unstable();
    let mut tensors = Vec::new();
    for (raw, start) in raw.iter().zip(starts).filter(|(raw, _)| raw.type_id == 42) {
        let (rows, cols) = raw.matrix()?;
        let next = sorted.get(sorted.partition_point(|s| s <= start));
        let room = next.unwrap_or(&size) - start;
        tensors.push(Q2_0Tensor { rows, cols, room, last: next.is_none() });
    }
    q2_0_layout(&tensors, alignment).ok_or_else(|| {
        let named = raw.iter().find(|raw| raw.type_id == 42).map_or("", |raw| &raw.name);
        format!(
            "tensor {named} and others of type 42 are neither Q2_0 in groups of 64 (18 bytes for 64 weights) nor of 128 \
             (34 for 128), nor STQ1_0 (42 for 256)"
        )
    })
}
