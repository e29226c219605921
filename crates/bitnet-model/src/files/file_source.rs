//! The tensors of opened files, whatever type and order they are stored in: [`FileSource`].
//! Bytes stay in the mapped file until a tensor is read.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, HashMap},
    hash::Hash,
    sync::{Mutex, PoisonError},
};

use bitnet_tensor::{BitNetTensor, DType, SharedBytes, TernaryTensor};

use crate::{
    ModelError,
    error::{check_shape, one_line},
    files::{
        PackedSource, TensorEntry, TensorKind, TensorSource,
        ggml_type::{GgmlType, foreign},
        gguf::{Descriptor, Gguf},
        panels::PanelFile,
        reorder::{Convention, Reorder},
        safetensors::{self, Stored},
    },
    names::{self, Expected},
    packing,
    spec::{Config, ModelSpec},
    ternarize,
};

/// The tensors of opened files.
#[derive(Debug)]
pub(crate) struct FileSource {
    file: String,
    entries: Vec<TensorEntry>,
    draft_head: Vec<TensorEntry>,
    parts: HashMap<String, Part>,
    panels: Option<PanelFile>,
    /// Number of weights off their group's grid, by stored name, for the tensors read so far.
    off_grid: Mutex<BTreeMap<String, usize>>,
}

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
    /// MLX's 2 bits, with the scales and biases of groups.
    Mlx {
        scales: BitNetTensor,
        biases: BitNetTensor,
    },
    /// MLX's 2 bits, with a scale for every row.
    MlxRows(BitNetTensor),
    /// MLX's 4 bits, with the scales and biases of groups.
    Mlx4 {
        scales: BitNetTensor,
        biases: BitNetTensor,
    },
    /// As [`Encoding::Unpacked`], with the bytes of each expert's matrix.
    Experts(DType, Vec<SharedBytes>),
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
    /// How its rows or columns become those of the model.
    reorder: Reorder,
    /// How its values become those of the model.
    adjust: Adjust,
}

/// How stored values become those of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Adjust {
    /// As they are stored.
    None,
    /// A gain is stored as what exceeds 1.
    PlusOne,
    /// A rate of decay is stored as its logarithm.
    MinusExp,
}

/// Names of tensors in a file that are not loaded.
#[derive(Debug, Default)]
pub(crate) struct NotLoaded {
    /// For images, or for the prediction of several tokens.
    pub extras: Vec<String>,
    /// Unknown to the architecture.
    pub unknown: Vec<String>,
}

impl TensorSource for FileSource {
    fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    fn draft_head(&self) -> &[TensorEntry] {
        &self.draft_head
    }

