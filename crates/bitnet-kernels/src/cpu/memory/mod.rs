//! Memory of the CPU backend: buffers of its own, the nodes that hold them, and weights that it reads in place from a
//! mapped file.

mod buffer;
mod nodes;
mod residence;
mod stored;

pub(crate) use buffer::{Arena, Buffer, Shared};
pub(crate) use nodes::Team;
pub use nodes::{MemoryNode, memory_nodes};
pub use residence::on_huge_pages;
pub(crate) use stored::{LINE, LineReader, float_bytes};
