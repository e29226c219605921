//! The kinds of files that are damaged, and how each is made.

use std::path::Path;

use bitnet_inference::scheduling::{Entry, PartKind, parts};
use bitnet_model::{
    Checkpoint, Message, ModelError, ModelFiles, ModelSpec, Synthetic, Target, TensorKind, convert,
};
use bitnet_tensor::SharedBytes;

use Source::{Fixture, Part, Retyped, Written};

use crate::gguf_edit::GgufEdit;

/// A kind of model file.
#[derive(Debug)]
pub struct Kind {
    /// Its name, and that of its libFuzzer target if there is one.
    pub name: &'static str,
    /// Its share of the mutations in percent.
    pub share: u64,
    /// Number of bytes at the beginning that describe the rest; most damage is done there.
    pub(crate) head: usize,
    file: File,
    source: Source,
}

/// The file of a model that is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum File {
    /// A GGUF file, which is the whole model.
    Gguf,
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
    /// `hadamard.json`.
    Hadamard,
    /// A part of a cache that is kept in a folder; no file of a model.
    CachePart,
}

/// Where the undamaged file comes from.
#[derive(Debug)]
enum Source {
    /// A small model with random weights and the demo's vocabulary and template, written as this.
    Written(Target),
    /// A file under `fixtures`.
    Fixture(&'static str),
    /// A GGUF file under `fixtures` in PQ2_0, whose tensors get this type: no fixture is stored in it.
    Retyped(&'static str, u32),
    /// A part of a cache with random bytes.
    Part,
}

/// The type of Q1_0 in GGUF files.
const Q1_0: u32 = 41;
/// The type of the earlier Q2_0, with groups of 128 and the blocks of PQ2_0.
const Q2_0_EARLIER: u32 = 42;
/// The type of PQ2_0.
const PQ2_0: u32 = 142;

/// The fixture whose tensors get other types.
const TERNARY: &str = "qwen3-ternary/model-PQ2_0.gguf";

/// The head of a text, which is all of it.
const ALL: usize = usize::MAX;

impl Kind {
    /// All kinds.
    pub const ALL: &'static [Kind] = &[
        Kind::of("gguf-i2_s", 4, 16_000, File::Gguf, Written(Target::I2S)),
        Kind::of("gguf-panels", 4, 16_000, File::Gguf, Written(Target::Panels)),
        Kind::of("gguf-tq1_0", 4, 16_000, File::Gguf, Written(Target::Tq1_0)),
        Kind::of("gguf", 4, 16_000, File::Gguf, Written(Target::Tq2_0)),
        Kind::of("safetensors", 5, 4000, File::Weights, Written(Target::Packed)),
        Kind::of("config", 5, ALL, File::Config, Written(Target::Packed)),
        Kind::of("tokenizer", 5, ALL, File::Tokenizer, Written(Target::Packed)),
        Kind::of("tokenizer_config", 4, ALL, File::TokenizerConfig, Written(Target::Packed)),
        Kind::of("generation", 4, ALL, File::Generation, Written(Target::Packed)),
        Kind::of("template", 4, ALL, File::Template, Written(Target::Packed)),
        Kind::of("q2_0", 4, 16_000, File::Gguf, Fixture("qwen3-g64/model-Q2_0.gguf")),
        Kind::of("q2_0_earlier", 2, 16_000, File::Gguf, Retyped(TERNARY, Q2_0_EARLIER)),
        Kind::of("q1_0", 3, 16_000, File::Gguf, Retyped(TERNARY, Q1_0)),
        // With YaRN and a separate head.
        Kind::of("pq2_0", 5, 16_000, File::Gguf, Fixture("qwen3-yarn/model-PQ2_0.gguf")),
        Kind::of("ptq1_0", 5, 16_000, File::Gguf, Fixture("qwen3-ternary/model-PTQ1_0.gguf")),
        Kind::of("minicpm-tq2_0", 4, 16_000, File::Gguf, Fixture("minicpm-blocks/model-TQ2_0.gguf")),
        Kind::of("mlx", 5, 6000, File::Weights, Fixture("qwen3-ternary/mlx/model.safetensors")),
        Kind::of("unpacked", 2, 6000, File::Weights, Fixture("qwen3-unpacked/model.safetensors")),
        Kind::of("minicpm-config", 4, ALL, File::Config, Fixture("minicpm-blocks/config.json")),
        Kind::of("hybrid_pq2_0", 3, 16_000, File::Gguf, Fixture("qwen35-ternary/model-PQ2_0.gguf")),
        // With rotated weights, as the rest.
        Kind::of("hybrid_ptq1_0", 4, 16_000, File::Gguf, Fixture("qwen35-hadamard/model-PTQ1_0.gguf")),
        Kind::of("hybrid_mlx", 3, 16_000, File::Weights, Fixture("qwen35-hadamard/mlx/model.safetensors")),
        Kind::of("hadamard", 3, ALL, File::Hadamard, Fixture("qwen35-hadamard/mlx/hadamard.json")),
        // With experts.
        Kind::of("maple_tq1_0", 3, 16_000, File::Gguf, Fixture("maple-tiny/model-TQ1_0-head-F16.gguf")),
        Kind::of("maple_mlx", 2, 6000, File::Weights, Fixture("maple-unpacked/mlx/model.safetensors")),
        Kind::of("maple_config", 1, ALL, File::Config, Fixture("maple-unpacked/mlx/config.json")),
        Kind::of("gemma_i2_s", 1, 16_000, File::Gguf, Fixture("embedding-gemma-tiny/model-I2_S.gguf")),
        Kind::of("hybrid_config", 2, ALL, File::Config, Fixture("qwen35-hadamard/mlx/config.json")),
        Kind::of("cache_part", 1, 512, File::CachePart, Part),
    ];

    const fn of(name: &'static str, share: u64, head: usize, file: File, source: Source) -> Kind {
        Kind { name, share, head, file, source }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<&'static Kind> {
        Kind::ALL.iter().find(|kind| kind.name == name)
    }

    /// Whether the file is text.
    pub(crate) fn is_text(&self) -> bool {
        !matches!(self.file, File::Gguf | File::Weights | File::CachePart)
    }
}

/// A small complete model, one file of which is to be damaged.
#[derive(Debug)]
pub struct Seed {
    /// Kind of the file to damage.
    pub kind: &'static Kind,
    /// The undamaged file.
    pub bytes: Vec<u8>,
    files: ModelFiles,
    weights: SharedBytes,
}

impl Seed {
    /// Writes the files of a model, or reads those of a fixture.
    ///
    /// # Errors
    /// If they cannot be written or read.
    pub fn new(kind: &'static Kind) -> Result<Seed, anyhow::Error> {
        match kind.source {
            Written(target) => Seed::written(kind, target),
            Fixture(path) => Seed::of_fixture(kind, path),
            Part => Ok(Seed {
                kind,
                bytes: part(),
                files: ModelFiles::default(),
                weights: SharedBytes::default(),
            }),
            Retyped(path, to) => {
                let mut seed = Seed::of_fixture(kind, path)?;
                seed.bytes = retyped(&seed.bytes, to);
                Ok(seed)
            }
        }
    }

