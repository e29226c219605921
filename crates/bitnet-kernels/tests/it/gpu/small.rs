//! Small launches of every kernel that works on rows, for the mutants.

use bitnet_kernels::{
    Gate, Grouping, KvShape, Norm, RowOrder, RowsKind, Run, SamplingParams, Step,
    gpu::{Gain, Gpu, GpuError, Quants},
};
use bitnet_tensor::{BitNetTensor, DType, GroupedTensor, SharedBytes};
use bitnet_tests::Simulator;
use half::f16;

type Bits = Result<Vec<u32>, GpuError>;

fn wave(n: usize, step: f32) -> Vec<f32> {
    (0..n).map(|i| 3.0 * (i as f32 * step).sin()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn norm(gpu: &mut Gpu<Simulator>, width: usize, step: f32) -> Result<Norm<Gain>, GpuError> {
    Ok(Norm { gain: gpu.gain(&wave(width, step))?, eps: 1e-5 })
}

fn quantised(gpu: &mut Gpu<Simulator>, q: &Quants, n: usize) -> Bits {
    let (values, multipliers, sums) = gpu.read_quants(q, n)?;
    let mut all: Vec<u32> = values.iter().map(|&v| v as u32).chain(sums.iter().map(|&s| s as u32)).collect();
    all.extend(bits(&multipliers));
    Ok(all)
}

/// Two norms, and one column more than whole atoms.
pub fn norms(simulator: Simulator) -> Bits {
    let (n, width) = (11, 641);
    let mut gpu = Gpu::new(simulator)?;
    let mut x = gpu.rows(n, width, RowsKind::Residual)?;
    gpu.write_rows(&mut x, &wave(n * width, 0.37))?;
    let (first, second) = (norm(&mut gpu, width, 0.11)?, norm(&mut gpu, width, 0.23)?);
    let mut q = gpu.quants(n, width, Grouping::Row)?;
    gpu.norm_quantize(n, &x, [Some(&first), Some(&second)], &mut q)?;
    quantised(&mut gpu, &q, n)
}

/// The same in groups, one of them zero and one too small for a scale.
pub fn groups(simulator: Simulator) -> Bits {
    let (n, width) = (11, 641);
    let mut gpu = Gpu::new(simulator)?;
    let mut x = gpu.rows(n, width, RowsKind::Residual)?;
    let mut values = wave(n * width, 0.37);
    values[..128].fill(0.0);
    values[128..256].fill(1e-38);
    gpu.write_rows(&mut x, &values)?;
    let mut q = gpu.quants(n, width, Grouping::Groups)?;
    gpu.norm_quantize(n, &x, [None, None], &mut q)?;
    let mut all = quantised(&mut gpu, &q, n)?;
    let norm = norm(&mut gpu, width, 0.11)?;
    gpu.norm_quantize(n, &x, [Some(&norm), None], &mut q)?;
    all.extend(quantised(&mut gpu, &q, n)?);
    Ok(all)
}

/// 150 rows of codes with group scales.
fn grouped_weights(k: usize, group: usize) -> GroupedTensor {
    let rows = 150;
    let codes = (0..rows * k.div_ceil(4)).map(|i| (i * i * 31 + i / 7) as u8).collect();
    let scales = (0..rows * GroupedTensor::groups(k, group)).map(|i| 0.01 + (i * 37 % 101) as f32 / 500.0);
    GroupedTensor::new(rows, k, group, codes, scales.map(f16::from_f32).collect()).unwrap()
}

/// A product with weights that have group scales.
pub fn grouped<const N: usize, const K: usize, const GROUP: usize>(simulator: Simulator) -> Bits {
    let mut gpu = Gpu::new(simulator)?;
    let mut x = gpu.rows(N, K, RowsKind::Residual)?;
    gpu.write_rows(&mut x, &wave(N * K, 0.37))?;
    let mut q = gpu.quants(N, K, Grouping::Groups)?;
    gpu.norm_quantize(N, &x, [None, None], &mut q)?;
    let w = gpu.grouped(&grouped_weights(K, GROUP), RowOrder::Plain)?;
    let mut out = gpu.rows(N, 150, RowsKind::Residual)?;
    gpu.bit_linear(N, &q, &w, &mut out, 0, None)?;
    Ok(bits(&gpu.read_rows(&out, N)?))
}

/// Rows of a ternary table with groups of 64.
pub fn embedded_ternary(simulator: Simulator) -> Bits {
    let mut gpu = Gpu::new(simulator)?;
    let table = gpu.ternary_table(&grouped_weights(600, 64))?;
    let mut out = gpu.rows(3, 600, RowsKind::Residual)?;
    gpu.embed(&table, &[149, 8, 7], 12.0, &mut out)?;
    Ok(bits(&gpu.read_rows(&out, 3)?))
}

/// Heads with norms, rotated.
pub fn normed_heads(simulator: Simulator) -> Bits {
    let (heads, kv_heads, head_dim, n) = (3, 2, 36, 3);
    let mut gpu = Gpu::new(simulator)?;
    let angles = wave(n * head_dim / 2, 0.01);
    let cos: Vec<f32> = angles.iter().map(|a| 1.0 - a * a / 2.0).collect();
    let rope = gpu.rope(&cos, &angles, head_dim)?;
    let mut kv = gpu.kv(KvShape { blocks: 1, kv_heads, head_dim })?;
    let width = (heads + 2 * kv_heads) * head_dim;
    let mut qkv = gpu.rows(n, width, RowsKind::Between)?;
    gpu.write_rows(&mut qkv, &wave(n * width, 0.37))?;
    let (queries, keys) = (norm(&mut gpu, head_dim, 0.11)?, norm(&mut gpu, head_dim, 0.23)?);
    let runs = [Run { tokens: 0..n, start: 0, blocks: 0..1, state: 0 }];
    gpu.rope_store(Step { runs: &runs, blocks: &[0] }, &rope, Some([&queries, &keys]), &mut qkv, &mut kv)?;
    Ok(bits(&gpu.read_rows(&qkv, n)?))
}

fn gated(simulator: Simulator, gate: Gate) -> Bits {
    let (n, width) = (3, 300);
    let mut gpu = Gpu::new(simulator)?;
    let mut x = gpu.rows(n, 2 * width, RowsKind::Between)?;
    gpu.write_rows(&mut x, &wave(2 * n * width, 0.37))?;
    let mut q = gpu.quants(n, width, Grouping::Row)?;
    gpu.gate_quantize(n, &x, gate, [None, None], &mut q)?;
    quantised(&mut gpu, &q, n)
}

pub fn squared_relu(simulator: Simulator) -> Bits {
    gated(simulator, Gate::SquaredRelu)
}

pub fn silu(simulator: Simulator) -> Bits {
    gated(simulator, Gate::Silu)
}

pub fn wanted(simulator: Simulator) -> Bits {
    let width = 600;
    let mut gpu = Gpu::new(simulator)?;
    let mut x = gpu.rows(3, width, RowsKind::Residual)?;
    gpu.write_rows(&mut x, &wave(3 * width, 0.37))?;
    let norm = norm(&mut gpu, width, 0.11)?;
    let mut out = gpu.rows(2, width, RowsKind::Between)?;
    gpu.norm_rows(&[2, 0], &x, &norm, &mut out)?;
    Ok(bits(&gpu.read_rows(&out, 2)?))
}

pub fn embedded(simulator: Simulator) -> Bits {
    let bytes: Vec<u8> = wave(3 * 1100, 0.37).into_iter().flat_map(f32::to_le_bytes).collect();
    let table = BitNetTensor::new(DType::F32, [3, 1100], SharedBytes::new(bytes)).unwrap();
    let mut gpu = Gpu::new(simulator)?;
    let table = gpu.table(&table)?;
    let mut out = gpu.rows(2, 1100, RowsKind::Residual)?;
    gpu.embed(&table, &[2, 1], 1.0, &mut out)?;
    Ok(bits(&gpu.read_rows(&out, 2)?))
}

/// Tokens on both sides of the end of a block, then attention over them, with a copy of the first block.
pub fn turned_and_copied(simulator: Simulator) -> Bits {
    let (heads, kv_heads, head_dim, n) = (2, 2, 36, 70);
    let mut gpu = Gpu::new(simulator)?;
    let angles = wave(n * head_dim / 2, 0.01);
    let cos: Vec<f32> = angles.iter().map(|a| 1.0 - a * a / 2.0).collect();
    let rope = gpu.rope(&cos, &angles, head_dim)?;
    let mut kv = gpu.kv(KvShape { blocks: 4, kv_heads, head_dim })?;
    let width = (heads + 2 * kv_heads) * head_dim;
    let mut qkv = gpu.rows(n, width, RowsKind::Between)?;
    let mut values = wave(n * width, 0.37);
    values[3 * width - 1] = f32::INFINITY;
    gpu.write_rows(&mut qkv, &values)?;
    let runs = [Run { tokens: 0..n, start: 0, blocks: 0..2, state: 0 }];
    gpu.rope_store(Step { runs: &runs, blocks: &[2, 1] }, &rope, None, &mut qkv, &mut kv)?;
    gpu.copy_block(&mut kv, 2, 3)?;
    let mut out = gpu.rows(n, heads * head_dim, RowsKind::Between)?;
    gpu.attention(Step { runs: &runs, blocks: &[3, 1] }, &qkv, &kv, &mut out)?;
    let mut all = bits(&gpu.read_rows(&qkv, n)?);
    all.extend(bits(&gpu.read_rows(&out, n)?));
    Ok(all)
}

fn words(
    gpu: &mut Gpu<Simulator>,
    n: usize,
    f: impl FnOnce(&mut Gpu<Simulator>, u64) -> Result<(), GpuError>,
) -> Bits {
    let out = gpu.alloc(8 * n, "tokens")?;
    f(gpu, out.address())?;
    let bytes = gpu.fetch(&out, 8 * n)?;
    Ok(bytes.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b)).collect())
}

