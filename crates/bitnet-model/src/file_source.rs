//! The tensors of opened files, in whatever file and form they are stored.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
};

use bitnet_tensor::{BitNetTensor, DType, GroupedTensor, SharedBytes, TernaryTensor};

use crate::{
    Config, ModelError, ModelSpec, PackedSource, TensorEntry, TensorKind, TensorSource,
    error::{check_shape, one_line},
    files::{
        ggml_type::{GgmlType, foreign},
        gguf::{Descriptor, Gguf},
        safetensors::Stored,
    },
    names::{self, Expected},
    packing,
    panels::PanelFile,
    ternarize,
};

/// How the bytes of a tensor are decoded.
#[derive(Debug)]
enum Encoding {
    /// Floats, used as they are.
    Dense(DType),
    /// Master weights: floats that are quantised when read.
    Master(DType),
    /// Floats that must be ternary already.
    Exact(DType),
    /// Hugging Face's packed bytes, with this scale.
    Packed(f32),
    I2S,
    Tq1_0,
    Tq2_0,
    /// Blocks of a ggml type, each with its own scale.
    Blocks(GgmlType),
    /// MLX's 2 bits, with the contents of the scales and biases tensors.
    Mlx {
        scales: SharedBytes,
        biases: SharedBytes,
    },
    /// Floats that are ternary with a scale for every group; codes and scales are recovered from them.
    Unpacked(DType),
    /// Rows of a matrix of panels.
    Panels,
}

/// A tensor's bytes and how to read them.
#[derive(Debug)]
struct Part {
    bytes: SharedBytes,
    encoding: Encoding,
    /// Multiplies the encoding's own scale.
    factor: f32,
    /// Number of heads, if their rows are stored for interleaved rope.
    interleaved_heads: Option<usize>,
}

/// The tensors of opened files.
#[derive(Debug)]
pub(crate) struct FileSource {
    file: String,
    entries: Vec<TensorEntry>,
    parts: HashMap<String, Part>,
    panels: Option<PanelFile>,
    /// Number of weights off their group's grid, by stored name, for the tensors read so far.
    off_grid: Mutex<BTreeMap<String, usize>>,
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
            Encoding::Dense(_) | Encoding::Blocks(_) | Encoding::Mlx { .. } | Encoding::Unpacked(_) => {
                return Err(self.not_a(entry, "ternary matrix with one scale"));
            }
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

    fn grouped(&self, name: &str) -> Result<GroupedTensor, ModelError> {
        let (entry, part) = self.find(name)?;
        let [rows, cols] = entry.shape[..] else { return Err(self.not_a(entry, "matrix")) };
        let stored = entry.stored_name.as_str();
        let fail = |problem: String| ModelError::tensor(&self.file, stored, problem, GROUPED_CURE);
        let parts = match &part.encoding {
            Encoding::Panels => return self.panels.as_ref().ok_or_else(|| self.missing(name))?.grouped(name),
            Encoding::Blocks(kind) => packing::grouped::unpack(*kind, &part.bytes, cols),
            Encoding::Mlx { scales, biases } => {
                packing::grouped::mlx(&part.bytes, scales, biases).map_err(fail)?
            }
            Encoding::Unpacked(dtype) => {
                let floats = BitNetTensor::new(*dtype, [rows, cols], part.bytes.clone())
                    .map_err(ModelError::data(&self.file, stored))?;
                let (parts, off_grid) = ternarize::recover(&floats).map_err(fail)?;
                self.off_grid.lock().unwrap_or_else(PoisonError::into_inner).insert(stored.into(), off_grid);
                parts
            }
            _ => return Err(self.not_a(entry, "matrix with a scale for every group")),
        };
        let tensor = GroupedTensor::new(rows, cols, parts.group, parts.codes, parts.scales)
            .map_err(ModelError::data(&self.file, stored))?;
        Ok(match part.interleaved_heads {
            Some(heads) => tensor.permute_rows(|row| interleaved_row(row, rows / heads)),
            None => tensor,
        })
    }

