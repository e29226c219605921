//! The gated delta rule, token by token, in the order of [`crate::order`].
//!
//! Three passes over the tokens of a step: convolution and norms of queries and keys, into scratch; the rule itself; norm
//! and gate of the outputs. The state of a head is transposed, in panels of 16 values: `[values / 16][keys][16 values]`.
//! The sums over keys then need no sums across lanes, and a state is read and written as one stream. A unit of the rule is
//! a panel or two of one head and run, 8 KB each for heads of 128, which stay in L1 while all tokens of the run pass.
//!
//! A state in a slot is that before the drafts of a run. What a draft would do to it is kept in the log of the slot, and
//! the next run does it to the accepted ones, on its way through the state. So a state is read and written once in a step,
//! and a rejected draft leaves no trace.
//!
//! A token takes 4 multiplications or additions, 2 loads and a store for 16 numbers of the state, half as much again to
//! load keys and queries. One token is bound by memory: it reads and writes every state once. For a prompt, all three
//! passes together take a few percent of the ternary products.

#![allow(clippy::needless_range_loop, reason = "tiles of registers are indexed by panel")]

use std::ops::Range;

use crate::{
    DeltaShape, Norm, Run,
    cpu::{
        generic::{
            exp, load_up_to,
            rows::{Gain, normalize_head},
            sigmoid, silu, softplus, store_up_to,
        },
        lanes::Lanes,
        memory::{Buffer, Shared},
        pool::share,
    },
    order::{DELTA_PARTIALS, L2_EPS},
};

/// Panels of 16 values in one unit of [`delta_rule`].
const UNIT: usize = 2;

/// The dense parameters of a layer.
pub struct Delta {
    pub(crate) shape: DeltaShape,
    /// `[taps][channels]`
    pub(crate) conv: Buffer<f32>,
    /// One for each value head.
    pub(crate) a: Buffer<f32>,
    pub(crate) dt_bias: Buffer<f32>,
    pub(crate) norm: Norm<Gain>,
}

/// The recurrent states of one layer, `[slots][state_len]`: first the heads, then the last inputs of the convolution. The
/// input of position `p` is in row `p % (taps - 1)`, so that a token replaces the oldest.
pub struct State {
    pub(crate) shape: DeltaShape,
    pub(crate) slots: usize,
    pub(crate) values: Buffer<f32>,
    /// `[slots][room][log_len]`: the drafts of the last run of each slot, in order. A draft has its input of the
    /// convolution, then its row of `mixed` without the queries.
    pub(crate) log: Buffer<f32>,
    /// Drafts for which a log has room.
    pub(crate) room: usize,
    /// For each slot, the last step that used it, and the number of steps.
    pub(crate) used: Vec<u64>,
    pub(crate) steps: u64,
}

/// Heads of queries, keys and values together.
pub(crate) fn mixed_heads(shape: &DeltaShape) -> usize {
    2 * shape.key_heads + shape.value_heads
}

/// Units of [`delta_rule`] in one run.
pub(crate) fn run_units(shape: &DeltaShape) -> usize {
    shape.value_heads * shape.head_dim.div_ceil(16).div_ceil(UNIT)
}

/// A token of a run, by its row.
struct Place<'a> {
    run: &'a Run,
    token: usize,
}

impl Place<'_> {
    /// Position of the token in its sequence.
    fn position(&self) -> usize {
        self.run.start + self.token - self.run.tokens.start
    }
}

/// The logs of a layer's slots.
pub(crate) struct Logs<'a> {
    /// `[slots][room][log_len]`
    pub(crate) values: &'a [f32],
    pub(crate) room: usize,
}

impl<'a> Logs<'a> {
    /// Draft `i` in the log of a run's slot: its input of the convolution, and what it changes a state by.
    fn draft(&self, shape: &DeltaShape, run: &Run, i: usize) -> (&'a [f32], &'a [f32]) {
        let len = shape.log_len();
        let draft = &self.values[(run.state as usize * self.room + i) * len..][..len];
        draft.split_at(shape.channels().next_multiple_of(16))
    }
}

/// The units `units` with the places of their tokens. Each token has `per` units, and the runs' tokens follow each other.
fn places(runs: &[Run], per: usize, units: Range<usize>) -> impl Iterator<Item = (Place<'_>, usize)> {
    let mut end = 0;
    runs.iter().flat_map(move |run| {
        let first = end;
        end += run.tokens.len() * per;
        let some = units.start.max(first)..units.end.min(end);
        some.map(move |unit| {
            let token = run.tokens.start + (unit - first) / per;
            (Place { run, token }, (unit - first) % per)
        })
    })
}

