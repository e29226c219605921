//! An opened model from any kind of file: [`Checkpoint::open`] finds out what a path holds, reads the small files
//! first, and checks that sizes, weights, vocabulary and template belong together.

use std::path::Path;

use bitnet_tensor::SharedBytes;
use serde_json::Value;

use crate::{
    ModelError,
    chat::{ChatTemplate, TemplateSources},
    files::{
        GenerationDefaults, TensorSource, defaults, file_name,
        file_source::FileSource,
        gguf::{self, Gguf},
        gguf_spec, map, read_small, refuse_lfs_pointer, safetensors, split,
    },
    spec::{
        Config, ModelSpec, Pooling,
        fields::{Fields, MAX_JSON, json},
    },
    tokenizer::{self, SpecialTokens, Tokenizer},
};

/// An opened model: sizes, tensors, tokenizer, chat template and defaults.
pub struct Checkpoint {
    /// Display name: the file or folder.
    pub name: String,
    /// File format: `gguf` or `safetensors`.
    pub format: &'static str,
    /// The model's sizes and switches.
    pub spec: ModelSpec,
    /// The weights, by Hugging Face name.
    pub tensors: Box<dyn TensorSource>,
    /// Converts text to ids and back, if the model has a vocabulary.
    pub tokenizer: Option<Tokenizer>,
    /// How conversations are written, if the model has a template.
    pub chat: Option<ChatTemplate>,
    /// The model's defaults for generation.
    pub defaults: GenerationDefaults,
    /// Warnings for the user, one line each.
    pub warnings: Vec<String>,
    /// Names of the tensors for images and for the prediction of several tokens, which are not loaded.
    pub not_loaded: Vec<String>,
}

/// The files of a Hugging Face folder, in memory.
#[derive(Debug, Clone, Default)]
pub struct ModelFiles {
    /// `config.json`.
    pub config: SharedBytes,
    /// `tokenizer.json`.
    pub tokenizer: Option<SharedBytes>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<SharedBytes>,
    /// `generation_config.json`.
    pub generation_config: Option<SharedBytes>,
    /// `chat_template.jinja`.
    pub chat_template: Option<SharedBytes>,
    /// `additional_chat_templates/tool_use.jinja`: the template for conversations with tools.
    pub tools_template: Option<SharedBytes>,
    /// `1_Pooling/config.json`: how a model that embeds texts pools hidden states.
    pub pooling: Option<SharedBytes>,
    /// `hadamard.json`, in MLX's form of a model with rotated weights.
    pub hadamard: Option<SharedBytes>,
}

impl Checkpoint {
    /// Opens a `.gguf` file, or a folder with `config.json` and safetensors.
    ///
    /// Weights are memory-mapped, so the files must not be written to while the model is in use.
    ///
    /// # Errors
    /// If anything in the files is missing, damaged or not supported; every message names the cure.
    pub fn open(path: &Path) -> Result<Checkpoint, ModelError> {
        let about = std::fs::metadata(path).map_err(ModelError::io("open", path))?;
        let name = file_name(path);
        if about.is_dir() {
            let need = |file: &str, limit| read_small(&path.join(file), limit);
            let Some(config) = need("config.json", MAX_JSON)? else {
                let problem = "the folder has no config.json";
                return Err(ModelError::NotAModel { path: path.into(), problem });
            };
            let files = ModelFiles {
                config,
                tokenizer: need("tokenizer.json", tokenizer::MAX_JSON_BYTES)?,
                tokenizer_config: need("tokenizer_config.json", MAX_JSON)?,
                generation_config: need("generation_config.json", MAX_JSON)?,
                chat_template: need("chat_template.jinja", MAX_JSON)?,
                tools_template: need(TOOLS_TEMPLATE, MAX_JSON)?,
                pooling: need(POOLING, MAX_JSON)?,
                hadamard: need("hadamard.json", MAX_JSON)?,
            };
            let unconverted = files.tokenizer.is_none() && path.join("tokenizer.model").exists();
            let mut checkpoint = Self::assemble(name, &files, || safetensors::open_folder(path))?;
            if unconverted {
                checkpoint.warnings.push(
                    "the folder has tokenizer.model but no tokenizer.json, so text cannot be encoded or decoded; \
                     convert it with transformers' AutoTokenizer and save_pretrained"
                        .into(),
                );
            }
            return Ok(checkpoint);
        }
        let bytes = map::map(path)?;
        if !bytes.starts_with(gguf::MAGIC) {
            refuse_lfs_pointer(&name, &bytes)?;
            let problem = match path.extension() {
                Some(e) if e == "safetensors" => "it is one file of a folder",
                _ => "it does not begin with GGUF",
            };
            return Err(ModelError::NotAModel { path: path.into(), problem });
        }
        Self::from_whole_gguf(&split::join(path, Gguf::read(&name, bytes)?)?)
    }

