//! The reference: every operation as plain loops over vectors, in the order that [`crate::order`] defines.

mod experts;
mod recurrent;

use bitnet_tensor::{BitNetTensor, DType, SharedBytes, TernaryScales, TernaryTensor, quant};
use half::{bf16, f16};

use crate::{
    BLOCK_TOKENS, Backend, BackendInfo, DeltaShape, DeltaWeights, Drawn, Edits, ExpertShape, ExpertWeights,
    Gate, Grouping, HeadNorms, Inspect, Int8Matrix, KernelError, KvShape, KvType, Norm, Norms, Rotate,
    RowOrder, RowsKind, Step, TableWeights, Wanted, Weights,
    order::{self, GELU, SEGMENT, SQUARES, exp, fused, grouped, merge, sigmoid, tree},
    scales::Scales,
};
pub use experts::Experts;
pub use recurrent::{Delta, Rotation, State};

/// The scalar backend that all others are compared with. It makes no attempt to be fast.
///
/// It keeps everything in f32, as the CPU does. [`Reference::bf16`] rounds where a GPU does (`docs/dev/kernels.md`
/// lists the points).
#[derive(Debug, Default)]
pub struct Reference {
    bf16: bool,
    kv: KvType,
}

impl Reference {
    /// A reference that rounds to bf16 where a GPU does.
    pub fn bf16() -> Self {
        Reference { bf16: true, kv: KvType::Bf16 }
    }

    /// The same reference with a cache of type `kv`.
    pub fn keeping(self, kv: KvType) -> Self {
        Reference { kv, ..self }
    }

    /// Rounds a value that is passed from one operation to the next.
    fn between(&self, x: f32) -> f32 {
        if self.bf16 { bf16::from_f32(x).to_f32() } else { x }
    }

    /// Bounds a cached value: a GPU replaces a value that is not finite by the largest of its sign, because a masked
    /// key has weight zero, and zero times its value must be zero.
    fn bounded(&self, x: f32) -> f32 {
        if self.bf16 && !x.is_finite() { bf16::MAX.to_f32().copysign(x) } else { x }
    }

    /// Returns the numbers that the cache stores for a key or value, and their scale.
    fn cached(&self, row: &[f32]) -> (Vec<f32>, f32) {
        let largest = row.iter().fold(0.0f32, |m, x| if m.is_nan() || m > x.abs() { m } else { x.abs() });
        let scale = if self.kv == KvType::Int8 { largest / 127.0 } else { 1.0 };
        let kept = |&x: &f32| match self.kv {
            KvType::F32 => x,
            KvType::F16 => f16::from_f32(x).to_f32(),
            KvType::Bf16 => bf16::from_f32(x).to_f32(),
            KvType::Int8 if scale == 0.0 || !scale.is_finite() => 0.0,
            KvType::Int8 => f32::from((x / scale).round_ties_even().clamp(-127.0, 127.0) as i8),
        };
        (row.iter().map(kept).collect(), scale)
    }

    /// Whether a cache is multiplied as integers; a GPU converts its numbers.
    fn multiplies_integers(&self) -> bool {
        self.kv == KvType::Int8 && !self.bf16
    }

    /// Rounds a value as `rows` store it.
    fn kept(&self, rows: &Rows, x: f32) -> f32 {
        if rows.kind == RowsKind::Intermediate { self.between(x) } else { x }
    }
}

/// Activations of the reference.
#[derive(Debug, Clone)]
pub struct Rows {
    kind: RowsKind,
    width: usize,
    values: Vec<f32>,
}

impl Rows {
    fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.width..][..self.width]
    }

    fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.values[i * self.width..][..self.width]
    }
}

/// int8 activations of the reference.
#[derive(Debug, Clone)]
pub struct Int8Rows {
    width: usize,
    values: Vec<i8>,
    scales: Scales,
}

