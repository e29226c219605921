//! What can go wrong: in the text, in the host's use of memory, in a launch's shape, and while a kernel runs.

use std::fmt;

use thiserror::Error;

/// A text that is not of the dialect.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}:{line}: {kind}")]
pub struct ParseError {
    /// Name given to [`Module::parse`](crate::Module::parse).
    pub file: String,
    /// Line, from one.
    pub line: u32,
    /// What is wrong there.
    pub kind: ParseErrorKind,
}

/// What a parser can find wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// A word where the grammar wants another.
    #[error("expected {expected}, found `{found}`")]
    Expected {
        /// What would have been right.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// A version, target or directive outside the dialect.
    #[error("`{directive}` is not supported: this simulator reads `.version 7.4`, `.target sm_80`")]
    Directive {
        /// The directive as written.
        directive: String,
    },
    /// No such instruction, or not with these modifiers.
    #[error("instruction `{instruction}` is not supported")]
    Instruction {
        /// The opcode as written.
        instruction: String,
    },
    /// A modifier that the instruction does not take.
    #[error("instruction `{instruction}` does not take `.{modifier}` here")]
    Modifier {
        /// The opcode as written.
        instruction: String,
        /// The modifier left over.
        modifier: String,
    },
    /// An operand of the wrong kind, size or type.
    #[error("operand {position} of `{instruction}`: expected {expected}, found {found}")]
    Operand {
        /// The opcode as written.
        instruction: String,
        /// Which operand, from one.
        position: usize,
        /// What would have been right.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// Too few or too many operands.
    #[error("`{instruction}` takes {expected} operands, found {found}")]
    OperandCount {
        /// The opcode as written.
        instruction: String,
        /// How many it takes.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// A name that nothing declares.
    #[error("`{name}` is not declared")]
    Undeclared {
        /// The name.
        name: String,
    },
    /// A name declared twice.
    #[error("`{name}` is declared twice")]
    Duplicate {
        /// The name.
        name: String,
    },
}

/// Where an address lies.
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

/// The host used [`Memory`](crate::Memory) wrongly.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// No live allocation holds this range.
    #[error("no allocation holds {len} bytes at {address:#x}")]
    OutOfBounds {
        /// First byte.
        address: u64,
        /// Bytes wanted.
        len: usize,
    },
    /// A byte read before anything wrote it.
    #[error("byte at {address:#x} was never written")]
    Uninitialised {
        /// The first such byte.
        address: u64,
    },
}

/// A launch that did not run to its end.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// No entry of this name.
    #[error("no entry `{entry}` in {file}")]
    NoEntry {
        /// The module's file.
        file: String,
        /// The name asked for.
        entry: String,
    },
    /// Parameters that are not those declared.
    #[error("entry `{entry}`: parameter {position} is declared with {expected} bytes, given {given}")]
    Parameter {
        /// The entry.
        entry: String,
        /// Which, from zero; the first one missing or left over when the counts differ.
        position: usize,
        /// Bytes declared (0: not declared).
        expected: usize,
        /// Bytes given (0: not given).
        given: usize,
    },
    /// More of something than the device or the kernel's own bounds allow.
    #[error("entry `{entry}`: {what} is {given}, must be 1 to {limit}")]
    Shape {
        /// The entry.
        entry: String,
        /// What there is too much of.
        what: &'static str,
        /// How much was asked for.
        given: u64,
        /// The most that is allowed.
        limit: u64,
    },
    /// The kernel did something it must not.
    #[error(transparent)]
    Fault(#[from] Box<Fault>),
}

/// A trap: which thread did what, at which instruction.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}:{line}: `{instruction}`: {kind} (block {block:?}, thread {thread:?})")]
pub struct Fault {
    /// The module's file.
    pub file: String,
    /// Line of the instruction.
    pub line: u32,
    /// The instruction as written.
    pub instruction: String,
    /// Block coordinates.
    pub block: [u32; 3],
    /// Thread coordinates; the first thread concerned where there are several.
    pub thread: [u32; 3],
    /// What it did.
    pub kind: FaultKind,
}

/// What a kernel must not do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// Access outside every allocation, or outside the block's shared memory.
    #[error("{size} bytes at {space} {address:#x} are out of bounds")]
    OutOfBounds {
        /// Address space.
        space: Space,
        /// First byte.
        address: u64,
        /// Bytes accessed.
        size: usize,
    },
    /// Address not a multiple of the access size.
    #[error("{space} {address:#x} is not aligned to {size} bytes")]
    Misaligned {
        /// Address space.
        space: Space,
        /// First byte.
        address: u64,
        /// Bytes accessed.
        size: usize,
    },
    /// Register or predicate read before it was set.
    #[error("register `{register}` was never set")]
    UninitialisedRegister {
        /// Its name.
        register: String,
    },
    /// Memory read before it was written.
    #[error("{space} {address:#x} was never written")]
    UninitialisedMemory {
        /// Address space.
        space: Space,
        /// The first such byte.
        address: u64,
    },
    /// Shared bytes touched between a `cp.async` to them and the wait that completes it.
    #[error("shared {address:#x} is the target of a cp.async that has not been waited for")]
    InFlight {
        /// The first such byte.
        address: u64,
    },
    /// The source of a `cp.async` changed before the wait.
    #[error("the source of a cp.async, global {address:#x}, changed before the wait")]
    CopySource {
        /// First byte.
        address: u64,
    },
    /// A `cp.async` of 16 bytes asks for more from its source.
    #[error("cp.async of 16 bytes takes {src_size} from its source")]
    CopySize {
        /// Bytes asked for.
        src_size: u64,
    },
    /// Two accesses, at least one of them a write, that nothing orders.
    #[error("race on {space} {address:#x} with an earlier {other} in block {other_block:?}, {other_threads}")]
    Race {
        /// Address space.
        space: Space,
        /// First byte of the word.
        address: u64,
        /// What the other access was.
        other: &'static str,
        /// Its block.
        other_block: [u32; 3],
        /// Its thread or threads, in words.
        other_threads: String,
    },
    /// `ld.global.nc` of what a kernel wrote since the host did: launches may overlap, and the cache it reads through is
    /// not kept up to date.
    #[error(
        "global {address:#x} was written by an earlier kernel, so that `.nc` may read what was there before"
    )]
    ReadOnly {
        /// First byte of the word.
        address: u64,
    },
    /// An aligned instruction that part of the warp does not reach.
    #[error("aligned instruction reached by lanes {lanes:#010x} only")]
    Divergent {
        /// The lanes that wait at it.
        lanes: u32,
    },
    /// A shuffle reads a lane that does not take part.
    #[error("shuffle reads lane {lane}, which does not take part")]
    InactiveLane {
        /// The lane read.
        lane: u32,
    },
    /// Integer division by zero, whose result the manual leaves open.
    #[error("integer division by zero")]
    DivisionByZero,
    /// Every thread of the block waits.
    #[error("deadlock: the wait can never end")]
    Deadlock,
    /// A warp executed more instructions than the launch allows.
    #[error("warp still runs after {limit} instructions")]
    StepLimit {
        /// The bound of [`Limits`](crate::Limits).
        limit: u64,
    },
}
