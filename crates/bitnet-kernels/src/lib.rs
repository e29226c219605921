//! Computes the numbers: the [`Backend`] trait with its few fused operations, the scalar [`Reference`] that defines
//! correct results, the [`Cpu`] backend with runtime dispatch and a thread pool, and the [`gpu`] backend in PTX.
//!
//! Sums of products that share their scales are exact integers, and every float reduction has one order that does not
//! depend on the batch, the chunk, the number of threads or the instruction set ([`order`]). A token's values therefore
//! never depend on its neighbours, and [`Cpu`] equals [`Reference`] bit for bit. A GPU rounds to bf16 at a few points,
//! and [`Reference::bf16`] rounds at the same ones.
//!
//! ```
//! use bitnet_kernels::{Backend, Cpu, Grouping, Inspect, Isa, RowOrder, RowsKind};
//! use bitnet_tensor::TernaryTensor;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut cpu = Cpu::new(Isa::best(), 2)?;
//! let weights = TernaryTensor::from_trits(2, 4, &[1, 0, -1, 1, -1, 0, 0, 1], 0.5)?;
//! let weights = cpu.linear(&weights, RowOrder::Plain)?;
//!
//! let (mut x, mut x_i8) = (cpu.rows(1, 4, RowsKind::Residual)?, cpu.int8_rows(1, 4, Grouping::Row)?);
//! cpu.write(&mut x, &[127.0, 0.0, -127.0, 64.0])?;
//! cpu.norm_quantize(1, &x, [None, None], None, &mut x_i8)?;
//!
//! let mut y = cpu.rows(1, 2, RowsKind::Residual)?;
//! cpu.bit_linear(1, &x_i8, &weights, &mut y, 0, None)?;
//! assert_eq!(cpu.read(&y, 1)?, [0.5 * (127.0 + 127.0 + 64.0), 0.5 * (64.0 - 127.0)]);
//! # Ok(())
//! # }
//! ```

/// Implements operations of [`Backend`] by the type's own methods of the same names.
macro_rules! by_methods {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(#[allow(clippy::needless_question_mark, reason = "a GPU's methods have errors of their own")]
        fn $name(&mut self, $($arg: $type),*) -> Result<by_methods!(@result $($result)?), KernelError> {
            Ok(Self::$name(self, $($arg),*)?)
        })*
    };
    (@result) => { () };
    (@result $result:ty) => { $result };
}

mod backend;
mod bandwidth;
pub mod conformance;
mod cpu;
pub mod draw;
mod error;
mod footprint;
pub mod gpu;
mod heap;
mod int8;
mod kv;
mod operation;
pub mod order;
mod page_cache;
mod reference;
mod scales;
#[cfg(windows)]
mod windows;

pub use backend::{
    Backend, BackendInfo, DeviceStatus, ExpertWeights, Fill, Inspect, MOST_PIECE, StepSize, TableWeights,
    Weights,
};
pub use bandwidth::memory_bandwidth;
pub use cpu::{CopyForm, Cpu, HeadCopy, HeadCounts, Isa, MemoryNode, Panels, memory_nodes, on_huge_pages};
pub use draw::{Change, Drawn, Edits, SamplingParams, Wanted};
pub use error::KernelError;
pub use footprint::{Footprint, Held};
pub use heap::trim_heap;
pub use int8::Int8Matrix;
pub use kv::{BLOCK_TOKENS, KvShape, KvType};
pub use operation::{
    DeltaShape, DeltaWeights, DraftLog, ExpertShape, Gate, Grouping, HeadNorms, Norm, Norms, Rotate,
    RowOrder, RowsKind, Run, Step,
};
pub use page_cache::in_page_cache;
pub use reference::Reference;
#[cfg(windows)]
pub use windows::{windows_memory, windows_peak_memory};
