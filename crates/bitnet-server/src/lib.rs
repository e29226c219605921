//! An HTTP server for OpenAI clients over one [`Engine`](bitnet::inference::Engine).
//!
//! [`Service::new`] serves a running model. [`App`] is the state that all routes share, and [`router`] makes
//! these routes part of any axum app. [`run`] is a complete server, which drains when a signal ends it. [`run_batch`]
//! answers a file of requests instead of HTTP.
//!
//! ```
//! use bitnet::Model;
//! use bitnet_server::{App, ServerConfig, Service, router};
//!
//! let model = Model::builder().batch_size(16).open("demo")?;
//! let service = Service::new(model, ServerConfig::default());
//! let routes: axum::Router = router(App::ready(service));
//! # drop(routes);
//! # Ok::<(), bitnet::Error>(())
//! ```

#![forbid(unsafe_code)]

mod batch;
mod config;
mod dialects;
mod generate;
mod http;
mod identity;
mod metrics;
mod overload;
mod process;
mod random;
mod run;
mod service;
mod tier_metrics;

pub use batch::{BatchOptions, BatchProgress, BatchRunError, run_batch};
pub use config::ServerConfig;
pub use http::{
    app::App,
    connections::{ConnectionLimits, serve},
    routes::router,
};
pub use run::run;
pub use service::Service;
// Types of these crates are part of this one's API.
pub use {axum, bitnet};