    fn warnings(&self) -> Vec<String> {
        let off_grid = self.off_grid.lock().unwrap_or_else(PoisonError::into_inner);
        let weights: usize = off_grid.values().sum();
        let tensors = off_grid.values().filter(|&&n| n > 0).count();
        let told = || {
            format!(
                "{weights} weights in {tensors} tensors are not -s, 0 or s of their group and were rounded \
                 ({}): the model's GGUF file has the exact values",
                self.file
            )
        };
        (weights > 0).then(told).into_iter().collect()
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

/// The cure for a matrix with group scales that cannot be read.
const GROUPED_CURE: &str = "use the model's GGUF file in PQ2_0, PTQ1_0 or Q2_0";

/// The stored position, under interleaved rope, of Hugging Face's `row`: in a head of `head_dim` rows, dimension `i` of
/// half `h` is at `2 i + h` (`permute` in llama.cpp's `convert_hf_to_gguf.py`).
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
        ModelError::tensor(&self.file, &entry.stored_name, problem, "request it as the kind that is stored")
    }

    /// The median of the scales that are known without reading a tensor, or `None` if none are.
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

    fn push(&mut self, expected: Expected, stored_name: String, stored: String, part: Part) {
        let Expected { name, kind, shape } = expected;
        self.parts.insert(name.clone(), part);
        self.entries.push(TensorEntry { name, stored_name, shape, stored, kind });
    }

    fn empty(file: &str, panels: Option<PanelFile>) -> Self {
        let (entries, parts, off_grid) = (Vec::new(), HashMap::new(), Mutex::default());
        FileSource { file: file.into(), entries, parts, panels, off_grid }
    }

    /// The tensors of safetensors files, and the names that the model does not use.
    pub(crate) fn safetensors(
        name: &str,
        config: &mut Config,
        mut stored: HashMap<String, Stored>,
    ) -> Result<(FileSource, Vec<String>), ModelError> {
        find_grouped_tables(&mut config.spec, &stored)?;
        let mut source = FileSource::empty(name, None);
        for wanted in names::expected(&config.spec) {
            let name = if config.onebitllm { names::onebitllm(&wanted.name) } else { wanted.name.clone() };
            let Some(tensor) = stored.remove(&name) else {
                return Err(ModelError::MissingTensor { file: source.file, tensor: name });
            };
            let (encoding, text) = match (wanted.kind, tensor.dtype) {
                (TensorKind::Ternary, Some(DType::U8)) => {
                    let packed = [wanted.shape[0].div_ceil(4), wanted.shape[1]];
                    check_shape(&tensor.file, &name, &packed, &tensor.shape)?;
                    let scale = stored.remove(&format!("{name}_scale"));
                    let scale = packed_scale(&tensor, scale.as_ref(), config.scale_multiplies)?;
                    (Encoding::Packed(scale), "packed u8".into())
                }
                (TensorKind::Grouped, Some(DType::U32)) => {
                    (mlx(&tensor, &wanted.shape, &mut stored)?, "mlx 2-bit".into())
                }
                (kind, _) => {
                    check_shape(&tensor.file, &name, &wanted.shape, &tensor.shape)?;
                    let dtype = plain_floats(&tensor)?;
                    match kind {
                        TensorKind::Ternary => (Encoding::Master(dtype), format!("{dtype} masters")),
                        TensorKind::Grouped => (Encoding::Unpacked(dtype), format!("{dtype} unpacked")),
                        TensorKind::Dense | TensorKind::Norm => (Encoding::Dense(dtype), dtype.to_string()),
                    }
                }
            };
            let part = Part { bytes: tensor.bytes, encoding, factor: 1.0, interleaved_heads: None };
            source.push(wanted, name, text, part);
        }
        let unused = unused(stored.into_values().map(|t| (t.file, t.name)))?;
        Ok((source, unused))
    }