/// A matrix of the reference.
#[derive(Debug)]
pub enum Linear {
    /// Ternary.
    Ternary(TernaryTensor),
    /// int8.
    Int8(Int8Matrix),
}

/// An embedding or output head of the reference.
#[derive(Debug)]
pub enum Table {
    /// Rows of floats.
    Dense(BitNetTensor),
    /// Rows of codes, with one scale per group of columns, and the transform that they contain.
    Ternary(TernaryTensor, Option<Rotation>),
}

impl Table {
    /// Rows and columns.
    fn shape(&self) -> [usize; 2] {
        match self {
            Table::Dense(table) => [table.rows(), table.cols()],
            Table::Ternary(table, _) => [table.rows(), table.cols()],
        }
    }
}

/// Rotary tables of the reference.
#[derive(Debug)]
pub struct Rope {
    cos: Vec<f32>,
    sin: Vec<f32>,
    width: usize,
}

/// Keys and values of the reference, `[block][slot][kv_head][head_dim + 1]`: the numbers, then their scale.
#[derive(Debug)]
pub struct Kv {
    shape: KvShape,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Kv {
    fn at(&self, block: u32, slot: usize, kv_head: usize) -> usize {
        let s = self.shape;
        ((block as usize * BLOCK_TOKENS + slot) * s.kv_heads + kv_head) * (s.head_dim + 1)
    }
}

/// Dot product, summed in the order of [`crate::order`].
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut partial = [0.0f32; 16];
    for (i, (&a, &b)) in a.iter().zip(b).enumerate() {
        partial[i % 16] = fused(a, b, partial[i % 16]);
    }
    tree(partial)
}

/// Returns integers for floats, up to `most` in magnitude, and their scale.
fn integers(x: &[f32], most: f32) -> (Vec<i32>, f32) {
    let absmax = x.iter().fold(0, |m, x| x.abs().to_bits().max(m));
    let (factor, scale) = order::integers(f32::from_bits(absmax), most);
    (x.iter().map(|x| i32::from((x * factor).round_ties_even() as i16)).collect(), scale)
}

/// Writes floats as bytes.
fn write_floats<'a>(values: impl Iterator<Item = &'a f32>, to: &mut [u8]) {
    to.as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, value)| *to = value.to_le_bytes());
}

/// Reads what [`write_floats`] has written.
fn read_floats<'a>(from: &[u8], values: impl Iterator<Item = &'a mut f32>) {
    values.zip(from.as_chunks().0).for_each(|(value, from)| *value = f32::from_le_bytes(*from));
}

fn rms_norm(x: &mut [f32], norm: &Norm<Vec<f32>>) {
    let mut partial = [0.0f64; SQUARES];
    for (i, &x) in x.iter().enumerate() {
        partial[i % SQUARES] += f64::from(x) * f64::from(x);
    }
    let mean = (tree(partial) * (1.0 / x.len() as f64)) as f32;
    let r = 1.0 / (mean + norm.eps).sqrt();
    for (x, &g) in x.iter_mut().zip(&norm.gain) {
        *x = *x * r * g;
    }
}

fn quantize_into(
    mut x: Vec<f32>,
    norms: Norms<'_, Vec<f32>>,
    rotation: Option<&Rotation>,
    row: usize,
    out: &mut Int8Rows,
) {
    for norm in norms.into_iter().flatten() {
        rms_norm(&mut x, norm);
    }
    if let Some(rotation) = rotation {
        rotation.apply(&mut x);
    }
    let q = &mut out.values[row * out.width..][..out.width];
    match &mut out.scales {
        Scales::Rows(rows) => rows[row] = quant::quantize_row(&x, q),
        Scales::Groups(groups) => {
            let count = x.len().div_ceil(quant::GROUP);
            quant::quantize_groups(&x, q, &mut groups[row * count..][..count]);
        }
    }
}

