//! How numbers are made: the [`Backend`] trait with its few fused operations, the scalar [`Reference`] that is
//! the truth, and the [`Cpu`] backend with runtime dispatch and a thread pool.
//!
//! The integer part of `y = (sum x_i8 * t) * s_x * s_w` is exact, and every float reduction has one order that
//! does not depend on the batch, the chunk, the number of threads or the instruction set ([`order`]). So all
//! backends here agree bit for bit, and a token's values never depend on its neighbours.

mod backend;
mod bandwidth;
pub mod conformance;
mod cpu;
mod draw;
mod error;
pub mod gpu;
mod kv;
pub mod order;
mod reference;

pub use backend::{Backend, BackendInfo, DeviceStatus, Gate, Norm, Norms, RowOrder, RowsKind, Run, StepSize};
pub use bandwidth::memory_bandwidth;
pub use cpu::{Cpu, HeadWork, Isa};
pub use draw::{Ask, Drawn};
pub use error::KernelError;
pub use kv::{BLOCK_TOKENS, KvShape, KvType};
pub use reference::Reference;
