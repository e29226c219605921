//! Operations on one row at a time: norms, quantisation, gate, rotary embedding.
//!
//! Layout: rows of f32 padded with zeros to whole vectors. A row stays in L1 between the passes over it: squares (for
//! 16 values a load, 2 conversions, 2 products), scaling (2 loads, 2 products, a store), absolute maximum, and rounding
//! to int8. All are bound by instructions, about one per value, and together take 3 % of a prefill.

use std::ops::Range;

use bitnet_tensor::quant::{self, GROUP, GroupQuant, RowQuant};

use crate::{
    BLOCK_TOKENS, Gate, HeadNorms, KvShape, KvType, Norm, Norms, Run,
    cpu::{
        generic::{
            cache::{self, Cached, Int8},
            element::{Bf16, F16, F32},
            exp, load_partial, load_up_to, negated,
            rotate::{self, Rotation},
            sigmoid, silu, store_partial, store_up_to,
        },
        lanes::Lanes,
        memory::{Buffer, Shared},
    },
    order::{self, SQUARES},
};

/// The gain of a norm, padded with zeros to whole vectors.
pub struct Gain {
    pub(crate) width: usize,
    pub(crate) values: Buffer<f32>,
}

/// Where to write quantised rows; every row is written by one thread.
#[derive(Clone, Copy)]
pub(crate) struct QuantOut<'a> {
    /// `[n][stride]`
    pub(crate) values: Shared<'a, i8>,
    pub(crate) stride: usize,
    pub(crate) scales: ScalesOut<'a>,
}