pub(crate) struct Inputs<'a> {
    pub(crate) runs: &'a [Run],
    /// `[n][stride]`
    pub(crate) x: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) w: &'a Delta,
    /// `[slots][state_len]`
    pub(crate) state: &'a [f32],
    pub(crate) logs: Logs<'a>,
    /// `[n][between_len]`
    pub(crate) mixed: Shared<'a, f32>,
}

/// Computes some of the heads of queries, keys and values, [`mixed_heads`] for each token; with the first head of a token
/// also its decays and rates.
#[inline(always)]
pub(crate) unsafe fn delta_inputs<L: Lanes>(a: &Inputs<'_>, units: Range<usize>) {
    let shape = a.w.shape;
    let (dim, len) = (shape.head_dim, shape.between_len());
    for (place, head) in places(a.runs, mixed_heads(&shape), units) {
        let out = a.mixed.slice(place.token * len + head * dim, dim);
        convolve::<L>(a, &place, head * dim, out);
        if head < shape.key_heads {
            unit_length::<L>(out, 1.0 / (dim as f32).sqrt());
        } else if head < 2 * shape.key_heads {
            unit_length::<L>(out, 1.0);
        }
        if head == 0 {
            decays_and_rates::<L>(a, place.token);
        }
    }
}

/// Convolves the channels of a head over the last tokens of its sequence, and applies the activation.
#[inline(always)]
unsafe fn convolve<L: Lanes>(a: &Inputs<'_>, place: &Place<'_>, channel: usize, out: &mut [f32]) {
    let shape = a.w.shape;
    let (dim, channels) = (shape.head_dim, shape.channels());
    let (position, to) = (place.position(), out.as_mut_ptr());
    let window = place.run.state as usize * shape.state_len() + shape.value_heads * shape.head_len();
    // Taps before the start of the sequence are left out.
    let left_out = (shape.taps - 1).saturating_sub(position);
    for tap in left_out..shape.taps {
        let from = position + tap + 1 - shape.taps;
        let input = if from >= place.run.start {
            &a.x[(place.token - (position - from)) * a.stride..]
        } else if from + place.run.log.accepted >= place.run.start {
            a.logs.draft(&shape, place.run, from + place.run.log.accepted - place.run.start).0
        } else {
            &a.state[window + from % (shape.taps - 1) * channels.next_multiple_of(16)..]
        };
        let input = input[channel..][..dim].as_ptr();
        let factors = a.w.conv[tap * channels + channel..][..dim].as_ptr();
        for i in (0..dim).step_by(16) {
            let n = (dim - i).min(16);
            let sum = if tap == left_out { L::splat(0.0) } else { load_up_to::<L>(to.add(i), n) };
            let (factor, x) = (load_up_to::<L>(factors.add(i), n), load_up_to::<L>(input.add(i), n));
            store_up_to::<L>(to.add(i), L::fma(factor, x, sum), n);
        }
    }
    for i in (0..dim).step_by(16) {
        let n = (dim - i).min(16);
        store_up_to::<L>(to.add(i), silu::<L>(load_up_to::<L>(to.add(i), n)), n);
    }
}

/// Divides a query or key by its length, and multiplies it by `scale`.
#[inline(always)]
unsafe fn unit_length<L: Lanes>(head: &mut [f32], scale: f32) {
    let (x, dim) = (head.as_mut_ptr(), head.len());
    let mut squares = L::splat(0.0);
    for i in (0..dim).step_by(16) {
        let v = load_up_to::<L>(x.add(i), (dim - i).min(16));
        squares = L::fma(v, v, squares);
    }
    let r = L::splat(1.0 / (L::reduce_add(squares) + L2_EPS).sqrt() * scale);
    for i in (0..dim).step_by(16) {
        let n = (dim - i).min(16);
        store_up_to::<L>(x.add(i), L::mul(load_up_to::<L>(x.add(i), n), r), n);
    }
}

