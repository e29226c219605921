//! Gated-delta layers and Walsh-Hadamard transforms on the CPU: what they hold, and how their work is shared.

use crate::{
    DeltaShape, DeltaWeights, DraftLog, KernelError, Norm, Rotate, Run, Step,
    cpu::{
        Cpu, ROW_UNIT, Rows, Table,
        generic::{
            delta::{Delta, Inputs, Logs, Outputs, Rule, State, mixed_heads, rule_scratch, run_units},
            dense::DenseLogits,
            rotate::Rotation,
            rows::{Gain, NormRows, SigmoidGate},
        },
        memory::{Buffer, Shared},
        pool::share,
    },
};

/// The memory that all recurrent layers share during a step. [`Cpu::reserve_delta`] grows it before the first step, so
/// that no step allocates.
#[derive(Default)]
pub(super) struct RecurrentScratch {
    /// Floats of a token in the widest layer, and in the widest input of a dense table.
    mixed_len: usize,
    normed_len: usize,
    /// `[n][mixed_len]`
    mixed: Option<Buffer<f32>>,
    /// `[n][normed_len]`
    normed: Option<Buffer<f32>>,
    /// `0..n`
    tokens: Vec<usize>,
}

impl RecurrentScratch {
    /// Bytes for steps of `tokens` tokens, with so many floats of a token in a layer and in an input of a dense table.
    pub(super) fn bytes(tokens: usize, floats: [usize; 2]) -> usize {
        let buffers: usize = floats.iter().map(|floats| Buffer::<f32>::bytes(tokens * floats)).sum();
        buffers + tokens * size_of::<usize>()
    }

    fn reserve(&mut self, tokens: usize) -> Result<(), KernelError> {
        grow(&mut self.mixed, tokens * self.mixed_len)?;
        grow(&mut self.normed, tokens * self.normed_len)?;
        self.tokens.extend(self.tokens.len()..tokens);
        Ok(())
    }
}

/// Makes a buffer of at least `len` floats, unless there is one.
fn grow(buffer: &mut Option<Buffer<f32>>, len: usize) -> Result<(), KernelError> {
    if buffer.as_ref().is_none_or(|buffer| buffer.len() < len) {
        *buffer = Some(Buffer::zeroed(len, "activations of recurrent layers")?);
    }
    Ok(())
}

/// A copy of `values`, padded with zeros to whole vectors.
fn padded(values: &[f32], what: &'static str) -> Result<Buffer<f32>, KernelError> {
    let mut buffer = Buffer::zeroed(values.len().next_multiple_of(16), what)?;
    buffer[..values.len()].copy_from_slice(values);
    Ok(buffer)
}

/// Zeros, `len` for every slot.
fn per_slot(slots: usize, len: usize, what: &'static str) -> Result<Buffer<f32>, KernelError> {
    let len = slots.checked_mul(len).ok_or(KernelError::OutOfMemory { what, bytes: usize::MAX })?;
    Buffer::zeroed(len, what)
}

impl State {
    fn new(shape: DeltaShape, slots: usize) -> Result<Self, KernelError> {
        let values = per_slot(slots, shape.state_len(), "recurrent states")?;
        let log = Buffer::zeroed(0, "logs of drafts")?;
        Ok(State { shape, slots, values, log, room: 0, used: vec![0; slots], steps: 0 })
    }

    /// The state in a slot.
    pub(super) fn slot_mut(&mut self, slot: usize) -> &mut [f32] {
        let len = self.shape.state_len();
        &mut self.values[slot * len..][..len]
    }

    /// Checks that no two runs of a step share a slot, and that the logs have room for their drafts.
    fn claim(&mut self, runs: &[Run]) {
        self.steps += 1;
        for run in runs {
            let slot = run.state as usize;
            let DraftLog { accepted, drafts } = run.log;
            assert!(accepted.max(drafts) <= self.room, "logs must have room for the drafts");
            assert!(accepted <= run.start && drafts < run.tokens.len(), "drafts must follow other tokens");
            assert!(slot < self.slots, "the slot must exist");
            assert!(self.used[slot] < self.steps, "no two runs may share a slot");
            self.used[slot] = self.steps;
        }
    }
}

