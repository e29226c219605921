//! The crate's claims about files, as test names.

mod conventions;
mod converted;
mod embedding;
mod families;
mod forms;
mod gguf_edit;
mod grouped;
mod hybrid;
mod loading;
mod panels;
mod support;
mod text;
mod truncations;
mod vocabularies;
