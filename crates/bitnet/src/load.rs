//! Loads an opened checkpoint into memory: chooses the device and plans the memory. For programs that need a model
//! without an engine; [`Model`](crate::Model) does all this.

use std::{
    fmt,
    iter::successors,
    str::FromStr,
    time::{Duration, Instant},
};

use bitnet_inference::{Drafter, HeadDrafter, ModelDrafter};
use bitnet_kernels::{
    Cpu, Footprint, Isa, KernelError, KvType,
    gpu::{Cuda, Driver, Gpu, GpuError, RecordingState},
};
pub use bitnet_model::WeightBytes;
use bitnet_model::{Batch, Checkpoint, Limits, Model, ModelError, ModelFootprint, ModelSpec, Transformer};

use crate::{Error, Memory, SystemMemory, default_threads, draft::OpenDraft, memory::Budget};

/// Maximum number of tokens in a step of an engine.
const STEP: usize = 512;
/// Minimum number of tokens that each sequence of an engine must have room for.
const MIN_TOKENS: usize = 64;
/// Prompt tokens that a step has room for in addition to one token of every sequence, unless only a smaller step fits.
pub const CHUNK: usize = 64;
/// Minimum number of state slots that an engine wants for the prefix cache, in addition to one for every sequence. With
/// more sequences than this, it wants as many as sequences.
const SNAPSHOTS: usize = 3;
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
    /// Maximum number of state slots that are useful if the model has recurrent layers: one for each sequence, and
    /// others for snapshots.
    pub states: usize,
    /// Minimum number of state slots, if the model has recurrent layers.
    pub least_states: usize,
    /// Whether a sequence keeps only the window of sliding layers, in blocks of their own. The engine does; a program that
    /// computes steps itself must then give every run a table of these blocks
    /// ([`Batch::set_windows`](bitnet_model::Batch::set_windows)).
    pub windows: bool,
}

impl Want {
    /// The needs of an engine that batches `sequences` requests of up to `context` tokens.
    pub fn engine(sequences: usize, drafts: usize, context: usize) -> Want {
        Want {
            step: STEP.max(sequences + CHUNK).max(1 + drafts),
            least: MIN_TOKENS.min(context),
            states: sequences + sequences.max(SNAPSHOTS),
            // With fewer slots than sequences, some sequences wait.
            least_states: 1,
            windows: true,
            ..Want::sequences(sequences, context).drafting(drafts)
        }
    }

    /// The needs of a program that computes `sequences` sequences side by side, each with room for `tokens` tokens, and
    /// all of them in one step.
    pub const fn sequences(sequences: usize, tokens: usize) -> Want {
        Want {
            step: sequences * tokens,
            all_logits: false,
            sequences,
            drafts: 0,
            tokens,
            least: tokens,
            states: sequences,
            least_states: sequences,
            windows: false,
        }
    }

    /// The same needs, with up to `drafts` drafted tokens for a sequence in a step.
    #[must_use]
    pub const fn drafting(self, drafts: usize) -> Want {
        Want { drafts, ..self }
    }
}

/// A model with its weights in memory.
#[non_exhaustive]
pub struct Loaded {
    /// The model.
    pub model: Box<dyn Model>,
    /// What drafts for it, if anything besides the text does.
    pub drafter: Option<Box<dyn Drafter>>,
    /// Sizes of the weights.
    pub weights: WeightBytes,
    /// The plan of its memory.
    pub plan: Plan,
    /// Time that loading took.
    pub time: Duration,
    /// The GPU that computes; `None` for the CPU.
    pub gpu: Option<UsedGpu>,
    /// Why the GPUs are not used that [`Device::Auto`] tried, the first one first.
    pub refused: Vec<Error>,
}

/// The GPU that computes a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UsedGpu {
    /// Its number, counting from zero.
    pub index: usize,
    /// How its launches are recorded.
    pub recordings: RecordingState,
}

impl Loaded {
    /// Why the CPU computes although a GPU was tried, on one line.
    pub fn refusal(&self) -> Option<String> {
        let reasons = reasons(&self.refused, |_| true);
        if self.gpu.is_some() || reasons.is_empty() { None } else { Some(reasons) }
    }