impl Cpu {
    pub(super) fn delta(&mut self, shape: DeltaShape, w: &DeltaWeights<'_>) -> Result<Delta, KernelError> {
        let DeltaShape { value_heads, head_dim, taps, .. } = shape;
        assert!(taps > 0 && shape.key_heads > 0, "there must be a tap and a head");
        assert!(value_heads.is_multiple_of(shape.key_heads), "every key head must have as many value heads");
        let lengths = [w.conv.len(), w.a.len(), w.dt_bias.len(), w.norm.len()];
        let expected = [shape.channels() * taps, value_heads, value_heads, head_dim];
        assert_eq!(lengths, expected, "the parameters must have the layer's shape");
        let what = "parameters of recurrent layers";
        let mut conv = Buffer::zeroed(w.conv.len(), what)?;
        for (c, factors) in w.conv.chunks_exact(taps).enumerate() {
            for (tap, factor) in factors.iter().enumerate() {
                conv[tap * shape.channels() + c] = *factor;
            }
        }
        self.recurrent.mixed_len = self.recurrent.mixed_len.max(shape.between_len());
        self.reserve(head_dim.next_multiple_of(16))?;
        let gain = Gain { width: head_dim, values: padded(w.norm, what)? };
        Ok(Delta {
            shape,
            conv,
            a: padded(w.a, what)?,
            dt_bias: padded(w.dt_bias, what)?,
            norm: Norm { gain, eps: w.eps },
        })
    }

    pub(super) fn state(&mut self, shape: DeltaShape, slots: usize) -> Result<State, KernelError> {
        State::new(shape, slots)
    }

    pub(super) fn reserve_log(&mut self, state: &mut State, drafts: usize) -> Result<usize, KernelError> {
        if drafts > state.room {
            let len = drafts.saturating_mul(state.shape.log_len());
            state.log = per_slot(state.slots, len, "logs of drafts")?;
            state.room = drafts;
            self.reserve(rule_scratch(&state.shape))?;
        }
        Ok(state.room)
    }

    pub(super) fn rotation(&mut self, width: usize, rotate: &Rotate<'_>) -> Result<Rotation, KernelError> {
        let Rotate { block, signs, grouped } = *rotate;
        assert!(block.is_power_of_two() && width.is_multiple_of(block), "blocks must divide the width");
        assert!(signs.is_none_or(|signs| signs.len() == width), "there must be a sign for every column");
        let heads = grouped.map_or(1, |(key_heads, per_key)| key_heads * per_key);
        assert!(heads > 0 && width.is_multiple_of(heads), "heads must divide the width");
        let mut all = Buffer::zeroed(width.next_multiple_of(16), "signs")?;
        all[..width].fill(1.0);
        for (to, sign) in all.iter_mut().zip(signs.into_iter().flatten()) {
            *to = f32::from(*sign);
        }
        self.reserve(2 * width.next_multiple_of(16))?;
        let scale = (1.0 / (block as f64).sqrt()) as f32;
        Ok(Rotation { width, block, signs: all, scale, grouped })
    }

    /// Makes room for steps of `tokens` tokens, if there are recurrent layers.
    pub(super) fn reserve_delta(&mut self, tokens: usize) -> Result<(), KernelError> {
        if self.recurrent.mixed_len > 0 { self.recurrent.reserve(tokens) } else { Ok(()) }
    }

    /// Makes room for the input of dense tables in steps of `tokens` tokens.
    pub(super) fn reserve_dense(&mut self, tokens: usize) -> Result<(), KernelError> {
        self.recurrent.reserve(tokens)
    }

    /// Takes note of a dense table, whose input may have to be normalised.
    pub(super) fn fit_dense(&mut self, cols: usize) {
        self.recurrent.normed_len = self.recurrent.normed_len.max(cols.next_multiple_of(16));
    }

    /// The three passes of a layer.
    pub(super) fn gated_delta(
        &mut self,
        Step { runs, .. }: Step<'_>,
        x: &Rows,
        w: &Delta,
        state: &mut State,
        out: &mut Rows,
    ) -> Result<(), KernelError> {
        let shape = w.shape;
        let n = runs.last().map_or(0, |run| run.tokens.end);
        assert_eq!(shape, state.shape, "states must have the layer's shape");
        assert!(
            x.width >= shape.columns() && out.width == shape.value_width(),
            "rows must have the layer's shape"
        );
        assert!(n <= x.rows && n <= out.rows, "the rows must fit their buffers");
        super::assert_apart(runs);
        state.claim(runs);
        self.recurrent.reserve(n)?;
        let mut mixed = self.recurrent.mixed.take().expect("reserved");
        let done = self.passes(n, runs, x, w, state, out, &mut mixed);
        self.recurrent.mixed = Some(mixed);
        done
    }