/// Where to write the scales and sums of quantised values.
#[derive(Clone, Copy)]
pub(crate) enum ScalesOut<'a> {
    /// `[n]`
    Rows(Shared<'a, RowQuant>),
    /// `[n][groups]`
    Groups(Shared<'a, GroupQuant>),
}

/// Computes `y = x / sqrt(mean(x^2) + eps) * gain` for a row padded with zeros to whole vectors; `x` may equal `y`.
#[inline(always)]
unsafe fn normalize<L: Lanes>(x: *const f32, y: *mut f32, width: usize, norm: &Norm<Gain>) {
    let padded = width.next_multiple_of(16);
    // Two vectors of partial sums at a time stay in registers; the row is in L1.
    let mut squares = [L::zero_d(); SQUARES / 16];
    for (group, sums) in squares.chunks_exact_mut(2).enumerate() {
        let mut part = [L::zero_d(); 2];
        let mut at = 32 * group;
        while at + 32 <= padded {
            for (v, sum) in part.iter_mut().enumerate() {
                *sum = L::add_square(*sum, L::load(x.add(at + 16 * v)));
            }
            at += SQUARES;
        }
        for (v, sum) in part.iter_mut().enumerate() {
            if at + 16 * v < padded {
                *sum = L::add_square(*sum, L::load(x.add(at + 16 * v)));
            }
        }
        sums.copy_from_slice(&part);
    }
    let mut half = squares.len() / 2;
    while half > 0 {
        for v in 0..half {
            squares[v] = L::add_d(squares[v], squares[v + half]);
        }
        half /= 2;
    }
    let mean = (L::reduce_add_d(squares[0]) * (1.0 / width as f64)) as f32;
    let r = L::splat(1.0 / (mean + norm.eps).sqrt());
    let gain = norm.gain.values.as_ptr();
    for i in (0..padded).step_by(16) {
        L::store(y.add(i), L::mul(L::mul(L::load(x.add(i)), r), L::load(gain.add(i))));
    }
}

/// Applies the norms in turn, then the transform, and quantises to int8 ([`bitnet_tensor::quant`]). `x` and `scratch` are
/// padded with zeros; the transform needs a second row of scratch.
#[inline(always)]
unsafe fn quantize<L: Lanes>(
    mut x: *const f32,
    width: usize,
    (norms, rotation): (Norms<'_, Gain>, Option<&Rotation>),
    scratch: *mut f32,
    row: usize,
    out: QuantOut<'_>,
) {
    for norm in norms.into_iter().flatten() {
        normalize::<L>(x, scratch, width, norm);
        x = scratch;
    }
    let padded = width.next_multiple_of(16);
    if let Some(rotation) = rotation {
        let turned = scratch.add(padded);
        rotate::apply::<L>(rotation, x, turned);
        x = turned;
    }
    let q = out.values.slice(row * out.stride, padded);
    match out.scales {
        ScalesOut::Rows(rows) => rows.slice(row, 1)[0] = quantize_row::<L>(x, q),
        ScalesOut::Groups(groups) => {
            let count = width.div_ceil(GROUP);
            for (i, group) in groups.slice(row * count, count).iter_mut().enumerate() {
                let q = &mut q[i * GROUP..padded.min((i + 1) * GROUP)];
                *group = quantize_group::<L>(x.add(i * GROUP), q);
            }
        }
    }
}

/// Returns the absolute maximum of some whole vectors of values, or NaN if there is a NaN.
#[inline(always)]
unsafe fn absmax<L: Lanes>(x: *const f32, width: usize) -> f32 {
    let mut bits = L::zero_i();
    for i in (0..width).step_by(16) {
        bits = L::max_abs_bits(bits, L::load(x.add(i)));
    }
    f32::from_bits(L::reduce_max_u(bits))
}

/// Quantises some whole vectors of values to int8 and returns their sum.
#[inline(always)]
unsafe fn scaled<L: Lanes>(x: *const f32, multiplier: f32, q: &mut [i8]) -> i32 {
    let mut sum = L::zero_i();
    for i in (0..q.len()).step_by(16) {
        sum = L::quantize(q.as_mut_ptr().add(i), L::mul(L::load(x.add(i)), L::splat(multiplier)), sum);
    }
    L::reduce_add_i(sum)
}

#[inline(always)]
unsafe fn quantize_row<L: Lanes>(x: *const f32, q: &mut [i8]) -> RowQuant {
    let Some(multiplier) = quant::multiplier(absmax::<L>(x, q.len())) else {
        q.fill(0);
        return RowQuant { multiplier: f32::NAN, sum: 0 };
    };
    RowQuant { multiplier, sum: scaled::<L>(x, multiplier, q) }
}

#[inline(always)]
unsafe fn quantize_group<L: Lanes>(x: *const f32, q: &mut [i8]) -> GroupQuant {
    let (multiplier, scale) = quant::group_scale(absmax::<L>(x, q.len()));
    if multiplier == 0.0 {
        q.fill(0);
        return GroupQuant { scale, ..GroupQuant::default() };
    }
    let (low, high) = q.split_at_mut(q.len().min(GROUP / 2));
    let halves = [scaled::<L>(x, multiplier, low), scaled::<L>(x.wrapping_add(low.len()), multiplier, high)];
    GroupQuant { scale, sum: halves[0] + halves[1], halves }
}

/// Floats of scratch that one thread needs to quantise rows.
pub(crate) fn quantize_scratch(width: usize, rotation: Option<&Rotation>) -> usize {
    width.next_multiple_of(16) * if rotation.is_some() { 2 } else { 1 }
}

pub(crate) struct NormQuantize<'a> {
    /// `[n][stride]`, zeros after `width`.
    pub(crate) x: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) width: usize,
    pub(crate) norms: Norms<'a, Gain>,
    pub(crate) rotation: Option<&'a Rotation>,
    pub(crate) out: QuantOut<'a>,
}

#[inline(always)]
pub(crate) unsafe fn norm_quantize<L: Lanes>(a: &NormQuantize<'_>, rows: Range<usize>, scratch: &mut [f32]) {
    debug_assert!(a.stride >= a.width.next_multiple_of(16), "rows must be padded to whole vectors");
    debug_assert!(scratch.len() >= quantize_scratch(a.width, a.rotation), "scratch must hold the rows");
    for row in rows {
        let x = a.x[row * a.stride..][..a.stride].as_ptr();
        quantize::<L>(x, a.width, (a.norms, a.rotation), scratch.as_mut_ptr(), row, a.out);
    }
}

pub(crate) struct GateNormQuantize<'a> {
    /// `[n][stride]`: gate, then up, `ffn` each.
    pub(crate) x: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) ffn: usize,
    pub(crate) gate: Gate,
    pub(crate) norms: Norms<'a, Gain>,
    pub(crate) rotation: Option<&'a Rotation>,
    pub(crate) out: QuantOut<'a>,
}

