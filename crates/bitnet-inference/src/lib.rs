//! Who runs when: requests, sampling, scheduling, and the engine that batches many requests through one forward
//! pass a step.

#![forbid(unsafe_code)]

mod config;
mod exp;
mod finish;
mod generate;
mod logprobs;
mod model_seam;
mod random;
mod sampler;
#[doc(hidden)]
pub mod sim;
mod stop;

pub use config::{GenerationConfig, InvalidConfig};
pub use finish::FinishReason;
pub use generate::{GenerateError, Generated, generate};
pub use logprobs::{SampleError, TokenLogprobs};
pub use model_seam::{ForwardError, Limits, Model};
pub use random::{philox4x32, random_u64};
pub use sampler::{Draw, Sampler};
pub use stop::{Scan, StopMatcher, TokenText};
