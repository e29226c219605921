//! Models by name: `org/name[@revision][:file]` becomes files in Hugging Face's cache, shared with its other tools.
//!
//! A crate of its own, because only programs that take names of models should pay for HTTP and TLS: a library user
//! who opens files does not. `hf-hub` knows the cache; the transfers are made here, because its own would send the
//! user's token on to the servers that the hub redirects to, trust an `ETag` as a file name, and panic on answers
//! that a hub should not give.
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

pub use error::HubError;
pub use hub::{Fetched, Hub, Settings};
pub use id::ModelId;
