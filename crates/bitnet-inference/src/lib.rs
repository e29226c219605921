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

mod arrivals;
mod batch;
mod blocks;
mod config;
mod constraint;
mod draft;
mod engine;
mod exp;
mod finish;
mod generate;
pub mod generation;
mod gpu;
mod handle;
mod hybrid;
mod logprobs;
mod mailbox;
/// An engine's counters and measurements, and how to record them elsewhere.
pub mod metrics;
pub mod names;
mod pace;
mod padded;
mod queue;
mod random;
mod request;
mod sampler;
mod scheduler;
mod sequence;
mod shared;
#[doc(hidden)]
pub mod sim;
mod stateless;
mod states;
mod step;
mod stop;
mod submit;
mod throughput;
mod wanted;
mod watch;
mod worker;

use bitnet_model::{ForwardError, Limits, Model};

pub use batch::GenerationError;
pub use config::{GenerationConfig, InvalidConfig};
pub use constraint::{Constraint, ConstraintError, TokenSet};
pub use engine::{DrainReport, Engine, EngineConfig, StartError};
pub use finish::FinishReason;
pub use generate::{Generated, generate};
pub use handle::{Choice, Completion, Elapsed, RequestHandle, Updates};
pub use logprobs::{SampleError, TokenLogprobs};
pub use mailbox::Update;
pub use pace::BatchSizing;
pub use queue::Queue;
pub use request::{InvalidRequest, Output, Priority, Request, RequestError, SubmitError};
pub use scheduler::End;
pub use shared::EngineStatus;
pub use stop::TokenText;

/// Draws tokens from logits and finds the end of a text, for programs that run a model themselves.
pub mod sampling {
    pub use crate::logprobs::loss_in_nats;
    pub use crate::random::{philox4x32, random_u64};
    pub use crate::sampler::{Draw, Sampler};
    pub use crate::stop::{Scan, StopMatcher};
}

/// Decides which tokens run in which step: the parts of an [`Engine`], for simulations, tests and benchmarks.
pub mod scheduling {
    pub use crate::arrivals::Arrivals;
    pub use crate::blocks::{BlockPool, Chain};
    pub use crate::pace::{Pacer, StepLoad, StepModel};
    pub use crate::scheduler::{
        Event, Plan, PlannedRun, RunOutcome, SampledToken, Scheduler, SchedulerConfig, SchedulerCounts,
        StepOutcome,
    };
    pub use crate::sequence::{SeqId, Sequence};
    pub use crate::step::{Draws, StepFaults, StepTimes, Stepper};
}

// Inside the crate, every name is available at the root.
use metrics::Snapshot;
use padded::PaddedBatch;
use random::random_u64;
use sampler::{Draw, Sampler};
use scheduler::{Event, Plan, Scheduler, SchedulerConfig, SchedulerCounts, StepOutcome};
use sequence::{SeqId, Sequence};
use stateless::StatelessForward;
use step::{Draws, StepFaults, Stepper};
use stop::{Scan, StopMatcher};
use throughput::{RecordError, ThroughputRecord};