    #[expect(clippy::too_many_arguments, reason = "what three passes share")]
    fn passes(
        &mut self,
        n: usize,
        runs: &[Run],
        x: &Rows,
        w: &Delta,
        state: &mut State,
        out: &mut Rows,
        mixed: &mut Buffer<f32>,
    ) -> Result<(), KernelError> {
        let (shape, kernels) = (w.shape, self.isa.kernels().floats);
        let tokens: usize = runs.iter().map(|run| run.tokens.len()).sum();
        // Exponentials and quotients make a value several times as expensive as in a norm.
        let units = |values: usize| EXPENSIVE * n * values / ROW_UNIT;

        let room = state.room;
        let logs = Logs { values: &state.log, room };
        let (stride, mixed_out) = (x.stride, mixed.shared());
        let a = Inputs { runs, x: &x.values, stride, w, state: &state.values, logs, mixed: mixed_out };
        let total = tokens * mixed_heads(&shape);
        self.parallel(units(shape.channels()).min(total), 0, &|part, parts, _| {
            // SAFETY: `isa` proves the instruction set; every head of every token belongs to one part; all other
            // indices are checked where slices are taken.
            unsafe { (kernels.delta_inputs)(&a, share(total, parts, part)) }
        })?;

        let (values, out_stride) = (out.values.shared(), out.stride);
        let mixed = &*mixed;
        let logs = Logs { values: &state.log, room };
        let a = Rule { runs, shape, mixed, logs, state: state.values.shared(), out: values, out_stride };
        let total = runs.len() * run_units(&shape);
        let work = tokens * shape.value_heads * shape.head_len();
        let scratch = if room > 0 { rule_scratch(&shape) } else { 0 };
        self.parallel((work / ROW_UNIT).min(total), scratch, &|part, parts, scratch| {
            // SAFETY: as above; no two runs share a slot, so every panel of a state and its outputs belong to one part.
            unsafe { (kernels.delta_rule)(&a, share(total, parts, part), scratch) }
        })?;

        let (x, stride) = (&x.values, x.stride);
        let (state, log) = (state.values.shared(), state.log.shared());
        let a = Outputs { runs, x, stride, w, mixed, state, log, room, out: values, out_stride };
        let total = tokens * shape.value_heads;
        let scratch = shape.head_dim.next_multiple_of(16);
        self.parallel(units(shape.value_width()).min(total), scratch, &|part, parts, scratch| {
            // SAFETY: as above; every head's outputs belong to one part, and so does every share of the inputs and drafts
            // that are kept.
            unsafe { (kernels.delta_outputs)(&a, share(total, parts, part), scratch) }
        })
    }

    pub(super) fn copy_state(&mut self, state: &mut State, from: u32, to: u32) -> Result<(), KernelError> {
        let (from, to) = (from as usize, to as usize);
        assert!(from < state.slots && to < state.slots, "the slots must exist");
        if from == to {
            return Ok(());
        }
        let len = state.shape.state_len();
        let values = state.values.shared();
        self.parallel(len / ROW_UNIT, 0, &|part, parts, _| {
            let some = share(len, parts, part);
            // SAFETY: the slots are apart, and every share of them belongs to one part.
            let (from, to) = unsafe {
                let at = |slot: usize| values.slice(slot * len + some.start, some.len());
                (at(from), at(to))
            };
            to.copy_from_slice(from);
        })
    }

    /// Multiplies `out[t][i]` by `sigmoid(x[t][column + i])`.
    pub(super) fn sigmoid_gate(
        &mut self,
        n: usize,
        x: &Rows,
        column: usize,
        out: &mut Rows,
    ) -> Result<(), KernelError> {
        let (width, out_stride) = (out.width, out.stride);
        assert!(n <= x.rows && n <= out.rows, "the rows must fit their buffers");
        assert!(column + width <= x.width, "there must be a gate for every column");
        let (x, stride) = (&x.values, x.stride);
        let a = SigmoidGate { x, stride, column, out: out.values.shared(), out_stride, width };
        let kernel = self.isa.kernels().floats.sigmoid_gate;
        self.parallel((EXPENSIVE * n * width / ROW_UNIT).min(n), 0, &|part, parts, _| {
            // SAFETY: `isa` proves the instruction set; every row is written by one part.
            unsafe { kernel(&a, share(n, parts, part)) }
        })
    }

