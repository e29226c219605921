//! The truth: every operation as plain loops over plain vectors, in the order that [`crate::order`] states.

use bitnet_tensor::{BitNetTensor, TernaryTensor, quant};

use crate::{
    BLOCK_TOKENS, Backend, BackendInfo, Gate, KernelError, KvShape, Norm, Norms, RowOrder, Run,
    order::{SEGMENT, exp, merge, tree},
};

/// The scalar backend that all others are judged by. It makes no attempt to be quick.
#[derive(Debug, Default)]
pub struct Reference;

/// f32 rows of the reference.
#[derive(Debug, Clone)]
pub struct Rows {
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

/// int8 rows of the reference.
#[derive(Debug, Clone)]
pub struct Quants {
    width: usize,
    values: Vec<i8>,
    rows: Vec<quant::RowQuant>,
}

/// Rotary tables of the reference.
#[derive(Debug)]
pub struct Rope {
    cos: Vec<f32>,
    sin: Vec<f32>,
    head_dim: usize,
}

/// Keys and values of the reference, `[block][slot][kv_head][head_dim]`.
#[derive(Debug)]
pub struct Kv {
    shape: KvShape,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Kv {
    fn at(&self, block: u32, slot: usize, kv_head: usize) -> usize {
        let s = self.shape;
        ((block as usize * BLOCK_TOKENS + slot) * s.kv_heads + kv_head) * s.head_dim
    }
}

/// Sum of products in the row order.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut partial = [0.0f32; 16];
    for (i, (&a, &b)) in a.iter().zip(b).enumerate() {
        partial[i % 16] = a.mul_add(b, partial[i % 16]);
    }
    tree(partial)
}

fn rms_norm(x: &mut [f32], norm: &Norm<Vec<f32>>) {
    let mut partial = [0.0f64; 16];
    for (i, &x) in x.iter().enumerate() {
        partial[i % 16] = f64::from(x).mul_add(f64::from(x), partial[i % 16]);
    }
    let mean = (tree(partial) / x.len() as f64) as f32;
    let r = 1.0 / (mean + norm.eps).sqrt();
    for (x, &g) in x.iter_mut().zip(&norm.gain) {
        *x = *x * r * g;
    }
}

fn quantize_into(mut x: Vec<f32>, norms: Norms<'_, Vec<f32>>, row: usize, out: &mut Quants) {
    for norm in norms.into_iter().flatten() {
        rms_norm(&mut x, norm);
    }
    let q = &mut out.values[row * out.width..][..out.width];
    out.rows[row] = quant::quantize_row(&x, q);
}

impl Backend for Reference {
    type Rows = Rows;
    type Quants = Quants;
    type Linear = TernaryTensor;
    type Table = BitNetTensor;
    type Gain = Vec<f32>;
    type Rope = Rope;
    type Kv = Kv;

    fn info(&self) -> BackendInfo {
        BackendInfo { device: "reference".into(), isa: "scalar", threads: 1 }
    }

    fn rows(&mut self, rows: usize, width: usize) -> Result<Rows, KernelError> {
        Ok(Rows { width, values: vec![0.0; rows * width] })
    }

    fn quants(&mut self, rows: usize, width: usize) -> Result<Quants, KernelError> {
        let empty = quant::RowQuant { multiplier: 0.0, sum: 0 };
        Ok(Quants { width, values: vec![0; rows * width], rows: vec![empty; rows] })
    }

    fn linear(&mut self, weights: &TernaryTensor, _: RowOrder) -> Result<TernaryTensor, KernelError> {
        Ok(weights.clone())
    }

    fn table(&mut self, weights: &BitNetTensor) -> Result<BitNetTensor, KernelError> {
        Ok(weights.clone())
    }

    fn gain(&mut self, gain: &[f32]) -> Result<Vec<f32>, KernelError> {
        Ok(gain.to_vec())
    }

    fn rope(&mut self, cos: &[f32], sin: &[f32], head_dim: usize) -> Result<Rope, KernelError> {
        Ok(Rope { cos: cos.to_vec(), sin: sin.to_vec(), head_dim })
    }