    /// What a user should know about the device, a line each: why a GPU that the machine has is not used, and what a
    /// GPU's driver failed at. A machine without a GPU, or without a driver for one, needs no note.
    pub fn notes(&self) -> Vec<String> {
        let absent =
            |error: &Error| matches!(error, Error::Gpu(GpuError::DriverMissing | GpuError::NoDevice { .. }));
        let reasons = reasons(&self.refused, |error| !absent(error));
        let place = self.gpu.as_ref().map_or("the CPU".into(), |gpu| format!("GPU {}", gpu.index));
        let unused = (!reasons.is_empty()).then(|| format!("computing on {place}: {reasons}"));
        let recordings = self.gpu.as_ref().map(|gpu| &gpu.recordings).filter(|state| state.why.is_some());
        unused.into_iter().chain(recordings.map(|state| format!("GPU: {state}"))).collect()
    }
}

/// The errors of GPUs on one line, by number if there are several.
fn reasons(refused: &[Error], worth: impl Fn(&Error) -> bool) -> String {
    let of = |(index, error): (usize, &Error)| match refused.len() {
        1 => error.to_string(),
        _ => format!("GPU {index}: {error}"),
    };
    let each: Vec<String> = refused.iter().enumerate().filter(|(_, error)| worth(error)).map(of).collect();
    each.join("; ")
}

bitnet_tensor::opaque_debug!(Loaded { weights, plan, gpu, refused });

/// Where a model computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Device {
    /// The first usable NVIDIA GPU, otherwise the CPU: a GPU that is too old, busy or too small is passed over for the
    /// next. If the machine has a GPU that is not used, [`Model::notes`](crate::Model::notes) says why.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU, counting from zero.
    Cuda(usize),
}

impl FromStr for Device {
    type Err = UnknownDevice;

    /// Reads `auto`, `cpu`, `cuda` or `cuda:N`.
    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        match text {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            _ => match text.strip_prefix("cuda:").map(str::parse::<u16>) {
                Some(Ok(index)) => Ok(Device::Cuda(index.into())),
                _ => Err(UnknownDevice),
            },
        }
    }
}

/// A text that names no [`Device`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("choose auto, cpu, cuda or cuda:N")]
pub struct UnknownDevice;

/// Where to compute.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The device.
    pub device: Device,
    /// Number of CPU threads, which only convert weights if a GPU computes; `None` for one on each physical core that
    /// this process may use ([`default_threads`]).
    pub threads: Option<usize>,
    /// CPU instruction set.
    pub isa: Isa,
    /// Type of cached keys and values; `None` for the device's default.
    pub kv: Option<KvType>,
    /// Limit on memory; `None` for as much as needed, up to half of the available memory.
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
        self.threads.unwrap_or_else(default_threads)
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

/// Loads a model within the memory limit, without its draft head. [`Device::Auto`] uses the first GPU that it can, or
/// else the CPU and reports why.
///
/// # Errors
/// If the device is not usable, the model does not fit into memory, or its files are damaged.
pub fn load(
    machine: &Machine,
    checkpoint: &Checkpoint,
    want: Want,
    progress: Progress<'_>,
) -> Result<Loaded, Error> {
    load_by(machine, Cuda::open, checkpoint, &OpenDraft::default(), want, progress)
}

/// As [`load`], with what drafts for the model, and with a GPU opened through any driver; `open` gets the number of the
/// GPU.
pub fn load_by<D: Driver + 'static>(
    machine: &Machine,
    open: impl Fn(usize) -> Result<D, GpuError>,
    checkpoint: &Checkpoint,
    draft: &OpenDraft,
    want: Want,
    progress: Progress<'_>,
) -> Result<Loaded, Error> {
    match machine.device {
        Device::Cpu => return on_cpu(machine, checkpoint, draft, want, progress),
        Device::Cuda(index) => return on_gpu(machine, &open, index, checkpoint, draft, want, progress),
        Device::Auto => {}
    }
    let mut refused = Vec::new();
    loop {
        match on_gpu(machine, &open, refused.len(), checkpoint, draft, want, &mut *progress) {
            Ok(loaded) => return Ok(Loaded { refused, ..loaded }),
            Err(Error::Gpu(GpuError::NoDevice { .. })) if !refused.is_empty() => break,
            Err(why) => {
                let next = another_may_serve(&why);
                refused.push(why);
                if !next {
                    break;
                }
            }
        }
    }
    Ok(Loaded { refused, ..on_cpu(machine, checkpoint, draft, want, progress)? })
}

