//! The bytes of everything that the CPU backend makes.

use super::{
    Arena, Buffer, CopyForm, Cpu, HeadCopy, Int8Rows, Panels, Rows, ShortlistBuffers,
    delta::RecurrentScratch,
    experts::ExpertScratch,
    generic::{attention, delta::rule_scratch, dense, shortlist},
    head::copy::MAX_COLS,
};
use crate::{Footprint, Grouping, Held, Int8Matrix, StepSize};

/// Bytes of [`Panels`].
fn panels(rows: usize, cols: usize, group: Option<usize>) -> usize {
    let scales = if group.is_none() { 4 * rows.next_multiple_of(64) } else { 0 };
    Arena::bytes(Panels::bytes(rows, cols, group) - scales) + scales
}

/// Floats of scratch that each thread needs for this.
fn scratch(held: &Held) -> usize {
    let vectors = |width: usize| width.next_multiple_of(16);
    match *held {
        Held::Rows { width, .. } => vectors(width),
        Held::DenseTable { cols, dtype, .. } => dense::scratch(dtype, cols),
        Held::Shortlist { cols, .. } if cols <= MAX_COLS => shortlist::scratch(cols),
        Held::Kv(shape) => attention::scratch(&shape),
        Held::Delta(shape) => vectors(shape.head_dim),
        Held::Log { shape, drafts, .. } if drafts > 0 => rule_scratch(&shape),
        Held::Rotation { width } => 2 * vectors(width),
        Held::Experts { shape, .. } => vectors(shape.count.max(shape.hidden).max(2 * shape.ffn)),
        _ => 0,
    }
}

impl Footprint for Cpu {
    const LAYOUT: &'static str = "trits in 2 bits, the output head as int8 (its own bits if it is Q4_K, Q4_1 or Q6_K) for bounds and as stored for exact logits";

    fn bytes(&self, held: &Held) -> usize {
        let padded = |width: usize| Buffer::<f32>::bytes(width.next_multiple_of(16));
        match *held {
            Held::Rows { rows, width, .. } => Rows::bytes(rows, width),
            Held::Int8Rows { rows, width, grouping } => Int8Rows::bytes(rows, width, grouping),
            Held::Linear { rows, cols, group } => panels(rows, cols, group),
            Held::TernaryTable { rows, cols, group } => panels(rows, cols, Some(group)),
            Held::Int8Linear { rows, cols } => Int8Matrix::bytes(rows, cols),
            Held::DenseTable { rows, cols, dtype } => rows * dtype.row_bytes(cols),
            Held::Shortlist { rows, cols, dtype } if cols <= MAX_COLS => {
                HeadCopy::bytes(CopyForm::of(dtype), rows, cols)
            }
            Held::Shortlist { .. } => 0,
            Held::Gain { width } | Held::Rotation { width } => padded(width),
            Held::Rope { positions, width } => positions * width * size_of::<f32>(),
            Held::Kv(shape) => shape.cpu_bytes(self.kv).max(2),
            Held::Delta(shape) => {
                let heads = padded(shape.value_heads);
                Buffer::<f32>::bytes(shape.channels() * shape.taps) + 2 * heads + padded(shape.head_dim)
            }
            Held::State { shape, slots } => {
                Buffer::<f32>::bytes(slots * shape.state_len()) + slots * size_of::<u64>()
            }
            Held::Log { shape, slots, drafts } => Buffer::<f32>::bytes(slots * drafts * shape.log_len()),
            Held::Experts { shape, group } => {
                let of = |rows, cols| panels(rows, cols, Some(group));
                shape.count * (2 * of(shape.ffn, shape.hidden) + of(shape.hidden, shape.ffn))
            }
        }
    }

    fn step_bytes(&self, held: &[Held], size: &StepSize) -> usize {
        let most = |of: &dyn Fn(&Held) -> usize| held.iter().map(of).max().unwrap_or(0);
        let scratch = most(&scratch);
        let copied = held.iter().find_map(|held| match *held {
            Held::Shortlist { rows, cols, dtype } if cols <= MAX_COLS => {
                Some((CopyForm::of(dtype), rows, cols))
            }
            _ => None,
        });
        let between = most(&|held| if let Held::Delta(shape) = held { shape.between_len() } else { 0 });
        let normed = most(&|held| {
            if let Held::DenseTable { cols, .. } = held { cols.next_multiple_of(16) } else { 0 }
        });
        let experts = held.iter().find_map(|held| match held {
            Held::Experts { shape, .. } => Some(ExpertScratch::bytes(size.tokens, shape)),
            _ => None,
        });
        let recurrent = between > 0 || experts.is_some();
        let head = most(&|held| if let Held::TernaryTable { cols, .. } = held { *cols } else { 0 });
        let input =
            if head > 0 { Int8Rows::bytes(size.logit_rows.max(1), head, Grouping::Groups) } else { 0 };
        self.pool.threads() * Buffer::<f32>::bytes(scratch)
            + ShortlistBuffers::bytes(size.logit_rows, copied)
            + if recurrent { RecurrentScratch::bytes(size.tokens, [between, normed]) } else { 0 }
            + experts.unwrap_or(0)
            + input
            + size.logit_rows * size.vocab * size_of::<f32>()
    }
}