/// Computes the decay and the learning rate of the state of each value head.
#[inline(always)]
unsafe fn decays_and_rates<L: Lanes>(a: &Inputs<'_>, token: usize) {
    let shape = a.w.shape;
    let (heads, padded) = (shape.value_heads, shape.value_heads.next_multiple_of(16));
    let x = &a.x[token * a.stride + shape.channels() + shape.value_width()..][..2 * heads];
    let (decay_inputs, rate_inputs) = (x.as_ptr(), x[heads..].as_ptr());
    let at = token * shape.between_len() + shape.channels().next_multiple_of(16);
    let (decays, rates) = a.mixed.slice(at, 2 * padded).split_at_mut(padded);
    for i in (0..heads).step_by(16) {
        let n = (heads - i).min(16);
        let input = load_up_to::<L>(decay_inputs.add(i), n);
        let plus = softplus::<L>(L::add(input, L::load(a.w.dt_bias.as_ptr().add(i))));
        let decay = exp::<L>(L::mul(L::load(a.w.a.as_ptr().add(i)), plus));
        L::store(decays.as_mut_ptr().add(i), decay);
        L::store(rates.as_mut_ptr().add(i), sigmoid::<L>(load_up_to::<L>(rate_inputs.add(i), n)));
    }
}

pub(crate) struct Rule<'a> {
    pub(crate) runs: &'a [Run],
    pub(crate) shape: DeltaShape,
    /// `[n][between_len]`
    pub(crate) mixed: &'a [f32],
    pub(crate) logs: Logs<'a>,
    /// `[slots][state_len]`
    pub(crate) state: Shared<'a, f32>,
    /// `[n][out_stride]`
    pub(crate) out: Shared<'a, f32>,
    pub(crate) out_stride: usize,
}

/// Floats of scratch memory that [`delta_rule`] needs for runs with drafts.
pub(crate) fn rule_scratch(shape: &DeltaShape) -> usize {
    UNIT * 16 * shape.head_dim
}

/// Takes some panels of some heads through all tokens of their run; each run has [`run_units`] units.
#[inline(always)]
pub(crate) unsafe fn delta_rule<L: Lanes>(a: &Rule<'_>, units: Range<usize>, scratch: &mut [f32]) {
    let per = run_units(&a.shape);
    let (panel, panels) = (16 * a.shape.head_dim, a.shape.head_dim.div_ceil(16));
    for unit in units {
        let (run, unit) = (&a.runs[unit / per], unit % per);
        let per_head = panels.div_ceil(UNIT);
        let (head, first) = (unit / per_head, unit % per_head * UNIT);
        let some = UNIT.min(panels - first);
        let at = run.state as usize * a.shape.state_len() + head * a.shape.head_len() + first * panel;
        let state = a.state.slice(at, some * panel);
        if run.start == 0 {
            state.fill(0.0);
        }
        // Registers determine how many panels share the loads of keys and queries.
        if L::WIDE_REGISTERS && some == 2 {
            tile::<L, 2>(a, run, head, first, state, scratch);
        } else {
            for (i, state) in state.chunks_exact_mut(panel).enumerate() {
                tile::<L, 1>(a, run, head, first + i, state, scratch);
            }
        }
    }
}

/// Takes `P` panels of a head through the accepted drafts before their run and through all its tokens. The run's own
/// drafts change a copy in `scratch` instead of the state.
#[inline(always)]
unsafe fn tile<L: Lanes, const P: usize>(
    a: &Rule<'_>,
    run: &Run,
    head: usize,
    panel: usize,
    state: &mut [f32],
    scratch: &mut [f32],
) {
    let (shape, len) = (a.shape, a.shape.between_len());
    let dim = shape.head_dim;
    for i in 0..run.log.accepted {
        let (_, learned) = a.logs.draft(&shape, run, i);
        // What it gives for some query, here its own key, is dropped.
        let query = &learned[head % shape.key_heads * dim..][..dim];
        learn::<L, P>(&shape, learned, query, head, panel, state.as_mut_ptr());
    }
    let mut to = state.as_mut_ptr();
    let drafts = run.tokens.end - run.log.drafts;
    for token in run.tokens.clone() {
        if token == drafts {
            scratch[..state.len()].copy_from_slice(state);
            to = scratch.as_mut_ptr();
        }
        let (queries, learned) = a.mixed[token * len..][..len].split_at(shape.key_width());
        let query = &queries[head % shape.key_heads * dim..][..dim];
        let outputs = learn::<L, P>(&shape, learned, query, head, panel, to);
        let width = (dim - 16 * panel).min(16 * P);
        let out = a.out.slice(token * a.out_stride + head * dim + 16 * panel, width);
        for p in 0..P {
            store_up_to::<L>(out.as_mut_ptr().add(16 * p), outputs[p], (width - 16 * p).min(16));
        }
    }
}

