//! Fetches models by name: `org/name[@revision][:file]` becomes files in Hugging Face's cache, which its other tools
//! share.
//!
//! This is a separate crate, so that only programs that open models by name pay for HTTP and TLS. `hf-hub` handles the
//! layout of the cache. Transfers are made here, because those of `hf-hub` would forward the user's token to servers
//! that the hub redirects to, trust an `ETag` as a file name, and panic on unexpected answers.
//!
//! ```no_run
//! use bitnet_hub::{Hub, ModelId, Settings};
//!
//! let id = ModelId::parse("microsoft/bitnet-b1.58-2B-4T").expect("a name and an owner");
//! let hub = Hub::new(Settings::from_env()?);
//! let fetched = hub.fetch(&id, &mut |file, have, size| eprintln!("{file}: {have} of {size} bytes"))?;
//! println!("{}", fetched.path.display());
//! # Ok::<(), bitnet_hub::HubError>(())
//! ```

#![forbid(unsafe_code)]

mod cache;
mod error;
mod http;
mod hub;
mod id;
mod models;

pub use error::HubError;
pub use http::agent;
pub use hub::{Fetched, Hub, Settings};
pub use id::ModelId;
pub use models::{CachedModel, cached_models, remove_cached};
pub use ureq;
