//! From an opened checkpoint to a model that runs: on which device, how much memory it takes, and what that allows.

use std::time::{Duration, Instant};

use bitnet_kernels::{
    Backend, Cpu, Isa, KvType,
    gpu::{Cuda, Driver, Gpu, GpuError},
};
use bitnet_model::{Batch, Checkpoint, Limits, Model, ModelSpec, Transformer};

use crate::{
    args::{Common, Device},
    error::CliError,
    memory::{self, SystemMemory},
    output,
    progress::Progress,
    sizes::{Home, WeightBytes},
};

/// Tokens in a step when memory is scarce: few enough to be small beside any weights.
const SMALL_STEP: usize = 32;

/// What a command has use for.
#[derive(Debug, Clone, Copy)]
pub struct Want {
    /// Most tokens in one step.
    pub step: usize,
    /// Whether the logits of all tokens of a step are wanted, or of the last one of each sequence.
    pub all_logits: bool,
    /// Sequences side by side.
    pub sequences: usize,
    /// Tokens guessed ahead of one of them.
    pub drafts: usize,
    /// Tokens of the longest sequence.
    pub tokens: usize,
    /// Tokens that a sequence must have room for, or there is no point.
    pub least: usize,
}

/// A model with its weights in memory.
pub struct Loaded {
    /// The model.
    pub model: Box<dyn Model>,
    /// Its weights.
    pub weights: WeightBytes,
    /// What loading took.
    pub time: Duration,
    /// Why it is not on the GPU that was looked for.
    pub refused: Option<String>,
}

/// Where commands compute: the host as the flags describe it, and GPUs behind a driver.
pub struct Machine<'a, D> {
    /// The flags.
    pub common: &'a Common,
    /// Opens a GPU by its number.
    pub open: fn(usize) -> Result<D, GpuError>,
}

/// The backend of the host that the flags ask for.
pub fn cpu(common: &Common) -> Result<Cpu, CliError> {
    let cpu = Cpu::new(Isa::named(&common.isa)?, threads(common))?;
    Ok(cpu.keeping(common.kv.unwrap_or_default()))
}

/// The number of threads that the flags ask for.
pub fn threads(common: &Common) -> usize {
    let available = || std::thread::available_parallelism().map_or(1, usize::from);
    common.threads.map_or_else(available, usize::from)
}

/// [`Machine::load`] on this machine.
pub fn load(common: &Common, checkpoint: &Checkpoint, want: Want) -> Result<Loaded, CliError> {
    Machine::of(common).load(checkpoint, want)
}

impl<'a> Machine<'a, Cuda> {
    /// This machine.
    pub fn of(common: &'a Common) -> Self {
        Machine { common, open: Cuda::open }
    }
}

impl<D: Driver + 'static> Machine<'_, D> {
    /// A GPU, with its kernels.
    pub fn gpu(&self, index: usize) -> Result<Gpu<D>, CliError> {
        Ok((self.open)(index).and_then(Gpu::new)?)
    }

    /// Loads a model for what a command wants, within the memory that the flags allow. Without a device asked for it
    /// goes to the GPU, or says why not.
    pub fn load(&self, checkpoint: &Checkpoint, want: Want) -> Result<Loaded, CliError> {
        let why = match self.common.device {
            Device::Cpu => return self.on_cpu(checkpoint, want),
            Device::Cuda(index) => return self.on_gpu(index, checkpoint, want),
            Device::Auto => match self.on_gpu(0, checkpoint, want) {
                Ok(loaded) => return Ok(loaded),
                Err(why) => output::one_line(&why),
            },
        };
        let loaded = self.on_cpu(checkpoint, want)?;
        output::note(format_args!("computing on the CPU: {why}"));
        Ok(Loaded { refused: Some(why), ..loaded })
    }

    fn on_cpu(&self, checkpoint: &Checkpoint, want: Want) -> Result<Loaded, CliError> {
        let (mut cpu, available) = (cpu(self.common)?, SystemMemory::now().available_bytes);
        if want.all_logits {
            cpu = cpu.for_all_logits();
        }
        let home = Home::Cpu(cpu.kv_type());
        on(cpu, home, available, self.common, checkpoint, want)
    }

    fn on_gpu(&self, index: usize, checkpoint: &Checkpoint, want: Want) -> Result<Loaded, CliError> {
        if let Some(kv) = self.common.kv.filter(|kv| *kv != KvType::Bf16) {
            let what = format!("a GPU keeps keys and values in bf16, not in {kv}");
            return Err(CliError::usage(what, "--kv", "leave it out, or compute with --device cpu"));
        }
        let mut gpu = self.gpu(index)?;
        let available = gpu.driver().free_memory()?;
        on(gpu, Home::Gpu, Some(available as u64), self.common, checkpoint, want)
    }
}

fn on<B: Backend + 'static>(
    backend: B,
    home: Home,
    available: Option<u64>,
    common: &Common,
    checkpoint: &Checkpoint,
    want: Want,
) -> Result<Loaded, CliError> {
    let start = Instant::now();
    let weights = home.weights(checkpoint, want.all_logits)?;
    let limits = plan(common, home, available, &checkpoint.spec, weights.total, want)?;
    let bar = Progress::new("loading", checkpoint.spec.layers);
    let model =
        Transformer::load(&checkpoint.spec, &*checkpoint.tensors, backend, limits, &mut |done, all| {
            bar.at(done, all);
        })?;
    Ok(Loaded { model: Box::new(model), weights, time: start.elapsed(), refused: None })
}

fn logit_rows(step: usize, want: Want) -> usize {
    if want.all_logits { step } else { want.sequences.max(1 + want.drafts) }
}

/// The largest limits within the memory allowed: the whole step and all tokens wanted if they fit, else a small
/// step and as many tokens as possible.
fn plan(
    common: &Common,
    home: Home,
    available: Option<u64>,
    spec: &ModelSpec,
    weights: u64,
    want: Want,
) -> Result<Limits, CliError> {
    let small = want.step.min(SMALL_STEP.max(want.sequences));
    let blocks = |tokens: usize| want.sequences * tokens.div_ceil(Batch::BLOCK_TOKENS);
    let fixed = |step| weights + home.step(spec, step, logit_rows(step, want));
    let block = home.block(spec);
    let most = fixed(want.step) + blocks(want.tokens) as u64 * block;
    let least = fixed(small) + blocks(want.least) as u64 * block;
    let budget = memory::budget(common.memory, available, least, most)?;
    let (max_tokens, kv_blocks) = if budget >= most {
        (want.step, blocks(want.tokens))
    } else {
        let room = ((budget - fixed(small)) / block) as usize;
        (small, room.min(blocks(want.tokens)) / want.sequences * want.sequences)
    };
    Ok(Limits { max_tokens, max_logit_rows: logit_rows(max_tokens, want), kv_blocks })
}
