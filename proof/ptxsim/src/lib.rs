//! An interpreter for the PTX dialect of our kernels (`.version 7.4` for `.target sm_80`, `.version 8.0` for
//! `.target sm_90`).
//!
//! It runs a grid instruction by instruction, a warp at a time, and *traps* errors that hardware forgives: accesses
//! that are out of bounds, misaligned or of bytes never written, registers read before they are set, data races in
//! shared and global memory, aligned instructions reached by only part of a warp, misused barriers, and waits that
//! never end. It also counts bank conflicts, global sectors and executed instructions.
//!
//! ```
//! use bitnet_ptxsim::{Launch, Memory, Module, Param};
//!
//! let module = Module::parse("twice.ptx", "
//!     .version 7.4
//!     .target sm_80
//!     .address_size 64
//!     .visible .entry twice(.param .u64 p) {
//!       .reg .b32 r<2>; .reg .b64 d<2>;
//!       ld.param.u64 d0, [p]; mov.u32 r0, %tid.x; mul.wide.u32 d1, r0, 4; add.u64 d0, d0, d1;
//!       ld.global.u32 r1, [d0]; shl.b32 r1, r1, 1; st.global.u32 [d0], r1; ret;
//!     }")?;
//! let mut memory = Memory::new();
//! let buffer = memory.alloc(8);
//! memory.write(buffer, &[1, 0, 0, 0, 2, 0, 0, 0])?;
//! module.launch("twice", &mut memory, &Launch::new(1, 2).params(&[Param::from(buffer)]))?;
//! assert_eq!(memory.read(buffer, 8)?, [2, 0, 0, 0, 4, 0, 0, 0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It supports only the opcodes that our kernels use; any other is a parse error that names it. When a kernel needs
//! one, add it here, with a case in the table of instructions.
//!
//! # Stricter than hardware
//! A kernel that runs here without a fault relies on nothing that the PTX manual leaves undefined. In particular:
//! - `bar.sync` is aligned: all lanes of the warp must reach it, and lanes that have exited cannot. With a number of threads,
//!   it waits for that many of the block.
//! - Only `bar.warp.sync`, barriers, and `membar.gl` on both sides of an atomic, in the same thread, order memory.
//!   Shuffles and votes do not, not even within a warp.
//! - Lanes meet only at the same `.sync` instruction.
//! - Two lanes that write the same byte race, even if they write the same value.
//! - `ld.global.nc` must not read anything that a kernel has written since the host did.
//! - In an overlapped launch, a thread before `griddepcontrol.wait` reads nothing that a kernel has written since the host
//!   did, and writes nothing to global memory; and no thread ends without the wait. The part before the wait thus does the
//!   same however early it runs, and what follows a launch follows all launches before it.
//!
//! # Determinism and limits
//! A launch is a function of the module, the memory and the `Launch`, including its seed, which orders blocks and
//! warps. A launch uses one thread; to use more cores, run launches side by side, each with its own memory. A
//! floating-point `mma` rounds as one of two kinds of silicon was measured to do ([`MatrixUnit`]). Timing is not
//! modelled, nor are stale values: two accesses that could see one are reported as a race.

#![forbid(unsafe_code)]

mod decode;
mod error;
mod inst;
mod launch;
mod lexer;
mod machine;
mod matrix_unit;
mod memory;
mod operand;
mod ops;
mod parser;
mod race;
mod region;
mod stats;
mod types;

pub use error::{Fault, FaultKind, LaunchError, MemoryError, ParseError, ParseErrorKind, Space};
pub use launch::{Launch, Limits, Param};
pub use matrix_unit::MatrixUnit;
pub use memory::Memory;
pub use parser::Module;
pub use stats::Stats;