/// Whether another GPU may do what this one could not.
pub fn another_may_serve(error: &Error) -> bool {
    match error {
        Error::Gpu(error) | Error::Model(ModelError::Kernel(KernelError::Gpu(error))) => matches!(
            error,
            GpuError::TooOld { .. }
                | GpuError::Busy { .. }
                | GpuError::OutOfMemory { .. }
                | GpuError::NoRoomForKernel { .. }
        ),
        Error::Memory { .. } => true,
        _ => false,
    }
}

fn on_cpu(
    machine: &Machine,
    checkpoint: &Checkpoint,
    draft: &OpenDraft,
    want: Want,
    progress: Progress<'_>,
) -> Result<Loaded, Error> {
    let cpu = || {
        let cpu = machine.cpu()?;
        Ok(if want.all_logits { cpu.for_all_logits() } else { cpu })
    };
    let memory = (machine.memory, SystemMemory::now().available_bytes);
    on(cpu, memory, checkpoint, draft, want, progress)
}

fn on_gpu<D: Driver + 'static>(
    machine: &Machine,
    open: impl Fn(usize) -> Result<D, GpuError>,
    index: usize,
    checkpoint: &Checkpoint,
    draft: &OpenDraft,
    want: Want,
    progress: Progress<'_>,
) -> Result<Loaded, Error> {
    let kv = gpu_cache(machine.kv)?;
    let mut gpu = open(index).and_then(Gpu::new)?;
    let used = UsedGpu { index, recordings: gpu.recordings().clone() };
    let available = gpu.driver().free_memory()?;
    let memory = (machine.memory, Some(available as u64));
    let mut first = Some(gpu);
    let backend = || {
        let gpu = first.take().map_or_else(|| open(index).and_then(Gpu::new), Ok)?;
        let gpu = gpu.converting_on(machine.threads()).keeping(kv);
        Ok(if want.all_logits { gpu.for_all_logits() } else { gpu })
    };
    Ok(Loaded { gpu: Some(used), ..on(backend, memory, checkpoint, draft, want, progress)? })
}

/// The type of a GPU's caches, if a request or flag names `kv`.
///
/// # Errors
/// If the kernels do not have it.
pub fn gpu_cache(kv: Option<KvType>) -> Result<KvType, Error> {
    let kv = kv.unwrap_or(KvType::Bf16);
    if Gpu::<Cuda>::KV_TYPES.contains(&kv) { Ok(kv) } else { Err(Error::GpuCache { kv }) }
}

/// Loads on a backend.
fn on<B: Footprint + 'static>(
    mut backend: impl FnMut() -> Result<B, Error>,
    memory: (Option<Memory>, Option<u64>),
    checkpoint: &Checkpoint,
    draft: &OpenDraft,
    want: Want,
    progress: Progress<'_>,
) -> Result<Loaded, Error> {
    let start = Instant::now();
    let own = backend()?;
    let spec = ModelSpec { draft_head: draft.head, ..checkpoint.spec.clone() };
    let footprint = ModelFootprint::new(&own, &spec, &*checkpoint.tensors).with_logs(want.drafts);
    let footprint = if want.windows { footprint.with_windows() } else { footprint };
    let smaller = draft.model.as_ref().map(|model| ModelFootprint::new(&own, &model.spec, &*model.tensors));
    let bytes = |limits| {
        footprint.bytes(limits) + smaller.as_ref().map_or(0, |smaller| smaller.bytes(without_states(limits)))
    };
    let (weights, plan) = (footprint.weights(), plan(memory, &spec, &bytes, want)?);
    let load = if want.windows { Transformer::load_with_windows } else { Transformer::load };
    let model = load(&spec, &*checkpoint.tensors, own, plan.limits, progress)?;
    let drafter: Option<Box<dyn Drafter>> = match &draft.model {
        Some(smaller) => {
            let limits = without_states(plan.limits);
            let smaller =
                Transformer::load(&smaller.spec, &*smaller.tensors, backend()?, limits, &mut |_, _| {})?;
            Some(Box::new(ModelDrafter::new(Box::new(smaller), plan.limits)?))
        }
        None if draft.head => Some(Box::new(HeadDrafter::new())),
        None => None,
    };
    Ok(Loaded {
        model: Box::new(model),
        drafter,
        weights,
        plan,
        time: start.elapsed(),
        gpu: None,
        refused: Vec::new(),
    })
}

