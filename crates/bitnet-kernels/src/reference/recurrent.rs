//! Gated-delta layers and Walsh-Hadamard transforms of the reference.

use super::{Rows, dot, gated, rms_norm};
use crate::{
    DeltaShape, DeltaWeights, Gate, Norm, Rotate, Run,
    order::{DELTA_PARTIALS, L2_EPS, exp, fused, sigmoid, softplus, tree},
};

/// The dense parameters of a gated-delta layer.
#[derive(Debug)]
pub struct Delta {
    shape: DeltaShape,
    conv: Vec<f32>,
    a: Vec<f32>,
    dt_bias: Vec<f32>,
    norm: Norm<Vec<f32>>,
}

/// The recurrent states of one layer.
#[derive(Debug)]
pub struct State {
    shape: DeltaShape,
    pub(super) slots: Vec<Slot>,
}

/// The recurrent state of one sequence.
#[derive(Debug, Clone)]
pub struct Slot {
    /// The last inputs of the convolution, oldest first: one fewer than taps, or all since the start.
    inputs: Vec<Vec<f32>>,
    /// `[value_heads][head_dim values][head_dim keys]`
    heads: Vec<f32>,
    /// The input rows of the last run's drafts.
    log: Vec<Vec<f32>>,
}

impl Slot {
    fn new(shape: DeltaShape) -> Self {
        let heads = vec![0.0; shape.value_heads * shape.head_dim * shape.head_dim];
        Slot { inputs: Vec::new(), heads, log: Vec::new() }
    }
}

impl State {
    pub(super) fn new(shape: DeltaShape, slots: usize) -> Self {
        State { shape, slots: vec![Slot::new(shape); slots] }
    }

    /// Number of floats of [`State::read`].
    pub(super) fn floats(&self) -> usize {
        let DeltaShape { value_heads, head_dim, taps, .. } = self.shape;
        1 + value_heads * head_dim * head_dim + (taps - 1) * self.shape.channels()
    }

    /// The state in a slot: the number of inputs, the heads, and the inputs.
    pub(super) fn read(&self, slot: usize) -> Vec<f32> {
        let Slot { inputs, heads, .. } = &self.slots[slot];
        let mut values = vec![inputs.len() as f32];
        values.extend(heads.iter().chain(inputs.iter().flatten()));
        values.resize(self.floats(), 0.0);
        values
    }

    /// Overwrites a slot with what [`State::read`] has given.
    pub(super) fn write(&mut self, slot: usize, values: &[f32]) {
        let DeltaShape { value_heads, head_dim, .. } = self.shape;
        let (heads, inputs) = values[1..].split_at(value_heads * head_dim * head_dim);
        let inputs = inputs.chunks_exact(self.shape.channels()).take(values[0] as usize);
        let inputs = inputs.map(<[f32]>::to_vec).collect();
        self.slots[slot] = Slot { inputs, heads: heads.to_vec(), log: Vec::new() };
    }
}

impl Delta {
    pub(super) fn new(shape: DeltaShape, w: &DeltaWeights<'_>) -> Self {
        let norm = Norm { gain: w.norm.to_vec(), eps: w.eps };
        Delta { shape, conv: w.conv.to_vec(), a: w.a.to_vec(), dt_bias: w.dt_bias.to_vec(), norm }
    }

    /// Computes the tokens of a run one by one, after the accepted drafts before it, and hands the output of each to
    /// `put`. The slot keeps the state before the run's own drafts, and the rows of these.
    pub(super) fn run(&self, run: &Run, x: &Rows, state: &mut State, mut put: impl FnMut(usize, Vec<f32>)) {
        let slot = &mut state.slots[run.state as usize];
        if run.start == 0 {
            *slot = Slot::new(self.shape);
        }
        for row in std::mem::take(&mut slot.log).iter().take(run.log.accepted) {
            self.pass(slot, row);
        }
        let drafts = run.tokens.end - run.log.drafts..run.tokens.end;
        for t in run.tokens.start..drafts.start {
            put(t, self.pass(slot, x.row(t)));
        }
        let mut beyond = slot.clone();
        for t in drafts {
            slot.log.push(x.row(t).to_vec());
            put(t, self.pass(&mut beyond, x.row(t)));
        }
    }

