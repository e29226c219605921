//! Loads an opened checkpoint into memory: chooses the device and plans the memory. For programs that need a model
//! without an engine; [`Model`](crate::Model) does all this.

use std::{
    fmt,
    iter::successors,
    str::FromStr,
    time::{Duration, Instant},
};

use bitnet_kernels::{
    Backend, Cpu, Isa, KvType,
    gpu::{Cuda, Driver, Gpu, GpuError},
};
use bitnet_model::{Batch, Checkpoint, Limits, Model, ModelSpec, Transformer};

pub use crate::sizes::{Home, WeightBytes};
use crate::{Error, Memory, SystemMemory, memory::Budget};

/// Maximum number of tokens in a step of an engine.
const STEP: usize = 512;
/// Minimum number of tokens that each sequence of an engine must have room for.
const MIN_TOKENS: usize = 64;
/// Prompt tokens that a step has room for in addition to one token of every sequence, unless only a smaller step fits.
pub const CHUNK: usize = 64;
/// Tokens in the smallest step, used if nothing else fits; its memory is small compared to any weights.
const SMALLEST_STEP: usize = 32;

/// What a program needs from a model.
#[derive(Debug, Clone, Copy)]
pub struct Want {
    /// Maximum number of tokens in a step.
    pub step: usize,
    /// Whether the logits of all tokens of a step are needed, or only those of the last token of each sequence.
    pub all_logits: bool,
    /// Number of sequences side by side.
    pub sequences: usize,
    /// Number of drafted tokens for a sequence in a step.
    pub drafts: usize,
    /// Maximum number of tokens in a sequence.
    pub tokens: usize,
    /// Minimum number of tokens that each sequence must have room for.
    pub least: usize,
}

impl Want {
    /// The needs of an engine that batches `sequences` requests of up to `context` tokens.
    pub fn engine(sequences: usize, drafts: usize, context: usize) -> Want {
        let step = STEP.max(sequences + CHUNK).max(1 + drafts);
        Want { step, all_logits: false, sequences, drafts, tokens: context, least: MIN_TOKENS.min(context) }
    }
}

/// A model with its weights in memory.
#[non_exhaustive]
pub struct Loaded {
    /// The model.
    pub model: Box<dyn Model>,
    /// Sizes of the weights.
    pub weights: WeightBytes,
    /// The plan of its memory.
    pub plan: Plan,
    /// Time that loading took.
    pub time: Duration,
    /// Why the GPU is not used, if [`Device::Auto`] looked for one.
    pub refused: Option<Error>,
}

impl Loaded {
    /// Why a GPU that the machine has is not used. A machine without a GPU, or without a driver for one, needs no note.
    pub fn unused_gpu(&self) -> Option<&Error> {
        let absent =
            |error: &Error| matches!(error, Error::Gpu(GpuError::DriverMissing | GpuError::NoDevice { .. }));
        self.refused.as_ref().filter(|error| !absent(error))
    }
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loaded { weights, plan, refused, .. } = self;
        let mut shown = f.debug_struct("Loaded");
        shown.field("weights", weights).field("plan", plan).field("refused", refused).finish_non_exhaustive()
    }
}

/// Where a model computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Device {
    /// The first NVIDIA GPU if usable, otherwise the CPU. If there is a GPU, [`Model::notes`](crate::Model::notes) then says why.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU, counting from zero.
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

/// Where to compute.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The device.
    pub device: Device,
    /// Number of CPU threads; `None` for as many as the machine runs in parallel.
    pub threads: Option<usize>,
    /// CPU instruction set.
    pub isa: Isa,
    /// Type of cached keys and values; `None` for the device's default.
    pub kv: Option<KvType>,
    /// Limit on memory; `None` for as much as needed, up to half of the available.
    pub memory: Option<Memory>,
}

impl Default for Machine {
    fn default() -> Self {
        Machine { device: Device::Auto, threads: None, isa: Isa::best(), kv: None, memory: None }
    }
}

impl Machine {
    /// Number of CPU threads to use.
    pub fn threads(&self) -> usize {
        let available = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(available)
    }

    /// Creates the CPU backend.
    ///
    /// # Errors
    /// If its threads cannot be started.
    pub fn cpu(&self) -> Result<Cpu, Error> {
        Ok(Cpu::new(self.isa, self.threads())?.keeping(self.kv.unwrap_or_default()))
    }
}

/// Receives the number of layers loaded and the total.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// Loads a model within the memory limit. [`Device::Auto`] uses the GPU, or else the CPU and reports why.
///
/// # Errors
/// If the device is not usable, the model does not fit into memory, or its files are damaged.
pub fn load(
    machine: &Machine,
    checkpoint: &Checkpoint,
    want: Want,
    progress: Progress<'_>,
) -> Result<Loaded, Error> {
    load_by(machine, Cuda::open, checkpoint, want, progress)
}

