//! What this crate promises about files, as tests whose names are the claims.

mod forms;
mod support;
mod text;