    /// Opens a model from the bytes of a GGUF file.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_gguf(name: &str, bytes: SharedBytes) -> Result<Checkpoint, ModelError> {
        Self::from_whole_gguf(&Gguf::read(name, bytes)?)
    }

    fn from_whole_gguf(gguf: &Gguf) -> Result<Checkpoint, ModelError> {
        let (mut spec, interleaved) = gguf_spec::read(gguf)?;
        let (source, not_loaded) = FileSource::gguf(gguf, &spec, interleaved)?;
        spec.draft_head = !source.draft_head().is_empty();
        let mut warnings = Vec::new();
        let special = SpecialTokens::read(gguf, &mut warnings)?;
        let tokenizer = Tokenizer::from_gguf(gguf, &special, &mut warnings)?;
        warnings.extend(scale_warning(&source, "convert the original model again"));
        let defaults = defaults::of_gguf(gguf, &special, tokenizer.as_ref(), &mut warnings)?;
        let text = |id: Option<u32>| token_text(tokenizer.as_ref(), id);
        let sources = TemplateSources {
            default: gguf.opt_str("tokenizer.chat_template")?,
            tools: gguf.opt_str("tokenizer.chat_template.tool_use")?,
        };
        let sources = sources.without_placeholder(&spec.architecture, &mut warnings);
        let chat = sources.compile(&text(defaults.bos), &text(defaults.eos.first().copied()));
        let chat = template_or_warning(chat, &mut warnings)?;
        let checkpoint = Checkpoint {
            name: gguf.file.clone(),
            format: "gguf",
            spec,
            tensors: Box::new(source),
            tokenizer,
            chat,
            defaults,
            warnings,
            not_loaded: not_loaded.extras,
        };
        checkpoint.finish(&not_loaded.unknown)
    }

    /// Opens a model from the files of a Hugging Face folder with one safetensors file, all in memory.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_files(
        name: &str,
        files: &ModelFiles,
        weights: SharedBytes,
    ) -> Result<Checkpoint, ModelError> {
        Self::assemble(name.into(), files, || safetensors::read("model.safetensors", &weights))
    }

    /// Reads the small files before the weights, so that faults show before gigabytes are mapped.
    fn assemble(
        name: String,
        files: &ModelFiles,
        weights: impl FnOnce() -> Result<Vec<safetensors::Stored>, ModelError>,
    ) -> Result<Checkpoint, ModelError> {
        let mut config = Config::parse(&files.config, files.hadamard.as_deref())?;
        if let (Some(pooling), Some(bytes)) = (&mut config.spec.embeds, &files.pooling) {
            *pooling = Pooling::of_json(&Fields { file: POOLING, prefix: "", json: &json(POOLING, bytes)? })?;
        }
        let texts = tokenizer::config::read(files.tokenizer_config.as_deref())?;
        let tokenizer =
            files.tokenizer.as_deref().map(|bytes| Tokenizer::from_folder(bytes, &texts)).transpose()?;
        let mut warnings = Vec::new();
        let mut defaults = defaults::of_folder(&config, files.generation_config.as_deref(), &mut warnings)?;
        if defaults.eos.is_empty() {
            // Some folders name the end of a text only here.
            let text = tokenizer::config::eos_text(&texts);
            defaults.eos.extend(text.and_then(|text| tokenizer.as_ref()?.token_id(text)));
        }
        let chat = template_or_warning(chat(files, tokenizer.as_ref(), &defaults)?, &mut warnings)?;
        let stored = safetensors::by_name(weights()?)?;
        let (source, not_loaded) = FileSource::safetensors(&name, &mut config, stored)?;
        config.spec.draft_head = !source.draft_head().is_empty();
        let other = if config.scale_multiplies { "bitlinear" } else { "autobitlinear" };
        let cure = format!("set quantization_config.linear_class to {other} in config.json");
        warnings.extend(scale_warning(&source, &cure));
        let checkpoint = Checkpoint {
            name,
            format: "safetensors",
            spec: config.spec,
            tensors: Box::new(source),
            tokenizer,
            chat,
            defaults,
            warnings,
            not_loaded: not_loaded.extras,
        };
        checkpoint.finish(&not_loaded.unknown)
    }

    /// Checks that the parts fit together.
    fn finish(mut self, unused: &[String]) -> Result<Self, ModelError> {
        self.spec.eos.clone_from(&self.defaults.eos);
        if let Some(first) = unused.first() {
            let others = match unused.len() {
                1 => String::new(),
                n => format!(" and {} more", n - 1),
            };
            self.warnings
                .push(format!("the file holds tensors that this architecture does not use: {first}{others}"));
        }
        let Some(tokenizer) = &self.tokenizer else { return Ok(self) };
        let (tokens, rows) = (tokenizer.vocab_size(), self.spec.vocab);
        if tokens > rows {
            return Err(ModelError::Tokenizer {
                file: self.name.clone(),
                problem: format!("the vocabulary has {tokens} tokens, the embedding {rows} rows"),
                cure: "vocabulary and weights belong to different models; take both from the same one",
            });
        }
        // Padding to a round number is common; half of the rows is not padding.
        if tokens < rows / 2 {
            self.warnings.push(format!(
                "the vocabulary has {tokens} tokens, the embedding {rows} rows: they may belong to different models"
            ));
        }
        Ok(self)
    }
}