/// Takes `P` panels of a head through a token, whose row of `mixed` without the queries is `learned`, and returns their
/// products with a query.
#[inline(always)]
unsafe fn learn<L: Lanes, const P: usize>(
    shape: &DeltaShape,
    learned: &[f32],
    query: &[f32],
    head: usize,
    panel: usize,
    state: *mut f32,
) -> [L::F; P] {
    let (dim, padded) = (shape.head_dim, shape.value_heads.next_multiple_of(16));
    let key = &learned[head % shape.key_heads * dim..][..dim];
    let value = &learned[shape.key_width() + head * dim + 16 * panel..][..dim - 16 * panel];
    let gates = &learned[learned.len() - 2 * padded..];
    let (decay, rate) = (L::splat(gates[head]), L::splat(gates[padded + head]));

    let product = multiply_state::<L, P>(state, key);
    let mut change = [decay; P];
    for p in 0..P {
        let n = (value.len() - 16 * p).min(16);
        let predicted = L::mul(decay, product[p]);
        change[p] = L::mul(rate, L::sub(load_up_to::<L>(value.as_ptr().add(16 * p), n), predicted));
    }
    update_state::<L, P>(state, decay, change, key, query)
}

/// Running sums over keys: element `k` is added to partial `k % DELTA_PARTIALS`.
type Partials<F, const P: usize> = [[F; DELTA_PARTIALS]; P];

/// Adds the partial sums.
#[inline(always)]
unsafe fn tree<L: Lanes, const P: usize>(partials: Partials<L::F, P>) -> [L::F; P] {
    let mut sums = [L::splat(0.0); P];
    for p in 0..P {
        let [a, b, c, d] = partials[p];
        sums[p] = L::add(L::add(a, c), L::add(b, d));
    }
    sums
}

/// Computes `sum_k state[p][k] * by[k]` for `P` panels.
#[inline(always)]
unsafe fn multiply_state<L: Lanes, const P: usize>(state: *const f32, by: &[f32]) -> [L::F; P] {
    let mut partials = [[L::splat(0.0); DELTA_PARTIALS]; P];
    let whole = by.len() / DELTA_PARTIALS * DELTA_PARTIALS;
    for first in (0..whole).step_by(DELTA_PARTIALS) {
        for i in 0..DELTA_PARTIALS {
            multiply_column::<L, P>(state, by, first + i, i, &mut partials);
        }
    }
    for i in 0..DELTA_PARTIALS - 1 {
        if whole + i < by.len() {
            multiply_column::<L, P>(state, by, whole + i, i, &mut partials);
        }
    }
    tree::<L, P>(partials)
}

#[inline(always)]
unsafe fn multiply_column<L: Lanes, const P: usize>(
    state: *const f32,
    by: &[f32],
    k: usize,
    i: usize,
    partials: &mut Partials<L::F, P>,
) {
    let factor = L::splat(*by.as_ptr().add(k));
    for p in 0..P {
        let s = L::load(state.add(16 * (p * by.len() + k)));
        partials[p][i] = L::fma(s, factor, partials[p][i]);
    }
}

/// Sets `state[p][k] = decay * state[p][k] + change[p] * key[k]` and computes `sum_k state[p][k] * query[k]`.
#[inline(always)]
unsafe fn update_state<L: Lanes, const P: usize>(
    state: *mut f32,
    decay: L::F,
    change: [L::F; P],
    key: &[f32],
    query: &[f32],
) -> [L::F; P] {
    let mut partials = [[L::splat(0.0); DELTA_PARTIALS]; P];
    let whole = key.len() / DELTA_PARTIALS * DELTA_PARTIALS;
    for first in (0..whole).step_by(DELTA_PARTIALS) {
        for i in 0..DELTA_PARTIALS {
            update_column::<L, P>(state, decay, change, [key, query], first + i, i, &mut partials);
        }
    }
    for i in 0..DELTA_PARTIALS - 1 {
        if whole + i < key.len() {
            update_column::<L, P>(state, decay, change, [key, query], whole + i, i, &mut partials);
        }
    }
    tree::<L, P>(partials)
}

