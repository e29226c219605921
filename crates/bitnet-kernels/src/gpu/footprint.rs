//! The bytes of everything that the GPU backend makes in device memory.

use super::{
    Driver, Gpu,
    layout::{
        K_TILE, copy_bytes, copy_size, dense_bytes, expert_bytes, gain_bytes, int8_bytes, int8_linear_bytes,
        linear_bytes, mixture_bytes, rescore_bytes, rows_bytes, shortlist_bytes,
    },
    memory::buffer,
    ops::DRAWN,
    prepare::inputs,
    recordings::recordings_bytes,
    upload::room,
};
use crate::{Footprint, Grouping, Held, RowsKind, StepSize};

/// Bytes of several buffers.
fn buffers<const N: usize>(bytes: [usize; N]) -> usize {
    bytes.into_iter().map(buffer).sum()
}

/// Bytes of a buffer of `len` floats.
fn floats(len: usize) -> usize {
    buffer(len * size_of::<f32>())
}

impl<D: Driver> Gpu<D> {
    /// Whether a table of so many columns gets an int8 copy.
    pub(super) fn makes_copy(&self, cols: usize) -> bool {
        rescore_bytes(cols.next_multiple_of(64)) <= self.driver.info().shared as usize
    }
}

impl<D: Driver> Footprint for Gpu<D> {
    const LAYOUT: &'static str =
        "trits in 2 bits, the output head as int8 for bounds and as bf16 for exact logits";

    fn bytes(&self, held: &Held) -> usize {
        match *held {
            Held::Rows { rows, width, kind } => buffer(rows_bytes(rows, width, kind)),
            Held::Int8Rows { rows, width, grouping } => buffers(int8_bytes(rows, width, grouping)),
            Held::Linear { rows, cols, group: None } => buffers(linear_bytes(rows, cols, None)),
            Held::Linear { rows, cols, group } => buffer(linear_bytes(rows, cols, group)[0]),
            Held::Int8Linear { rows, cols } => buffer(int8_linear_bytes(rows, cols)),
            Held::TernaryTable { rows, cols, group } => buffer(linear_bytes(rows, cols, Some(group))[0]),
            Held::DenseTable { rows, cols, .. } => buffer(dense_bytes(rows, cols)),
            Held::Shortlist { rows, cols, .. } if self.makes_copy(cols) => buffers(copy_bytes(rows, cols)),
            Held::Gain { width } => buffer(gain_bytes(width)),
            Held::Rope { positions, width } => 2 * floats(positions * width / 2),
            Held::Kv(shape) => 2 * buffer(shape.gpu_bytes(self.kv) / 2),
            Held::Delta(shape) => {
                floats(shape.channels() * shape.taps) + 2 * floats(shape.value_heads) + floats(shape.head_dim)
            }
            Held::State { shape, slots } => floats(slots * shape.state_len()),
            Held::Log { drafts: 0, .. } => 0,
            Held::Log { shape, slots, drafts } => floats(slots * drafts * shape.gpu_log_len()),
            Held::Rotation { width } => buffer(width.next_multiple_of(K_TILE) / 8),
            // The router is f32, and a dense table is counted for it.
            Held::Experts { ref shape, group } => {
                buffers(expert_bytes(shape, group)) - buffer(dense_bytes(shape.count, shape.hidden))
            }
            // No copy is made.
            Held::Shortlist { .. } => 0,
        }
    }

    fn step_bytes(&self, held: &[Held], size: &StepSize) -> usize {
        let most = |of: &dyn Fn(&Held) -> usize| held.iter().map(of).max().unwrap_or(0);
        let mixed = most(&|held| if let Held::Delta(shape) = held { shape.gpu_between_len() } else { 0 });
        let head = most(&|held| if let Held::TernaryTable { cols, .. } = held { *cols } else { 0 });
        let copied = held.iter().find_map(|held| match *held {
            Held::Shortlist { rows, cols, .. } if self.makes_copy(cols) => Some(copy_size(rows, cols)),
            _ => None,
        });
        let experts = held.iter().find_map(|held| match held {
            Held::Experts { shape, .. } => Some(buffers(mixture_bytes(size.tokens, shape))),
            _ => None,
        });
        let rows = size.logit_rows;
        let inputs: usize = inputs(size, mixed > 0).map(|(_, _, bytes)| buffer(room(bytes))).sum();
        inputs
            + buffer(rows_bytes(rows, size.vocab, RowsKind::Residual))
            + copied.map_or(0, |size| buffers(shortlist_bytes(rows.min(self.most_bounded()), size)))
            + if head > 0 { buffers(int8_bytes(rows, head, Grouping::Groups)) } else { 0 }
            + if mixed > 0 { floats(size.tokens * mixed) } else { 0 }
            + experts.unwrap_or(0)
            + buffer(DRAWN * rows)
    }

    fn recordings_bytes(&self, launches: usize) -> usize {
        recordings_bytes(launches)
    }
}