/// Mean magnitudes of trained weights are about 0.01 to 3. If most scales are above this, they are probably inverted.
const MAX_LIKELY_SCALE: f32 = 6.0;

/// A warning if the scales look inverted.
fn scale_warning(source: &FileSource, cure: &str) -> Option<String> {
    let median = source.median_scale().filter(|s| s.abs() > MAX_LIKELY_SCALE)?;
    Some(format!(
        "the weight scales look inverted (their median is {median}): if the text is garbage, {cure}"
    ))
}

const POOLING: &str = "1_Pooling/config.json";
const TOOLS_TEMPLATE: &str = "additional_chat_templates/tool_use.jinja";

/// Turns an error of the template into a warning: a bad template must not keep a model from completing text. A lack of
/// memory is no fault of the template.
fn template_or_warning(
    template: Option<Result<ChatTemplate, ModelError>>,
    warnings: &mut Vec<String>,
) -> Result<Option<ChatTemplate>, ModelError> {
    match template.transpose() {
        Err(memory @ ModelError::Memory { .. }) => Err(memory),
        Err(error) => {
            warnings.push(error.to_string());
            Ok(None)
        }
        template => template,
    }
}

/// The text of a token; empty if there is none.
fn token_text(tokenizer: Option<&Tokenizer>, id: Option<u32>) -> String {
    let bytes = id.and_then(|id| tokenizer?.token_bytes(id)).unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

/// The chat templates: files of their own, or those in `tokenizer_config.json`.
fn chat(
    files: &ModelFiles,
    tokenizer: Option<&Tokenizer>,
    defaults: &GenerationDefaults,
) -> Result<Option<Result<ChatTemplate, ModelError>>, ModelError> {
    let file = "tokenizer_config.json";
    let json = files.tokenizer_config.as_deref().map_or(Ok(Value::Null), |bytes| json(file, bytes))?;
    // A token is either its text or an object with the text.
    let token = |field: &str, id: Option<u32>| match &json[field] {
        Value::String(text) => text.clone(),
        Value::Object(token) => token.get("content").and_then(Value::as_str).unwrap_or_default().into(),
        _ => token_text(tokenizer, id),
    };
    let text = |file: &Option<SharedBytes>, name: &str| {
        let text = file.as_deref().map(|bytes| str::from_utf8(bytes).map(str::to_owned));
        text.transpose().map_err(|e| ModelError::damaged(name, e))
    };
    let default = text(&files.chat_template, "chat_template.jinja")?;
    let tools = text(&files.tools_template, TOOLS_TEMPLATE)?;
    let in_config = TemplateSources::of_config(&json);
    let sources = match (&default, &tools) {
        (None, None) => in_config,
        // Files of their own replace what the configuration has.
        (default, tools) => TemplateSources { default: default.as_deref(), tools: tools.as_deref() },
    };
    let eos = defaults.eos.first().copied();
    Ok(sources.compile(&token("bos_token", defaults.bos), &token("eos_token", eos)))
}

bitnet_tensor::opaque_debug!(Checkpoint { name, format, spec });