/// As [`load`], with a GPU opened through any driver; `open` gets its number.
///
/// # Errors
/// As [`load`].
pub fn load_by<D: Driver + 'static>(
    machine: &Machine,
    open: impl Fn(usize) -> Result<D, GpuError>,
    checkpoint: &Checkpoint,
    want: Want,
    progress: Progress<'_>,
) -> Result<Loaded, Error> {
    let why = match machine.device {
        Device::Cpu => return on_cpu(machine, checkpoint, want, progress),
        Device::Cuda(index) => return on_gpu(machine, open(index), checkpoint, want, progress),
        Device::Auto => match on_gpu(machine, open(0), checkpoint, want, progress) {
            Ok(loaded) => return Ok(loaded),
            Err(why) => why,
        },
    };
    Ok(Loaded { refused: Some(why), ..on_cpu(machine, checkpoint, want, progress)? })
}

fn on_cpu(
    machine: &Machine,
    checkpoint: &Checkpoint,
    want: Want,
    progress: Progress<'_>,
) -> Result<Loaded, Error> {
    let mut cpu = machine.cpu()?;
    if want.all_logits {
        cpu = cpu.for_all_logits();
    }
    let (home, available) = (Home::Cpu(cpu.kv_type()), SystemMemory::now().available_bytes);
    on(cpu, home, (machine.memory, available), checkpoint, want, progress)
}

fn on_gpu<D: Driver + 'static>(
    machine: &Machine,
    driver: Result<D, GpuError>,
    checkpoint: &Checkpoint,
    want: Want,
    progress: Progress<'_>,
) -> Result<Loaded, Error> {
    if let Some(kv) = machine.kv.filter(|kv| *kv != KvType::Bf16) {
        return Err(Error::GpuCache { kv });
    }
    let mut gpu = driver.and_then(Gpu::new)?;
    let available = gpu.driver().free_memory()?;
    on(gpu, Home::Gpu, (machine.memory, Some(available as u64)), checkpoint, want, progress)
}

fn on<B: Backend + 'static>(
    backend: B,
    home: Home,
    memory: (Option<Memory>, Option<u64>),
    checkpoint: &Checkpoint,
    want: Want,
    progress: Progress<'_>,
) -> Result<Loaded, Error> {
    let start = Instant::now();
    let (spec, weights) = (&checkpoint.spec, home.weights(checkpoint, want.all_logits)?);
    let plan = plan(memory, home, spec, weights.total, want)?;
    let model = Transformer::load(spec, &*checkpoint.tensors, backend, plan.limits, progress)?;
    Ok(Loaded { model: Box::new(model), weights, plan, time: start.elapsed(), refused: None })
}

/// How a model's memory is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Maximum tokens and rows of logits in a step, and number of blocks of the cache.
    pub limits: Limits,
    /// Maximum number of tokens in a sequence, according to the model.
    pub context: usize,
    /// Total bytes of weights, steps and cache; `None` if the model was loaded by other means than this crate's.
    pub bytes: Option<u64>,
}

impl Plan {
    /// Maximum number of tokens in a request that fits, including its answer.
    pub fn longest(&self) -> usize {
        self.context.min(self.limits.kv_blocks * Batch::BLOCK_TOKENS)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limits { max_tokens, kv_blocks, .. } = self.limits;
        let (block, context, longest) = (Batch::BLOCK_TOKENS, self.context, self.longest());
        f.write_str("memory: ")?;
        if let Some(bytes) = self.bytes {
            write!(f, "{:.0} MB for weights, ", bytes as f64 / 1e6)?;
        }
        write!(
            f,
            "steps of {max_tokens} tokens and {kv_blocks} blocks of {block}; context {context}, longest request \
             {longest} tokens"
        )
    }
}