/// The limits of a smaller model that drafts, which has no recurrent layers.
fn without_states(limits: Limits) -> Limits {
    Limits { state_slots: 0, ..limits }
}

/// How a model's memory is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Maximum tokens and rows of logits in a step, and number of blocks of the cache.
    pub limits: Limits,
    /// Maximum number of tokens in a sequence, according to the model.
    pub context: usize,
    /// Total bytes of weights, steps, cache and states; `None` if the model was not loaded by this crate.
    pub bytes: Option<u64>,
    /// Bytes of a sequence's recurrent state; 0 in a model without recurrent layers.
    pub state_bytes: usize,
    /// Number of blocks of sliding layers, of which a sequence keeps only a window; 0 if these keep all tokens, in the
    /// blocks of the other layers.
    pub window_blocks: usize,
}

impl Plan {
    /// Maximum number of tokens in a request that fits, including its answer.
    pub fn longest(&self) -> usize {
        self.context.min(self.limits.kv_blocks * Batch::BLOCK_TOKENS)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limits { max_tokens, kv_blocks, state_slots, .. } = self.limits;
        let block = Batch::BLOCK_TOKENS;
        let context = self.context;
        let longest = self.longest();
        f.write_str("memory: ")?;
        if let Some(bytes) = self.bytes {
            write!(f, "{:.0} MB for weights, ", bytes as f64 / 1e6)?;
        }
        write!(
            f,
            "steps of {max_tokens} tokens and {kv_blocks} blocks of {block}; context {context}, longest request \
             {longest} tokens"
        )?;
        if state_slots > 0 {
            let each = self.state_bytes as f64 / 1e6;
            write!(f, "; {state_slots} recurrent states of {each:.1} MB, one for each sequence or snapshot")?;
        }
        if self.window_blocks > 0 {
            write!(
                f,
                "; {} blocks of sliding layers, for the last tokens of each sequence",
                self.window_blocks
            )?;
        }
        Ok(())
    }
}

/// Plans the step first: the full size if that leaves room for a useful cache, otherwise half of it, and so on down to
/// one prompt chunk in addition to one token of every sequence. The cache gets the rest. In a model with recurrent
/// layers, half of the rest goes to states, or more if the cache cannot use its half. `bytes` is what the model takes.
fn plan(
    (limit, available): (Option<Memory>, Option<u64>),
    spec: &ModelSpec,
    bytes: &dyn Fn(Limits) -> u64,
    want: Want,
) -> Result<Plan, Error> {
    let limits = |step, kv_blocks, state_slots| {
        let rows = if want.all_logits { step } else { want.sequences.max(1 + want.drafts) };
        Limits { max_tokens: step, max_logit_rows: rows, kv_blocks, state_slots }
    };
    let bytes = |step, blocks, states| bytes(limits(step, blocks, states));
    let blocks = |tokens: usize| want.sequences * tokens.div_ceil(Batch::BLOCK_TOKENS);
    let state_bytes = spec.state_bytes();
    let (most_states, least_states) = if state_bytes > 0 { (want.states, want.least_states) } else { (0, 0) };
    // One for a sequence and one for a snapshot.
    let useful_states = least_states.max(most_states.min(2));
    let (most_blocks, least_blocks) = (blocks(want.tokens), blocks(want.least));
    // One request of the maximum length, or the minimum for every sequence if that is more.
    let useful_blocks = least_blocks.max(want.tokens.div_ceil(Batch::BLOCK_TOKENS));
    let chunk = want.step.min(want.sequences + CHUNK);
    let smallest = want.step.min(SMALLEST_STEP.max(want.sequences));

    let budget = Budget {
        needed: bytes(smallest, least_blocks, least_states),
        useful: bytes(chunk, useful_blocks, useful_states),
        everything: bytes(want.step, most_blocks, most_states),
    };
    let budget = budget.within(limit, available)?;
    let useful = |step| bytes(step, useful_blocks, useful_states) <= budget;
    let halves = successors(Some(want.step), |&step| (step > chunk).then(|| (step / 2).max(chunk)));
    let step = halves.into_iter().find(|&step| useful(step));
    let chunk_fits = bytes(chunk, least_blocks, least_states) <= budget;
    let step = step.unwrap_or(if chunk_fits { chunk } else { smallest });
    let half = budget - (budget - bytes(step, 0, 0)) / 2;
    let states = |blocks, budget| most(most_states, |states| bytes(step, blocks, states) <= budget);
    let kept = if useful(step) { useful_blocks } else { least_blocks };
    let state_slots = states(0, half).max(states(most_blocks, budget)).min(states(kept, budget));
    let state_slots = state_slots.max(least_states);
    let kv_blocks = most(most_blocks, |blocks| bytes(step, blocks, state_slots) <= budget);
    let bytes = Some(bytes(step, kv_blocks, state_slots));
    let limits = limits(step, kv_blocks, state_slots);
    let window = spec.sliding_window().filter(|_| want.windows);
    let window_blocks = window.map_or(0, |window| limits.window_blocks(window));
    Ok(Plan { limits, context: spec.context, bytes, state_bytes, window_blocks })
}