    fn kv(&mut self, shape: KvShape) -> Result<Kv, KernelError> {
        let n = shape.blocks * BLOCK_TOKENS * shape.kv_heads * shape.head_dim;
        Ok(Kv { shape, keys: vec![0.0; n], values: vec![0.0; n] })
    }

    fn embed(&mut self, table: &BitNetTensor, tokens: &[u32], out: &mut Rows) -> Result<(), KernelError> {
        for (i, &token) in tokens.iter().enumerate() {
            table.decode_row(token as usize, out.row_mut(i));
        }
        Ok(())
    }

    fn norm_quantize(
        &mut self,
        n: usize,
        x: &Rows,
        norms: Norms<'_, Vec<f32>>,
        out: &mut Quants,
    ) -> Result<(), KernelError> {
        for row in 0..n {
            quantize_into(x.row(row).to_vec(), norms, row, out);
        }
        Ok(())
    }

    fn bit_linear(
        &mut self,
        n: usize,
        x: &Quants,
        w: &TernaryTensor,
        out: &mut Rows,
        column: usize,
        accumulate: bool,
    ) -> Result<(), KernelError> {
        assert_eq!(x.width, w.cols(), "rows have the matrix's width");
        for t in 0..n {
            let q = &x.values[t * x.width..][..x.width];
            for range in w.scales() {
                for r in range.start..range.end {
                    let sum: i32 =
                        w.row_trits(r).zip(q).map(|(trit, &q)| i32::from(trit) * i32::from(q)).sum();
                    let y = sum as f32 / x.rows[t].multiplier * range.scale;
                    let o = &mut out.row_mut(t)[column + r];
                    *o = if accumulate { *o + y } else { y };
                }
            }
        }
        Ok(())
    }

    fn rope_store(
        &mut self,
        runs: &[Run],
        blocks: &[u32],
        rope: &Rope,
        qkv: &mut Rows,
        kv: &mut Kv,
    ) -> Result<(), KernelError> {
        let (dim, kv_heads) = (kv.shape.head_dim, kv.shape.kv_heads);
        let heads = qkv.width / dim - 2 * kv_heads;
        for run in runs {
            for (i, t) in run.tokens.clone().enumerate() {
                let position = run.start + i;
                let row = qkv.row_mut(t);
                for head in row.chunks_exact_mut(dim).take(heads + kv_heads) {
                    let (low, high) = head.split_at_mut(dim / 2);
                    for (d, (x, y)) in low.iter_mut().zip(high).enumerate() {
                        let at = position * rope.head_dim / 2 + d;
                        let (c, s) = (rope.cos[at], rope.sin[at]);
                        (*x, *y) = (x.mul_add(c, -(*y * s)), y.mul_add(c, *x * s));
                    }
                }
                let block = blocks[run.blocks.start + position / BLOCK_TOKENS];
                for h in 0..kv_heads {
                    let at = kv.at(block, position % BLOCK_TOKENS, h);
                    kv.keys[at..at + dim].copy_from_slice(&row[(heads + h) * dim..][..dim]);
                    kv.values[at..at + dim].copy_from_slice(&row[(heads + kv_heads + h) * dim..][..dim]);
                }
            }
        }
        Ok(())
    }

