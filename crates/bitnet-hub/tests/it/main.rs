//! Models fetched from a hub that this process plays.

mod fetch;
mod server;