    fn written(kind: &'static Kind, target: Target) -> Result<Seed, anyhow::Error> {
        let model = model()?;
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("seed");
        convert(&model, target, &path, &mut |_, _| {})?;
        if kind.file == File::Gguf {
            let (files, weights) = (ModelFiles::default(), SharedBytes::default());
            return Ok(Seed { kind, bytes: std::fs::read(path)?, files, weights });
        }
        let read = |name: &str| std::fs::read(path.join(name)).map(SharedBytes::new);
        let mut files = ModelFiles {
            config: read("config.json")?,
            tokenizer: Some(read("tokenizer.json")?),
            tokenizer_config: Some(read("tokenizer_config.json")?),
            generation_config: Some(read("generation_config.json")?),
            chat_template: None,
            tools_template: None,
            pooling: None,
            hadamard: None,
        };
        let weights = read("model.safetensors")?;
        let template = model.chat.as_ref().map_or("{{ messages }}", |chat| chat.source());
        let damaged = match kind.file {
            File::Config => Some(&files.config),
            File::Tokenizer => files.tokenizer.as_ref(),
            File::TokenizerConfig => files.tokenizer_config.as_ref(),
            File::Generation => files.generation_config.as_ref(),
            File::Template | File::Hadamard | File::Gguf | File::CachePart => None,
            File::Weights => Some(&weights),
        };
        let bytes = damaged.map_or(template.as_bytes(), |file| file).to_vec();
        if matches!(kind.file, File::Weights | File::Generation | File::Template) {
            // Reading it would take most of the time, and these files do not depend on it.
            files.tokenizer = None;
        }
        Ok(Seed { kind, bytes, files, weights })
    }