    fn attention(
        &mut self,
        runs: &[Run],
        blocks: &[u32],
        qkv: &Rows,
        kv: &Kv,
        out: &mut Rows,
    ) -> Result<(), KernelError> {
        let (dim, kv_heads) = (kv.shape.head_dim, kv.shape.kv_heads);
        let heads = qkv.width / dim - 2 * kv_heads;
        let scale = 1.0 / (dim as f32).sqrt();
        for run in runs {
            let at = |key: usize, h: usize| {
                kv.at(blocks[run.blocks.start + key / BLOCK_TOKENS], key % BLOCK_TOKENS, h)
            };
            for (i, t) in run.tokens.clone().enumerate() {
                let keys = run.start + i + 1;
                for h in 0..heads {
                    let kv_head = h / (heads / kv_heads);
                    let q = &qkv.row(t)[h * dim..][..dim];
                    let mut state: Option<(f32, f32, Vec<f32>)> = None;
                    for first in (0..keys).step_by(SEGMENT) {
                        let segment = first..keys.min(first + SEGMENT);
                        let scores: Vec<f32> = segment
                            .clone()
                            .map(|key| {
                                let k = &kv.keys[at(key, kv_head)..][..dim];
                                q.iter().zip(k).fold(0.0f32, |s, (&q, &k)| q.mul_add(k, s)) * scale
                            })
                            .collect();
                        let max = scores.iter().fold(f32::NEG_INFINITY, |m, &s| if m > s { m } else { s });
                        let weights: Vec<f32> = scores.iter().map(|&s| exp(s - max)).collect();
                        let mut partial = [0.0f32; 16];
                        let mut values = vec![0.0f32; dim];
                        for (j, (key, &p)) in segment.zip(&weights).enumerate() {
                            partial[j % 16] += p;
                            let v = &kv.values[at(key, kv_head)..][..dim];
                            for (o, &v) in values.iter_mut().zip(v) {
                                *o = p.mul_add(v, *o);
                            }
                        }
                        let sum = tree(partial);
                        state = Some(match state {
                            None => (max, sum, values),
                            Some((m, l, mut running)) => {
                                let (max, a, b) = merge(m, max);
                                for (r, v) in running.iter_mut().zip(values) {
                                    *r = r.mul_add(a, v * b);
                                }
                                (max, l.mul_add(a, sum * b), running)
                            }
                        });
                    }
                    let (_, sum, values) = state.expect("a token attends at least to itself");
                    for (o, v) in out.row_mut(t)[h * dim..][..dim].iter_mut().zip(values) {
                        *o = v / sum;
                    }
                }
            }
        }
        Ok(())
    }

    fn gate_quantize(
        &mut self,
        n: usize,
        gate_up: &Rows,
        gate: Gate,
        norms: Norms<'_, Vec<f32>>,
        out: &mut Quants,
    ) -> Result<(), KernelError> {
        for row in 0..n {
            let (g, u) = gate_up.row(row).split_at(gate_up.width / 2);
            let gated = g.iter().zip(u).map(|(&g, &u)| match gate {
                Gate::SquaredRelu => {
                    let r = if 0.0 > g { 0.0 } else { g };
                    r * r * u
                }
                Gate::Silu => g / (1.0 + exp(-g)) * u,
            });
            quantize_into(gated.collect(), norms, row, out);
        }
        Ok(())
    }

    fn norm_rows(
        &mut self,
        wanted: &[usize],
        x: &Rows,
        norm: &Norm<Vec<f32>>,
        out: &mut Rows,
    ) -> Result<(), KernelError> {
        for (i, &row) in wanted.iter().enumerate() {
            let o = out.row_mut(i);
            o.copy_from_slice(x.row(row));
            rms_norm(o, norm);
        }
        Ok(())
    }

    fn logits(
        &mut self,
        n: usize,
        x: &Rows,
        table: &BitNetTensor,
        logits: &mut [f32],
    ) -> Result<(), KernelError> {
        let mut row = vec![0.0; table.cols()];
        for v in 0..table.rows() {
            table.decode_row(v, &mut row);
            for t in 0..n {
                logits[t * table.rows() + v] = dot(&row, x.row(t));
            }
        }
        Ok(())
    }

    fn copy_block(&mut self, kv: &mut Kv, from: u32, to: u32) -> Result<(), KernelError> {
        let n = kv.at(1, 0, 0);
        let (from, to) = (kv.at(from, 0, 0), kv.at(to, 0, 0));
        kv.keys.copy_within(from..from + n, to);
        kv.values.copy_within(from..from + n, to);
        Ok(())
    }

    fn read(&mut self, x: &Rows, n: usize) -> Vec<f32> {
        x.values[..n * x.width].to_vec()
    }

    fn write(&mut self, x: &mut Rows, values: &[f32]) {
        x.values[..values.len()].copy_from_slice(values);
    }

    fn read_quants(&mut self, x: &Quants, n: usize) -> (Vec<i8>, Vec<f32>, Vec<i32>) {
        let rows = &x.rows[..n];
        (
            x.values[..n * x.width].to_vec(),
            rows.iter().map(|r| r.multiplier).collect(),
            rows.iter().map(|r| r.sum).collect(),
        )
    }
}
