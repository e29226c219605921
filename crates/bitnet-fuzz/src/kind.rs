use std::path::Path;

use bitnet_model::{
    Checkpoint, Message, ModelError, ModelFiles, ModelSpec, Synthetic, Target, TensorKind, convert,
};
use bitnet_tensor::SharedBytes;

use crate::gguf_edit::GgufEdit;

/// A kind of model file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A GGUF file with weights of this type.
    Gguf(Target),
    /// `model.safetensors`.
    Weights,
    /// `config.json`.
    Config,
    /// `tokenizer.json`.
    Tokenizer,
    /// `tokenizer_config.json`.
    TokenizerConfig,
    /// `generation_config.json`.
    Generation,
    /// `chat_template.jinja`.
    Template,
    /// A file of a model with a scale for every group of weights.
    Grouped(Grouped),
}

/// A form of a model with a scale for every group of weights; each has a fixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouped {
    /// A GGUF file in Q2_0, with groups of 64.
    Q2_0,
    /// A GGUF file in the earlier Q2_0, with groups of 128.
    Q2_0Earlier,
    /// A GGUF file in Q1_0.
    Q1_0,
    /// A GGUF file in PQ2_0, with YaRN and a separate head.
    Pq2_0,
    /// A GGUF file in PTQ1_0.
    Ptq1_0,
    /// A GGUF file of MiniCPM in TQ2_0.
    Tq2_0,
    /// `model.safetensors` of MLX.
    Mlx,
    /// `model.safetensors` with floats that are ternary.
    Unpacked,
    /// `config.json` of MiniCPM.
    Config,
    /// A GGUF file in PQ2_0 of a hybrid model.
    HybridPq2_0,
    /// A GGUF file in PTQ1_0 of a hybrid model with rotated weights.
    HybridPtq1_0,
    /// `model.safetensors` of MLX, of a hybrid model with rotated weights.
    HybridMlx,
    /// `hadamard.json` of that model.
    Hadamard,
    /// `config.json` of that model.
    HybridConfig,
}

impl Grouped {
    /// The fixture's folder, and the name of the file.
    fn file(self) -> (&'static str, &'static str) {
        match self {
            Grouped::Q2_0 => ("qwen3-g64", "model-Q2_0.gguf"),
            Grouped::Pq2_0 => ("qwen3-yarn", "model-PQ2_0.gguf"),
            Grouped::Ptq1_0 => ("qwen3-ternary", "model-PTQ1_0.gguf"),
            Grouped::Q2_0Earlier | Grouped::Q1_0 => ("qwen3-ternary", "model-PQ2_0.gguf"),
            Grouped::Tq2_0 => ("minicpm-blocks", "model-TQ2_0.gguf"),
            Grouped::Mlx => ("qwen3-ternary/mlx", "model.safetensors"),
            Grouped::Unpacked => ("qwen3-unpacked", "model.safetensors"),
            Grouped::Config => ("minicpm-blocks", "config.json"),
            Grouped::HybridPq2_0 => ("qwen35-ternary", "model-PQ2_0.gguf"),
            Grouped::HybridPtq1_0 => ("qwen35-hadamard", "model-PTQ1_0.gguf"),
            Grouped::HybridMlx => ("qwen35-hadamard/mlx", "model.safetensors"),
            Grouped::Hadamard => ("qwen35-hadamard/mlx", "hadamard.json"),
            Grouped::HybridConfig => ("qwen35-hadamard/mlx", "config.json"),
        }
    }

    /// The file in this form: no fixture is stored as Q1_0 or as the earlier Q2_0, whose blocks are those of PQ2_0.
    fn stored(self, file: Vec<u8>) -> Vec<u8> {
        if !matches!(self, Grouped::Q2_0Earlier | Grouped::Q1_0) {
            return file;
        }
        let mut gguf = GgufEdit::read(&file);
        for tensor in gguf.tensors.iter_mut().filter(|tensor| tensor.kind == 142) {
            if self == Grouped::Q1_0 {
                tensor.data = tensor.data.chunks_exact(34).flat_map(signs).collect();
            }
            tensor.kind = if self == Grouped::Q1_0 { 41 } else { 42 };
        }
        gguf.write()
    }

    /// Whether the file is text.
    fn is_text(self) -> bool {
        matches!(self, Grouped::Config | Grouped::Hadamard | Grouped::HybridConfig)
    }
}

