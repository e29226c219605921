//! From an opened checkpoint to a model that runs: on which device, how much memory it takes, and what that allows.

use std::{
    fmt,
    iter::successors,
    time::{Duration, Instant},
};

use bitnet_kernels::{
    Backend, Cpu, Isa, KvType,
    gpu::{Cuda, Driver, Gpu, GpuError},
};
use bitnet_model::{Batch, Checkpoint, Limits, Model, ModelSpec, Transformer};

use crate::{
    args::{Common, Device},
    error::CliError,
    memory::{self, MemoryLimit, SystemMemory},
    output,
    progress::Progress,
    sizes::{Home, WeightBytes},
};

/// Maximum number of tokens in one step of an engine.
const STEP: usize = 512;
/// Tokens that every sequence of an engine must have room for.
const LEAST: usize = 64;
/// Tokens of a prompt that a step takes beside one of every sequence, unless nothing else fits.
pub const CHUNK: usize = 64;
/// Tokens in a step where nothing else fits: few enough to be small beside any weights.
const SMALLEST_STEP: usize = 32;

/// What a command has use for.
#[derive(Debug, Clone, Copy)]
pub struct Want {
    /// Maximum number of tokens in one step.
    pub step: usize,
    /// Whether the logits of all tokens of a step are needed, or only of the last one of each sequence.
    pub all_logits: bool,
    /// Sequences side by side.
    pub sequences: usize,
    /// Draft tokens of one sequence in one step.
    pub drafts: usize,
    /// Maximum number of tokens in a sequence.
    pub tokens: usize,
    /// Tokens that every sequence must have room for.
    pub least: usize,
}

impl Want {
    /// What an engine needs that batches `sequences` requests of up to `context` tokens.
    pub fn engine(sequences: usize, drafts: usize, context: usize) -> Want {
        let step = STEP.max(sequences + CHUNK).max(1 + drafts);
        Want { step, all_logits: false, sequences, drafts, tokens: context, least: LEAST.min(context) }
    }
}

/// A model with its weights in memory.
pub struct Loaded {
    /// The model.
    pub model: Box<dyn Model>,
    /// Its weights.
    pub weights: WeightBytes,
    /// What it gets of the memory.
    pub plan: Plan,
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
    let plan = plan(common.memory, home, available, &checkpoint.spec, weights.total, want)?;
    let bar = Progress::new("loading", checkpoint.spec.layers);
    let model =
        Transformer::load(&checkpoint.spec, &*checkpoint.tensors, backend, plan.limits, &mut |done, all| {
            bar.at(done, all);
        })?;
    Ok(Loaded { model: Box::new(model), weights, plan, time: start.elapsed(), refused: None })
}

/// What a model gets of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Tokens and rows of logits in a step, and blocks of the cache.
    pub limits: Limits,
    /// Tokens that the model allows in a sequence.
    pub context: usize,
    /// Bytes of weights, steps and cache together.
    pub bytes: u64,
}

impl Plan {
    /// Tokens of the longest request that fits, its answer included.
    pub fn longest(&self) -> usize {
        self.context.min(self.limits.kv_blocks * Batch::BLOCK_TOKENS)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limits { max_tokens, kv_blocks, .. } = self.limits;
        let (megabytes, context, longest) = (self.bytes as f64 / 1e6, self.context, self.longest());
        let block = Batch::BLOCK_TOKENS;
        write!(
            f,
            "memory: {megabytes:.0} MB for weights, steps of {max_tokens} tokens and {kv_blocks} blocks of {block}; \
             context {context}, longest request {longest} tokens"
        )
    }
}

