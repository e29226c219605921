//! The decoded form of a kernel: what the machine runs, with names, numbers and labels already resolved.

use crate::ops::convert::Convert;
use crate::types::Type;

pub(crate) const WARP: usize = 32;
/// One register of a warp: a value a lane, zero-extended.
pub(crate) type Lanes = [u64; WARP];
/// An arithmetic function over a warp: sources in operand order, unused ones repeated.
pub(crate) type AluFn = fn([&Lanes; 4], &mut Lanes);

/// Index of a register, or of a constant if [`CONSTANT`] is set, so that a source is always one array away.
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

/// How an access takes part in synchronisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Strength {
    /// Not a plain access: relaxed or stronger, or a read-modify-write.
    pub(crate) atomic: bool,
    pub(crate) acquire: bool,
    pub(crate) release: bool,
    /// Device scope or wider, rather than the block's.
    pub(crate) gpu: bool,
    /// `.nc`: the kernel promises that nothing writes there.
    pub(crate) read_only: bool,
}

impl Strength {
    pub(crate) const PLAIN: Strength =
        Strength { atomic: false, acquire: false, release: false, gpu: false, read_only: false };
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum AtomOp {
    Add,
    AddF32,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Min,
    Max,
    Inc,
    Dec,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ShflMode {
    Up,
    Down,
    Bfly,
    Idx,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum VoteMode {
    All,
    Any,
    Uni,
    Ballot,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ReduxOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

/// The operand types of an `mma`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MmaKind {
    /// m16n8k32; whether a and b are signed.
    Int { a_signed: bool, b_signed: bool },
    /// m16n8k16.
    Bf16,
    /// m16n8k16.
    F16,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    LaneId,
    WarpId,
    MaskEq,
    MaskLt,
    MaskLe,
    MaskGt,
    MaskGe,
}

/// Where `ld` puts an element, `None` for `_`; with the register's bytes, which may exceed the element's.
pub(crate) type LoadDst = Option<(Reg, u8)>;

#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// `divisor`: source 1 must not be zero.
    Alu {
        f: AluFn,
        d: Reg,
        s: [Reg; 4],
        n: u8,
        ftz: bool,
        sat: bool,
        divisor: bool,
    },
    Convert {
        how: Convert,
        d: Reg,
        s: [Reg; 2],
    },
    Setp {
        f: fn(&Lanes, &Lanes) -> u32,
        d: Option<Pred>,
        not_d: Option<Pred>,
        a: Reg,
        b: Reg,
        ftz: bool,
        with: Option<(PredFn, PredRef)>,
    },
    Selp {
        d: Reg,
        a: Reg,
        b: Reg,
        p: PredRef,
    },
    PredLogic {
        f: PredFn,
        d: Pred,
        a: PredRef,
        b: PredRef,
    },
    /// `mov.pred` from a constant.
    PredConst {
        d: Pred,
        value: bool,
    },
    ReadSpecial {
        d: Reg,
        what: Special,
    },
    /// `mov.b64 d, {lo, hi}`: parts of `bits` each.
    Pack {
        d: Reg,
        parts: Box<[Reg]>,
        bits: u32,
    },
    Unpack {
        parts: Box<[Option<Reg>]>,
        s: Reg,
        bits: u32,
    },
    LoadParam {
        d: Box<[LoadDst]>,
        at: usize,
        ty: Type,
    },
    Load {
        shared: bool,
        d: Box<[LoadDst]>,
        at: Addr,
        ty: Type,
        strength: Strength,
    },
    Store {
        shared: bool,
        at: Addr,
        s: Box<[Reg]>,
        ty: Type,
        strength: Strength,
    },
    /// `d` is `None` for `red`.
    Atomic {
        shared: bool,
        op: AtomOp,
        ty: Type,
        d: Option<Reg>,
        at: Addr,
        b: Reg,
        c: Reg,
        strength: Strength,
    },
    Fence {
        gpu: bool,
    },
    CopyAsync {
        dst: Addr,
        src: Addr,
        size: usize,
        src_size: Option<Reg>,
    },
    CopyCommit,
    /// All but the newest `keep` groups; `None`: everything, committed or not.
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
        mask: Reg,
    },
    Vote {
        mode: VoteMode,
        d: Reg,
        p: PredRef,
        mask: Reg,
    },
    Match {
        all: bool,
        d: Reg,
        p: Option<Pred>,
        a: Reg,
        mask: Reg,
    },
    Redux {
        op: ReduxOp,
        signed: bool,
        d: Reg,
        a: Reg,
        mask: Reg,
    },
    ActiveMask {
        d: Reg,
    },
    WarpSync {
        mask: Reg,
    },
    Barrier {
        arrive_only: bool,
        id: Reg,
        threads: Option<Reg>,
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
    /// `uniform`: `bra.uni`, which all threads that reach it must take or leave together.
    Branch {
        target: usize,
        uniform: bool,
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
    /// Offset and bytes of each parameter in the parameter block.
    pub(crate) params: Vec<(usize, usize)>,
    pub(crate) insts: Vec<Inst>,
    /// Register names by index, for faults.
    pub(crate) regs: Vec<String>,
    pub(crate) preds: Vec<String>,
    pub(crate) constants: Vec<Lanes>,
    pub(crate) static_shared: usize,
    /// Alignment of the dynamic shared array, which starts behind the static ones; `None`: there is none.
    pub(crate) dynamic_align: Option<usize>,
    /// Most threads a block may have, from `.maxntid`.
    pub(crate) max_threads: u64,
    /// Exact block shape, from `.reqntid`.
    pub(crate) required_block: Option<[u32; 3]>,
}

impl Entry {
    pub(crate) fn dynamic_base(&self) -> usize {
        self.static_shared.next_multiple_of(self.dynamic_align.unwrap_or(1))
    }
}
