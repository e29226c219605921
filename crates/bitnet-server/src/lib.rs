//! An HTTP server for OpenAI clients over one [`Engine`](bitnet_inference::Engine).
//!
//! [`Service::start`] starts the engine with a model. [`App`] is the state that all routes share, and [`router`] makes
//! these routes part of any axum app. [`run`] is a complete server, which drains when a signal ends it. [`run_batch`]
//! answers a file of requests instead of HTTP.
//!
//! ```
//! use bitnet_inference::EngineConfig;
//! use bitnet_kernels::{Cpu, Isa};
//! use bitnet_model::{Checkpoint, Limits, Transformer};
//! use bitnet_server::{App, ServedModel, ServerConfig, Service, router};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let checkpoint = Checkpoint::demo()?;
//! let limits = Limits { max_tokens: 64, max_logit_rows: 8, kv_blocks: 64 };
//! let cpu = Cpu::new(Isa::best(), 1)?;
//! let model = Transformer::load(&checkpoint.spec, &*checkpoint.tensors, cpu, limits, &mut |_, _| {})?;
//! let (engine, config) = (EngineConfig::default(), ServerConfig::default());
//! let service = Service::start(ServedModel::of(&checkpoint), Box::new(model), engine, config)?;
//! let routes: axum::Router = router(App::ready(service));
//! # drop(routes);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod batch;
mod http;
mod identity;
mod metrics;
mod openai;
mod overload;
mod random;
mod run;
mod service;

pub use batch::{BatchOptions, BatchProgress, BatchRunError, run_batch};
pub use http::{
    connections::{ConnectionLimits, serve},
    routes::router,
};
pub use run::run;
pub use service::{App, ServedModel, ServerConfig, Service};
