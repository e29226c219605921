//! What this crate promises about files, as tests whose names are the claims.

mod converted;
mod families;
mod forms;
mod gguf_edit;
mod grouped;
mod loading;
mod panels;
mod support;
mod text;
mod truncations;
mod vocabularies;
