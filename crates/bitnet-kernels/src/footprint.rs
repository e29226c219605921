//! The memory that a model takes on a backend, known before any of it is allocated: what it holds ([`Held`]), and the
//! bytes of that ([`Footprint`]).

use bitnet_tensor::DType;

use crate::{Backend, DeltaShape, ExpertShape, Grouping, KvShape, RowsKind, StepSize};

/// Something that a model holds in a backend's memory, named after the method of [`Backend`] that makes it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "sizes named as the arguments of the methods that make these")]
pub enum Held {
    Rows { rows: usize, width: usize, kind: RowsKind },
    Int8Rows { rows: usize, width: usize, grouping: Grouping },
    Linear { rows: usize, cols: usize, group: Option<usize> },
    Int8Linear { rows: usize, cols: usize },
    DenseTable { rows: usize, cols: usize, dtype: DType },
    TernaryTable { rows: usize, cols: usize, group: usize },
    Shortlist { rows: usize, cols: usize, dtype: DType },
    Gain { width: usize },
    Rope { positions: usize, width: usize },
    Kv(KvShape),
    Delta(DeltaShape),
    State { shape: DeltaShape, slots: usize },
    Log { shape: DeltaShape, slots: usize, drafts: usize },
    Rotation { width: usize },
    Experts { shape: ExpertShape, group: usize },
}

/// A backend that knows the bytes of what it makes before it makes it.
pub trait Footprint: Backend {
    /// The layout of the weights, for display.
    const LAYOUT: &'static str;

    /// Bytes that this takes in the backend's memory, or in a mapped file that the backend reads in place.
    fn bytes(&self, held: &Held) -> usize;

    /// Bytes of what steps share: everything that [`Backend::prepare`] makes for steps of this size, scratch, and, if they
    /// are in the same memory, the logits of a step. `held` is all that the model holds.
    fn step_bytes(&self, held: &[Held], size: &StepSize) -> usize;

    /// Bytes that a driver is assumed to need at most for recordings of steps of `launches` launches.
    fn recordings_bytes(&self, launches: usize) -> usize {
        let _ = launches;
        0
    }
}