/// A row in which every value occurs many times in each thread, and one with a NaN.
pub fn greedy(simulator: Simulator) -> Bits {
    let vocab = 2100;
    let mut gpu = Gpu::new(simulator)?;
    let mut logits = gpu.rows(2, vocab, RowsKind::Residual)?;
    let mut values: Vec<f32> = (0..2 * vocab).map(|i| (i * 7 % 16) as f32).collect();
    values[vocab + 2000] = f32::NAN;
    gpu.write_rows(&mut logits, &values)?;
    words(&mut gpu, 2, |gpu, out| gpu.argmax(2, &logits, out))
}

/// Many draws from one row.
pub fn drawn(simulator: Simulator) -> Bits {
    let (rows, vocab) = (24, 1100);
    let mut gpu = Gpu::new(simulator)?;
    let mut logits = gpu.rows(rows, vocab, RowsKind::Residual)?;
    gpu.write_rows(&mut logits, &wave(vocab, 0.7).repeat(rows))?;
    let params: Vec<SamplingParams> = (0..rows as u32)
        .map(|i| SamplingParams {
            temperature: 0.9,
            top_k: if i % 2 == 0 { 0 } else { 60 },
            top_p: if i % 3 == 0 { 1.0 } else { 0.8 },
            min_p: if i % 4 == 0 { 0.3 } else { 0.0 },
            seed: 77 + u64::from(i),
            choice: i,
            position: 9,
        })
        .collect();
    words(&mut gpu, rows, |gpu, out| gpu.sample(&params, &logits, out))
}