#[inline(always)]
pub(crate) unsafe fn gate_norm_quantize<L: Lanes>(
    a: &GateNormQuantize<'_>,
    rows: Range<usize>,
    scratch: &mut [f32],
) {
    debug_assert!(scratch.len() >= quantize_scratch(a.ffn, a.rotation), "scratch must hold the rows");
    let y = scratch.as_mut_ptr();
    for row in rows {
        let gate = a.x[row * a.stride..][..2 * a.ffn].as_ptr();
        gate_values::<L>(a.gate, gate, gate.add(a.ffn), a.ffn, y);
        quantize::<L>(y, a.ffn, (a.norms, a.rotation), y, row, a.out);
    }
}

/// Gates `width` values and pads them with zeros to whole vectors.
#[inline(always)]
unsafe fn gate_values<L: Lanes>(by: Gate, gate: *const f32, up: *const f32, width: usize, y: *mut f32) {
    for i in (0..width).step_by(16) {
        let some = (width - i).min(16);
        let (g, u) = (load_up_to::<L>(gate.add(i), some), load_up_to::<L>(up.add(i), some));
        L::store(y.add(i), gated::<L>(by, g, u));
    }
}

pub(crate) struct GateQuantize<'a> {
    /// `[n][stride]`: gate, then up, `ffn` each.
    pub(crate) x: Shared<'a, f32>,
    pub(crate) stride: usize,
    pub(crate) ffn: usize,
    pub(crate) gate: Gate,
    pub(crate) out: QuantOut<'a>,
}

/// Does to one group of columns of some rows what [`gate_norm_quantize`] does to all, without norms: the caller has the only
/// access to these columns.
#[inline(always)]
pub(crate) unsafe fn gate_quantize<L: Lanes>(a: &GateQuantize<'_>, rows: Range<usize>, group: usize) {
    let ScalesOut::Groups(groups) = a.out.scales else { panic!("groups of columns must have scales") };
    let (first, count) = (group * GROUP, a.ffn.div_ceil(GROUP));
    let width = (a.ffn - first).min(GROUP);
    let mut y = [0.0f32; GROUP];
    for row in rows {
        let [gate, up] = [first, a.ffn + first].map(|at| a.x.slice(row * a.stride + at, width).as_ptr());
        gate_values::<L>(a.gate, gate, up, width, y.as_mut_ptr());
        let q = a.out.values.slice(row * a.out.stride + first, width.next_multiple_of(16));
        groups.slice(row * count + group, 1)[0] = quantize_group::<L>(y.as_ptr(), q);
    }
}

#[inline(always)]
unsafe fn gated<L: Lanes>(gate: Gate, g: L::F, u: L::F) -> L::F {
    match gate {
        Gate::SquaredRelu => {
            let r = L::max(L::splat(0.0), g);
            L::mul(L::mul(r, r), u)
        }
        Gate::Silu => L::mul(silu::<L>(g), u),
        Gate::ClampedSilu { limit } => {
            let limits = L::splat(limit);
            // The limit comes first, so that a NaN passes.
            let u = L::max(L::splat(-limit), L::min(limits, u));
            L::mul(silu::<L>(L::min(limits, g)), u)
        }
        Gate::Gelu => {
            let z = L::mul(g, L::fma(L::mul(g, g), L::splat(order::GELU[1]), L::splat(order::GELU[0])));
            let one = L::splat(1.0);
            L::mul(L::div(g, L::add(one, exp::<L>(negated::<L>(z)))), u)
        }
    }
}

pub(crate) struct NormRows<'a> {
    pub(crate) rows: &'a [usize],
    /// `[..][stride]`, zeros after `width`.
    pub(crate) x: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) width: usize,
    pub(crate) norm: &'a Norm<Gain>,
    /// `[rows][stride]`
    pub(crate) out: Shared<'a, f32>,
}

#[inline(always)]
pub(crate) unsafe fn norm_rows<L: Lanes>(a: &NormRows<'_>) {
    for (i, &row) in a.rows.iter().enumerate() {
        let x = a.x[row * a.stride..][..a.stride].as_ptr();
        normalize::<L>(x, a.out.slice(i * a.stride, a.stride).as_mut_ptr(), a.width, a.norm);
    }
}

pub(crate) struct NormAdd<'a> {
    /// `[n][stride]`, zeros after `width`.
    pub(crate) x: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) width: usize,
    pub(crate) norm: &'a Norm<Gain>,
    /// `[n][stride]`
    pub(crate) out: Shared<'a, f32>,
}

