use std::{fmt, str::FromStr};

use bitnet_inference::EngineConfig;
use bitnet_kernels::{Isa, KvType};

use crate::{
    Error, Memory, Model,
    load::{self, Machine, Want},
    open,
};

/// Where a model computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Device {
    /// The first NVIDIA GPU if it can be used, else the CPU. [`Model::notes`] says why it is the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU, by its number from zero.
    Cuda(usize),
}

impl FromStr for Device {
    type Err = String;

    /// Reads `auto`, `cpu`, `cuda` or `cuda:N`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            _ => match text.strip_prefix("cuda:").map(str::parse::<u16>) {
                Some(Ok(index)) => Ok(Device::Cuda(index.into())),
                _ => Err("choose auto, cpu, cuda or cuda:N".into()),
            },
        }
    }
}

/// How a model is opened. Nothing in it but the type of the cache changes a token.
pub struct Builder {
    machine: Machine,
    batch_size: usize,
    context: Option<usize>,
    engine: EngineConfig,
    progress: Progress,
}

/// Gets a file or `loading`, how much is done, and of how much.
type Progress = Box<dyn FnMut(&str, u64, u64)>;

impl Default for Builder {
    fn default() -> Self {
        Builder {
            machine: Machine::default(),
            batch_size: 8,
            context: None,
            engine: EngineConfig::default(),
            progress: Box::new(|_, _, _| {}),
        }
    }
}

impl Builder {
    /// Where to compute; [`Device::Auto`] if not set.
    pub fn device(mut self, device: Device) -> Self {
        self.machine.device = device;
        self
    }

    /// Threads of the CPU; as many as the machine runs at once if not set.
    pub fn threads(mut self, threads: usize) -> Self {
        self.machine.threads = Some(threads);
        self
    }

    /// Memory for weights, activations and cache; what is needed, up to half of what is available, if not set.
    pub fn memory(mut self, memory: Memory) -> Self {
        self.machine.memory = Some(memory);
        self
    }

    /// Type of the cached keys and values: a smaller one holds longer texts and rounds more. f32 on the CPU and bf16 on
    /// a GPU if not set.
    pub fn cache(mut self, kv: KvType) -> Self {
        self.machine.kv = Some(kv);
        self
    }

    /// Level of CPU instructions, for tests; the best there is if not set.
    pub fn isa(mut self, isa: Isa) -> Self {
        self.machine.isa = isa;
        self
    }

    /// Maximum number of requests computed together; 8 if not set. More of them wait.
    pub fn batch_size(mut self, requests: usize) -> Self {
        self.batch_size = requests;
        self
    }

    /// Maximum number of tokens in a request, its answer included; as many as the model allows if not set.
    pub fn context(mut self, tokens: usize) -> Self {
        self.context = Some(tokens);
        self
    }

    /// Maximum number of draft tokens checked in one step of a sequence; 0, none, if not set.
    pub fn drafts(mut self, tokens: usize) -> Self {
        self.engine.max_draft = tokens;
        self
    }

    /// Changes whatever else an engine has to set: queues, waiting times, who records.
    pub fn engine(mut self, change: impl FnOnce(&mut EngineConfig)) -> Self {
        change(&mut self.engine);
        self
    }

    /// Gets the file that is fetched or `loading`, how much is done, and of how much.
    pub fn progress(mut self, report: impl FnMut(&str, u64, u64) + 'static) -> Self {
        self.progress = Box::new(report);
        self
    }

    /// Opens `org/name[@revision][:file]`, a `.gguf` file, a folder, `demo` or `synthetic:NAME`, and starts its engine.
    ///
    /// # Errors
    /// If the model cannot be fetched, read, held in memory or computed; [`Error::cure`] says what helps.
    pub fn open(mut self, model: &str) -> Result<Model, Error> {
        let mut opened = open::open_checkpoint(model, &mut self.progress)?;
        let spec = &mut opened.checkpoint.spec;
        spec.context = spec.context.min(self.context.unwrap_or(usize::MAX));
        let want = Want::engine(self.batch_size, self.engine.max_draft, spec.context);
        let mut report = |done, all| (self.progress)("loading", done as u64, all as u64);
        let loaded = load::load(&self.machine, &opened.checkpoint, want, &mut report)?;
        let engine = EngineConfig { max_batch_size: self.batch_size, ..self.engine };
        Model::start(opened, loaded, engine)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Builder { machine, batch_size, context, .. } = self;
        let mut told = f.debug_struct("Builder");
        told.field("machine", machine).field("batch_size", batch_size).field("context", context);
        told.finish_non_exhaustive()
    }
}