    fn ternary(&self, name: &str) -> Result<TernaryTensor, ModelError> {
        let (entry, part) = self.find(name)?;
        let [outer @ .., cols] = &entry.shape[..] else { return Err(self.not_a(entry, "ternary matrix")) };
        let (rows, cols) = (outer.iter().product(), *cols);
        let stored = entry.stored_name.as_str();
        let stored_rows = part.reorder.stored_rows(rows);
        let fail = |problem: String| ModelError::tensor(&self.file, stored, problem, part.encoding.cure());
        let damaged = |error| ModelError::data(&self.file, stored)(error);
        let bytes = &part.bytes;
        let floats = |dtype| BitNetTensor::new(dtype, [stored_rows, cols], bytes.clone()).map_err(damaged);
        let with_scale = |(codes, scale): (Vec<u8>, f32)| {
            TernaryTensor::from_codes(stored_rows, cols, codes, scale * part.factor).map_err(damaged)
        };
        let with_groups = |parts: packing::grouped::Parts| {
            TernaryTensor::from_groups(stored_rows, cols, parts.group, parts.codes, parts.scales)
                .map_err(damaged)
        };
        let tensor = match &part.encoding {
            Encoding::Dense(_) | Encoding::Mlx4 { .. } => return Err(self.not_a(entry, "ternary matrix")),
            Encoding::Panels => return self.panels.as_ref().ok_or_else(|| self.missing(name))?.ternary(name),
            Encoding::Master(dtype) => ternarize::masters(&floats(*dtype)?).map_err(damaged)?,
            Encoding::Exact(dtype) => {
                let exact = ternarize::exact(&floats(*dtype)?).map_err(|e| match e {
                    Some(e) => damaged(e),
                    None => fail("its values are not all -s, 0 or s for one s".into()),
                })?;
                with_scale((exact.codes().to_vec(), exact.row_scale(0).unwrap_or(0.0)))?
            }
            Encoding::Packed(scale) => with_scale((packing::packed::unpack(bytes, rows, cols), *scale))?,
            Encoding::I2S => with_scale(packing::i2_s::unpack(bytes, rows, cols).map_err(fail)?)?,
            Encoding::Tq1_0 => with_scale(packing::tq1_0::unpack(bytes, rows, cols).map_err(fail)?)?,
            Encoding::Tq2_0 => with_scale(packing::tq2_0::unpack(bytes, rows, cols).map_err(fail)?)?,
            Encoding::Blocks(kind) => with_groups(packing::grouped::unpack(*kind, bytes, cols))?,
            Encoding::Mlx { scales, biases } => {
                with_groups(packing::grouped::mlx(bytes, &scales.to_f32(), &biases.to_f32()).map_err(fail)?)?
            }
            Encoding::MlxRows(scales) => {
                with_groups(packing::grouped::mlx_rows(bytes, &scales.to_f32(), cols).map_err(fail)?)?
            }
            Encoding::Unpacked(dtype) => {
                let (parts, off_grid) = ternarize::recover(&floats(*dtype)?).map_err(fail)?;
                self.off_grid.lock().unwrap_or_else(PoisonError::into_inner).insert(stored.into(), off_grid);
                with_groups(parts)?
            }
            Encoding::Experts(dtype, pieces) => {
                let rows = rows / pieces.len();
                let (mut experts, mut all) = (Vec::with_capacity(pieces.len()), 0);
                for (expert, bytes) in pieces.iter().enumerate() {
                    let floats = BitNetTensor::new(*dtype, [rows, cols], bytes.clone()).map_err(damaged)?;
                    let (parts, off_grid) = ternarize::recover(&floats)
                        .map_err(|problem| fail(format!("expert {expert}: {problem}")))?;
                    all += off_grid;
                    let one = TernaryTensor::from_groups(rows, cols, parts.group, parts.codes, parts.scales);
                    experts.push(one.map_err(damaged)?);
                }
                self.off_grid.lock().unwrap_or_else(PoisonError::into_inner).insert(stored.into(), all);
                TernaryTensor::stack(&experts).map_err(damaged)?
            }
        };
        if let Some((width, order)) = part.reorder.columns() {
            return tensor.permute_columns(width, order).ok_or_else(|| {
                let group = tensor.group().unwrap_or(cols);
                fail(format!("value heads of {width} columns are no whole groups of {group}"))
            });
        }
        Ok(match part.reorder {
            Reorder::None => tensor,
            reorder => tensor.select_rows(rows, |row| reorder.row(row)),
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
        let damaged = |e| ModelError::data(&self.file, &entry.stored_name)(e);
        let dtype = match &part.encoding {
            Encoding::Dense(dtype) => *dtype,
            Encoding::Mlx4 { scales, biases } => {
                let cols = entry.shape.last().copied().unwrap_or(1);
                return packing::mlx4::read(&part.bytes, scales, biases, cols).map_err(damaged);
            }
            _ => return Err(self.not_a(entry, "float tensor")),
        };
        let mut bytes = part.bytes.clone();
        if part.reorder != Reorder::None {
            let row = bytes.len() / part.reorder.stored_rows(entry.shape[0]);
            let stored = |to: usize| &bytes[part.reorder.row(to) * row..][..row];
            bytes = SharedBytes::new((0..entry.shape[0]).flat_map(stored).copied().collect::<Vec<u8>>());
        }
        let tensor = BitNetTensor::new(dtype, entry.shape.clone(), bytes).map_err(damaged)?;
        let adjusted: Vec<f32> = match part.adjust {
            Adjust::None => return Ok(tensor),
            Adjust::PlusOne => tensor.to_f32().into_iter().map(|w| 1.0 + w).collect(),
            Adjust::MinusExp => tensor.to_f32().into_iter().map(|a| -f64::from(a).exp() as f32).collect(),
        };
        BitNetTensor::from_f32(entry.shape.clone(), &adjusted).map_err(damaged)
    }

    fn packed(&self) -> Option<&dyn PackedSource> {
        self.panels.as_ref().map(|panels| panels as &dyn PackedSource)
    }
}

/// The cure for a matrix with group scales that cannot be read.
const GROUPED_CURE: &str = "use the model's GGUF file in PQ2_0, PTQ1_0 or Q2_0";

impl Encoding {
    /// The type of a float matrix of these bytes when it is read.
    fn dtype(&self, bytes: &[u8]) -> Option<DType> {
        match self {
            Encoding::Dense(dtype) => Some(*dtype),
            Encoding::Mlx4 { scales, biases } => Some(packing::mlx4::dtype(bytes, scales, biases)),
            _ => None,
        }
    }

    /// Columns of a matrix of `cols` columns that share a scale; the fewest, if the values or the scales decide.
    fn group(&self, cols: usize) -> usize {
        match self {
            Encoding::Blocks(kind) => kind.group().unwrap_or(TernaryTensor::WIDE),
            Encoding::Mlx { scales, .. } => cols / scales.cols().max(1),
            Encoding::MlxRows(_) => TernaryTensor::WIDE,
            _ => TernaryTensor::NARROW,
        }
    }

    /// The cure for a matrix that cannot be read.
    fn cure(&self) -> &'static str {
        match self {
            Encoding::Blocks(_)
            | Encoding::Mlx { .. }
            | Encoding::MlxRows(_)
            | Encoding::Experts(..)
            | Encoding::Unpacked(_) => GROUPED_CURE,
            _ => "convert the original model to I2_S or packed safetensors",
        }
    }
}

impl FileSource {
    fn find(&self, name: &str) -> Result<(&TensorEntry, &Part), ModelError> {
        let part = self.parts.get(name).ok_or_else(|| self.missing(name))?;
        let entry = self.entries.iter().chain(&self.draft_head).find(|e| e.name == name);
        let entry = entry.ok_or_else(|| self.missing(name))?;
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
        let entry = self.keep(expected, stored_name, stored, part);
        self.entries.push(entry);
    }