    fn of_fixture(kind: &'static Kind, path: &str) -> Result<Seed, anyhow::Error> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(path);
        let bytes = std::fs::read(&path)?;
        let (mut files, mut weights) = (ModelFiles::default(), SharedBytes::default());
        if kind.file != File::Gguf {
            let read = |name: &str| std::fs::read(path.with_file_name(name)).map(SharedBytes::new);
            files.config = read("config.json")?;
            weights = read("model.safetensors")?;
            files.hadamard = read("hadamard.json").ok();
        }
        Ok(Seed { kind, bytes, files, weights })
    }

    /// Bytes of the whole model if the file has `bytes` bytes.
    pub(crate) fn size(&self, bytes: usize) -> usize {
        let tokenizer = self.files.tokenizer.as_ref().map_or(0, |file| file.len());
        bytes + self.files.config.len() + tokenizer + self.weights.len()
    }

    /// Opens the model with `bytes` as the file, and uses all of it; or reads a part of a cache.
    ///
    /// # Errors
    /// If opening or using it fails.
    pub fn open(&self, bytes: Vec<u8>) -> Result<(), anyhow::Error> {
        if self.kind.file == File::CachePart {
            let read = Entry::read(&bytes);
            assert!(read.is_err() || bytes == self.bytes, "a damaged part is taken for an undamaged one");
            return Ok(read.map(drop)?);
        }
        Ok(self.open_model(bytes)?)
    }

    fn open_model(&self, bytes: Vec<u8>) -> Result<(), ModelError> {
        let (bytes, mut files) = (SharedBytes::new(bytes), self.files.clone());
        let mut weights = self.weights.clone();
        match self.kind.file {
            File::Gguf | File::CachePart => {
                return use_all(Checkpoint::from_gguf("mutant.gguf", bytes)?);
            }
            File::Weights => weights = bytes,
            File::Config => files.config = bytes,
            File::Tokenizer => files.tokenizer = Some(bytes),
            File::TokenizerConfig => files.tokenizer_config = Some(bytes),
            File::Generation => files.generation_config = Some(bytes),
            File::Template => files.chat_template = Some(bytes),
            File::Hadamard => files.hadamard = Some(bytes),
        }
        use_all(Checkpoint::from_files("mutant", &files, weights)?)
    }
}

/// A part of a cache.
fn part() -> Vec<u8> {
    let text: Vec<u32> = (0..128).collect();
    let bytes: Vec<u8> = (0..20_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let part = parts(&[5; 32], 3, &text, PartKind::Block).nth(1).expect("two blocks");
    [&Entry::of([5; 32], part, &bytes, 4096).header()[..], &bytes].concat()
}

/// A GGUF file whose tensors in PQ2_0 have another type.
fn retyped(file: &[u8], to: u32) -> Vec<u8> {
    let mut gguf = GgufEdit::read(file);
    for tensor in gguf.tensors.iter_mut().filter(|tensor| tensor.kind == PQ2_0) {
        if to == Q1_0 {
            tensor.data = tensor.data.chunks_exact(34).flat_map(signs).collect();
        }
        tensor.kind = to;
    }
    gguf.write()
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
            TensorKind::Ternary | TensorKind::Grouped => drop(model.tensors.ternary(&entry.name)?),
            TensorKind::Dense | TensorKind::Norm => drop(model.tensors.dense(&entry.name)?.to_f32()),
        }
    }
    if let Some(packed) = model.tensors.packed() {
        packed.head_copy()?;
        for stack in model.tensors.entries().chunk_by(|a, b| a.stored_name == b.stored_name) {
            let names: Vec<String> = stack.iter().map(|entry| entry.name.clone()).collect();
            match stack[0].kind {
                TensorKind::Ternary | TensorKind::Grouped => drop(packed.panels(&names)?),
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