fn gated(gate: Gate, g: f32, u: f32) -> f32 {
    match gate {
        Gate::SquaredRelu => {
            let r = if 0.0 > g { 0.0 } else { g };
            r * r * u
        }
        Gate::Silu => g / (1.0 + exp(-g)) * u,
        Gate::ClampedSilu { limit } => {
            // These comparisons pass a NaN through, as the vector instructions do.
            let g = if limit < g { limit } else { g };
            let u = if limit < u { limit } else { u };
            let u = if -limit > u { -limit } else { u };
            g / (1.0 + exp(-g)) * u
        }
        Gate::Gelu => {
            let z = g * fused(g * g, GELU[1], GELU[0]);
            g / (1.0 + exp(-z)) * u
        }
    }
}

/// Multiplies a row of activations by every row of the matrix.
fn multiply(x: &Int8Rows, t: usize, w: &Linear) -> Vec<f32> {
    let w = match w {
        Linear::Ternary(w) => return multiply_ternary(x, t, w),
        Linear::Int8(w) => w,
    };
    assert_eq!(x.width, w.cols(), "activations must be as wide as the matrix");
    let Scales::Groups(groups) = &x.scales else {
        panic!("activations and matrix must have the same grouping")
    };
    let (q, count) = (&x.values[t * x.width..][..x.width], x.width.div_ceil(quant::GROUP));
    (0..w.rows()).map(|r| w.product(r, q, &groups[t * count..][..count])).collect()
}

fn multiply_ternary(x: &Int8Rows, t: usize, w: &TernaryTensor) -> Vec<f32> {
    assert_eq!(x.width, w.cols(), "activations must be as wide as the matrix");
    let q = &x.values[t * x.width..][..x.width];
    match (w.scales(), &x.scales) {
        (TernaryScales::Rows(_), Scales::Rows(rows)) => multiply_rows(q, rows[t].multiplier, w).collect(),
        (&TernaryScales::Groups { width, .. }, Scales::Groups(groups)) => {
            let count = x.width.div_ceil(quant::GROUP);
            multiply_groups(q, &groups[t * count..][..count], w, width).collect()
        }
        _ => panic!("activations and matrix must have the same grouping"),
    }
}

/// Returns `sum_k q[k] * w[r][k]` as f32, `/ multiplier * scale`, for every row `r`.
fn multiply_rows(q: &[i8], multiplier: f32, w: &TernaryTensor) -> impl Iterator<Item = f32> {
    (0..w.rows()).map(move |r| {
        let sum: i32 = w.row_trits(r).zip(q).map(|(trit, &q)| i32::from(trit) * i32::from(q)).sum();
        sum as f32 / multiplier * w.row_scale(r).expect("rows have scales")
    })
}

/// Adds the groups of `width` columns of every row of weights in order with [`grouped`].
fn multiply_groups(
    q: &[i8],
    groups: &[quant::GroupQuant],
    w: &TernaryTensor,
    width: usize,
) -> impl Iterator<Item = f32> {
    (0..w.rows()).map(move |r| {
        let trits: Vec<i8> = w.row_trits(r).collect();
        let (trits, q) = (trits.chunks(width), q.chunks(width));
        let scales = w.group_scales(r).iter().enumerate();
        trits.zip(q).zip(scales).fold(0.0, |total, ((trits, q), (i, scale))| {
            let sum = trits.iter().zip(q).map(|(&t, &q)| i32::from(t) * i32::from(q)).sum();
            grouped(total, sum, groups[i * width / quant::GROUP].scale, scale.to_f32())
        })
    })
}

/// Rounds a dense matrix to bf16.
fn rounded(weights: &BitNetTensor) -> BitNetTensor {
    let bytes: Vec<u8> = weights.to_f32().into_iter().flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect();
    let shape = [weights.rows(), weights.cols()];
    BitNetTensor::new(DType::BF16, shape, SharedBytes::new(bytes)).expect("bytes of the shape")
}

