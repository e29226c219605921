//! Fetches models from a hub that the tests simulate.

mod fetch;
mod server;
