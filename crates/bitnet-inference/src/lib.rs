//! Requests, sampling, scheduling, and the engine that batches many requests into one forward pass for each step.
//!
//! ```
//! use bitnet_inference::{Engine, EngineConfig, GenerationConfig, Request};
//! use bitnet_kernels::{Cpu, Isa};
//! use bitnet_model::{Checkpoint, Limits, Transformer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let checkpoint = Checkpoint::demo()?;
//! let tokenizer = checkpoint.tokenizer.as_ref().ok_or("no tokenizer")?;
//! let limits = Limits { max_tokens: 64, max_logit_rows: 4, kv_blocks: 16, state_slots: 0 };
//! let cpu = Cpu::new(Isa::best(), 1)?;
//! let model = Transformer::load(&checkpoint.spec, &*checkpoint.tensors, cpu, limits, &mut |_, _| {})?;
//! let engine = Engine::start(model, EngineConfig::default())?;
//!
//! let config = GenerationConfig { max_new_tokens: 8, ..Default::default() };
//! let handle = engine.submit(Request::new(tokenizer.encode("First Citizen:", true)?, config))?;
//! let completion = handle.wait()?;
//! assert_eq!(completion.choices[0].tokens.len(), 8);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::print_stdout, reason = "tests report what they covered"))]

mod compat;
mod engine;
mod request;
mod sample;
mod schedule;
mod thought;
mod tier;

pub use compat::generation;
pub use engine::{
    Choice, Completion, DraftModelError, Drafter, DrainReport, Elapsed, Engine, EngineConfig, EngineStatus,
    Generated, GenerationError, HeadDrafter, ModelDrafter, Queue, RequestHandle, StartError, Update,
    block_on, block_until, generate, generate_drafting, metrics,
};
pub use request::{
    Constraint, ConstraintError, End, FinishReason, GenerationConfig, InvalidConfig, InvalidRequest, Output,
    Predicted, Priority, Request, RequestError, SampleError, SubmitError, TokenLogprobs, TokenSet,
};
pub use sample::TokenText;
pub use schedule::BatchSizing;
pub use tier::{
    CacheFolder, Cleared, FolderError, Listed, ShelfCounts, TierCounts, clear_folder, list_folder,
};

pub use thought::{Marker, Part, ThoughtBudget, ThoughtEnd, ThoughtReader, ThoughtRule};

/// The names that users of other BitNet engines know, as thin layers over this crate's engine. The module `names` of
/// the crate `bitnet` shows each in a short program.
pub mod names {
    pub use crate::compat::*;
}

/// Draws tokens from logits and finds the end of a text, for programs that run a model themselves.
pub mod sampling {
    pub use crate::sample::{Draw, Sampler, Scan, StopMatcher, loss_in_nats, philox4x32, random_u64};
}

/// Decides which tokens run in which step: the parts of an [`Engine`], for simulations, tests and benchmarks.
pub mod scheduling {
    pub use crate::engine::{
        Arrivals, Asked, Drafting, Draws, Reader, StepFaults, StepLoop, StepTimes, Stepper,
    };
    pub use crate::schedule::{
        Address, Begun, BlockPool, Chain, Event, Pacer, Part, PartKind, Plan, PlannedRun, RunOutcome,
        SampledToken, Scheduler, SchedulerConfig, SchedulerCounts, SeqId, Sequence, Source, StepLoad,
        StepModel, StepOutcome, WindowCache, Wish, parts,
    };
    pub use crate::tier::{
        CacheAccess, Content, Damage, Disk, Entry, Given, HostMemory, InPlace, PartBytes, Shelf, Tier, Told,
    };
}