/// The largest number up to `limit` that fits, if all smaller ones do; 0 if none does.
fn most(limit: usize, fits: impl Fn(usize) -> bool) -> usize {
    if fits(limit) {
        return limit;
    }
    let (mut most, mut over) = (0, limit);
    while over - most > 1 {
        let middle = most + (over - most) / 2;
        *(if fits(middle) { &mut most } else { &mut over }) = middle;
    }
    most
}

#[cfg(test)]
mod tests {
    use bitnet_kernels::{DeltaShape, KvShape};
    use bitnet_model::{Hybrid, Synthetic, TensorSource};

    use super::*;

    fn planned(memory: u64, sequences: usize) -> Result<Plan, Error> {
        let checkpoint = crate::open_checkpoint("synthetic:tiny", &mut |_, _, _| {})?.checkpoint;
        let want = Want { step: 512, least: 64, ..Want::sequences(sequences, checkpoint.spec.context) };
        planned_on_cpu(memory, &checkpoint.spec, &*checkpoint.tensors, want)
    }

    fn planned_on_cpu(
        memory: u64,
        spec: &ModelSpec,
        tensors: &dyn TensorSource,
        want: Want,
    ) -> Result<Plan, Error> {
        let cpu = Cpu::new(Isa::best(), 1)?;
        let footprint = ModelFootprint::new(&cpu, spec, tensors).with_logs(want.drafts);
        let footprint = if want.windows { footprint.with_windows() } else { footprint };
        plan((Some(Memory::Bytes(memory)), None), spec, &|limits| footprint.bytes(limits), want)
    }

    /// Plans an engine with a recurrent state of a quarter of a megabyte for each of two layers.
    fn planned_hybrid(memory: u64, sequences: usize) -> Result<Plan, Error> {
        let mut spec = crate::open_checkpoint("synthetic:tiny", &mut |_, _, _| {})?.checkpoint.spec;
        let delta = DeltaShape { key_heads: 2, value_heads: 16, head_dim: 64, taps: 4 };
        let attends = (0..spec.layers).map(|layer| layer >= 2).collect();
        spec.hybrid = Some(Hybrid { attends, delta, float_alpha_beta: false });
        let want = Want::engine(sequences, 0, spec.context);
        planned_on_cpu(memory, &spec, &Synthetic::of(spec.clone()), want)
    }

    #[test]
    fn states_and_blocks_share_the_memory_and_neither_starves() {
        for sequences in [1, 8, 64] {
            let whole = planned_hybrid(1 << 40, sequences).unwrap();
            assert_eq!(whole.limits.state_slots, sequences + sequences.max(SNAPSHOTS));
            let state = whole.state_bytes as u64;
            assert!(state > 500_000, "{state}");
            let plans = (1..=2000).rev().map_while(|n| {
                let memory = whole.bytes.unwrap() / 2000 * n;
                Some((memory, planned_hybrid(memory, sequences).ok()?))
            });
            let mut fewest = usize::MAX;
            for (memory, plan) in plans {
                let Limits { kv_blocks, state_slots, .. } = plan.limits;
                assert!(plan.bytes.unwrap() <= memory && kv_blocks >= sequences && state_slots > 0, "{plan}");
                fewest = fewest.min(state_slots);
            }
            assert_eq!(fewest, 1, "one sequence after the other is the least");
            if sequences >= 8 {
                let part = planned_hybrid(whole.bytes.unwrap() / 4 * 3, sequences).unwrap().limits;
                assert!(part.state_slots * 3 > whole.limits.state_slots, "{part:?}");
                assert!(part.kv_blocks * 4 > whole.limits.kv_blocks, "{part:?}");
            }
        }
    }