    /// The tensors of a GGUF file, and the names that the model does not use.
    pub(crate) fn gguf(
        gguf: &Gguf,
        spec: &ModelSpec,
        interleaved: bool,
    ) -> Result<(FileSource, Vec<String>), ModelError> {
        let mut stored: HashMap<&str, _> = gguf.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
        let panels = PanelFile::take(gguf, spec, &mut stored)?;
        let mut source = FileSource::empty(&gguf.file, panels);
        for wanted in names::expected(spec) {
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
            let (kind, encoding) = gguf_encoding(&gguf.file, tensor, wanted.kind)?;
            check_shape(&gguf.file, &name, &wanted.shape, &tensor.shape)?;
            let factor = scale_beside(&gguf.file, &name, &mut stored)?;
            if wanted.kind == TensorKind::Grouped && factor != 1.0 {
                let problem = "a separate scale for a matrix with group scales is not supported";
                return Err(ModelError::tensor(&gguf.file, &name, problem, GROUPED_CURE));
            }
            let rotated = names::Part::of(&wanted.name).and_then(|part| part.rotated_heads(spec));
            let interleaved_heads = rotated.filter(|_| interleaved);
            let part = Part { bytes: tensor.bytes.clone(), encoding, factor, interleaved_heads };
            source.push(wanted, name, kind.name(), part);
        }
        let unused = unused(stored.into_keys().map(|name| (gguf.file.clone(), name.to_string())))?;
        Ok((source, unused))
    }
}

/// How to read a tensor of a GGUF file for the role it has in the model.
fn gguf_encoding(
    file: &str,
    tensor: &Descriptor,
    wanted: TensorKind,
) -> Result<(GgmlType, Encoding), ModelError> {
    let (name, id) = (&tensor.name, tensor.type_id);
    let Some(kind) = tensor.kind else {
        let (called, cure) = foreign(id);
        let problem = format!("type {id} ({called}) cannot be read");
        return Err(ModelError::tensor(file, name, problem, cure));
    };
    let encoding = match (wanted, kind) {
        (TensorKind::Ternary, GgmlType::I2S) => Encoding::I2S,
        (TensorKind::Ternary, GgmlType::Tq1_0) => Encoding::Tq1_0,
        (TensorKind::Ternary, GgmlType::Tq2_0) => Encoding::Tq2_0,
        (TensorKind::Ternary, GgmlType::Dense(t @ (DType::F32 | DType::F16 | DType::BF16))) => {
            Encoding::Exact(t)
        }
        (TensorKind::Dense | TensorKind::Norm, GgmlType::Dense(t)) => Encoding::Dense(t),
        (_, GgmlType::Stq1_0) => {
            let problem = "type 42 is STQ1_0 (Sherry) by its size, which cannot be read";
            let cure = "it holds 256 weights in 42 bytes; use a file of the model in another type";
            return Err(ModelError::tensor(file, name, problem, cure));
        }
        (TensorKind::Grouped, GgmlType::Tq1_0 | GgmlType::Tq2_0) => Encoding::Blocks(kind),
        (TensorKind::Grouped, kind) if kind.group().is_some() => Encoding::Blocks(kind),
        (TensorKind::Grouped, GgmlType::Dense(t @ (DType::F32 | DType::F16 | DType::BF16))) => {
            Encoding::Unpacked(t)
        }
        (TensorKind::Grouped, kind) => {
            let problem = format!("type {id} ({}) is not ternary", kind.name());
            let cure = "use a ternary file of the model, in PQ2_0, PTQ1_0, Q2_0 or TQ2_0";
            return Err(ModelError::tensor(file, name, problem, cure));
        }
        (_, kind) => {
            if let Some(group) = kind.group() {
                let (file, tensor, called) = (file.into(), name.clone(), kind.name());
                return Err(ModelError::GroupScales { file, tensor, called, id, group });
            }
            let problem = format!("type {} is not supported for this tensor", kind.name());
            let cure = "use a file whose projections are ternary and whose embedding and norms are floats";
            return Err(ModelError::tensor(file, name, problem, cure));
        }
    };
    Ok((kind, encoding))
}

