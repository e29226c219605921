//! Tensors by Hugging Face name, wherever and however they are stored.

use std::collections::HashMap;

use bitnet_kernels::{Panels, Screen};
use bitnet_tensor::{BitNetTensor, DType, SharedBytes, TernaryTensor};

use crate::{
    Config, ModelError, ModelSpec,
    error::one_line,
    files::{
        ggml_type::{GgmlType, foreign, grouped},
        gguf::Gguf,
        safetensors::Stored,
    },
    names::{self, Wanted},
    packing,
    panels::PanelFile,
    ternarize,
};

/// What a tensor is to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorKind {
    /// A matrix of trits with a scale: a projection.
    Ternary,
    /// A float matrix: the embedding or the output head.
    Dense,
    /// The gain of an RMSNorm.
    Norm,
}

/// A tensor that a source can give.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorEntry {
    /// Hugging Face name.
    pub name: String,
    /// Name in the file.
    pub stored_name: String,
    /// `[out][in]` of a matrix, `[width]` of a norm; not the shape of packed bytes.
    pub shape: Vec<usize>,
    /// How it is stored: `packed u8`, `i2_s`, `bf16`, ...
    pub stored: String,
    /// What it is to the model.
    pub kind: TensorKind,
}

/// The tensors of a model, by Hugging Face name.
pub trait TensorSource: Send + Sync {
    /// All tensors of the model, in the order in which a forward pass meets them.
    fn entries(&self) -> &[TensorEntry];

    /// A projection: rows in Hugging Face order, `w = scale * trit` whatever the file's own convention is.
    ///
    /// # Errors
    /// If there is no such projection, or its bytes are not what its type allows.
    fn ternary(&self, name: &str) -> Result<TernaryTensor, ModelError>;

    /// The embedding, the output head, or the gain of a norm: of a float type, and not copied where the file is
    /// mapped.
    ///
    /// # Errors
    /// If there is no such tensor, or it is not dense.
    fn dense(&self, name: &str) -> Result<BitNetTensor, ModelError>;

    /// The weights as the CPU's kernels read them, if they are stored so.
    fn packed(&self) -> Option<&dyn PackedSource> {
        None
    }
}

/// Weights that lie in a file as the CPU's kernels read them.
pub trait PackedSource {
    /// The matrix of these projections, one under another; nothing if the file stacks others.
    ///
    /// # Errors
    /// If there is no such projection, or its bytes are no panels.
    fn panels(&self, names: &[String]) -> Result<Option<Panels>, ModelError>;

    /// The int8 copy of the output head, if it has one.
    ///
    /// # Errors
    /// If its bytes are no such copy.
    fn screen(&self) -> Result<Option<Screen>, ModelError>;
}

/// How the bytes of a tensor become values.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Encoding {
    /// Floats, as they are.
    Dense(DType),
    /// Floats that are quantised when read.
    Master(DType),
    /// Floats that must be ternary already.
    Exact(DType),
    /// Hugging Face's packed bytes with this scale.
    Packed(f32),
    I2S,
    Tq1_0,
    Tq2_0,
    /// Rows of a matrix of panels.
    Panels,
}

/// Where a tensor lies and how it is read.
#[derive(Debug)]
struct Part {
    bytes: SharedBytes,
    encoding: Encoding,
    /// Multiplies the scale that the encoding gives.
    factor: f32,
    /// Heads whose rows are stored for interleaved rope.
    interleaved_heads: Option<usize>,
}

/// The tensors of opened files.
#[derive(Debug)]
pub(crate) struct FileSource {
    file: String,
    entries: Vec<TensorEntry>,
    parts: HashMap<String, Part>,
    panels: Option<PanelFile>,
}