#[inline(always)]
unsafe fn update_column<L: Lanes, const P: usize>(
    state: *mut f32,
    decay: L::F,
    change: [L::F; P],
    [key, query]: [&[f32]; 2],
    k: usize,
    i: usize,
    partials: &mut Partials<L::F, P>,
) {
    let key_k = L::splat(*key.as_ptr().add(k));
    let query_k = L::splat(*query.as_ptr().add(k));
    for p in 0..P {
        let s = state.add(16 * (p * key.len() + k));
        let new = L::fma(change[p], key_k, L::mul(decay, L::load(s)));
        L::store(s, new);
        partials[p][i] = L::fma(new, query_k, partials[p][i]);
    }
}

pub(crate) struct Outputs<'a> {
    pub(crate) runs: &'a [Run],
    /// `[n][stride]`
    pub(crate) x: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) w: &'a Delta,
    /// `[n][between_len]`
    pub(crate) mixed: &'a [f32],
    /// `[slots][state_len]`
    pub(crate) state: Shared<'a, f32>,
    /// `[slots][room][log_len]`
    pub(crate) log: Shared<'a, f32>,
    pub(crate) room: usize,
    /// `[n][out_stride]`
    pub(crate) out: Shared<'a, f32>,
    pub(crate) out_stride: usize,
}

/// Normalises and gates the outputs of some value heads, and with those of a run's first token keeps an equal share of what
/// the next run needs; each token has as many units as there are value heads. `scratch` holds a head padded to whole
/// vectors.
#[inline(always)]
pub(crate) unsafe fn delta_outputs<L: Lanes>(a: &Outputs<'_>, units: Range<usize>, scratch: &mut [f32]) {
    let shape = a.w.shape;
    let (dim, channels) = (shape.head_dim, shape.channels());
    for (place, head) in places(a.runs, shape.value_heads, units) {
        let out = a.out.slice(place.token * a.out_stride + head * dim, dim);
        normalize_head::<L>(out, &a.w.norm, scratch);
        let gate = a.x[place.token * a.stride + channels + head * dim..][..dim].as_ptr();
        let to = out.as_mut_ptr();
        for i in (0..dim).step_by(16) {
            let n = (dim - i).min(16);
            let gated = L::mul(silu::<L>(load_up_to::<L>(gate.add(i), n)), load_up_to::<L>(to.add(i), n));
            store_up_to::<L>(to.add(i), gated, n);
        }
        if place.token == place.run.tokens.start {
            keep_inputs(a, place.run, share(channels, shape.value_heads, head));
            keep_drafts(a, place.run, head);
        }
    }
}

/// Keeps some channels of the inputs before the drafts of a run, of which accepted drafts before the run are still in the
/// log.
#[inline(always)]
unsafe fn keep_inputs(a: &Outputs<'_>, run: &Run, channels: Range<usize>) {
    let shape = a.w.shape;
    let window = run.state as usize * shape.state_len() + shape.value_heads * shape.head_len();
    let end = run.start + run.tokens.len() - run.log.drafts;
    let logged = run.start - run.log.accepted;
    for position in end.saturating_sub(shape.taps - 1).max(logged)..end {
        let row = position % (shape.taps - 1) * shape.channels().next_multiple_of(16);
        let to = a.state.slice(window + row + channels.start, channels.len());
        if position < run.start {
            let draft = (run.state as usize * a.room + position - logged) * shape.log_len();
            to.copy_from_slice(a.log.slice(draft + channels.start, channels.len()));
        } else {
            let token = run.tokens.start + position - run.start;
            to.copy_from_slice(&a.x[token * a.stride..][channels.clone()]);
        }
    }
}

/// Keeps a share of a run's drafts in the log, one share for each value head, in place of the drafts before the run.
#[inline(always)]
unsafe fn keep_drafts(a: &Outputs<'_>, run: &Run, head: usize) {
    let shape = a.w.shape;
    let between = shape.between_len();
    let padded = shape.channels().next_multiple_of(16);
    let channels = share(shape.channels(), shape.value_heads, head);
    let learned = share(shape.learned_len(), shape.value_heads, head);
    for (i, token) in (run.tokens.end - run.log.drafts..run.tokens.end).enumerate() {
        let draft = (run.state as usize * a.room + i) * shape.log_len();
        let to = a.log.slice(draft + channels.start, channels.len());
        to.copy_from_slice(&a.x[token * a.stride..][channels.clone()]);
        let to = a.log.slice(draft + padded + learned.start, learned.len());
        to.copy_from_slice(&a.mixed[token * between + shape.key_width()..][learned.clone()]);
    }
}