/// Adds normalised rows to others; `scratch` holds a row.
#[inline(always)]
pub(crate) unsafe fn norm_add<L: Lanes>(a: &NormAdd<'_>, rows: Range<usize>, scratch: &mut [f32]) {
    debug_assert!(scratch.len() >= a.width.next_multiple_of(16), "scratch must hold a row");
    let y = scratch.as_mut_ptr();
    for row in rows {
        normalize::<L>(a.x[row * a.stride..][..a.stride].as_ptr(), y, a.width, a.norm);
        let out = a.out.slice(row * a.stride, a.width).as_mut_ptr();
        for i in (0..a.width).step_by(16) {
            let (out, some) = (out.add(i), (a.width - i).min(16));
            store_up_to::<L>(out, L::add(load_up_to::<L>(out, some), L::load(y.add(i))), some);
        }
    }
}

/// Sums of what the experts of every token have computed.
pub(crate) struct ExpertSums<'a> {
    /// `[slots][stride]`: the output of an expert for a token.
    pub(crate) outputs: Shared<'a, f32>,
    pub(crate) stride: usize,
    /// The slot and the weight of every expert of every token, `[n][used]`, in ascending order of expert.
    pub(crate) chosen: &'a [(u32, f32)],
    pub(crate) used: usize,
    /// `[n][stride]`, to which the sums are added.
    pub(crate) out: Shared<'a, f32>,
}

/// Adds the sums in some columns to the output.
#[inline(always)]
pub(crate) unsafe fn expert_sums<L: Lanes>(a: &ExpertSums<'_>, columns: Range<usize>) {
    for (token, chosen) in a.chosen.chunks_exact(a.used).enumerate() {
        for at in columns.clone().step_by(16) {
            let some = (columns.end - at).min(16);
            let mut sum = L::splat(0.0);
            for &(slot, weight) in chosen {
                let y = a.outputs.slice(slot as usize * a.stride + at, some).as_ptr();
                sum = L::fma(L::splat(weight), load_up_to::<L>(y, some), sum);
            }
            let out = a.out.slice(token * a.stride + at, some).as_mut_ptr();
            store_up_to::<L>(out, L::add(load_up_to::<L>(out, some), sum), some);
        }
    }
}

pub(crate) struct SigmoidGate<'a> {
    /// `[n][stride]`, with the gates from `column` on.
    pub(crate) x: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) column: usize,
    /// `[n][out_stride]`
    pub(crate) out: Shared<'a, f32>,
    pub(crate) out_stride: usize,
    pub(crate) width: usize,
}

#[inline(always)]
pub(crate) unsafe fn sigmoid_gate<L: Lanes>(a: &SigmoidGate<'_>, rows: Range<usize>) {
    let (whole, rest) = (a.width / 16 * 16, a.width % 16);
    for row in rows {
        let gate = a.x[row * a.stride + a.column..][..a.width].as_ptr();
        let out = a.out.slice(row * a.out_stride, a.width).as_mut_ptr();
        for i in (0..whole).step_by(16) {
            let y = L::mul(L::load(out.add(i)), sigmoid::<L>(L::load(gate.add(i))));
            L::store(out.add(i), y);
        }
        if rest > 0 {
            let (x, g) = (load_partial::<L>(out.add(whole), rest), load_partial::<L>(gate.add(whole), rest));
            store_partial::<L>(out.add(whole), L::mul(x, sigmoid::<L>(g)), rest);
        }
    }
}

pub(crate) struct NormRopeStore<'a> {
    pub(crate) runs: &'a [Run],
    pub(crate) blocks: &'a [u32],
    /// `[positions][width / 2]`
    pub(crate) cos: &'a [f32],
    pub(crate) sin: &'a [f32],
    /// Dimensions of a head that are rotated.
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) norms: HeadNorms<'a, Gain>,
    pub(crate) shape: KvShape,
    pub(crate) kv: KvType,
    /// `[n][stride]`: queries, keys, values, and columns that are left alone.
    pub(crate) qkv: Shared<'a, f32>,
    pub(crate) stride: usize,
    /// As in [`cache`].
    pub(crate) keys: Shared<'a, u8>,
    pub(crate) values: Shared<'a, u8>,
}