    fn push_draft_head(&mut self, expected: Expected, stored_name: String, stored: String, part: Part) {
        let entry = self.keep(expected, stored_name, stored, part);
        self.draft_head.push(entry);
    }

    /// Keeps how a tensor is read, and returns what is known of it.
    fn keep(&mut self, expected: Expected, stored_name: String, stored: String, part: Part) -> TensorEntry {
        let Expected { name, kind, shape } = expected;
        let dtype = part.encoding.dtype(&part.bytes).filter(|_| kind == TensorKind::Dense);
        let cols = shape.last().copied().unwrap_or(1);
        let group = match &part.encoding {
            _ if kind != TensorKind::Grouped => None,
            Encoding::Panels => self.panels.as_ref().and_then(|panels| panels.group(&name)),
            encoding => Some(encoding.group(cols)),
        };
        self.parts.insert(name.clone(), part);
        TensorEntry { name, stored_name, shape, stored, kind, dtype, group }
    }

    /// Takes the draft head of a hybrid model from safetensors files, if they have one.
    fn take_draft_head(
        &mut self,
        spec: &ModelSpec,
        plus_one: bool,
        stored: &mut HashMap<String, Stored>,
    ) -> Result<(), ModelError> {
        if spec.hybrid.is_none() || !stored.keys().any(|name| name.starts_with("mtp.")) {
            return Ok(());
        }
        for wanted in names::draft_head(spec) {
            let part = names::Part::of(&wanted.name);
            let reorder =
                part.map_or(Reorder::None, |part| Reorder::of(part, spec, Convention::Grouped, &wanted.name));
            let name = names::stored_of_draft_head(&wanted.name, spec);
            let last = part != Some(names::Part::Query);
            let Some(tensor) = take(stored, &name, last) else {
                return Err(ModelError::MissingTensor { file: self.file.clone(), tensor: name });
            };
            let mut shape = wanted.shape.clone();
            shape[0] = reorder.stored_rows(shape[0]);
            check_shape(&tensor.file, &tensor.name, &shape, &tensor.shape)?;
            let (encoding, text) = floats(&tensor, wanted.kind)?;
            // A file of its own has the gains of the original checkpoint, whatever the model's files have.
            let plus_one = plus_one || tensor.file == safetensors::DRAFT_HEAD;
            let adjust =
                if plus_one && wanted.kind == TensorKind::Norm { Adjust::PlusOne } else { Adjust::None };
            let part = Part { bytes: tensor.bytes, encoding, factor: 1.0, reorder, adjust };
            self.push_draft_head(wanted, tensor.name, text, part);
        }
        Ok(())
    }