impl TensorSource for FileSource {
    fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    fn ternary(&self, name: &str) -> Result<TernaryTensor, ModelError> {
        let (entry, part) = self.find(name)?;
        let [rows, cols] = entry.shape[..] else { return Err(self.not_a(entry, "ternary matrix")) };
        let stored = entry.stored_name.as_str();
        let fail = |problem: String| {
            ModelError::tensor(
                &self.file,
                stored,
                problem,
                "convert the original model to I2_S or packed safetensors",
            )
        };
        let floats = |dtype| {
            BitNetTensor::new(dtype, [rows, cols], part.bytes.clone())
                .map_err(ModelError::data(&self.file, stored))
        };
        let (codes, scale) = match part.encoding {
            Encoding::Dense(_) => return Err(self.not_a(entry, "ternary matrix")),
            Encoding::Panels => return self.panels.as_ref().ok_or_else(|| self.missing(name))?.ternary(name),
            Encoding::Master(dtype) => {
                return ternarize::masters(&floats(dtype)?).map_err(ModelError::data(&self.file, stored));
            }
            Encoding::Exact(dtype) => {
                let tensor = ternarize::exact(&floats(dtype)?).map_err(|e| match e {
                    Some(e) => ModelError::data(&self.file, stored)(e),
                    None => fail("its values are not all -s, 0 or s for one s".into()),
                })?;
                let codes = tensor.codes().to_vec();
                (codes, tensor.scales()[0].scale)
            }
            Encoding::Packed(scale) => (packing::packed::unpack(&part.bytes, rows, cols), scale),
            Encoding::I2S => packing::i2_s::unpack(&part.bytes, rows, cols).map_err(fail)?,
            Encoding::Tq1_0 => packing::tq1_0::unpack(&part.bytes, rows, cols).map_err(fail)?,
            Encoding::Tq2_0 => packing::tq2_0::unpack(&part.bytes, rows, cols).map_err(fail)?,
        };
        let tensor = TernaryTensor::from_codes(rows, cols, codes, scale * part.factor)
            .map_err(ModelError::data(&self.file, stored))?;
        Ok(match part.interleaved_heads {
            Some(heads) => tensor.permute_rows(|row| interleaved_row(row, rows / heads)),
            None => tensor,
        })
    }

    fn dense(&self, name: &str) -> Result<BitNetTensor, ModelError> {
        let (entry, part) = self.find(name)?;
        let Encoding::Dense(dtype) = part.encoding else { return Err(self.not_a(entry, "float tensor")) };
        BitNetTensor::new(dtype, entry.shape.clone(), part.bytes.clone())
            .map_err(ModelError::data(&self.file, &entry.stored_name))
    }

    fn packed(&self) -> Option<&dyn PackedSource> {
        self.panels.as_ref().map(|panels| panels as &dyn PackedSource)
    }
}

/// Where interleaved rope keeps the row that Hugging Face has at `row`: of a head of `head_dim` rows, dimension
/// `i` of half `h` lies at `2 i + h` (`permute` in llama.cpp's `convert_hf_to_gguf.py`).
fn interleaved_row(row: usize, head_dim: usize) -> usize {
    let (head, within, half) = (row / head_dim, row % head_dim, head_dim / 2);
    head * head_dim + 2 * (within % half) + within / half
}

impl FileSource {
    fn find(&self, name: &str) -> Result<(&TensorEntry, &Part), ModelError> {
        let part = self.parts.get(name).ok_or_else(|| self.missing(name))?;
        let entry = self.entries.iter().find(|e| e.name == name).ok_or_else(|| self.missing(name))?;
        Ok((entry, part))
    }

    fn missing(&self, name: &str) -> ModelError {
        ModelError::MissingTensor { file: self.file.clone(), tensor: one_line(name) }
    }

    fn not_a(&self, entry: &TensorEntry, kind: &str) -> ModelError {
        let problem = format!("it is stored as {}, not as a {kind}", entry.stored);
        ModelError::tensor(&self.file, &entry.stored_name, problem, "ask for it by its kind")
    }

    /// The median of the scales that are known without reading a tensor; `None` if there are none.
    pub(crate) fn median_scale(&self) -> Option<f32> {
        let scale = |part: &Part| match part.encoding {
            Encoding::Packed(scale) => Some(scale * part.factor),
            Encoding::I2S => {
                let tail = part.bytes.len().checked_sub(packing::i2_s::TAIL)?;
                Some(first_f32(&part.bytes[tail..]) * part.factor)
            }
            _ => None,
        };
        let mut scales: Vec<f32> = self.parts.values().filter_map(scale).collect();
        scales.sort_by(f32::total_cmp);
        scales.get(scales.len() / 2).copied()
    }

    fn push(&mut self, wanted: Wanted, stored_name: String, stored: String, part: Part) {
        let Wanted { name, kind, shape } = wanted;
        self.parts.insert(name.clone(), part);
        self.entries.push(TensorEntry { name, stored_name, shape, stored, kind });
    }

