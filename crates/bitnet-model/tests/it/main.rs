//! What this crate promises about files, as tests whose names are the claims.

mod converted;
mod forms;
mod support;
mod text;
