//! From an opened checkpoint to a model that runs: how much memory it takes, and what that allows.

use std::time::{Duration, Instant};

use bitnet_kernels::{Cpu, Isa};
use bitnet_model::{Batch, Checkpoint, Limits, ModelSpec, TensorKind, Transformer};

use crate::{
    args::{Common, Device},
    error::CliError,
    memory,
    progress::Progress,
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
    /// Tokens of the longest sequence.
    pub tokens: usize,
    /// Tokens that a sequence must have room for, or there is no point.
    pub least: usize,
}

/// A model with its weights in memory.
pub struct Loaded {
    /// The model.
    pub model: Transformer<Cpu>,
    /// Its weights.
    pub weights: WeightBytes,
    /// What loading took.
    pub time: Duration,
}

/// Bytes of weights in memory.
#[derive(Debug, Clone, Copy)]
pub struct WeightBytes {
    /// All of them.
    pub total: u64,
    /// Those that a step reads in full: all but an embedding that is not the output head as well.
    pub step: u64,
}

/// The level of instructions that the flags ask for, on a device that this build has.
pub fn isa(common: &Common) -> Result<Isa, CliError> {
    if let Device::Cuda(device) = &common.device {
        return Err(CliError::NoCuda { device: device.clone() });
    }
    Ok(Isa::named(&common.isa)?)
}

/// The backend that the flags ask for.
pub fn backend(common: &Common) -> Result<Cpu, CliError> {
    Ok(Cpu::new(isa(common)?, threads(common))?)
}

/// The number of threads that the flags ask for.
pub fn threads(common: &Common) -> usize {
    let available = || std::thread::available_parallelism().map_or(1, usize::from);
    common.threads.map_or_else(available, usize::from)
}

/// Loads a model for what a command wants, within the memory that the flags allow.
pub fn load(common: &Common, checkpoint: &Checkpoint, want: Want) -> Result<Loaded, CliError> {
    let backend = backend(common)?;
    let start = Instant::now();
    let weights = weights(checkpoint)?;
    let limits = plan(common, &checkpoint.spec, weights.total, want)?;
    let bar = Progress::new("loading", checkpoint.spec.layers);
    let model =
        Transformer::load(&checkpoint.spec, &*checkpoint.tensors, backend, limits, &mut |done, all| {
            bar.at(done, all);
        })?;
    Ok(Loaded { model, weights, time: start.elapsed() })
}

/// What the weights will take in the layout of the kernels.
fn weights(checkpoint: &Checkpoint) -> Result<WeightBytes, CliError> {
    let mut bytes = WeightBytes { total: 0, step: 0 };
    for entry in checkpoint.tensors.entries() {
        let elements: usize = entry.shape.iter().product();
        let (size, every_step) = match entry.kind {
            // Rows are padded to 64, columns to 16; a scale a row.
            TensorKind::Ternary => {
                let (rows, cols) = (entry.shape[0], entry.shape[1]);
                (rows.next_multiple_of(64) * cols.next_multiple_of(16) / 4 + 4 * rows, true)
            }
            TensorKind::Norm => (4 * elements, true),
            TensorKind::Dense => {
                // Synthetic tables are bf16, and made anew whenever somebody asks for them.
                let size = match checkpoint.format {
                    "synthetic" => 2 * elements,
                    _ => checkpoint.tensors.dense(&entry.name)?.bytes().len(),
                };
                (size, checkpoint.spec.tied_head || entry.name == "lm_head.weight")
            }
        };
        bytes.total += size as u64;
        bytes.step += if every_step { size as u64 } else { 0 };
    }
    Ok(bytes)
}

/// Bytes of activations and logits of one step.
fn step_bytes(spec: &ModelSpec, step: usize, want: Want) -> u64 {
    let rows = logit_rows(step, want);
    let (q, kv) = (spec.q_width(), spec.kv_width());
    let token = 5 * spec.hidden + 4 * (q + 2 * kv) + 5 * q + 9 * spec.ffn;
    (step * token + rows * 4 * (spec.hidden + spec.vocab)) as u64
}

fn logit_rows(step: usize, want: Want) -> usize {
    if want.all_logits { step } else { want.sequences }
}

/// Bytes of one block of the cache, with the rotary tables of its positions.
fn block_bytes(spec: &ModelSpec) -> u64 {
    (Transformer::<Cpu>::block_bytes(spec) + 4 * Batch::BLOCK_TOKENS * spec.head_dim) as u64
}

/// The largest limits within the memory allowed: the whole step and all tokens wanted if they fit, else a small
/// step and as many tokens as possible.
fn plan(common: &Common, spec: &ModelSpec, weights: u64, want: Want) -> Result<Limits, CliError> {
    let small = want.step.min(SMALL_STEP.max(want.sequences));
    let blocks = |tokens: usize| want.sequences * tokens.div_ceil(Batch::BLOCK_TOKENS);
    let fixed = |step| weights + step_bytes(spec, step, want);
    let most = fixed(want.step) + blocks(want.tokens) as u64 * block_bytes(spec);
    let least = fixed(small) + blocks(want.least) as u64 * block_bytes(spec);
    let budget = memory::budget(common.memory, least, most)?;
    let (max_tokens, kv_blocks) = if budget >= most {
        (want.step, blocks(want.tokens))
    } else {
        let room = ((budget - fixed(small)) / block_bytes(spec)) as usize;
        (small, room.min(blocks(want.tokens)) / want.sequences * want.sequences)
    };
    Ok(Limits { max_tokens, max_logit_rows: logit_rows(max_tokens, want), kv_blocks })
}