/// The separate scale tensor by which llama.cpp's BitNet graphs multiply a weight; 1 if there is none.
fn scale_beside(
    file: &str,
    weight: &str,
    stored: &mut HashMap<&str, &Descriptor>,
) -> Result<f32, ModelError> {
    let beside = weight.replace(".weight", ".scale");
    match stored.remove(beside.as_str()) {
        Some(scale) if scale.type_id == 0 && scale.shape == [1] => Ok(first_f32(&scale.bytes)),
        Some(_) => {
            let problem = "a scale must be one f32";
            Err(ModelError::tensor(file, &beside, problem, "convert the model again"))
        }
        None => Ok(1.0),
    }
}

/// The type of a tensor, which must hold plain floats.
fn plain_floats(tensor: &Stored) -> Result<DType, ModelError> {
    let dtype = tensor.dtype.filter(|t| matches!(t, DType::F32 | DType::F16 | DType::BF16));
    dtype.ok_or_else(|| {
        let problem = format!("type {} cannot be read", tensor.dtype_name);
        let cure = "use a checkpoint in f32, f16, bf16 or packed u8";
        ModelError::tensor(&tensor.file, &tensor.name, problem, cure)
    })
}

/// Detects whether the embedding and the head of a family with group scales have group scales too: MLX's do, and
/// floats do if a sample of them is ternary. A matrix that only looks ternary is refused when it is read.
fn find_grouped_tables(spec: &mut ModelSpec, stored: &HashMap<String, Stored>) -> Result<(), ModelError> {
    if !spec.grouped.projections {
        return Ok(());
    }
    let grouped = |name: &str| -> Result<bool, ModelError> {
        let Some(tensor) = stored.get(name) else { return Ok(false) };
        if tensor.dtype == Some(DType::U32) {
            return Ok(true);
        }
        let (Ok(dtype), [rows, cols]) = (plain_floats(tensor), &tensor.shape[..]) else { return Ok(false) };
        let floats = BitNetTensor::new(dtype, [*rows, *cols], tensor.bytes.clone())
            .map_err(ModelError::data(&tensor.file, name))?;
        Ok(ternarize::looks_ternary(&floats))
    };
    spec.grouped.embedding = grouped(names::EMBEDDING)?;
    spec.grouped.head = grouped(names::head(spec))?;
    Ok(())
}

/// MLX's 2 bits: sixteen codes in 32 bits, with scales and biases in separate tensors.
fn mlx(
    tensor: &Stored,
    shape: &[usize],
    stored: &mut HashMap<String, Stored>,
) -> Result<Encoding, ModelError> {
    let (rows, cols) = (shape[0], shape[1]);
    let base = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
    check_shape(&tensor.file, &tensor.name, &[rows, cols.div_ceil(16)], &tensor.shape)?;
    let mut beside = |what: &str| {
        let name = format!("{base}.{what}");
        let found = stored.remove(&name);
        let beside =
            found.ok_or(ModelError::MissingTensor { file: tensor.file.clone(), tensor: name.clone() })?;
        let fail = |problem| Err(ModelError::tensor(&tensor.file, &name, problem, GROUPED_CURE));
        if beside.dtype != Some(DType::F16) {
            return fail(format!("type {} is not f16", beside.dtype_name));
        }
        let groups = packing::grouped::GROUPS.into_iter().find(|group| beside.shape == [rows, cols / group]);
        match groups.filter(|group| cols.is_multiple_of(*group)) {
            Some(_) => Ok(beside),
            None => fail(format!(
                "shape {:?} is not one value for every 128 or 64 of {rows} x {cols} weights",
                beside.shape
            )),
        }
    };
    let (scales, biases) = (beside("scales")?, beside("biases")?);
    check_shape(&tensor.file, &biases.name, &scales.shape, &biases.shape)?;
    Ok(Encoding::Mlx { scales: scales.bytes, biases: biases.bytes })
}

fn first_f32(bytes: &[u8]) -> f32 {
    bytes.first_chunk().map_or(f32::NAN, |b| f32::from_le_bytes(*b))
}

/// The factor of the trits of a packed tensor.
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

/// Lists the tensors that the model does not use. A bias would change every result, so it is an error.
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
        // Tables that are read elsewhere or follow from the metadata, and the duplicate of a tied head.
        let known =
            ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight", "lm_head.weight"]
                .contains(&name.as_str());
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