    /// The tensors of safetensors files; names that the model has no use for come back beside them.
    pub(crate) fn safetensors(
        name: &str,
        config: &Config,
        mut stored: HashMap<String, Stored>,
    ) -> Result<(FileSource, Vec<String>), ModelError> {
        let mut source =
            FileSource { file: name.into(), entries: Vec::new(), parts: HashMap::new(), panels: None };
        for wanted in names::wanted(&config.spec) {
            let name = if config.onebitllm { names::onebitllm(&wanted.name) } else { wanted.name.clone() };
            let Some(tensor) = stored.remove(&name) else {
                return Err(ModelError::MissingTensor { file: source.file, tensor: name });
            };
            let packed = wanted.kind == TensorKind::Ternary && tensor.dtype == Some(DType::U8);
            let mut expected = wanted.shape.clone();
            if packed {
                expected[0] = expected[0].div_ceil(4);
            }
            check_shape(&tensor.file, &name, &expected, &tensor.shape)?;
            let (encoding, text) = if packed {
                let scale = stored.remove(&format!("{name}_scale"));
                let scale = packed_scale(&tensor, scale.as_ref(), config.scale_multiplies)?;
                (Encoding::Packed(scale), "packed u8".into())
            } else {
                let cure = "use a checkpoint in f32, f16, bf16 or packed u8";
                let dtype = tensor.dtype.filter(|t| matches!(t, DType::F32 | DType::F16 | DType::BF16));
                let dtype = dtype.ok_or_else(|| {
                    let problem = format!("type {} cannot be read", tensor.dtype_name);
                    ModelError::tensor(&tensor.file, &name, problem, cure)
                })?;
                match wanted.kind {
                    TensorKind::Ternary => (Encoding::Master(dtype), format!("{dtype} masters")),
                    _ => (Encoding::Dense(dtype), dtype.to_string()),
                }
            };
            let part = Part { bytes: tensor.bytes, encoding, factor: 1.0, interleaved_heads: None };
            source.push(wanted, name, text, part);
        }
        let unused = unused(stored.into_values().map(|t| (t.file, t.name)))?;
        Ok((source, unused))
    }

    /// The tensors of a GGUF file; names that the model has no use for come back beside them.
    pub(crate) fn gguf(
        gguf: &Gguf,
        spec: &ModelSpec,
        interleaved: bool,
    ) -> Result<(FileSource, Vec<String>), ModelError> {
        let mut stored: HashMap<&str, _> = gguf.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
        let panels = PanelFile::take(gguf, spec, &mut stored)?;
        let mut source =
            FileSource { file: gguf.file.clone(), entries: Vec::new(), parts: HashMap::new(), panels };
        for wanted in names::wanted(spec) {
            let in_panels = source.panels.as_ref().and_then(|panels| panels.stored_name(&wanted.name));
            if let Some(name) = in_panels.map(String::from) {
                let (bytes, encoding) = (SharedBytes::default(), Encoding::Panels);
                let part = Part { bytes, encoding, factor: 1.0, interleaved_heads: None };
                source.push(wanted, name, "panels".into(), part);
                continue;
            }
            let name = names::gguf(&wanted.name).unwrap_or_else(|| wanted.name.clone());
            let Some(tensor) = stored.remove(name.as_str()) else {
                return Err(ModelError::MissingTensor { file: source.file, tensor: name });
            };
            let kind = GgmlType::from_id(tensor.type_id).ok_or_else(|| {
                let elements = tensor.shape.iter().fold(1, |n: usize, &d| n.saturating_mul(d));
                let (file, id) = (gguf.file.clone(), tensor.type_id);
                if let Some((called, group, cure)) = grouped(id, elements, tensor.room) {
                    return ModelError::GroupScales { file, tensor: name.clone(), called, id, group, cure };
                }
                let (called, cure) = foreign(tensor.type_id);
                let problem = format!("type {} ({called}) cannot be read", tensor.type_id);
                ModelError::tensor(&gguf.file, &name, problem, cure)
            })?;
            check_shape(&gguf.file, &name, &wanted.shape, &tensor.shape)?;
            let encoding = match (wanted.kind, kind) {
                (TensorKind::Ternary, GgmlType::I2S) => Encoding::I2S,
                (TensorKind::Ternary, GgmlType::Tq1_0) => Encoding::Tq1_0,
                (TensorKind::Ternary, GgmlType::Tq2_0) => Encoding::Tq2_0,
                (TensorKind::Ternary, GgmlType::Dense(t @ (DType::F32 | DType::F16 | DType::BF16))) => {
                    Encoding::Exact(t)
                }
                (TensorKind::Dense | TensorKind::Norm, GgmlType::Dense(t)) => Encoding::Dense(t),
                (_, kind) => {
                    let problem = format!("type {} is not supported for this tensor", kind.name());
                    let cure =
                        "use a file whose projections are ternary and whose embedding and norms are floats";
                    return Err(ModelError::tensor(&gguf.file, &name, problem, cure));
                }
            };
            // llama.cpp's graphs of BitNet models multiply by an optional scale beside the weight.
            let beside = name.replace(".weight", ".scale");
            let factor = match stored.remove(beside.as_str()) {
                Some(scale) if scale.type_id == 0 && scale.shape == [1] => first_f32(&scale.bytes),
                Some(_) => {
                    let problem = "a scale must be one f32";
                    return Err(ModelError::tensor(&gguf.file, &beside, problem, "convert the model again"));
                }
                None => 1.0,
            };
            let interleaved_heads = match wanted.name.rsplit('.').nth(1) {
                Some("q_proj") if interleaved => Some(spec.heads),
                Some("k_proj") if interleaved => Some(spec.kv_heads),
                _ => None,
            };
            let part = Part { bytes: tensor.bytes.clone(), encoding, factor, interleaved_heads };
            source.push(wanted, name, kind.name(), part);
        }
        let unused = unused(stored.into_keys().map(|name| (gguf.file.clone(), name.to_string())))?;
        Ok((source, unused))
    }
}

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