    /// Takes a state through a token, and returns its output.
    fn pass(&self, slot: &mut Slot, row: &[f32]) -> Vec<f32> {
        let shape = self.shape;
        let (channels, rest) = row.split_at(shape.channels());
        let (gates, rest) = rest.split_at(shape.value_width());
        let (decays, rates) = rest[..2 * shape.value_heads].split_at(shape.value_heads);
        slot.inputs.push(channels.to_vec());
        let mixed = self.convolve(&slot.inputs);
        if slot.inputs.len() == shape.taps {
            slot.inputs.remove(0);
        }
        let (queries, rest) = mixed.split_at(shape.key_width());
        let (keys, values) = rest.split_at(shape.key_width());
        let dim = shape.head_dim;
        let mut out = Vec::with_capacity(shape.value_width());
        for (j, state) in slot.heads.chunks_exact_mut(dim * dim).enumerate() {
            let of = |heads: &[f32], h: usize| heads[h * dim..][..dim].to_vec();
            let query = unit(of(queries, j % shape.key_heads), 1.0 / (dim as f32).sqrt());
            let key = unit(of(keys, j % shape.key_heads), 1.0);
            let decay = exp(self.a[j] * softplus(decays[j] + self.dt_bias[j]));
            let mut o = learn(state, &query, &key, &of(values, j), decay, sigmoid(rates[j]));
            rms_norm(&mut o, &self.norm);
            out.extend(o.iter().zip(of(gates, j)).map(|(&o, z)| gated(Gate::Silu, z, o)));
        }
        out
    }

    /// Convolves the last tokens, of which there may be fewer than taps, and applies the activation.
    fn convolve(&self, inputs: &[Vec<f32>]) -> Vec<f32> {
        let taps = self.shape.taps;
        let channel = |(c, factors): (usize, &[f32])| {
            let factors = &factors[taps - inputs.len()..];
            let sum = factors.iter().zip(inputs).fold(0.0f32, |sum, (&w, input)| fused(w, input[c], sum));
            gated(Gate::Silu, sum, 1.0)
        };
        self.conv.chunks_exact(taps).enumerate().map(channel).collect()
    }
}

/// Divides a query or key by its length, and multiplies it by `scale`.
fn unit(x: Vec<f32>, scale: f32) -> Vec<f32> {
    let r = 1.0 / (dot(&x, &x) + L2_EPS).sqrt() * scale;
    x.into_iter().map(|x| x * r).collect()
}

/// One step of the delta rule: decays the state of a head, moves its product with the key towards `value`, and returns
/// its product with the query.
fn learn(state: &mut [f32], query: &[f32], key: &[f32], value: &[f32], decay: f32, rate: f32) -> Vec<f32> {
    let sum = |row: &[f32], by: &[f32]| {
        let mut partial = [0.0f32; DELTA_PARTIALS];
        for (k, (&s, &by)) in row.iter().zip(by).enumerate() {
            partial[k % DELTA_PARTIALS] = fused(s, by, partial[k % DELTA_PARTIALS]);
        }
        tree(partial)
    };
    let output = |(row, &v): (&mut [f32], &f32)| {
        let d = rate * (v - decay * sum(row, key));
        row.iter_mut().zip(key).for_each(|(s, &k)| *s = fused(d, k, decay * *s));
        sum(row, query)
    };
    state.chunks_exact_mut(key.len()).zip(value).map(output).collect()
}

/// A Walsh-Hadamard transform with signs.
#[derive(Debug)]
pub struct Rotation {
    width: usize,
    block: usize,
    signs: Option<Vec<i8>>,
    grouped: Option<(usize, usize)>,
}

impl Rotation {
    pub(super) fn new(width: usize, rotate: &Rotate<'_>) -> Self {
        let Rotate { block, signs, grouped } = *rotate;
        Rotation { width, block, signs: signs.map(<[i8]>::to_vec), grouped }
    }

    /// Transforms the input of a matrix.
    pub(super) fn apply(&self, x: &mut [f32]) {
        assert_eq!(x.len(), self.width, "the transform must be as wide as the rows");
        if let Some((key_heads, per_key)) = self.grouped {
            let tiled = x.to_vec();
            let dim = x.len() / (key_heads * per_key);
            for (h, head) in x.chunks_exact_mut(dim).enumerate() {
                let from = h % per_key * key_heads + h / per_key;
                head.copy_from_slice(&tiled[from * dim..][..dim]);
            }
        }
        self.sign(x);
        self.transform(x);
    }

    /// Undoes the transform in a row of a table.
    pub(super) fn undo(&self, row: &mut [f32]) {
        assert_eq!(row.len(), self.width, "the transform must be as wide as the rows");
        self.transform(row);
        self.sign(row);
    }

    fn sign(&self, x: &mut [f32]) {
        for (x, &sign) in x.iter_mut().zip(self.signs.iter().flatten()) {
            *x *= f32::from(sign);
        }
    }

    fn transform(&self, x: &mut [f32]) {
        let scale = (1.0 / (self.block as f64).sqrt()) as f32;
        for block in x.chunks_exact_mut(self.block) {
            let mut apart = 1;
            while apart < self.block {
                for pairs in block.chunks_exact_mut(2 * apart) {
                    let (low, high) = pairs.split_at_mut(apart);
                    for (a, b) in low.iter_mut().zip(high) {
                        (*a, *b) = (*a + *b, *a - *b);
                    }
                }
                apart *= 2;
            }
            block.iter_mut().for_each(|x| *x *= scale);
        }
    }
}
