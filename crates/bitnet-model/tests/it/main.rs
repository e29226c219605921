//! The crate's claims about files, as test names.

mod cache;
mod conventions;
mod converted;
mod draft_head;
mod embedding;
mod ends;
mod families;
mod folders;
mod forms;
mod gguf_edit;
mod grouped;
mod hybrid;
mod loading;
mod maple;
mod panels;
mod parts;
mod pre_tokenizers;
mod support;
mod templates;
mod text;
mod truncations;
mod vocabularies;