    /// Takes the draft head of a hybrid model from a GGUF file, if it has one: the one block after its last layer.
    fn take_draft_block(
        &mut self,
        gguf: &Gguf,
        spec: &ModelSpec,
        stored: &mut HashMap<&str, &Descriptor>,
    ) -> Result<(), ModelError> {
        let block = |layer: usize| format!("blk.{layer}.");
        let has = |layer| gguf.tensors.iter().any(|tensor| tensor.name.starts_with(&block(layer)));
        // Several heads, one after the other, are not supported, and not loaded.
        if spec.hybrid.is_none() || !has(spec.layers) || has(spec.layers + 1) {
            return Ok(());
        }
        for wanted in names::draft_head(spec) {
            let part = names::Part::of(&wanted.name);
            let convention = Convention::Gguf { interleaved: false };
            let reorder =
                part.map_or(Reorder::None, |part| Reorder::of(part, spec, convention, &wanted.name));
            let name = names::gguf(&wanted.name, spec).unwrap_or_else(|| wanted.name.clone());
            let last = part != Some(names::Part::Query);
            let tensor = take(stored, name.as_str(), last);
            // Without a norm of its own, the head shares the model's.
            let shared = || gguf.tensor("output_norm.weight").filter(|_| wanted.name == names::DRAFT_NORM);
            let Some(tensor) = tensor.or_else(shared) else {
                return Err(ModelError::MissingTensor { file: self.file.clone(), tensor: name });
            };
            let (kind, encoding) = gguf_encoding(&gguf.file, tensor, wanted.kind)?;
            let mut shape = wanted.shape.clone();
            shape[0] = reorder.stored_rows(shape[0]);
            check_shape(&gguf.file, &name, &shape, &tensor.shape)?;
            let bytes = tensor.bytes.clone();
            let part = Part { bytes, encoding, factor: 1.0, reorder, adjust: Adjust::None };
            self.push_draft_head(wanted, name, kind.name(), part);
        }
        Ok(())
    }

    fn empty(file: &str, panels: Option<PanelFile>) -> Self {
        let (entries, parts, off_grid) = (Vec::new(), HashMap::new(), Mutex::default());
        FileSource { file: file.into(), entries, draft_head: Vec::new(), parts, panels, off_grid }
    }

