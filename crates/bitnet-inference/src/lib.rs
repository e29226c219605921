//! Who runs when: requests, sampling, scheduling, and the engine that batches many requests through one forward
//! pass a step.
//!
//! ```
//! use bitnet_inference::{Engine, EngineConfig, GenerationConfig, Request};
//! use bitnet_kernels::{Cpu, Isa};
//! use bitnet_model::{Checkpoint, Limits, Transformer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let checkpoint = Checkpoint::demo()?;
//! let tokenizer = checkpoint.tokenizer.as_ref().ok_or("no tokenizer")?;
//! let limits = Limits { max_tokens: 64, max_logit_rows: 4, kv_blocks: 16 };
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
#![cfg_attr(test, allow(clippy::print_stdout, reason = "tests say what they met"))]

mod arrivals;
mod ask;
mod batch;
mod blocks;
mod config;
mod constraint;
mod engine;
mod exp;
mod finish;
mod generate;
pub mod generation;
mod gpu;
mod handle;
mod hybrid;
mod logprobs;
mod lookup;
mod mailbox;
mod metrics;
mod pace;
mod padded;
mod random;
mod request;
mod sampler;
mod scheduler;
mod sequence;
#[doc(hidden)]
pub mod sim;
mod stateless;
mod step;
mod stop;
mod submit;
mod throughput;
mod watch;
mod worker;

use bitnet_model::{ForwardError, Limits, Model};

pub use arrivals::Arrivals;
pub use batch::{BatchError, GenerationError, batch_generate, forward_batch, prefill_batch, process_batch};
pub use blocks::{BlockPool, Chain};
pub use config::{GenerationConfig, InvalidConfig};
pub use constraint::{Constraint, ConstraintError, TokenSet};
pub use engine::{DrainReport, Engine, EngineConfig, EngineStatus, Queue, StartError};
pub use finish::FinishReason;
pub use generate::{GenerateError, Generated, generate};
pub use gpu::{BenchmarkError, BenchmarkRow, CudaError, GpuInferenceEngine, batch_generate_gpu};
pub use handle::{Choice, Completion, Elapsed, RequestHandle};
pub use hybrid::{Crossing, HybridScheduler};
pub use logprobs::{SampleError, TokenLogprobs};
pub use mailbox::Update;
pub use metrics::{Counter, Distribution, Measure, Metrics, Recorder, Snapshot};
pub use pace::{BatchSizing, Pace, StepLoad, StepModel};
pub use padded::{EmptySequence, PaddedBatch};
pub use random::{philox4x32, random_u64};
pub use request::{InvalidRequest, Output, Priority, Request, RequestError, SubmitError};
pub use sampler::{Draw, Sampler};
pub use scheduler::{
    Drawn, End, Event, Plan, PlannedRun, RunOutcome, Scheduler, SchedulerConfig, SchedulerCounts, StepOutcome,
};
pub use sequence::{SeqId, Sequence};
pub use stateless::{StatelessForward, blocking};
pub use step::{Draws, StepFaults, StepTimes, Stepper};
pub use stop::{Scan, StopMatcher, TokenText};
pub use throughput::{RecordError, ThroughputRecord};
