//! Errors in a PTX text, in the host's use of memory, in a launch's shape, and in a running kernel.

use std::fmt;

use thiserror::Error;

/// A text is not valid in the dialect.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}:{line}: {kind}")]
pub struct ParseError {
    /// Name given to [`Module::parse`](crate::Module::parse).
    pub file: String,
    /// Line number, from one.
    pub line: u32,
    /// What is wrong.
    pub kind: ParseErrorKind,
}

/// The kinds of parse errors.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what happened, and name the fields")]
pub enum ParseErrorKind {
    #[error("expected {expected}, found `{found}`")]
    Expected { expected: &'static str, found: String },
    #[error(
        "`{directive}` is not supported: this simulator reads `.version 7.4`, `.target sm_80` and `.version 8.0`, `.target sm_90`"
    )]
    Directive { directive: String },
    #[error("instruction `{instruction}` is not supported")]
    Instruction { instruction: String },
    #[error("instruction `{instruction}` does not take `.{modifier}` here")]
    Modifier { instruction: String, modifier: String },
    #[error("operand {position} of `{instruction}`: expected {expected}, found {found}")]
    Operand {
        instruction: String,
        /// Position of the operand, from one.
        position: usize,
        expected: String,
        found: String,
    },
    #[error("`{instruction}` takes {expected} operands, found {found}")]
    OperandCount { instruction: String, expected: usize, found: usize },
    #[error("`{name}` is not declared")]
    Undeclared { name: String },
    #[error("`{name}` is declared twice")]
    Duplicate { name: String },
}

/// An address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Device memory.
    Global,
    /// A block's shared memory.
    Shared,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Space::Global => "global",
            Space::Shared => "shared",
        })
    }
}

/// Invalid use of [`Memory`](crate::Memory) by the host.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what happened, and name the fields")]
pub enum MemoryError {
    #[error("no allocation holds {len} bytes at {address:#x}")]
    OutOfBounds { address: u64, len: usize },
    #[error("byte at {address:#x} was never written")]
    Uninitialised { address: u64 },
}

/// A launch failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what happened, and name the fields")]
pub enum LaunchError {
    #[error("no entry `{entry}` in {file}")]
    NoEntry { file: String, entry: String },
    #[error("entry `{entry}`: parameter {position} is declared with {expected} bytes, given {given}")]
    Parameter {
        entry: String,
        /// Position from zero; the first missing or extra parameter if the counts differ.
        position: usize,
        /// Declared size in bytes; 0 if not declared.
        expected: usize,
        /// Given size in bytes; 0 if not given.
        given: usize,
    },
    /// The launch exceeds a limit of the device or the kernel.
    #[error("entry `{entry}`: {what} is {given}, must be 1 to {limit}")]
    Shape { entry: String, what: &'static str, given: u64, limit: u64 },
    /// The kernel was trapped.
    #[error(transparent)]
    Fault(#[from] Box<Fault>),
}

/// A trap, with its instruction and thread.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}:{line}: `{instruction}`: {kind} (block {block:?}, thread {thread:?})")]
pub struct Fault {
    /// The module's file.
    pub file: String,
    /// Line number of the instruction.
    pub line: u32,
    /// The instruction as written.
    pub instruction: String,
    /// Block coordinates.
    pub block: [u32; 3],
    /// Thread coordinates; those of the first thread if several are involved.
    pub thread: [u32; 3],
    /// What went wrong.
    pub kind: FaultKind,
}

/// The kinds of traps.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what happened, and name the fields")]
pub enum FaultKind {
    /// An access outside of all allocations or of the block's shared memory.
    #[error("{size} bytes at {space} {address:#x} are out of bounds")]
    OutOfBounds { space: Space, address: u64, size: usize },
    #[error("{space} {address:#x} is not aligned to {size} bytes")]
    Misaligned { space: Space, address: u64, size: usize },
    #[error("no barrier has this number, or other warps wait at it for another number of threads")]
    Barrier,
    #[error("register `{register}` was never set")]
    UninitialisedRegister { register: String },
    #[error("{space} {address:#x} was never written")]
    UninitialisedMemory { space: Space, address: u64 },
    /// Shared bytes were accessed between a `cp.async` to them and the wait that completes it.
    #[error("shared {address:#x} is the target of a cp.async that has not been waited for")]
    InFlight { address: u64 },
    #[error("the source of a cp.async, global {address:#x}, changed before the wait")]
    CopySource { address: u64 },
    #[error("cp.async of 16 bytes reads {src_size} bytes from its source")]
    CopySize { src_size: u64 },
    /// Two accesses without an order, at least one of them a write.
    #[error("race on {space} {address:#x} with an earlier {other} in block {other_block:?}, {other_threads}")]
    Race {
        space: Space,
        address: u64,
        other: &'static str,
        other_block: [u32; 3],
        /// Thread or threads of the other access, in words.
        other_threads: String,
    },
    /// `ld.global.nc` reads bytes that a kernel has written since the host did: launches may overlap, and the cache
    /// that it reads through is not coherent.
    #[error("global {address:#x} was written by an earlier kernel, so `.nc` may read an old value")]
    ReadOnly { address: u64 },
    /// A read before `griddepcontrol.wait` of what an earlier kernel writes, perhaps later.
    #[error(
        "global {address:#x} is written by an earlier kernel, which need not have ended before griddepcontrol.wait"
    )]
    EarlyRead { address: u64 },
    /// A write before `griddepcontrol.wait`, perhaps of what an earlier kernel still reads or writes.
    #[error(
        "global {address:#x} is written before griddepcontrol.wait, when earlier kernels may still use it"
    )]
    EarlyWrite { address: u64 },
    /// A thread of an overlapped launch that ends without a wait; launches after it would then not wait for earlier ones.
    #[error("a thread of an overlapped launch ends without griddepcontrol.wait")]
    NoWait,
    #[error("aligned instruction reached by lanes {lanes:#010x} only")]
    Divergent { lanes: u32 },
    #[error("shuffle reads lane {lane}, which is inactive")]
    InactiveLane { lane: u32 },
    /// An integer division by zero, whose result the manual does not define.
    #[error("integer division by zero")]
    DivisionByZero,
    /// All threads of the block wait.
    #[error("deadlock: the wait can never end")]
    Deadlock,
    #[error("warp still runs after {limit} instructions")]
    StepLimit { limit: u64 },
}
