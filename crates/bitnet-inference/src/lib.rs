//! Who runs when: requests, sampling, scheduling, and the engine that batches many requests through one forward
//! pass a step.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::print_stdout, reason = "tests say what they met"))]

mod arrivals;
mod blocks;
mod config;
mod engine;
mod exp;
mod finish;
mod generate;
mod handle;
mod logprobs;
mod lookup;
mod mailbox;
mod metrics;
mod pace;
mod random;
mod request;
mod sampler;
mod scheduler;
mod sequence;
#[doc(hidden)]
pub mod sim;
mod step;
mod stop;
mod worker;

use bitnet_model::{ForwardError, Limits, Model};

pub use arrivals::Arrivals;
pub use blocks::{BlockPool, Chain};
pub use config::{GenerationConfig, InvalidConfig};
pub use engine::{DrainReport, Engine, EngineConfig, EngineStatus, StartError};
pub use finish::FinishReason;
pub use generate::{GenerateError, Generated, generate};
pub use handle::{Choice, Completion, Elapsed, RequestHandle};
pub use logprobs::{SampleError, TokenLogprobs};
pub use mailbox::Update;
pub use metrics::{Counter, Distribution, Measure, Metrics, Recorder, Snapshot};
pub use pace::{BatchSizing, Pace, StepLoad, StepModel};
pub use random::{philox4x32, random_u64};
pub use request::{InvalidRequest, Output, Priority, Request, RequestError, SubmitError};
pub use sampler::{Draw, Sampler};
pub use scheduler::{
    Drawn, End, Event, Plan, PlannedRun, RunOutcome, Scheduler, SchedulerConfig, SchedulerCounts, StepOutcome,
};
pub use sequence::{SeqId, Sequence};
pub use step::{StepFaults, Stepper};
pub use stop::{Scan, StopMatcher, TokenText};