/// Sizes the step first: the whole step if it leaves room for a useful cache, else half of it, and so on down to a
/// chunk of a prompt beside a token of every sequence. The cache gets the rest.
fn plan(
    limit: Option<MemoryLimit>,
    home: Home,
    available: Option<u64>,
    spec: &ModelSpec,
    weights: u64,
    want: Want,
) -> Result<Plan, CliError> {
    let rows = |step| if want.all_logits { step } else { want.sequences.max(1 + want.drafts) };
    let blocks = |tokens: usize| want.sequences * tokens.div_ceil(Batch::BLOCK_TOKENS);
    let block = home.block(spec);
    let bytes = |step, blocks: usize| weights + home.step(spec, step, rows(step)) + blocks as u64 * block;
    let (most_blocks, least_blocks) = (blocks(want.tokens), blocks(want.least));
    // One request of the maximum length, and the minimum for each of those beside it.
    let useful_blocks = least_blocks.max(want.tokens.div_ceil(Batch::BLOCK_TOKENS));
    let chunk = want.step.min(want.sequences + CHUNK);
    let smallest = want.step.min(SMALLEST_STEP.max(want.sequences));

    let needed = bytes(smallest, least_blocks);
    let wanted = [bytes(chunk, useful_blocks), bytes(want.step, most_blocks)];
    let budget = memory::budget(limit, available, needed, wanted)?;
    let fits = |step, blocks| bytes(step, blocks) <= budget;
    let halves = successors(Some(want.step), |&step| (step > chunk).then(|| (step / 2).max(chunk)));
    let step = halves.into_iter().find(|&step| fits(step, useful_blocks));
    let step = step.unwrap_or(if fits(chunk, least_blocks) { chunk } else { smallest });
    let room = ((budget - bytes(step, 0)) / block) as usize;
    let kv_blocks = room.min(most_blocks);
    let limits = Limits { max_tokens: step, max_logit_rows: rows(step), kv_blocks };
    Ok(Plan { limits, context: spec.context, bytes: bytes(step, kv_blocks) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(memory: u64, sequences: usize) -> Result<Plan, CliError> {
        let checkpoint = crate::model_arg::open("synthetic:tiny")?;
        let home = Home::Cpu(KvType::F32);
        let weights = home.weights(&checkpoint, false)?.total;
        let tokens = checkpoint.spec.context;
        let want = Want { step: 512, all_logits: false, sequences, drafts: 0, tokens, least: 64 };
        plan(Some(MemoryLimit::Bytes(memory)), home, None, &checkpoint.spec, weights, want)
    }

    #[test]
    fn a_cache_that_does_not_hold_everything_costs_prompts_nothing_of_their_step() {
        let whole = planned(10_000_000_000, 32).unwrap();
        let part = planned(500_000_000, 32).unwrap();
        assert_eq!((part.limits.max_tokens, whole.limits.max_tokens), (512, 512));
        assert!(part.limits.kv_blocks * 10 > whole.limits.kv_blocks * 7, "{part} {whole}");
        assert!(part.limits.kv_blocks < whole.limits.kv_blocks && part.bytes <= 500_000_000, "{part} {whole}");
        assert_eq!((part.context, part.longest()), (8192, 8192));
    }

    #[test]
    fn a_chunk_beside_a_full_batch_is_given_up_only_where_nothing_else_fits() {
        for sequences in [1, 8, 32, 64] {
            let whole = planned(1 << 40, sequences).unwrap();
            let plans = (1..=2000).rev().map_while(|n| {
                let memory = whole.bytes / 2000 * n;
                Some((memory, planned(memory, sequences).ok()?))
            });
            let (mut steps, mut before) = (Vec::new(), whole.limits.max_tokens);
            for (memory, plan) in plans {
                let Limits { max_tokens, kv_blocks, .. } = plan.limits;
                assert!(plan.bytes <= memory && kv_blocks >= sequences, "{memory}: {plan}");
                assert!(max_tokens <= before, "less memory gives no larger step: {plan}");
                assert!(max_tokens >= sequences + CHUNK || kv_blocks < 2 * sequences, "{memory}: {plan}");
                before = max_tokens;
                steps.push(max_tokens);
            }
            steps.dedup();
            assert!(steps.len() > 2 && steps[0] == 512, "{steps:?}");
        }
    }
}