    /// The tensors of safetensors files, and the names of those that are not loaded.
    pub(crate) fn safetensors(
        name: &str,
        config: &mut Config,
        stored: HashMap<String, Stored>,
    ) -> Result<(FileSource, NotLoaded), ModelError> {
        let mut stored = match &config.spec {
            spec if spec.embeds.is_some() => renamed(stored, names::of_embedding_model)?,
            spec if spec.hybrid.is_some() => renamed(stored, names::unwrapped)?,
            _ => stored,
        };
        find_grouped_matrices(&mut config.spec, &stored)?;
        names::check_rotation(&config.spec, name)?;
        let spec = &config.spec;
        // MLX stores taps before the ones between channels and taps, and gains with the 1 already added.
        let plus_one = stored.values().any(|t| t.name.ends_with(CONVOLUTION) && t.shape.get(1) == Some(&1));
        let mut source = FileSource::empty(name, None);
        for wanted in names::expected(spec) {
            let part = names::Part::of(&wanted.name);
            let reorder =
                part.map_or(Reorder::None, |part| Reorder::of(part, spec, Convention::Grouped, &wanted.name));
            // Norms of Gemma are stored so too, except those before projections.
            let plus_one = plus_one || spec.post_norms && !names::is_linear_norm(&wanted.name);
            let adjust = adjust(&wanted, plus_one);
            let name = if config.onebitllm {
                names::onebitllm(&wanted.name)
            } else {
                names::stored(&wanted.name, spec)
            };
            let name = match part.filter(|part| part.is_of_experts()) {
                Some(_) => {
                    let (one, together) = names::of_experts(&wanted.name);
                    if !stored.contains_key(&together) {
                        let part = experts(&wanted, one, &mut stored, &source.file)?;
                        source.push(wanted, part.0, part.1, part.2);
                        continue;
                    }
                    together
                }
                None => name,
            };
            let last = !part.is_some_and(|part| part == names::Part::Query && part.shares_rows(spec));
            let Some(tensor) = take(&mut stored, &name, last) else {
                return Err(ModelError::MissingTensor { file: source.file, tensor: name });
            };
            let mut shape = wanted.shape.clone();
            shape[0] = reorder.stored_rows(shape[0]);
            let (encoding, text) = match (wanted.kind, tensor.dtype) {
                (TensorKind::Ternary, Some(DType::U8)) => {
                    let packed = [shape[0].div_ceil(4), shape[1]];
                    check_shape(&tensor.file, &name, &packed, &tensor.shape)?;
                    let scale = stored.remove(&format!("{name}_scale"));
                    let scale = packed_scale(&tensor, scale.as_ref(), config.scale_multiplies)?;
                    (Encoding::Packed(scale), "packed u8".into())
                }
                (TensorKind::Grouped, Some(DType::U32)) => {
                    let cols = shape.last().copied().unwrap_or(1);
                    check_signs(&tensor, &name, cols, spec, &mut stored, last)?;
                    (mlx(&tensor, &name, &shape, &mut stored, last)?, "mlx 2-bit".into())
                }
                (TensorKind::Dense, Some(DType::U32)) => {
                    (mlx4(&tensor, &name, &shape, &mut stored)?, "mlx 4-bit".into())
                }
                (kind, _) => {
                    let convolution = name.ends_with(CONVOLUTION) && tensor.shape.len() == 3;
                    let without_ones: Vec<usize> = if convolution {
                        tensor.shape.iter().copied().filter(|&d| d != 1).collect()
                    } else {
                        tensor.shape.clone()
                    };
                    check_shape(&tensor.file, &tensor.name, &shape, &without_ones)?;
                    floats(&tensor, kind)?
                }
            };
            let part = Part { bytes: tensor.bytes, encoding, factor: 1.0, reorder, adjust };
            source.push(wanted, tensor.name, text, part);
        }
        source.take_draft_head(spec, plus_one, &mut stored)?;
        let not_loaded = not_loaded(stored.into_values().map(|t| (t.file, t.name)), spec)?;
        Ok((source, not_loaded))
    }