fn first_f32(bytes: &[u8]) -> f32 {
    bytes.first_chunk().map_or(f32::NAN, |b| f32::from_le_bytes(*b))
}

/// What multiplies the trits of a packed tensor.
fn packed_scale(tensor: &Stored, scale: Option<&Stored>, multiplies: bool) -> Result<f32, ModelError> {
    let name = format!("{}_scale", tensor.name);
    let Some(scale) = scale else {
        return Err(ModelError::MissingTensor { file: tensor.file.clone(), tensor: name });
    };
    let fail = |problem: String| {
        ModelError::tensor(
            &scale.file,
            &name,
            problem,
            "use a checkpoint whose weight_scale is one positive float",
        )
    };
    let dtype =
        scale.dtype.filter(|t| t.is_float()).ok_or_else(|| fail(format!("type {}", scale.dtype_name)))?;
    if scale.shape.iter().any(|&d| d != 1) {
        return Err(fail(format!("shape {:?} is not one value", scale.shape)));
    }
    let value = BitNetTensor::new(dtype, [1], scale.bytes.clone())
        .map_err(ModelError::data(&scale.file, &name))?
        .to_f32()[0];
    if !(value.is_finite() && value > 0.0) {
        return Err(fail(format!("{value} is not a positive number")));
    }
    Ok(if multiplies { value } else { 1.0 / value })
}

/// Sorts out tensors that no part of the model asked for. A bias would change every result, so it is an error.
fn unused(names: impl Iterator<Item = (String, String)>) -> Result<Vec<String>, ModelError> {
    let mut unused = Vec::new();
    for (file, name) in names {
        if name.ends_with(".bias") {
            return Err(ModelError::tensor(
                &file,
                &name,
                "biases are not supported",
                "use a model without biases",
            ));
        }
        // Tables that the description has read or that follow from it, and the copy that a tied head is.
        let known = ["rope_freqs.weight", "lm_head.weight"].contains(&name.as_str());
        if !known && !name.ends_with("rotary_emb.inv_freq") {
            unused.push(one_line(name));
        }
    }
    unused.sort_unstable();
    Ok(unused)
}

#[cfg(test)]
mod tests {
    use super::interleaved_row;

    #[test]
    fn interleaved_rows_pair_the_halves_of_a_head() {
        // One head of 6: Hugging Face has halves 0 1 2 | 3 4 5, the file has 0 3 1 4 2 5.
        let order: Vec<_> = (0..12).map(|row| interleaved_row(row, 6)).collect();
        assert_eq!(order, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
    }
}