/// Handles some heads, counted through queries, keys and values, of all tokens: the caller has the only access to these in
/// the three buffers, and gives scratch for a head.
#[inline(always)]
pub(crate) unsafe fn norm_rope_store<L: Lanes>(
    a: &NormRopeStore<'_>,
    heads: Range<usize>,
    scratch: &mut [f32],
) {
    match a.kv {
        KvType::F32 => rope_store_as::<L, F32>(a, heads, scratch),
        KvType::F16 => rope_store_as::<L, F16>(a, heads, scratch),
        KvType::Bf16 => rope_store_as::<L, Bf16>(a, heads, scratch),
        KvType::Int8 => rope_store_as::<L, Int8>(a, heads, scratch),
    }
}

/// Normalises a head; `scratch` is as long as a head padded to whole vectors.
#[inline(always)]
pub(crate) unsafe fn normalize_head<L: Lanes>(head: &mut [f32], norm: &Norm<Gain>, scratch: &mut [f32]) {
    let width = head.len();
    if width.is_multiple_of(16) {
        return normalize::<L>(head.as_ptr(), head.as_mut_ptr(), width, norm);
    }
    let scratch = &mut scratch[..width.next_multiple_of(16)];
    scratch.fill(0.0);
    scratch[..width].copy_from_slice(head);
    normalize::<L>(scratch.as_ptr(), scratch.as_mut_ptr(), width, norm);
    head.copy_from_slice(&scratch[..width]);
}

#[inline(always)]
unsafe fn rope_store_as<L: Lanes, S: Cached>(
    a: &NormRopeStore<'_>,
    heads: Range<usize>,
    scratch: &mut [f32],
) {
    let dim = a.shape.head_dim;
    let wide = a.shape.value_stride();
    let kv_heads = a.shape.kv_heads;
    let (key_panel, value_panel) = (S::KV.panel(dim), S::KV.panel(wide));
    let (first_key, first_value) = (a.heads, a.heads + kv_heads);
    for run in a.runs {
        for (i, t) in run.tokens.clone().enumerate() {
            let position = run.start + i;
            let table = position * (a.width / 2);
            let cos = &a.cos[table..][..a.width / 2];
            let sin = &a.sin[table..][..a.width / 2];
            let block = a.blocks[run.blocks.start + position / BLOCK_TOKENS] as usize;
            let slot = position % BLOCK_TOKENS;
            for h in heads.clone() {
                let head = a.qkv.slice(t * a.stride + h * dim, dim);
                if h >= first_value {
                    let panel = (block * kv_heads + h - first_value) * value_panel;
                    let panel = a.values.slice(panel, value_panel);
                    cache::store::<S>(panel, wide, slot, (slot * wide, 1), head);
                    continue;
                }
                if let Some([queries, keys]) = a.norms {
                    normalize_head::<L>(head, if h < first_key { queries } else { keys }, scratch);
                }
                let (low, high) = head[..a.width].split_at_mut(a.width / 2);
                for ((x, y), (&c, &s)) in low.iter_mut().zip(high).zip(cos.iter().zip(sin)) {
                    (*x, *y) = (L::fused(*x, c, -(*y * s)), L::fused(*y, c, *x * s));
                }
                if h >= first_key {
                    let panel = a.keys.slice((block * kv_heads + h - first_key) * key_panel, key_panel);
                    cache::store::<S>(panel, dim, slot, (slot / 16 * 16 * dim + slot % 16, 16), head);
                }
            }
        }
    }
}

/// Divides the first `width` values of a padded row by `divisor` and stores them.
#[inline(always)]
pub(crate) unsafe fn store_row<L: Lanes>(from: *const f32, to: *mut f32, width: usize, divisor: f32) {
    let divisor = L::splat(divisor);
    let whole = width / 16 * 16;
    for i in (0..whole).step_by(16) {
        L::store(to.add(i), L::div(L::load(from.add(i)), divisor));
    }
    if whole < width {
        store_partial::<L>(to.add(whole), L::div(L::load(from.add(whole)), divisor), width - whole);
    }
}

/// Sums `weights`, padded with zeros, in 16 partial sums by index.
#[inline(always)]
pub(crate) unsafe fn sum_by_lane<L: Lanes>(weights: *const f32, padded: usize) -> f32 {
    let mut sum = L::splat(0.0);
    for i in (0..padded).step_by(16) {
        sum = L::add(sum, L::load(weights.add(i)));
    }
    L::reduce_add(sum)
}