    #[test]
    fn a_sequence_of_32768_tokens_of_maple_takes_424_mb_instead_of_1611() {
        let maple = Synthetic::named("maple-20b").unwrap();
        let spec = maple.spec();
        let shape = KvShape { blocks: 1, kv_heads: spec.kv_heads, head_dim: spec.head_dim };
        let (layer, sliding) = (shape.cpu_bytes(KvType::F16), spec.sliding_layers());
        let blocks = 32_768 / Batch::BLOCK_TOKENS;
        let window = Batch::blocks_of_window(spec.sliding_window().unwrap(), 1);
        let own = (blocks * (spec.layers - sliding) + window * sliding) * layer;
        assert_eq!((window, own, blocks * spec.layers * layer), (9, 423_886_848, 1_610_612_736));
    }

    #[test]
    fn long_sequences_of_maple_take_less_than_a_third_of_what_full_attention_would() {
        let maple = Synthetic::named("maple-20b").unwrap();
        for sequences in [1, 8, 32] {
            let of = |windows, context| {
                let want = Want { windows, ..Want::engine(sequences, 0, context) };
                planned_on_cpu(1 << 45, maple.spec(), &maple, want).unwrap()
            };
            // What a longer context takes, beside the same weights and steps; tables of rope take 32 MB of it.
            let cache = |windows| of(windows, 32_768).bytes.unwrap() - of(windows, 64).bytes.unwrap();
            let (windows, full) = (cache(true), cache(false));
            assert!(3 * windows < full, "{sequences} sequences: {windows} of {full}");
            let plan = of(true, 32_768);
            assert!(plan.window_blocks < plan.limits.kv_blocks, "{plan}");
            assert!(plan.to_string().contains("blocks of sliding layers"), "{plan}");
            // However little memory there is, a sequence never takes more than with full attention.
            assert!(of(true, 64).bytes <= of(false, 64).bytes);
        }
    }

    #[test]
    fn every_state_has_room_for_a_log_of_drafts() {
        let delta = DeltaShape { key_heads: 2, value_heads: 16, head_dim: 64, taps: 4 };
        let plain = crate::open_checkpoint("synthetic:tiny", &mut |_, _, _| {}).unwrap().checkpoint.spec;
        let hybrid = Hybrid { attends: vec![false; plain.layers].into(), delta, float_alpha_beta: false };
        let spec = ModelSpec { hybrid: Some(hybrid), ..plain };
        let bytes = |drafts| {
            let want = Want::engine(8, drafts, spec.context);
            planned_on_cpu(1 << 40, &spec, &Synthetic::of(spec.clone()), want).unwrap().bytes.unwrap()
        };
        // Inputs, keys, values, decays and rates of a draft, beside 16 states: 8 of sequences and 8 of snapshots.
        let draft = spec.layers * 4 * (2 * (2 * 128 + 1024) - 128 + 2 * 16);
        let logs = bytes(5) - bytes(4);
        assert_eq!(logs, 16 * draft as u64);
    }

    #[test]
    fn only_a_hybrid_model_plans_states_and_mentions_them() {
        let plain = planned(1 << 40, 8).unwrap();
        assert_eq!((plain.limits.state_slots, plain.to_string().contains("recurrent")), (0, false));
        let hybrid = planned_hybrid(1 << 40, 8).unwrap();
        assert!(hybrid.to_string().contains("; 16 recurrent states of "), "{hybrid}");
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
            let draft = OpenDraft::default();
            let loaded =
                load_by(&Machine::default(), open, &checkpoint, &draft, want, &mut |_, _| {}).unwrap();
            assert!(loaded.refusal().is_some(), "the CPU was not requested");
            assert_eq!(!loaded.notes().is_empty(), noted, "{loaded:?}");
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
    fn a_chunk_in_addition_to_a_full_batch_is_given_up_only_if_nothing_else_fits() {
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