/// Plans the step first: the whole step if that leaves room for a useful cache, otherwise half of it, and so on down
/// to a chunk of a prompt in addition to a token of every sequence. The cache gets the rest.
fn plan(
    (limit, available): (Option<Memory>, Option<u64>),
    home: Home,
    spec: &ModelSpec,
    weights: u64,
    want: Want,
) -> Result<Plan, Error> {
    let rows = |step| if want.all_logits { step } else { want.sequences.max(1 + want.drafts) };
    let blocks = |tokens: usize| want.sequences * tokens.div_ceil(Batch::BLOCK_TOKENS);
    let block = home.block(spec);
    let bytes = |step, blocks: usize| weights + home.step(spec, step, rows(step)) + blocks as u64 * block;
    let (most_blocks, least_blocks) = (blocks(want.tokens), blocks(want.least));
    // One request of the maximum length, or the minimum for every sequence if that is more.
    let useful_blocks = least_blocks.max(want.tokens.div_ceil(Batch::BLOCK_TOKENS));
    let chunk = want.step.min(want.sequences + CHUNK);
    let smallest = want.step.min(SMALLEST_STEP.max(want.sequences));

    let budget = Budget {
        needed: bytes(smallest, least_blocks),
        useful: bytes(chunk, useful_blocks),
        everything: bytes(want.step, most_blocks),
    };
    let budget = budget.within(limit, available)?;
    let fits = |step, blocks| bytes(step, blocks) <= budget;
    let halves = successors(Some(want.step), |&step| (step > chunk).then(|| (step / 2).max(chunk)));
    let step = halves.into_iter().find(|&step| fits(step, useful_blocks));
    let step = step.unwrap_or(if fits(chunk, least_blocks) { chunk } else { smallest });
    let room = ((budget - bytes(step, 0)) / block) as usize;
    let kv_blocks = room.min(most_blocks);
    let limits = Limits { max_tokens: step, max_logit_rows: rows(step), kv_blocks, state_slots: 0 };
    Ok(Plan { limits, context: spec.context, bytes: Some(bytes(step, kv_blocks)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(memory: u64, sequences: usize) -> Result<Plan, Error> {
        let checkpoint = crate::open_checkpoint("synthetic:tiny", &mut |_, _, _| {})?.checkpoint;
        let home = Home::Cpu(KvType::F32);
        let weights = home.weights(&checkpoint, false)?.total;
        let tokens = checkpoint.spec.context;
        let want = Want { step: 512, all_logits: false, sequences, drafts: 0, tokens, least: 64 };
        plan((Some(Memory::Bytes(memory)), None), home, &checkpoint.spec, weights, want)
    }

    #[test]
    fn only_a_gpu_that_exists_and_is_not_used_is_worth_a_note() {
        let no_device = || GpuError::NoDevice { index: 0, count: 0 };
        let failed = || GpuError::Failed { during: "cuInit", reason: "gone".into() };
        let cases: [(&dyn Fn() -> GpuError, bool); 3] =
            [(&|| GpuError::DriverMissing, false), (&no_device, false), (&failed, true)];
        for (error, noted) in cases {
            let checkpoint = Checkpoint::demo().unwrap();
            let want = Want::engine(1, 0, checkpoint.spec.context);
            let open = |_| Err::<Cuda, _>(error());
            let loaded = load_by(&Machine::default(), open, &checkpoint, want, &mut |_, _| {}).unwrap();
            assert!(loaded.refused.is_some(), "the CPU was not requested");
            assert_eq!(loaded.unused_gpu().is_some(), noted, "{loaded:?}");
        }
    }

    #[test]
    fn a_cache_that_does_not_hold_everything_costs_prompts_nothing_of_their_step() {
        let whole = planned(10_000_000_000, 32).unwrap();
        let part = planned(500_000_000, 32).unwrap();
        assert_eq!((part.limits.max_tokens, whole.limits.max_tokens), (512, 512));
        assert!(part.limits.kv_blocks * 10 > whole.limits.kv_blocks * 7, "{part} {whole}");
        assert!(
            part.limits.kv_blocks < whole.limits.kv_blocks && part.bytes.unwrap() <= 500_000_000,
            "{part} {whole}"
        );
        assert_eq!((part.context, part.longest()), (8192, 8192));
    }

    #[test]
    fn a_chunk_beside_a_full_batch_is_given_up_only_where_nothing_else_fits() {
        for sequences in [1, 8, 32, 64] {
            let whole = planned(1 << 40, sequences).unwrap();
            let plans = (1..=2000).rev().map_while(|n| {
                let memory = whole.bytes.unwrap() / 2000 * n;
                Some((memory, planned(memory, sequences).ok()?))
            });
            let (mut steps, mut before) = (Vec::new(), whole.limits.max_tokens);
            for (memory, plan) in plans {
                let Limits { max_tokens, kv_blocks, .. } = plan.limits;
                assert!(plan.bytes.unwrap() <= memory && kv_blocks >= sequences, "{memory}: {plan}");
                assert!(max_tokens <= before, "less memory gives no larger step: {plan}");
                // Without a chunk, fewer than 8 blocks beyond the minimum are left.
                let chunk = max_tokens >= sequences + CHUNK;
                assert!(chunk || kv_blocks < sequences + 8, "{memory}: {plan}");
                before = max_tokens;
                steps.push(max_tokens);
            }
            steps.dedup();
            assert!(steps.len() > 3, "{steps:?}");
        }
    }
}