impl Backend for Reference {
    type Rows = Rows;
    type Int8Rows = Int8Rows;
    type Linear = Linear;
    type Table = Table;
    type Gain = Vec<f32>;
    type Rope = Rope;
    type Kv = Kv;
    type Delta = Delta;
    type State = State;
    type Rotation = Rotation;
    type Experts = Experts;

    fn info(&self) -> BackendInfo {
        BackendInfo { device: "reference".into(), isa: "scalar", threads: 1, kv: self.kv.name() }
    }

    fn rows(&mut self, rows: usize, width: usize, kind: RowsKind) -> Result<Rows, KernelError> {
        Ok(Rows { kind, width, values: vec![0.0; rows * width] })
    }

    fn int8_rows(&mut self, rows: usize, width: usize, grouping: Grouping) -> Result<Int8Rows, KernelError> {
        let scales = Scales::zeroed(rows, width, grouping);
        Ok(Int8Rows { width, values: vec![0; rows * width], scales })
    }

    fn linear<'a>(&mut self, weights: impl Into<Weights<'a>>, _: RowOrder) -> Result<Linear, KernelError> {
        Ok(match weights.into() {
            Weights::Int8(weights) => Linear::Int8(weights),
            weights => Linear::Ternary(weights.canonical()?.into_owned()),
        })
    }

    fn table<'a>(&mut self, weights: impl Into<TableWeights<'a>>) -> Result<Table, KernelError> {
        Ok(match weights.into() {
            TableWeights::Dense(weights) if self.bf16 => Table::Dense(rounded(weights)),
            TableWeights::Dense(weights) => Table::Dense(weights.clone()),
            TableWeights::Ternary(weights) => Table::Ternary(weights.canonical()?.into_owned(), None),
        })
    }

    fn gain(&mut self, gain: &[f32]) -> Result<Vec<f32>, KernelError> {
        Ok(gain.to_vec())
    }

    fn rope(&mut self, cos: &[f32], sin: &[f32], width: usize) -> Result<Rope, KernelError> {
        Ok(Rope { cos: cos.to_vec(), sin: sin.to_vec(), width })
    }

    fn kv(&mut self, shape: KvShape) -> Result<Kv, KernelError> {
        let n = shape.blocks * BLOCK_TOKENS * shape.kv_heads * (shape.head_dim + 1);
        Ok(Kv { shape, keys: vec![0.0; n], values: vec![0.0; n] })
    }

    fn delta(&mut self, shape: DeltaShape, weights: &DeltaWeights<'_>) -> Result<Delta, KernelError> {
        Ok(Delta::new(shape, weights))
    }

    fn state(&mut self, shape: DeltaShape, slots: usize) -> Result<State, KernelError> {
        Ok(State::new(shape, slots))
    }

    fn rotation(&mut self, width: usize, rotate: &Rotate<'_>) -> Result<Rotation, KernelError> {
        Ok(Rotation::new(width, rotate))
    }

    fn rotate_table(&mut self, table: &mut Table, rotation: Rotation) {
        let Table::Ternary(_, contained) = table else { panic!("only a ternary table can be rotated") };
        *contained = Some(rotation);
    }

    fn embed(
        &mut self,
        table: &Table,
        tokens: &[u32],
        factor: f32,
        out: &mut Rows,
    ) -> Result<(), KernelError> {
        for (i, &token) in tokens.iter().enumerate() {
            let (token, out) = (token as usize, out.row_mut(i));
            match table {
                Table::Dense(table) => table.decode_row(token, out),
                Table::Ternary(table, rotation) => {
                    table.decode_row(token, out);
                    if let Some(rotation) = rotation {
                        rotation.undo(out);
                    }
                }
            }
            out.iter_mut().for_each(|x| *x *= factor);
        }
        Ok(())
    }

    fn norm_quantize(
        &mut self,
        n: usize,
        x: &Rows,
        norms: Norms<'_, Vec<f32>>,
        rotation: Option<&Rotation>,
        out: &mut Int8Rows,
    ) -> Result<(), KernelError> {
        for row in 0..n {
            quantize_into(x.row(row).to_vec(), norms, rotation, row, out);
        }
        Ok(())
    }

    fn bit_linear(
        &mut self,
        n: usize,
        x: &Int8Rows,
        w: &Linear,
        out: &mut Rows,
        column: usize,
        add: Option<f32>,
    ) -> Result<(), KernelError> {
        for t in 0..n {
            for (r, y) in multiply(x, t, w).into_iter().enumerate() {
                let at = t * out.width + column + r;
                let y = add.map_or(y, |factor| out.values[at] + factor * y);
                out.values[at] = self.kept(out, y);
            }
        }
        Ok(())
    }

    fn norm_rope_store(
        &mut self,
        Step { runs, blocks, .. }: Step<'_>,
        heads: usize,
        rope: &Rope,
        norms: HeadNorms<'_, Vec<f32>>,
        qkv: &mut Rows,
        kv: &mut Kv,
    ) -> Result<(), KernelError> {
        let (dim, kv_heads) = (kv.shape.head_dim, kv.shape.kv_heads);
        for run in runs {
            for (i, t) in run.tokens.clone().enumerate() {
                let position = run.start + i;
                let row = qkv.row_mut(t);
                for (h, head) in row.chunks_exact_mut(dim).take(heads + kv_heads).enumerate() {
                    if let Some([queries, keys]) = norms {
                        rms_norm(head, if h < heads { queries } else { keys });
                    }
                    let (low, high) = head[..rope.width].split_at_mut(rope.width / 2);
                    for (d, (x, y)) in low.iter_mut().zip(high).enumerate() {
                        let at = position * rope.width / 2 + d;
                        let (c, s) = (rope.cos[at], rope.sin[at]);
                        (*x, *y) = (fused(*x, c, -(*y * s)), fused(*y, c, *x * s));
                    }
                }
                row.iter_mut().for_each(|x| *x = self.between(*x));
                let block = blocks[run.blocks.start + position / BLOCK_TOKENS];
                for h in 0..kv_heads {
                    let at = kv.at(block, position % BLOCK_TOKENS, h);
                    let (key, scale) = self.cached(&row[(heads + h) * dim..][..dim]);
                    kv.keys[at..at + dim].copy_from_slice(&key);
                    kv.keys[at + dim] = scale;
                    let value = &row[(heads + kv_heads + h) * dim..][..dim];
                    let value: Vec<f32> = value.iter().map(|&x| self.bounded(x)).collect();
                    let (value, scale) = self.cached(&value);
                    kv.values[at..at + dim].copy_from_slice(&value);
                    kv.values[at + dim] = scale;
                }
            }
        }
        Ok(())
    }

    fn attention(
        &mut self,
        Step { runs, blocks, window, .. }: Step<'_>,
        qkv: &Rows,
        kv: &Kv,
        out: &mut Rows,
    ) -> Result<(), KernelError> {
        let (dim, kv_heads) = (kv.shape.head_dim, kv.shape.kv_heads);
        let heads = out.width / dim;
        let scale = 1.0 / (dim as f32).sqrt();
        // On a GPU, a segment is a block of the cache.
        let length = if self.bf16 { BLOCK_TOKENS } else { SEGMENT };
        for run in runs {
            let at = |key: usize, h: usize| {
                kv.at(blocks[run.blocks.start + key / BLOCK_TOKENS], key % BLOCK_TOKENS, h)
            };
            for (i, t) in run.tokens.clone().enumerate() {
                let keys = run.start + i + 1;
                let from = keys - window.unwrap_or(keys).min(keys);
                for h in 0..heads {
                    let kv_head = h / (heads / kv_heads);
                    let q = &qkv.row(t)[h * dim..][..dim];
                    let query = self.multiplies_integers().then(|| integers(q, order::query(dim)));
                    let mut state: Option<(f32, f32, Vec<f32>)> = None;
                    for first in (from / length * length..keys).step_by(length) {
                        let segment = first.max(from)..keys.min(first + length);
                        let scores: Vec<f32> = segment
                            .clone()
                            .map(|key| {
                                let k = &kv.keys[at(key, kv_head)..][..dim + 1];
                                if let Some((query, query_scale)) = &query {
                                    let sum: i32 = query.iter().zip(k).map(|(&q, &k)| q * k as i32).sum();
                                    return sum as f32 * k[dim] * (query_scale * scale);
                                }
                                q.iter().zip(k).fold(0.0f32, |s, (&q, &k)| fused(q, k, s)) * k[dim] * scale
                            })
                            .collect();
                        let max = scores.iter().fold(f32::NEG_INFINITY, |m, &s| if m > s { m } else { s });
                        let weights: Vec<f32> = scores.iter().map(|&s| exp(s - max)).collect();
                        let mut partial = [0.0f32; 16];
                        let value = |key| &kv.values[at(key, kv_head)..][..dim + 1];
                        let scaled = segment.clone().zip(&weights).map(|(key, &p)| p * value(key)[dim]);
                        let scaled: Vec<f32> = scaled.collect();
                        for (key, &p) in segment.clone().zip(&weights) {
                            partial[(key - first) % 16] += p;
                        }
                        let values: Vec<f32> = if self.multiplies_integers() {
                            let (weights, scale) = integers(&scaled, order::WEIGHT);
                            let mut sums = vec![0i32; dim];
                            for (key, weight) in segment.zip(weights) {
                                for (sum, &v) in sums.iter_mut().zip(value(key)) {
                                    *sum += weight * v as i32;
                                }
                            }
                            sums.iter().map(|&sum| sum as f32 * scale).collect()
                        } else {
                            let mut values = vec![0.0f32; dim];
                            for (key, &p) in segment.zip(&scaled) {
                                let p = self.between(p);
                                for (o, &v) in values.iter_mut().zip(value(key)) {
                                    *o = fused(p, v, *o);
                                }
                            }
                            values
                        };
                        let sum = tree(partial);
                        state = Some(match state {
                            None => (max, sum, values),
                            Some((m, l, mut running)) => {
                                let (max, a, b) = merge(m, max);
                                for (r, v) in running.iter_mut().zip(values) {
                                    *r = fused(*r, a, v * b);
                                }
                                (max, fused(l, a, sum * b), running)
                            }
                        });
                    }
                    let (_, sum, values) = state.expect("a token attends at least to itself");
                    for (o, v) in out.row_mut(t)[h * dim..][..dim].iter_mut().zip(values) {
                        *o = self.between(v / sum);
                    }
                }
            }
        }
        Ok(())
    }

    fn gate_norm_quantize(
        &mut self,
        n: usize,
        gate_up: &Rows,
        gate: Gate,
        norms: Norms<'_, Vec<f32>>,
        rotation: Option<&Rotation>,
        out: &mut Int8Rows,
    ) -> Result<(), KernelError> {
        for row in 0..n {
            let (g, u) = gate_up.row(row).split_at(gate_up.width / 2);
            let gated = g.iter().zip(u).map(|(&g, &u)| gated(gate, g, u));
            quantize_into(gated.collect(), norms, rotation, row, out);
        }
        Ok(())
    }

    /// Rounds once, after the gate.
    fn bit_linear_gate_norm_quantize(
        &mut self,
        n: usize,
        x: &Int8Rows,
        w: &Linear,
        gate: Gate,
        norms: Norms<'_, Vec<f32>>,
        rotation: Option<&Rotation>,
        _: &mut Rows,
        out: &mut Int8Rows,
    ) -> Result<(), KernelError> {
        for row in 0..n {
            let y = multiply(x, row, w);
            let (g, u) = y.split_at(y.len() / 2);
            let h = g.iter().zip(u).map(|(&g, &u)| self.between(gated(gate, g, u))).collect();
            quantize_into(h, norms, rotation, row, out);
        }
        Ok(())
    }

    /// Rounds once, after queries and keys are rotated; where heads have norms, also before the norms.
    fn bit_linear_norm_rope_store(
        &mut self,
        step: Step<'_>,
        x: &Int8Rows,
        w: &Linear,
        heads: usize,
        rope: &Rope,
        norms: HeadNorms<'_, Vec<f32>>,
        qkv: &mut Rows,
        kv: &mut Kv,
    ) -> Result<(), KernelError> {
        let rounded = norms.is_some() || self.kv == KvType::Int8;
        for t in 0..step.tokens() {
            for (o, y) in qkv.row_mut(t).iter_mut().zip(multiply(x, t, w)) {
                *o = if rounded { self.between(y) } else { y };
            }
        }
        self.norm_rope_store(step, heads, rope, norms, qkv, kv)
    }

    fn gated_delta(
        &mut self,
        Step { runs, .. }: Step<'_>,
        x: &Rows,
        w: &Delta,
        state: &mut State,
        out: &mut Rows,
    ) -> Result<(), KernelError> {
        for run in runs {
            w.run(run, x, state, |t, values| {
                for (i, value) in values.into_iter().enumerate() {
                    out.values[t * out.width + i] = self.kept(out, value);
                }
            });
        }
        Ok(())
    }

    fn reserve_log(&mut self, _: &mut State, drafts: usize) -> Result<usize, KernelError> {
        Ok(drafts)
    }

    fn copy_state(&mut self, state: &mut State, from: u32, to: u32) -> Result<(), KernelError> {
        state.slots[to as usize] = state.slots[from as usize].clone();
        Ok(())
    }

    fn sigmoid_gate(&mut self, n: usize, x: &Rows, column: usize, out: &mut Rows) -> Result<(), KernelError> {
        for t in 0..n {
            for i in 0..out.width {
                let at = t * out.width + i;
                out.values[at] = self.kept(out, out.values[at] * sigmoid(x.row(t)[column + i]));
            }
        }
        Ok(())
    }

    fn dense(
        &mut self,
        n: usize,
        x: &Rows,
        norm: &Norm<Vec<f32>>,
        w: &Table,
        out: &mut Rows,
        column: usize,
    ) -> Result<(), KernelError> {
        let Table::Dense(table) = w else { panic!("the table must be dense") };
        let mut weights = vec![0.0; table.cols()];
        for t in 0..n {
            let mut x = x.row(t).to_vec();
            rms_norm(&mut x, norm);
            for r in 0..table.rows() {
                table.decode_row(r, &mut weights);
                out.values[t * out.width + column + r] = self.kept(out, dot(&weights, &x));
            }
        }
        Ok(())
    }

    fn experts(&mut self, shape: ExpertShape, weights: ExpertWeights<'_>) -> Result<Experts, KernelError> {
        Experts::new(shape, weights)
    }

    fn mix_experts(
        &mut self,
        n: usize,
        norm: &Norm<Vec<f32>>,
        w: &Experts,
        x: &mut Rows,
    ) -> Result<(), KernelError> {
        for t in 0..n {
            w.add_to(norm, x.row_mut(t), |x| self.between(x));
        }
        Ok(())
    }

    fn norm_add(
        &mut self,
        n: usize,
        x: &Rows,
        norm: &Norm<Vec<f32>>,
        out: &mut Rows,
    ) -> Result<(), KernelError> {
        for t in 0..n {
            let mut y = x.row(t).to_vec();
            rms_norm(&mut y, norm);
            out.row_mut(t).iter_mut().zip(y).for_each(|(o, y)| *o += y);
        }
        Ok(())
    }

    fn norm_rows(
        &mut self,
        rows: &[usize],
        x: &Rows,
        norm: &Norm<Vec<f32>>,
        out: &mut Rows,
    ) -> Result<(), KernelError> {
        for (i, &row) in rows.iter().enumerate() {
            let o = out.row_mut(i);
            o.copy_from_slice(x.row(row));
            rms_norm(o, norm);
            o.iter_mut().for_each(|y| *y = self.between(*y));
        }
        Ok(())
    }

    /// Computes all logits, however few are requested.
    fn logits(
        &mut self,
        x: &Rows,
        table: &Table,
        wanted: &[Wanted],
        _: Edits<'_>,
        logits: &mut [f32],
        _: &mut [Option<Drawn>],
    ) -> Result<(), KernelError> {
        let (n, [vocab, cols]) = (wanted.len(), table.shape());
        match table {
            Table::Dense(table) => {
                let mut row = vec![0.0; cols];
                for v in 0..vocab {
                    table.decode_row(v, &mut row);
                    for t in 0..n {
                        logits[t * vocab + v] = dot(&row, x.row(t));
                    }
                }
            }
            Table::Ternary(table, rotation) => {
                let mut q = self.int8_rows(n, cols, Grouping::of(table.group()))?;
                self.norm_quantize(n, x, [None, None], rotation.as_ref(), &mut q)?;
                for (t, logits) in logits.chunks_exact_mut(vocab).take(n).enumerate() {
                    logits.copy_from_slice(&multiply_ternary(&q, t, table));
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, x: &Rows, n: usize) -> Result<Vec<f32>, KernelError> {
        Ok(x.values[..n * x.width].to_vec())
    }

    fn copy_block(&mut self, kv: &mut Kv, from: u32, to: u32) -> Result<(), KernelError> {
        let n = kv.at(1, 0, 0);
        let (from, to) = (kv.at(from, 0, 0), kv.at(to, 0, 0));
        kv.keys.copy_within(from..from + n, to);
        kv.values.copy_within(from..from + n, to);
        Ok(())
    }

    fn block_bytes(kv: &Kv) -> usize {
        2 * 4 * kv.at(1, 0, 0)
    }

    fn read_block(&mut self, kv: &mut Kv, block: u32, to: &mut [u8]) -> Result<(), KernelError> {
        let (from, n) = (kv.at(block, 0, 0), kv.at(1, 0, 0));
        write_floats(kv.keys[from..][..n].iter().chain(&kv.values[from..][..n]), to);
        Ok(())
    }

    fn write_block(&mut self, kv: &mut Kv, block: u32, from: &[u8]) -> Result<(), KernelError> {
        let (to, n) = (kv.at(block, 0, 0), kv.at(1, 0, 0));
        read_floats(from, kv.keys[to..][..n].iter_mut().chain(&mut kv.values[to..][..n]));
        Ok(())
    }

    fn state_bytes(state: &State) -> usize {
        4 * state.floats()
    }

    fn read_state(&mut self, state: &mut State, slot: u32, to: &mut [u8]) -> Result<(), KernelError> {
        write_floats(state.read(slot as usize).iter(), to);
        Ok(())
    }

    fn write_state(&mut self, state: &mut State, slot: u32, from: &[u8]) -> Result<(), KernelError> {
        let mut values = vec![0.0; state.floats()];
        read_floats(from, values.iter_mut());
        state.write(slot as usize, &values);
        Ok(())
    }
}

impl Inspect for Reference {
    fn write(&mut self, x: &mut Rows, values: &[f32]) -> Result<(), KernelError> {
        for (i, &value) in values.iter().enumerate() {
            x.values[i] = self.kept(x, value);
        }
        Ok(())
    }

    fn read_int8_rows(
        &mut self,
        x: &Int8Rows,
        n: usize,
    ) -> Result<(Vec<i8>, Vec<f32>, Vec<i32>), KernelError> {
        let (scales, sums) = x.scales.read(n, x.width);
        Ok((x.values[..n * x.width].to_vec(), scales, sums))
    }
}
