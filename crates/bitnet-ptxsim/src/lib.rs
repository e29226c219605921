//! An interpreter for the PTX dialect our kernels are written in (`.version 7.4`, `.target sm_80`).
//!
//! It runs a grid instruction by instruction, a warp at a time, and *traps* what hardware forgives: accesses out
//! of bounds, misaligned or of bytes never written, registers read before they are set, data races in shared and
//! global memory, aligned instructions reached by part of a warp, barriers misused, waits that never end. It also
//! counts bank conflicts, global sectors and executed instructions.
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
//! It reads the opcodes that our kernels use and no others: what is missing is a parse error that names the opcode.
//! Add it here, with a case in the table of instructions, when a kernel needs it.
//!
//! # Stricter than hardware
//! A kernel that runs here without a fault relies on nothing that the PTX manual leaves open. In particular:
//! - `bar.sync` is aligned: all lanes of the warp must reach it, and lanes that have exited cannot.
//! - Only `bar.warp.sync`, barriers, and `membar.gl` on both sides of an atomic, in the same thread, order memory;
//!   shuffles and votes do not, not even inside a warp.
//! - Lanes meet at a `.sync` instruction, not at different ones.
//! - Two lanes that write one byte race even if they write the same value.
//! - What `ld.global.nc` reads must not have been written by any kernel since the host wrote it.
//!
//! # What is deterministic, and what is not promised
//! A launch is a function of module, memory and `Launch`, the seed included: the seed orders blocks and warps.
//! One launch uses one thread; run launches side by side on memories of their own to use more cores.
//! A floating-point `mma` rounds once, where hardware rounds in an order it does not document.
//! Timing is not modelled, nor are stale values: two accesses that could see one are reported as a race.

#![forbid(unsafe_code)]

mod decode;
mod error;
mod inst;
mod launch;
mod lexer;
mod machine;
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
pub use memory::Memory;
pub use parser::Module;
pub use stats::Stats;