    /// The tensors of a GGUF file, and the names of those that are not loaded.
    pub(crate) fn gguf(
        gguf: &Gguf,
        spec: &ModelSpec,
        interleaved: bool,
    ) -> Result<(FileSource, NotLoaded), ModelError> {
        let mut stored: HashMap<&str, _> = gguf.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
        let panels = PanelFile::take(gguf, spec, &mut stored)?;
        let mut source = FileSource::empty(&gguf.file, panels);
        for wanted in names::expected(spec) {
            let in_panels = source.panels.as_ref().and_then(|panels| panels.stored_name(&wanted.name));
            if let Some(name) = in_panels.map(String::from) {
                let (bytes, encoding) = (SharedBytes::default(), Encoding::Panels);
                let (reorder, adjust) = (Reorder::None, Adjust::None);
                source.push(
                    wanted,
                    name,
                    "panels".into(),
                    Part { bytes, encoding, factor: 1.0, reorder, adjust },
                );
                continue;
            }
            let part = names::Part::of(&wanted.name);
            let convention = Convention::Gguf { interleaved };
            let reorder =
                part.map_or(Reorder::None, |part| Reorder::of(part, spec, convention, &wanted.name));
            let name = names::gguf(&wanted.name, spec).unwrap_or_else(|| wanted.name.clone());
            let last = !part.is_some_and(|part| part == names::Part::Query && part.shares_rows(spec));
            let Some(tensor) = take(&mut stored, name.as_str(), last) else {
                return Err(ModelError::MissingTensor { file: source.file, tensor: name });
            };
            let (kind, encoding) = gguf_encoding(&gguf.file, tensor, wanted.kind)?;
            let mut shape = wanted.shape.clone();
            shape[0] = reorder.stored_rows(shape[0]);
            check_shape(&gguf.file, &name, &shape, &tensor.shape)?;
            let factor = separate_scale(&gguf.file, &name, &mut stored)?;
            if wanted.kind == TensorKind::Grouped && factor != 1.0 {
                let problem = "a separate scale for a matrix with group scales is not supported";
                return Err(ModelError::tensor(&gguf.file, &name, problem, GROUPED_CURE));
            }
            let bytes = tensor.bytes.clone();
            let part = Part { bytes, encoding, factor, reorder, adjust: Adjust::None };
            source.push(wanted, name, kind.name(), part);
        }
        source.take_draft_block(gguf, spec, &mut stored)?;
        let not_loaded =
            not_loaded(stored.into_keys().map(|name| (gguf.file.clone(), name.to_string())), spec)?;
        Ok((source, not_loaded))
    }
}

/// Takes a stored tensor, or a copy of it unless this is the last part of the model that needs it.
fn take<K: Borrow<str> + Eq + Hash, T: Clone>(
    stored: &mut HashMap<K, T>,
    name: &str,
    last: bool,
) -> Option<T> {
    if last { stored.remove(name) } else { stored.get(name).cloned() }
}

/// The end of the name of a convolution in safetensors files.
const CONVOLUTION: &str = "linear_attn.conv1d.weight";

/// How the values of a tensor in safetensors become those of the model. Norms of hybrid models are stored as what
/// exceeds 1, unless `plus_one` says otherwise; the norm of a gated-delta layer never is.
fn adjust(wanted: &Expected, plus_one: bool) -> Adjust {
    match names::Part::of(&wanted.name) {
        Some(names::Part::Decay) => Adjust::MinusExp,
        Some(names::Part::Convolution | names::Part::TimeBias | names::Part::DeltaNorm) => Adjust::None,
        _ if plus_one && wanted.kind == TensorKind::Norm => Adjust::PlusOne,
        _ => Adjust::None,
    }
}

/// The tensors of a model under their usual names.
fn renamed(
    stored: HashMap<String, Stored>,
    usual: fn(&str) -> String,
) -> Result<HashMap<String, Stored>, ModelError> {
    let mut all = HashMap::with_capacity(stored.len());
    for tensor in stored.into_values() {
        if let Some(first) = all.insert(usual(&tensor.name), tensor) {
            let problem = format!("tensor {} is stored twice, under another prefix", one_line(&first.name));
            return Err(ModelError::damaged(&first.file, problem));
        }
    }
    Ok(all)
}

/// How to read a tensor of plain floats for the role it has in the model.
fn floats(tensor: &Stored, kind: TensorKind) -> Result<(Encoding, String), ModelError> {
    let dtype = plain_floats(tensor)?;
    Ok(match kind {
        TensorKind::Ternary => (Encoding::Master(dtype), format!("{dtype} masters")),
        TensorKind::Grouped => (Encoding::Unpacked(dtype), format!("{dtype} unpacked")),
        TensorKind::Dense | TensorKind::Norm => (Encoding::Dense(dtype), dtype.to_string()),
    })
}

/// Checks that the signs stored with an MLX matrix are those of the model's rotation.
fn check_signs(
    tensor: &Stored,
    name: &str,
    width: usize,
    spec: &ModelSpec,
    stored: &mut HashMap<String, Stored>,
    last: bool,
) -> Result<(), ModelError> {
    let base = name.strip_suffix(".weight").unwrap_or(name);
    let companion = format!("{base}.signs");
    let Some(signs) = take(stored, &companion, last) else { return Ok(()) };
    let fail = |problem: &str| {
        Err(ModelError::tensor(&tensor.file, &signs.name, problem, "use the files that belong together"))
    };
    let rotation = spec.rotation.as_ref();
    let rotated = rotation.filter(|r| r.weights.contains(name) || name == names::EMBEDDING && r.embedding);
    let Some(rotation) = rotated else {
        return fail("hadamard.json does not name the weights of these signs");
    };
    check_shape(&signs.file, &signs.name, &[width], &signs.shape)?;
    if signs.dtype != Some(DType::F32) {
        return fail("the signs are not f32");
    }
    let (values, _) = signs.bytes.as_chunks::<4>();
    let expected = |i: usize| rotation.signs.get(&width).map_or(1, |signs| signs[i]);
    if values.iter().enumerate().all(|(i, v)| f32::from_le_bytes(*v) == f32::from(expected(i))) {
        Ok(())
    } else {
        fail("the signs are not those of hadamard.json")
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
fn separate_scale(
    file: &str,
    weight: &str,
    stored: &mut HashMap<&str, &Descriptor>,
) -> Result<f32, ModelError> {
    let companion = weight.replace(".weight", ".scale");
    match stored.remove(companion.as_str()) {
        Some(scale) if scale.type_id == 0 && scale.shape == [1] => Ok(first_f32(&scale.bytes)),
        Some(_) => {
            let problem = "a scale must be one f32";
            Err(ModelError::tensor(file, &companion, problem, "convert the model again"))
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

/// Detects which matrices of a family with group scales have group scales, of those that may be floats: the embedding,
/// the head, alpha and beta. MLX's have them, and floats do if a sample of them is ternary. A matrix that only looks
/// ternary is refused when it is read.
fn find_grouped_matrices(spec: &mut ModelSpec, stored: &HashMap<String, Stored>) -> Result<(), ModelError> {
    if !spec.grouped.projections {
        return Ok(());
    }
    let known = spec.clone();
    let grouped = |name: &str| -> Result<bool, ModelError> {
        let Some(tensor) = stored.get(&names::stored(name, &known)) else { return Ok(false) };
        if tensor.dtype == Some(DType::U32) {
            // Tables of 4 bits are floats.
            return Ok(known.experts.is_none());
        }
        let (Ok(dtype), [rows, cols]) = (plain_floats(tensor), &tensor.shape[..]) else { return Ok(false) };
        let floats = BitNetTensor::new(dtype, [*rows, *cols], tensor.bytes.clone())
            .map_err(ModelError::data(&tensor.file, name))?;
        Ok(ternarize::looks_ternary(&floats))
    };
    spec.grouped.embedding = grouped(names::EMBEDDING)?;
    spec.grouped.head = grouped(names::head(spec))?;
    let first = (0..spec.layers).find(|&layer| !spec.attends(layer));
    if let (Some(hybrid), Some(layer)) = (&mut spec.hybrid, first) {
        hybrid.float_alpha_beta = !grouped(&names::Part::Alpha.tensor(layer))?;
    }
    Ok(())
}

/// MLX's 2 bits: sixteen codes in 32 bits, with scales and biases in separate tensors. `last` says that no other part
/// of the model needs them.
fn mlx(
    tensor: &Stored,
    name: &str,
    shape: &[usize],
    stored: &mut HashMap<String, Stored>,
    last: bool,
) -> Result<Encoding, ModelError> {
    let (outer, cols) = (&shape[..shape.len() - 1], shape[shape.len() - 1]);
    let of = |width: usize| [outer, &[width]].concat();
    let base = name.strip_suffix(".weight").unwrap_or(name);
    check_shape(&tensor.file, &tensor.name, &of(cols.div_ceil(16)), &tensor.shape)?;
    if let Some(alpha) = take(stored, &format!("{base}.row_alpha"), last) {
        check_shape(&alpha.file, &alpha.name, outer, &alpha.shape)?;
        return Ok(Encoding::MlxRows(companion_floats(&alpha)?));
    }
    let mut companion = |what: &str| {
        let name = format!("{base}.{what}");
        let companion = take(stored, &name, last)
            .ok_or(ModelError::MissingTensor { file: tensor.file.clone(), tensor: name.clone() })?;
        let fail = |problem| Err(ModelError::tensor(&tensor.file, &name, problem, GROUPED_CURE));
        let groups = packing::grouped::GROUPS.into_iter().find(|group| companion.shape == of(cols / group));
        match groups.filter(|group| cols.is_multiple_of(*group)) {
            Some(_) => Ok((companion_floats(&companion)?, companion.name, companion.shape)),
            None => fail(format!(
                "shape {:?} is not one value for every 128 or 64 weights of rows of {cols}",
                companion.shape
            )),
        }
    };
    let ((scales, _, groups), (biases, name, others)) = (companion("scales")?, companion("biases")?);
    check_shape(&tensor.file, &name, &groups, &others)?;
    Ok(Encoding::Mlx { scales, biases })
}

/// The scales or biases of an MLX matrix.
fn companion_floats(companion: &Stored) -> Result<BitNetTensor, ModelError> {
    let fail = |problem| ModelError::tensor(&companion.file, &companion.name, problem, GROUPED_CURE);
    let dtype = companion.dtype.filter(|dtype| matches!(dtype, DType::F16 | DType::BF16));
    let dtype = dtype.ok_or_else(|| fail(format!("type {} is not f16 or bf16", companion.dtype_name)))?;
    BitNetTensor::new(dtype, companion.shape.clone(), companion.bytes.clone())
        .map_err(ModelError::data(&companion.file, &companion.name))
}

/// MLX's 4 bits for an embedding or an output head: eight codes in 32 bits, with scales and biases of groups of 64 in
/// separate tensors.
fn mlx4(
    tensor: &Stored,
    name: &str,
    shape: &[usize],
    stored: &mut HashMap<String, Stored>,
) -> Result<Encoding, ModelError> {
    let (rows, cols) = (shape[0], shape[1]);
    let base = name.strip_suffix(".weight").unwrap_or(name);
    let cure = "use the model's GGUF file";
    if !cols.is_multiple_of(packing::mlx4::GROUP) {
        let problem = format!("rows of {cols} weights are not whole groups of {}", packing::mlx4::GROUP);
        return Err(ModelError::tensor(&tensor.file, &tensor.name, problem, cure));
    }
    check_shape(&tensor.file, &tensor.name, &[rows, cols / 8], &tensor.shape)?;
    let mut companion = |what: &str| {
        let name = format!("{base}.{what}");
        let companion = stored
            .remove(&name)
            .ok_or(ModelError::MissingTensor { file: tensor.file.clone(), tensor: name.clone() })?;
        check_shape(&companion.file, &name, &[rows, cols / packing::mlx4::GROUP], &companion.shape)?;
        companion_floats(&companion)
    };
    let (scales, biases) = (companion("scales")?, companion("biases")?);
    Ok(Encoding::Mlx4 { scales, biases })
}

/// A matrix for each expert, stored one by one: the name and the type of the first, and all of them.
fn experts(
    wanted: &Expected,
    name: impl Fn(usize) -> String,
    stored: &mut HashMap<String, Stored>,
    file: &str,
) -> Result<(String, String, Part), ModelError> {
    let mut first: Option<(String, DType)> = None;
    let mut pieces = Vec::with_capacity(wanted.shape[0]);
    for expert in 0..wanted.shape[0] {
        let name = name(expert);
        let missing = || ModelError::MissingTensor { file: file.into(), tensor: name.clone() };
        let tensor = stored.remove(&name).ok_or_else(missing)?;
        check_shape(&tensor.file, &tensor.name, &wanted.shape[1..], &tensor.shape)?;
        let dtype = plain_floats(&tensor)?;
        let (_, usual) = first.get_or_insert_with(|| (tensor.name.clone(), dtype));
        if *usual != dtype {
            let problem = format!("it is {dtype}, but the first expert is {usual}");
            return Err(ModelError::tensor(
                &tensor.file,
                &tensor.name,
                problem,
                "use files that belong together",
            ));
        }
        pieces.push(tensor.bytes);
    }
    let (name, dtype) =
        first.ok_or_else(|| ModelError::MissingTensor { file: file.into(), tensor: name(0) })?;
    let encoding = Encoding::Experts(dtype, pieces);
    let (reorder, adjust) = (Reorder::None, Adjust::None);
    let part = Part { bytes: SharedBytes::default(), encoding, factor: 1.0, reorder, adjust };
    Ok((name, format!("{dtype} unpacked"), part))
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

/// Lists the tensors that are not loaded. A bias would change every result, so it is an error.
fn not_loaded(
    names: impl Iterator<Item = (String, String)>,
    spec: &ModelSpec,
) -> Result<NotLoaded, ModelError> {
    let mut listed = NotLoaded::default();
    for (file, name) in names {
        if names::is_for_images_or_drafts(&name, spec) {
            listed.extras.push(one_line(name));
            continue;
        }
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
            listed.unknown.push(one_line(name));
        }
    }
    listed.extras.sort_unstable();
    listed.unknown.sort_unstable();
    Ok(listed)
}