    /// Normalises rows and multiplies them by a dense table.
    pub(super) fn dense(
        &mut self,
        n: usize,
        x: &Rows,
        norm: &Norm<Gain>,
        w: &Table,
        out: &mut Rows,
        column: usize,
    ) -> Result<(), KernelError> {
        let Table::Dense { weights: table, .. } = w else { panic!("the table must be dense") };
        assert!(n <= x.rows && n <= out.rows && x.width == table.cols(), "the rows must fit their buffers");
        assert!(column + table.rows() <= out.width, "the output columns must fit the rows");
        super::assert_widths([Some(norm), None], x.width);
        self.recurrent.reserve(n)?;
        let mut normed = self.recurrent.normed.take().expect("reserved");
        let tokens = std::mem::take(&mut self.recurrent.tokens);
        let (stride, width) = (x.stride, x.width);
        let shared = normed.shared();
        let kernel = self.isa.kernels().floats.norm_rows;
        let done = self.parallel((n * width / ROW_UNIT).min(n), 0, &|part, parts, _| {
            let some = share(n, parts, part);
            // SAFETY: every row belongs to one part.
            let out = Shared::new(unsafe { shared.slice(some.start * stride, some.len() * stride) });
            let a = NormRows { rows: &tokens[some], x: &x.values, stride, width, norm, out };
            // SAFETY: `isa` proves the instruction set; only this part has access to its output.
            unsafe { kernel(&a) }
        });
        let (values, out_stride) = (out.values.shared(), out.stride);
        let tokens_of_step = &tokens[..n];
        let a = DenseLogits {
            table,
            x: &normed,
            stride,
            tokens: tokens_of_step,
            out: values,
            out_stride,
            column,
        };
        let done = done.and_then(|()| self.dense_products(&a));
        (self.recurrent.normed, self.recurrent.tokens) = (Some(normed), tokens);
        done
    }
}

/// How many times as expensive as a value of a norm one is whose exponential is computed.
const EXPENSIVE: usize = 4;

#[cfg(test)]
mod tests {
    use bitnet_tensor::BitNetTensor;

    use super::*;
    use crate::{Backend, Isa, RowsKind, StepSize};

    /// Addresses and lengths of everything that a step could grow.
    fn memory(cpu: &Cpu) -> Vec<(usize, usize)> {
        let RecurrentScratch { mixed, normed, tokens, .. } = &cpu.recurrent;
        let floats = cpu.scratch.iter().chain(mixed).chain(normed).map(|b| (b.as_ptr() as usize, b.len()));
        floats.chain([(tokens.as_ptr() as usize, tokens.len())]).collect()
    }

    #[test]
    fn a_step_of_the_prepared_size_allocates_nothing() {
        let shape = DeltaShape { key_heads: 2, value_heads: 4, head_dim: 20, taps: 4 };
        let hidden = 70;
        let n = 33;
        let mut cpu = Cpu::new(Isa::best(), 2).unwrap();
        let conv = vec![0.5; shape.channels() * shape.taps];
        let heads = [-1.0; 4];
        let norm = [1.0; 20];
        let weights = DeltaWeights { conv: &conv, a: &heads, dt_bias: &heads, norm: &norm, eps: 1e-6 };
        let layer = cpu.delta(shape, &weights).unwrap();
        let mut state = cpu.state(shape, 1).unwrap();
        let table = cpu.table(&BitNetTensor::from_f32([8, hidden], &vec![0.1; 8 * hidden]).unwrap()).unwrap();
        let gain = Norm { gain: cpu.gain(&vec![1.0; hidden]).unwrap(), eps: 1e-6 };
        let residual = cpu.rows(n, hidden, RowsKind::Residual).unwrap();
        let mut x = cpu.rows(n, shape.columns(), RowsKind::Intermediate).unwrap();
        let mut out = cpu.rows(n, shape.value_width(), RowsKind::Intermediate).unwrap();
        cpu.prepare(&StepSize { tokens: n, logit_rows: 1, blocks: 1, group: 1, vocab: 8, windows: false })
            .unwrap();
        let before = memory(&cpu);
        let runs = [Run { tokens: 0..n, start: 0, blocks: 0..0, ..Run::default() }];
        let step = Step::new(&runs, &[]);
        cpu.dense(n, &residual, &gain, &table, &mut x, shape.columns() - 8).unwrap();
        cpu.gated_delta(step, &x, &layer, &mut state, &mut out).unwrap();
        cpu.sigmoid_gate(n, &x, 0, &mut out).unwrap();
        assert_eq!(memory(&cpu), before);
    }
}