impl Kind {
    /// All kinds, each with its share of the mutations in percent.
    pub const ALL: [(Kind, u64); 24] = [
        (Kind::Gguf(Target::I2S), 4),
        (Kind::Gguf(Target::Panels), 6),
        (Kind::Gguf(Target::Tq1_0), 5),
        (Kind::Gguf(Target::Tq2_0), 5),
        (Kind::Weights, 6),
        (Kind::Config, 6),
        (Kind::Tokenizer, 6),
        (Kind::TokenizerConfig, 4),
        (Kind::Generation, 4),
        (Kind::Template, 5),
        (Kind::Grouped(Grouped::Q2_0), 4),
        (Kind::Grouped(Grouped::Q2_0Earlier), 2),
        (Kind::Grouped(Grouped::Q1_0), 3),
        (Kind::Grouped(Grouped::Pq2_0), 5),
        (Kind::Grouped(Grouped::Ptq1_0), 5),
        (Kind::Grouped(Grouped::Tq2_0), 4),
        (Kind::Grouped(Grouped::Mlx), 5),
        (Kind::Grouped(Grouped::Unpacked), 2),
        (Kind::Grouped(Grouped::Config), 4),
        (Kind::Grouped(Grouped::HybridPq2_0), 3),
        (Kind::Grouped(Grouped::HybridPtq1_0), 4),
        (Kind::Grouped(Grouped::HybridMlx), 3),
        (Kind::Grouped(Grouped::Hadamard), 3),
        (Kind::Grouped(Grouped::HybridConfig), 2),
    ];

    /// Whether the file is text.
    pub(crate) fn is_text(self) -> bool {
        match self {
            Kind::Gguf(_) | Kind::Weights => false,
            Kind::Grouped(form) => form.is_text(),
            _ => true,
        }
    }

    /// Number of bytes at the beginning that describe the rest; most damage is done there.
    pub(crate) fn head(self, bytes: usize) -> usize {
        match self {
            Kind::Gguf(_) => 16_000,
            Kind::Weights => 4000,
            Kind::Grouped(form) if form.is_text() => bytes,
            Kind::Grouped(Grouped::Mlx | Grouped::Unpacked) => 6000,
            Kind::Grouped(_) => 16_000,
            _ => bytes,
        }
    }
}

/// A small complete model, one file of which is to be damaged.
#[derive(Debug)]
pub struct Seed {
    /// Kind of the file to damage.
    pub kind: Kind,
    /// The undamaged file.
    pub bytes: Vec<u8>,
    files: ModelFiles,
    weights: SharedBytes,
}

impl Seed {
    /// Makes the files of a model with random weights and the demo's vocabulary and template, or reads those of a
    /// fixture.
    ///
    /// # Errors
    /// If they cannot be written or read.
    pub fn new(kind: Kind) -> Result<Seed, anyhow::Error> {
        if let Kind::Grouped(form) = kind {
            return Seed::of_fixture(form);
        }
        let model = model()?;
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("seed");
        if let Kind::Gguf(target) = kind {
            convert(&model, target, &path, &mut |_, _| {})?;
            let (files, weights) = (ModelFiles::default(), SharedBytes::new(Vec::new()));
            return Ok(Seed { kind, bytes: std::fs::read(path)?, files, weights });
        }
        convert(&model, Target::Packed, &path, &mut |_, _| {})?;
        let read = |name: &str| std::fs::read(path.join(name)).map(SharedBytes::new);
        let mut files = ModelFiles {
            config: read("config.json")?,
            tokenizer: Some(read("tokenizer.json")?),
            tokenizer_config: Some(read("tokenizer_config.json")?),
            generation_config: Some(read("generation_config.json")?),
            chat_template: None,
            hadamard: None,
        };
        let weights = read("model.safetensors")?;
        let template = model.chat.as_ref().map_or("{{ messages }}", |chat| chat.source());
        let part = |file: &Option<SharedBytes>| file.as_deref().unwrap_or_default().to_vec();
        let bytes = match kind {
            Kind::Config => files.config.to_vec(),
            Kind::Tokenizer => part(&files.tokenizer),
            Kind::TokenizerConfig => part(&files.tokenizer_config),
            Kind::Generation => part(&files.generation_config),
            Kind::Template => template.as_bytes().to_vec(),
            Kind::Weights | Kind::Gguf(_) | Kind::Grouped(_) => weights.to_vec(),
        };
        if matches!(kind, Kind::Weights | Kind::Generation | Kind::Template) {
            // Reading it would take most of the time, and these files do not depend on it.
            files.tokenizer = None;
        }
        Ok(Seed { kind, bytes, files, weights })
    }

