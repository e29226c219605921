//! Who runs when: requests, sampling, scheduling, and the engine that batches many requests through one forward
//! pass a step.

#![forbid(unsafe_code)]

mod blocks;
mod config;
mod exp;
mod finish;
mod generate;
mod logprobs;
mod lookup;
mod model_seam;
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

pub use blocks::{BlockPool, Chain};
pub use config::{GenerationConfig, InvalidConfig};
pub use finish::FinishReason;
pub use generate::{GenerateError, Generated, generate};
pub use logprobs::{SampleError, TokenLogprobs};
pub use model_seam::{ForwardError, Limits, Model};
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
