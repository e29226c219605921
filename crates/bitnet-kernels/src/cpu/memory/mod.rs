//! Memory of the CPU backend: buffers of its own, and weights that it reads in place from a mapped file.

mod buffer;
mod residence;
mod stored;

pub(crate) use buffer::{Arena, Buffer, Shared};
pub use residence::on_huge_pages;
pub(crate) use stored::{LINE, LineReader, float_bytes};
