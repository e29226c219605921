//! What this crate promises about files, as tests whose names are the claims.

mod converted;
mod forms;
mod memory;
mod mutations;
mod support;
mod text;
