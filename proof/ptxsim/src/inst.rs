//! The decoded form of a kernel, which the machine runs: names, numbers and labels are resolved.

use std::ops::Range;

use crate::types::Type;

pub(crate) const WARP: usize = 32;
/// A register of a warp: one zero-extended value for each lane.
pub(crate) type Lanes = [u64; WARP];
/// An arithmetic function over a warp. Sources are in operand order; unused ones are repeated.
pub(crate) type AluFn = fn([&Lanes; 3], &mut Lanes);

/// Index of a register, or of a constant if the bit [`CONSTANT`] is set, so that any source is a single array access.
pub(crate) type Reg = u16;
pub(crate) const CONSTANT: Reg = 0x8000;
/// Index of a predicate register.
pub(crate) type Pred = u16;

/// A predicate as an operand, `@!p` or `!p` when `negated`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PredRef {
    pub(crate) index: Pred,
    pub(crate) negated: bool,
}

/// `[base + offset]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addr {
    pub(crate) base: Reg,
    pub(crate) offset: i64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum AtomOp {
    /// Counts up, and wraps to zero at the given bound.
    Inc,
    Add,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ShflMode {
    Up,
    Bfly,
    Idx,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ReduxOp {
    Add,
    Min,
    Max,
}

/// The operand types of an `mma`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MmaKind {
    /// m16n8k32, u8 (or s8 if `signed`) and s8.
    Int { signed: bool },
    /// m16n8k16.
    Bf16,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Special {
    Tid(usize),
    Ctaid(usize),
    Nctaid(usize),
}

#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// If `divisor` is set, source 1 must not be zero.
    Alu {
        f: AluFn,
        d: Reg,
        s: [Reg; 3],
        n: u8,
        divisor: bool,
    },
    Move {
        d: Reg,
        s: Reg,
    },
    Setp {
        f: fn(&Lanes, &Lanes) -> u32,
        d: Pred,
        a: Reg,
        b: Reg,
        with: Option<(PredFn, PredRef)>,
    },
    Selp {
        d: Reg,
        a: Reg,
        b: Reg,
        p: PredRef,
    },
    ReadSpecial {
        d: Reg,
        what: Special,
    },
    /// `mov.b64 d, {low, high}`
    Pack {
        d: Reg,
        parts: [Reg; 2],
    },
    Unpack {
        parts: [Reg; 2],
        s: Reg,
    },
    LoadParam {
        d: Box<[Reg]>,
        at: usize,
        ty: Type,
    },
    /// `read_only` is `.nc`, a promise that nothing writes this memory.
    Load {
        shared: bool,
        d: Box<[Reg]>,
        at: Addr,
        ty: Type,
        read_only: bool,
    },
    Store {
        shared: bool,
        at: Addr,
        s: Box<[Reg]>,
        ty: Type,
    },
    /// `d` is `None` for `red`.
    Atomic {
        shared: bool,
        op: AtomOp,
        ty: Type,
        d: Option<Reg>,
        at: Addr,
        b: Reg,
    },
    Fence,
    /// 16 bytes, of which the first `src_size` come from the source.
    CopyAsync {
        dst: Addr,
        src: Addr,
        src_size: Option<Reg>,
    },
    CopyCommit,
    /// Asks for bytes that are read later.
    Prefetch {
        at: Addr,
        bytes: Reg,
    },
    /// Waits until all launches before this one have ended and their writes can be seen.
    GridWait,
    /// Lets the next launch begin when all threads are here or have ended.
    LaunchDependents,
    /// Waits for all but the newest `keep` groups; `None` waits for everything, committed or not.
    CopyWait {
        keep: Option<u32>,
    },
    Shuffle {
        mode: ShflMode,
        d: Reg,
        p: Option<Pred>,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    Ballot {
        d: Reg,
        p: PredRef,
    },
    Redux {
        op: ReduxOp,
        d: Reg,
        a: Reg,
    },
    WarpSync,
    /// Waits for all warps of the block, or for a number of them.
    Barrier {
        id: Reg,
        warps: Option<usize>,
    },
    LoadMatrix {
        d: Box<[Reg]>,
        at: Addr,
        transposed: bool,
    },
    Mma {
        kind: MmaKind,
        d: [Reg; 4],
        a: [Reg; 4],
        b: [Reg; 2],
        c: [Reg; 4],
    },
    Branch {
        target: usize,
    },
    Exit,
}

/// Combines two predicate masks.
pub(crate) type PredFn = fn(u32, u32) -> u32;

#[derive(Debug)]
pub(crate) struct Inst {
    pub(crate) op: Op,
    pub(crate) guard: Option<PredRef>,
    pub(crate) line: u32,
    pub(crate) text: String,
}

/// A kernel, ready to run.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Offset and size of each parameter in the parameter block, in bytes.
    pub(crate) params: Vec<(usize, usize)>,
    pub(crate) insts: Vec<Inst>,
    /// Register names by index, for faults.
    pub(crate) regs: Vec<String>,
    pub(crate) preds: Vec<String>,
    pub(crate) constants: Vec<Lanes>,
    /// The shared arrays that have a length.
    pub(crate) arrays: SharedArrays,
    /// Alignment of the dynamic shared array, which follows the others; `None` if there is none.
    pub(crate) dynamic_align: Option<usize>,
    /// Maximum number of threads in a block, from `.maxntid`.
    pub(crate) max_threads: u64,
}

impl Entry {
    /// Bytes of shared memory before the dynamic array on a GPU.
    pub(crate) fn static_bytes(&self) -> usize {
        self.arrays.bytes.next_multiple_of(self.dynamic_align.unwrap_or(1))
    }

    /// Address of the dynamic array.
    pub(crate) fn dynamic_base(&self) -> usize {
        self.static_bytes() + self.arrays.shift
    }
}

/// Where shared arrays are. An assembler orders them as it likes, so each is followed by a gap at least as long as itself,
/// which no access may touch: a kernel cannot rely on what lies behind an array.
#[derive(Debug, Default)]
pub(crate) struct SharedArrays {
    /// Bytes of all arrays, one after the other without gaps.
    bytes: usize,
    /// Bytes of all gaps so far.
    shift: usize,
    /// The gaps.
    pub(crate) gaps: Vec<Range<usize>>,
}

impl SharedArrays {
    /// Every gap is a multiple of this, the largest alignment, so that an address has the same bank as without gaps.
    const GAP: usize = 1024;

    /// Places the next array and returns its address.
    pub(crate) fn place(&mut self, align: usize, bytes: usize) -> usize {
        self.bytes = self.bytes.next_multiple_of(align) + bytes;
        let end = self.bytes + self.shift;
        self.shift += bytes.next_multiple_of(Self::GAP);
        self.gaps.push(end..self.bytes + self.shift);
        end - bytes
    }
}