    fn of_fixture(form: Grouped) -> Result<Seed, anyhow::Error> {
        let (folder, file) = form.file();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(folder);
        let read = |name: &str| std::fs::read(folder.join(name)).map(SharedBytes::new);
        let bytes = form.stored(read(file)?.to_vec());
        let (mut files, mut weights) = (ModelFiles::default(), SharedBytes::default());
        if !file.ends_with(".gguf") {
            files.config = read("config.json")?;
            weights = read("model.safetensors")?;
            if matches!(form, Grouped::HybridMlx | Grouped::Hadamard | Grouped::HybridConfig) {
                files.hadamard = Some(read("hadamard.json")?);
            }
        }
        Ok(Seed { kind: Kind::Grouped(form), bytes, files, weights })
    }

    /// Bytes of the whole model if the file has `bytes` bytes.
    pub(crate) fn size(&self, bytes: usize) -> usize {
        let tokenizer = self.files.tokenizer.as_ref().map_or(0, |file| file.len());
        bytes + self.files.config.len() + tokenizer + self.weights.len()
    }

    /// Opens the model with `bytes` as the file, and uses all of it.
    ///
    /// # Errors
    /// If opening or using it fails.
    pub fn open(&self, bytes: Vec<u8>) -> Result<(), ModelError> {
        let (bytes, mut files) = (SharedBytes::new(bytes), self.files.clone());
        let mut weights = self.weights.clone();
        match self.kind {
            Kind::Weights | Kind::Grouped(Grouped::Mlx | Grouped::Unpacked | Grouped::HybridMlx) => {
                weights = bytes;
            }
            Kind::Config | Kind::Grouped(Grouped::Config | Grouped::HybridConfig) => files.config = bytes,
            Kind::Grouped(Grouped::Hadamard) => files.hadamard = Some(bytes),
            Kind::Gguf(_) | Kind::Grouped(_) => {
                return use_all(Checkpoint::from_gguf("mutant.gguf", bytes)?);
            }
            Kind::Tokenizer => files.tokenizer = Some(bytes),
            Kind::TokenizerConfig => files.tokenizer_config = Some(bytes),
            Kind::Generation => files.generation_config = Some(bytes),
            Kind::Template => files.chat_template = Some(bytes),
        }
        use_all(Checkpoint::from_files("mutant", &files, weights)?)
    }
}

/// A small model with random weights.
fn model() -> Result<Checkpoint, ModelError> {
    let demo = Checkpoint::demo()?;
    let spec = ModelSpec { hidden: 256, ffn: 256, layers: 1, ..demo.spec };
    Ok(Checkpoint { spec: spec.clone(), tensors: Box::new(Synthetic::of(spec)), ..demo })
}

/// A block of Q1_0 from one of PQ2_0: its scale, and whether each code, of two bits, is at least 1.
fn signs(block: &[u8]) -> impl Iterator<Item = u8> {
    let (scale, codes) = block.split_at(2);
    let eight =
        |codes: &[u8]| (0..8).fold(0, |byte, i| byte | u8::from(codes[i / 4] >> (2 * (i % 4)) & 3 > 0) << i);
    let signs: Vec<u8> = codes.chunks_exact(2).map(eight).collect();
    scale.iter().copied().chain(signs)
}

fn use_all(model: Checkpoint) -> Result<(), ModelError> {
    for entry in model.tensors.entries() {
        match entry.kind {
            TensorKind::Ternary => drop(model.tensors.ternary(&entry.name)?),
            TensorKind::Grouped => drop(model.tensors.grouped(&entry.name)?),
            TensorKind::Dense | TensorKind::Norm => drop(model.tensors.dense(&entry.name)?.to_f32()),
        }
    }
    if let Some(packed) = model.tensors.packed() {
        packed.screen()?;
        for stack in model.tensors.entries().chunk_by(|a, b| a.stored_name == b.stored_name) {
            let names: Vec<String> = stack.iter().map(|entry| entry.name.clone()).collect();
            match stack[0].kind {
                TensorKind::Ternary => drop(packed.panels(&names)?),
                TensorKind::Grouped => drop(packed.grouped_panels(&names)?),
                TensorKind::Dense | TensorKind::Norm => {}
            }
        }
    }
    if let Some(tokenizer) = &model.tokenizer {
        let ids = tokenizer.encode("It's 12345,\n\n 你好 <|eot_id|>", true)?;
        tokenizer.decode(&ids, false)?;
    }
    if let Some(chat) = &model.chat {
        chat.render(&[Message::new("user", "Who goes there?")], true)?;
    }
    Ok(())
}
