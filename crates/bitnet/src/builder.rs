//! Opens a model with settings: device, threads, memory, batch size, cache.

use bitnet_inference::EngineConfig;
use bitnet_kernels::{Isa, KvType, gpu::Cuda};

use crate::{
    CacheDir, Draft, Error, Memory, Model,
    load::{self, Device, Machine, Want},
    open::{self, Opened},
};

/// Options for opening a model. None of them changes a token, except the cache type.
#[must_use = "a builder does nothing until it opens a model"]
pub struct Builder {
    machine: Machine,
    batch_size: usize,
    context: Option<usize>,
    engine: EngineConfig,
    draft: Draft,
    cache_dir: Option<CacheDir>,
    progress: Progress,
}

/// Receives a file's name, `loading` or `hashing`, the amount done, and the total.
type Progress = Box<dyn FnMut(&str, u64, u64)>;

impl Default for Builder {
    fn default() -> Self {
        Builder {
            machine: Machine::default(),
            batch_size: 8,
            context: None,
            engine: EngineConfig::default(),
            draft: Draft::default(),
            cache_dir: None,
            progress: Box::new(|_, _, _| {}),
        }
    }
}

impl Builder {
    /// Sets where to compute; [`Device::Auto`] by default.
    pub fn device(mut self, device: Device) -> Self {
        self.machine.device = device;
        self
    }

    /// Sets the number of CPU threads; by default one on each physical core that this process may use.
    pub fn threads(mut self, threads: usize) -> Self {
        self.machine.threads = Some(threads);
        self
    }

    /// Limits the memory for weights, activations and cache; by default as much as needed, up to half of the available
    /// memory.
    pub fn memory(mut self, memory: Memory) -> Self {
        self.machine.memory = Some(memory);
        self
    }

    /// Sets the type of cached keys and values; by default f32 on the CPU and bf16 on a GPU. A smaller type holds
    /// longer texts but rounds more.
    pub fn cache(mut self, kv: KvType) -> Self {
        self.machine.kv = Some(kv);
        self
    }

    /// Sets the CPU instruction set, for tests; by default the best available.
    pub fn isa(mut self, isa: Isa) -> Self {
        self.machine.isa = isa;
        self
    }

    /// Sets the maximum number of requests computed together; 8 by default. Others wait.
    pub fn batch_size(mut self, requests: usize) -> Self {
        self.batch_size = requests;
        self
    }

    /// Sets the maximum number of tokens in a request, including its answer; by default the model's context.
    pub fn context(mut self, tokens: usize) -> Self {
        self.context = Some(tokens);
        self
    }

    /// Sets the maximum number of drafted tokens for a sequence in a step; 0 (no drafting) by default.
    pub fn drafts(mut self, tokens: usize) -> Self {
        self.engine.max_draft = tokens;
        self
    }

    /// Sets what drafts these tokens; [`Draft::Auto`] by default.
    pub fn draft(mut self, draft: Draft) -> Self {
        self.draft = draft;
        self
    }

    /// Keeps the cache of prompts and answers in a folder, so that later processes read it instead of computing it; by
    /// default it ends with the process. No token changes.
    pub fn cache_dir(mut self, dir: CacheDir) -> Self {
        self.cache_dir = Some(dir);
        self
    }

    /// Keeps what leaves the cache in a GPU's memory in this many bytes of host memory, above the folder if there is one; 0
    /// by default. Without a GPU, the model is refused. No token changes.
    pub fn host_cache(mut self, bytes: u64) -> Self {
        self.engine.host_cache = bytes;
        self
    }

    /// Changes other settings of the engine, such as queue limits, waiting times and the recorder.
    pub fn engine(mut self, change: impl FnOnce(&mut EngineConfig)) -> Self {
        change(&mut self.engine);
        self
    }

    /// Sets a callback for progress. It receives the file being downloaded, `loading` or `hashing`, the amount done, and
    /// the total.
    pub fn progress(mut self, report: impl FnMut(&str, u64, u64) + 'static) -> Self {
        self.progress = Box::new(report);
        self
    }

    /// Opens `org/name[@revision][:file]`, a `.gguf` file, a folder, `demo` or `synthetic:NAME`, and starts its engine.
    ///
    /// # Errors
    /// If the model cannot be downloaded, read, held in memory or computed; [`Error::cure`] says what to do.
    pub fn open(mut self, model: &str) -> Result<Model, Error> {
        let opened = open::open_checkpoint(model, &mut self.progress)?;
        self.load(opened)
    }

    /// As [`Builder::open`], with files that [`open_checkpoint`](crate::open_checkpoint) has opened.
    pub fn load(mut self, mut opened: Opened) -> Result<Model, Error> {
        let spec = &mut opened.checkpoint.spec;
        spec.context = spec.context.min(self.context.unwrap_or(usize::MAX));
        let draft = match self.engine.max_draft {
            0 => Draft::None,
            _ => self.draft.clone(),
        };
        let draft = draft.open(&opened.checkpoint, &mut self.progress)?;
        let max_draft = draft.most(self.engine.max_draft);
        let want = Want::engine(self.batch_size, max_draft, opened.checkpoint.spec.context);
        let mut report = |done, all| (self.progress)("loading", done as u64, all as u64);
        let loaded = load::load_by(&self.machine, Cuda::open, &opened.checkpoint, &draft, want, &mut report)?;
        let mut engine = EngineConfig { max_batch_size: self.batch_size, max_draft, ..self.engine };
        if let Some(dir) = &self.cache_dir {
            let mut report = |done, all| (self.progress)("hashing", done as u64, all as u64);
            engine.folder = Some(dir.folder(&opened, &*loaded.model, &mut report)?);
        }
        Model::start_loaded(opened, loaded, engine)
    }
}

impl Model {
    /// Opens a model with settings that suit the machine; see [`Builder::open`].
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn open(model: &str) -> Result<Model, Error> {
        Model::builder().open(model)
    }

    /// Sets device, threads, memory and more before a model is opened.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

bitnet_tensor::opaque_debug!(Builder { machine, batch_size, context });
