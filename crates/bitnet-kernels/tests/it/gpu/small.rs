//! Small launches of every kernel that works on rows, for the mutants. Each returns all values that it computed.

use bitnet_kernels::{
    Backend, Change, DeltaShape, DeltaWeights, DraftLog, Drawn, Edits, ExpertShape, ExpertWeights, Gate,
    Grouping, Int8Matrix, KernelError, KvShape, KvType, Norm, Rotate, RowOrder, RowsKind, Run,
    SamplingParams, Step, Wanted,
    gpu::{Delta, Gain, Gpu, GpuError, Int8Rows, Rotation, Rows, State, Table},
};
use bitnet_tensor::{BitNetTensor, DType, SharedBytes, TernaryTensor};
use bitnet_tests::Simulator;
use half::f16;

use crate::near_ties;

type Bits = Result<Vec<u32>, GpuError>;

fn wave(n: usize, step: f32) -> Vec<f32> {
    (0..n).map(|i| 3.0 * (i as f32 * step).sin()).collect()
}

fn noise(n: usize, seed: u64) -> Vec<f32> {
    std::iter::repeat_with(near_ties::noise(seed)).take(n).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn norm(gpu: &mut Gpu<Simulator>, width: usize, step: f32) -> Result<Norm<Gain>, GpuError> {
    Ok(Norm { gain: gpu.gain(&wave(width, step))?, eps: 1e-5 })
}

/// A table of these values that has bounds, and rows to multiply it with.
fn with_bounds(
    gpu: &mut Gpu<Simulator>,
    values: &[f32],
    [n, width]: [usize; 2],
) -> Result<(Table, Rows), GpuError> {
    let values = BitNetTensor::from_f32([values.len() / width, width], values).expect("a table");
    let mut table = gpu.table(&values)?;
    match Backend::prepare_shortlist(gpu, &mut table, None) {
        Err(KernelError::Gpu(error)) => return Err(error),
        copied => copied.expect("memory"),
    }
    let mut x = gpu.rows(n, width, RowsKind::Intermediate)?;
    gpu.write_rows(&mut x, &noise(n * width, 2))?;
    Ok((table, x))
}

/// The one or two highest logits of each row, and how many were computed for them. Half the rows of the table are close to
/// each other.
pub fn bounded(simulator: Simulator, n: usize, width: usize) -> Bits {
    let vocab = 1100;
    let mut gpu = Gpu::new(simulator)?;
    let mut values = noise(vocab * width, 1);
    for row in 1..vocab / 2 {
        let (first, rest) = values.split_at_mut(width);
        let others = &mut rest[(row - 1) * width..][..width];
        others.iter_mut().zip(first).for_each(|(x, first)| *x = *first + 0.1 * *x);
    }
    let (table, x) = with_bounds(&mut gpu, &values, [n, width])?;
    let wanted: Vec<Wanted> = (0..n).map(|row| Wanted::Top(1 + row % 2)).collect();
    let (mut logits, mut drawn) = (vec![0.0; n * vocab], vec![None; n]);
    gpu.logits(&x, &table, &wanted, Edits::default(), &mut logits, &mut drawn)?;
    let mut all = bits(&logits);
    all.push(gpu.head_counts()?.rescored as u32);
    Ok(all)
}

/// The same on a GPU with little shared memory.
pub fn bounded_in_little(simulator: Simulator, n: usize, width: usize) -> Bits {
    bounded(simulator.set(|info| info.shared = 99 << 10), n, width)
}

/// Tokens that bounds decide, drawn in many ways from a flat table, and how many logits that took.
pub fn raced(simulator: Simulator) -> Bits {
    let (n, width, vocab) = (8, 64, 1100);
    let mut gpu = Gpu::new(simulator)?;
    let (table, x) = with_bounds(&mut gpu, &noise(vocab * width, 1), [n, width])?;
    let (changes, masks) = (edits(100), vec![0x7777_7777; vocab.div_ceil(32)]);
    let wanted: Vec<Wanted> = (0..n as u32)
        .map(|row| {
            let temperature = [1.0, 4.0, 0.5, 20.0][row as usize % 4];
            let min_p = if row % 3 == 0 { 0.1 } else { 0.0 };
            let params =
                SamplingParams { temperature, min_p, seed: 5, choice: row, ..SamplingParams::GREEDY };
            match row % 5 {
                4 => Wanted::Changed { params, from: row, to: 100, mask: None },
                3 => Wanted::Changed { params, from: 0, to: 0, mask: Some(0) },
                _ => Wanted::Token(params),
            }
        })
        .collect();
    let edits = Edits { changes: &changes, masks: &masks };
    let (mut logits, mut drawn) = (vec![0.0; n * vocab], vec![None; n]);
    gpu.logits(&x, &table, &wanted, edits, &mut logits, &mut drawn)?;
    let token = |drawn| if let Some(Drawn::Token(token)) = drawn { token } else { u32::MAX };
    let mut all: Vec<u32> = drawn.into_iter().map(token).collect();
    let counts = gpu.head_counts()?;
    all.extend([counts.rescored as u32, counts.drawn as u32]);
    Ok(all)
}

fn quantised(gpu: &mut Gpu<Simulator>, q: &Int8Rows, n: usize) -> Bits {
    let (values, multipliers, sums) = gpu.read_int8_rows(q, n)?;
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
    let mut q = gpu.int8_rows(n, width, Grouping::Row)?;
    gpu.norm_quantize(n, &x, [Some(&first), Some(&second)], None, &mut q)?;
    quantised(&mut gpu, &q, n)
}

/// A product that includes the norm of its row, and one that reads what the first has stored; then the same of a row with
/// an infinity.
pub fn normed_product(simulator: Simulator, rows: usize) -> Bits {
    let width = 1025;
    let mut gpu = Gpu::new(simulator)?;
    let trits: Vec<i8> = (0..rows * width).map(|i| (i * i % 11 % 3) as i8 - 1).collect();
    let trits = TernaryTensor::from_trits(rows, width, &trits, 0.3).expect("trits");
    let w = gpu.linear(&trits, RowOrder::Plain)?;
    let norm = norm(&mut gpu, width, 0.11)?;
    let mut x = gpu.rows(1, width, RowsKind::Residual)?;
    let mut q = gpu.int8_rows(1, width, Grouping::Row)?;
    let mut out = gpu.rows(1, rows, RowsKind::Residual)?;
    let mut all = Vec::new();
    for scale in [1.0, f32::INFINITY] {
        let mut values = wave(width, 0.37);
        values[700] *= scale;
        gpu.write_rows(&mut x, &values)?;
        gpu.norm_quantize(1, &x, [Some(&norm), None], None, &mut q)?;
        gpu.bit_linear(1, &q, &w, &mut out, 0, None)?;
        gpu.bit_linear(1, &q, &w, &mut out, 0, Some(0.7))?;
        all.extend(bits(&gpu.read_rows(&out, 1)?));
        all.extend(quantised(&mut gpu, &q, 1)?);
    }
    Ok(all)
}

/// Products of one row with groups of `group` columns that include its quantisation, and products that read what the first have
/// stored: of the residual after a norm and of a longer row without one, whole, then with groups that are zero, too small for
/// a scale and infinite.
pub fn grouped_normed_product(simulator: Simulator, rows: usize, group: usize) -> Bits {
    let mut gpu = Gpu::new(simulator)?;
    let mut all = Vec::new();
    for (kind, width) in [(RowsKind::Residual, 1028), (RowsKind::Intermediate, 7304)] {
        let w = gpu.linear(&grouped_weights(rows, width, group), RowOrder::Plain)?;
        let norm = norm(&mut gpu, width, 0.11)?;
        let norm = (kind == RowsKind::Residual).then_some(&norm);
        let mut x = gpu.rows(1, width, kind)?;
        let mut q = gpu.int8_rows(1, width, Grouping::Groups)?;
        let mut out = gpu.rows(1, rows, RowsKind::Residual)?;
        for odd in [false, true] {
            let mut values = wave(width, 0.37);
            if odd {
                values[..128].fill(0.0);
                values[128..256].fill(1e-38);
                values[700] = if norm.is_some() { 1e30 } else { f32::INFINITY };
            }
            gpu.write_rows(&mut x, &values)?;
            gpu.norm_quantize(1, &x, [norm, None], None, &mut q)?;
            gpu.bit_linear(1, &q, &w, &mut out, 0, None)?;
            all.extend(bits(&gpu.read_rows(&out, 1)?));
            gpu.bit_linear(1, &q, &w, &mut out, 0, Some(0.7))?;
            all.extend(bits(&gpu.read_rows(&out, 1)?));
            all.extend(quantised(&mut gpu, &q, 1)?);
        }
    }
    Ok(all)
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
    let mut q = gpu.int8_rows(n, width, Grouping::Groups)?;
    gpu.norm_quantize(n, &x, [None, None], None, &mut q)?;
    let mut all = quantised(&mut gpu, &q, n)?;
    let norm = norm(&mut gpu, width, 0.11)?;
    gpu.norm_quantize(n, &x, [Some(&norm), None], None, &mut q)?;
    all.extend(quantised(&mut gpu, &q, n)?);
    Ok(all)
}

/// A transform with signs: near levels, two far ones at a time, and one alone.
fn rotation(
    gpu: &mut Gpu<Simulator>,
    width: usize,
    grouped: Option<(usize, usize)>,
) -> Result<Rotation, GpuError> {
    let signs: Vec<i8> = (0..width).map(|i| if i * i % 7 < 3 { -1 } else { 1 }).collect();
    gpu.rotation(width, &Rotate { block: 1024, signs: Some(&signs), grouped })
}

/// Normed and transformed rows, in order and with value heads brought to their key heads.
pub fn transformed(simulator: Simulator) -> Bits {
    let (n, width) = (2, 3072);
    let mut gpu = Gpu::new(simulator)?;
    let mut x = gpu.rows(n, width, RowsKind::Residual)?;
    gpu.write_rows(&mut x, &wave(n * width, 0.37))?;
    let mut q = gpu.int8_rows(n, width, Grouping::Groups)?;
    let norm = norm(&mut gpu, width, 0.11)?;
    let mut all = Vec::new();
    for grouped in [None, Some((4, 6))] {
        let rotation = rotation(&mut gpu, width, grouped)?;
        gpu.norm_quantize(n, &x, [Some(&norm), None], Some(&rotation), &mut q)?;
        all.extend(quantised(&mut gpu, &q, n)?);
    }
    Ok(all)
}

/// Rows of a ternary table that contains a transform.
pub fn embedded_rotated(simulator: Simulator) -> Bits {
    let mut gpu = Gpu::new(simulator)?;
    let mut table = gpu.ternary_table(&grouped_weights(150, 3072, 128))?;
    let Table::Ternary(_, contained) = &mut table else { panic!("the table is ternary") };
    *contained = Some(rotation(&mut gpu, 3072, None)?);
    let mut out = gpu.rows(3, 3072, RowsKind::Residual)?;
    gpu.embed(&table, &[149, 8, 7], 12.0, &mut out)?;
    Ok(bits(&gpu.read_rows(&out, 3)?))
}

/// A gated-delta layer with three slots.
fn delta_layer(gpu: &mut Gpu<Simulator>, dim: usize) -> Result<(DeltaShape, Delta, State), GpuError> {
    // The wide heads have more inputs than a thread keeps at once.
    let shape =
        DeltaShape { key_heads: if dim < 128 { 2 } else { 6 }, value_heads: 6, head_dim: dim, taps: 4 };
    let (conv, heads) = (wave(shape.channels() * shape.taps, 0.13), wave(shape.value_heads, 0.7));
    let a: Vec<f32> = heads.iter().map(|x| -x * x).collect();
    let gain = wave(dim, 0.19);
    let weights = DeltaWeights { conv: &conv, a: &a, dt_bias: &heads, norm: &gain, eps: 1e-6 };
    Ok((shape, gpu.delta(shape, &weights)?, gpu.state(shape, 3)?))
}

/// A sequence whose runs have drafts, of which some, more than there are taps, and none are accepted.
pub fn delta_drafts(simulator: Simulator, dim: usize) -> Bits {
    let mut gpu = Gpu::new(simulator)?;
    let (shape, layer, mut state) = delta_layer(&mut gpu, dim)?;
    gpu.reserve_log(&mut state, 6)?;
    let (mut all, mut start, mut accepted) = (Vec::new(), 0, 0);
    for (certain, drafts, right) in [(4, 3, 2), (1, 6, 5), (2, 1, 0), (1, 2, 2), (1, 0, 0)] {
        let n = certain + drafts;
        let log = DraftLog { accepted, drafts };
        let runs = [Run { tokens: 0..n, start, blocks: 0..0, state: 1, log }];
        let mut x = gpu.rows(n, shape.columns(), RowsKind::Intermediate)?;
        gpu.write_rows(&mut x, &wave(n * shape.columns(), 0.37 + start as f32))?;
        let mut out = gpu.rows(n, shape.value_width(), RowsKind::Intermediate)?;
        gpu.gated_delta(Step::new(&runs, &[]), &x, &layer, &mut state, &mut out)?;
        all.extend(bits(&gpu.read_rows(&out, n)?));
        (start, accepted) = (start + certain + right, right);
    }
    Ok(all)
}

/// Two sequences through three steps of a gated-delta layer; one has its state copied.
pub fn delta(simulator: Simulator, dim: usize) -> Bits {
    let mut gpu = Gpu::new(simulator)?;
    let (shape, layer, mut state) = delta_layer(&mut gpu, dim)?;
    let mut all = Vec::new();
    for (step, lens) in [[5, 2], [1, 1], [3, 4]].into_iter().enumerate() {
        let starts = [[0, 0], [5, 2], [6, 3]][step];
        let slots = [[0, 1], [0, 1], [2, 1]][step];
        let n = lens[0] + lens[1];
        let runs = [0, 1].map(|s| {
            let first = s * lens[0];
            Run {
                tokens: first..first + lens[s],
                start: starts[s],
                blocks: 0..0,
                state: slots[s],
                ..Run::default()
            }
        });
        let mut x = gpu.rows(n, shape.columns(), RowsKind::Intermediate)?;
        gpu.write_rows(&mut x, &wave(n * shape.columns(), 0.37 + step as f32))?;
        let mut out = gpu.rows(n, shape.value_width(), RowsKind::Intermediate)?;
        if step == 2 {
            gpu.copy_state(&mut state, 0, 2)?;
        }
        gpu.gated_delta(Step::new(&runs, &[]), &x, &layer, &mut state, &mut out)?;
        all.extend(bits(&gpu.read_rows(&out, n)?));
    }
    Ok(all)
}

/// A sequence that starts in a slot which another one has used.
pub fn delta_again(simulator: Simulator) -> Bits {
    let shape = DeltaShape { key_heads: 1, value_heads: 2, head_dim: 20, taps: 2 };
    let mut gpu = Gpu::new(simulator)?;
    let (conv, norm) = (wave(shape.channels() * shape.taps, 0.13), wave(shape.head_dim, 0.19));
    let weights =
        DeltaWeights { conv: &conv, a: &[-0.1, -1.0], dt_bias: &[0.1, 0.2], norm: &norm, eps: 1e-6 };
    let layer = gpu.delta(shape, &weights)?;
    let mut state = gpu.state(shape, 1)?;
    let mut x = gpu.rows(3, shape.columns(), RowsKind::Intermediate)?;
    gpu.write_rows(&mut x, &wave(3 * shape.columns(), 0.37))?;
    let mut out = gpu.rows(3, shape.value_width(), RowsKind::Intermediate)?;
    let mut all = Vec::new();
    for _ in 0..2 {
        let runs = [Run { tokens: 0..3, start: 0, blocks: 0..0, ..Run::default() }];
        gpu.gated_delta(Step::new(&runs, &[]), &x, &layer, &mut state, &mut out)?;
        all.extend(bits(&gpu.read_rows(&out, 3)?));
    }
    Ok(all)
}

/// Codes with group scales.
fn grouped_weights(rows: usize, k: usize, group: usize) -> TernaryTensor {
    let codes = (0..rows * k.div_ceil(4)).map(|i| (i * i * 31 + i / 7) as u8).collect();
    let scales = (0..rows * TernaryTensor::groups(k, group)).map(|i| 0.01 + (i * 37 % 101) as f32 / 500.0);
    TernaryTensor::from_groups(rows, k, group, codes, scales.map(f16::from_f32).collect()).unwrap()
}

/// A product with weights that have group scales.
pub fn grouped(simulator: Simulator, n: usize, k: usize, group: usize) -> Bits {
    let mut gpu = Gpu::new(simulator)?;
    let mut x = gpu.rows(n, k, RowsKind::Residual)?;
    gpu.write_rows(&mut x, &wave(n * k, 0.37))?;
    let mut q = gpu.int8_rows(n, k, Grouping::Groups)?;
    gpu.norm_quantize(n, &x, [None, None], None, &mut q)?;
    let w = gpu.linear(&grouped_weights(150, k, group), RowOrder::Plain)?;
    let mut out = gpu.rows(n, 150, RowsKind::Residual)?;
    gpu.bit_linear(n, &q, &w, &mut out, 0, None)?;
    Ok(bits(&gpu.read_rows(&out, n)?))
}

/// A product with int8 weights, the last of whose groups has one block.
pub fn int8(simulator: Simulator, n: usize, k: usize) -> Bits {
    let mut gpu = Gpu::new(simulator)?;
    let mut x = gpu.rows(n, k, RowsKind::Residual)?;
    gpu.write_rows(&mut x, &wave(n * k, 0.37))?;
    let mut q = gpu.int8_rows(n, k, Grouping::Groups)?;
    gpu.norm_quantize(n, &x, [None, None], None, &mut q)?;
    let weights = BitNetTensor::from_f32([150, k], &noise(150 * k, 3)).expect("a matrix");
    let mut matrix = Int8Matrix::with_capacity(150, k).expect("memory");
    matrix.append(&weights, 0..k);
    let w = gpu.int8_linear(&matrix, RowOrder::Plain)?;
    let mut out = gpu.rows(n, 150, RowsKind::Residual)?;
    gpu.bit_linear(n, &q, &w, &mut out, 0, None)?;
    Ok(bits(&gpu.read_rows(&out, n)?))
}

/// Rows of a ternary table with groups of 64.
pub fn embedded_ternary(simulator: Simulator) -> Bits {
    let mut gpu = Gpu::new(simulator)?;
    let table = gpu.ternary_table(&grouped_weights(150, 600, 64))?;
    let mut out = gpu.rows(3, 600, RowsKind::Residual)?;
    gpu.embed(&table, &[149, 8, 7], 12.0, &mut out)?;
    Ok(bits(&gpu.read_rows(&out, 3)?))
}

/// Values multiplied by the gates in the last columns of wider rows.
pub fn output_gate(simulator: Simulator) -> Bits {
    let (n, width, column) = (3, 300, 5);
    let mut gpu = Gpu::new(simulator)?;
    let mut x = gpu.rows(n, column + width, RowsKind::Intermediate)?;
    gpu.write_rows(&mut x, &wave(n * (column + width), 0.37))?;
    let mut out = gpu.rows(n, width, RowsKind::Intermediate)?;
    gpu.write_rows(&mut out, &wave(n * width, 0.11))?;
    gpu.sigmoid_gate(n, &x, column, &mut out)?;
    Ok(bits(&gpu.read_rows(&out, n)?))
}

/// More rows than a thread block takes, and a width with a tail, into columns in the middle.
pub fn dense_product(simulator: Simulator) -> Bits {
    let (n, width, rows, column) = (2, 600, 21, 3);
    let mut gpu = Gpu::new(simulator)?;
    let table = BitNetTensor::from_f32([rows, width], &wave(rows * width, 0.23)).unwrap();
    let table = gpu.table(&table)?;
    let mut x = gpu.rows(n, width, RowsKind::Residual)?;
    gpu.write_rows(&mut x, &wave(n * width, 0.37))?;
    let norm = norm(&mut gpu, width, 0.11)?;
    let mut out = gpu.rows(n, column + rows + 2, RowsKind::Intermediate)?;
    gpu.dense(n, &x, &norm, &table, &mut out, column)?;
    Ok(bits(&gpu.read_rows(&out, n)?))
}

/// Heads with norms of which only the first dimensions are rotated, in rows with further columns, and attention to them.
pub fn partly_turned(simulator: Simulator, kv: KvType) -> Bits {
    let (heads, kv_heads, head_dim, rotary, n) = (4, 2, 72, 20, 3);
    let mut gpu = Gpu::new(simulator)?.keeping(kv);
    let angles = wave(n * rotary / 2, 0.01);
    let cos: Vec<f32> = angles.iter().map(|a| 1.0 - a * a / 2.0).collect();
    let rope = gpu.rope(&cos, &angles, rotary)?;
    let mut kv = gpu.kv(KvShape { blocks: 1, kv_heads, head_dim })?;
    let width = (heads + 2 * kv_heads) * head_dim + 40;
    let mut qkv = gpu.rows(n, width, RowsKind::Intermediate)?;
    gpu.write_rows(&mut qkv, &wave(n * width, 0.37))?;
    let (queries, keys) = (norm(&mut gpu, head_dim, 0.11)?, norm(&mut gpu, head_dim, 0.23)?);
    let runs = [Run { tokens: 0..n, start: 0, blocks: 0..1, ..Run::default() }];
    let step = Step::new(&runs, &[0]);
    gpu.norm_rope_store(step, heads, &rope, Some([&queries, &keys]), &mut qkv, &mut kv)?;
    let mut all = bits(&gpu.read_rows(&qkv, n)?);
    let mut out = gpu.rows(n, heads * head_dim, RowsKind::Intermediate)?;
    gpu.attention(step, &qkv, &kv, &mut out)?;
    all.extend(bits(&gpu.read_rows(&out, n)?));
    Ok(all)
}

/// Heads with norms, rotated: one head a warp.
pub fn normed_heads(simulator: Simulator) -> Bits {
    normed(simulator, 3, 3, KvType::Bf16)
}

pub fn normed_heads_int8(simulator: Simulator) -> Bits {
    normed(simulator, 3, 3, KvType::Int8)
}

/// The same with so many tokens and heads that a warp takes several heads on the simulator's four processors.
pub fn normed_heads_in_turns(simulator: Simulator) -> Bits {
    normed(simulator, 60, 7, KvType::Bf16)
}

fn normed(simulator: Simulator, n: usize, heads: usize, kv: KvType) -> Bits {
    let (kv_heads, head_dim) = (2, 36);
    let mut gpu = Gpu::new(simulator)?.keeping(kv);
    let angles = wave(n * head_dim / 2, 0.01);
    let cos: Vec<f32> = angles.iter().map(|a| 1.0 - a * a / 2.0).collect();
    let rope = gpu.rope(&cos, &angles, head_dim)?;
    let mut kv = gpu.kv(KvShape { blocks: 1, kv_heads, head_dim })?;
    let width = (heads + 2 * kv_heads) * head_dim;
    let mut qkv = gpu.rows(n, width, RowsKind::Intermediate)?;
    gpu.write_rows(&mut qkv, &wave(n * width, 0.37))?;
    let (queries, keys) = (norm(&mut gpu, head_dim, 0.11)?, norm(&mut gpu, head_dim, 0.23)?);
    let runs = [Run { tokens: 0..n, start: 0, blocks: 0..1, ..Run::default() }];
    gpu.norm_rope_store(Step::new(&runs, &[0]), heads, &rope, Some([&queries, &keys]), &mut qkv, &mut kv)?;
    let mut all = bits(&gpu.read_rows(&qkv, n)?);
    for what in ["cached keys", "cached values"] {
        all.extend(gpu.driver().contents(what).concat().into_iter().map(u32::from));
    }
    Ok(all)
}

fn gated(simulator: Simulator, gate: Gate) -> Bits {
    let (n, width) = (3, 300);
    let mut gpu = Gpu::new(simulator)?;
    let mut x = gpu.rows(n, 2 * width, RowsKind::Intermediate)?;
    gpu.write_rows(&mut x, &wave(2 * n * width, 0.37))?;
    let mut q = gpu.int8_rows(n, width, Grouping::Row)?;
    gpu.gate_norm_quantize(n, &x, gate, [None, None], None, &mut q)?;
    quantised(&mut gpu, &q, n)
}

pub fn squared_relu(simulator: Simulator) -> Bits {
    gated(simulator, Gate::SquaredRelu)
}

pub fn silu(simulator: Simulator) -> Bits {
    gated(simulator, Gate::Silu)
}

pub fn clamped(simulator: Simulator) -> Bits {
    gated(simulator, Gate::ClampedSilu { limit: 2.0 })
}

pub fn gelu(simulator: Simulator) -> Bits {
    gated(simulator, Gate::Gelu)
}

/// A mixture of experts, of which every second has the row of the one before in the router, twice: of different rows, then of
/// equal ones, which meet fewer experts.
pub fn experts(simulator: Simulator, n: usize, count: usize) -> Bits {
    let (used, hidden, ffn) = (3, 136, 72);
    let shape = ExpertShape { count, used, hidden, ffn, gate: Gate::ClampedSilu { limit: 2.0 } };
    let mut gpu = Gpu::new(simulator)?;
    let rows = noise(count.div_ceil(2) * hidden, 1);
    let twice: Vec<f32> = rows.chunks_exact(hidden).flat_map(|row| [row, row].concat()).collect();
    let router = BitNetTensor::from_f32([count, hidden], &twice[..count * hidden]).expect("a router");
    let of = |rows: usize, cols: usize| grouped_weights(count * rows, cols, 64).into();
    let (gate, up, down) =
        (of(ffn, hidden), grouped_weights(count * ffn, hidden, 128).into(), of(hidden, ffn));
    let weights = ExpertWeights { router: &router, gate, up, down };
    let experts = match Backend::experts(&mut gpu, shape, weights) {
        Err(KernelError::Gpu(error)) => return Err(error),
        packed => packed.expect("experts"),
    };
    let norm = norm(&mut gpu, hidden, 0.11)?;
    let mut x = gpu.rows(n, hidden, RowsKind::Residual)?;
    let values = noise(n * hidden, 2);
    let mut all = Vec::new();
    for values in [values.clone(), values[..hidden].repeat(n)] {
        gpu.write_rows(&mut x, &values)?;
        gpu.mix_experts(n, &norm, &experts, &mut x)?;
        all.extend(bits(&gpu.read_rows(&x, n)?));
    }
    Ok(all)
}

/// Norms of bf16 rows, wider than what a thread holds, added to the residual.
pub fn added(simulator: Simulator) -> Bits {
    let width = 3100;
    let mut gpu = Gpu::new(simulator)?;
    let mut x = gpu.rows(2, width, RowsKind::Intermediate)?;
    gpu.write_rows(&mut x, &wave(2 * width, 0.37))?;
    let norm = norm(&mut gpu, width, 0.11)?;
    let mut out = gpu.rows(2, width, RowsKind::Residual)?;
    gpu.write_rows(&mut out, &wave(2 * width, 0.23))?;
    gpu.norm_add(2, &x, &norm, &mut out)?;
    Ok(bits(&gpu.read_rows(&out, 2)?))
}

pub fn wanted(simulator: Simulator) -> Bits {
    let width = 600;
    let mut gpu = Gpu::new(simulator)?;
    let mut x = gpu.rows(3, width, RowsKind::Residual)?;
    gpu.write_rows(&mut x, &wave(3 * width, 0.37))?;
    let norm = norm(&mut gpu, width, 0.11)?;
    let mut out = gpu.rows(2, width, RowsKind::Intermediate)?;
    gpu.norm_rows(&[2, 0], &x, &norm, &mut out)?;
    let mut all = bits(&gpu.read_rows(&out, 2)?);
    // Rows of bf16, in order.
    let mut again = gpu.rows(2, width, RowsKind::Intermediate)?;
    gpu.norm_rows(&[0, 1], &out, &norm, &mut again)?;
    all.extend(bits(&gpu.read_rows(&again, 2)?));
    Ok(all)
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
pub fn turned_and_copied(simulator: Simulator, kv: KvType) -> Bits {
    let (heads, kv_heads, head_dim, n) = (2, 2, 36, 70);
    let mut gpu = Gpu::new(simulator)?.keeping(kv);
    let angles = wave(n * head_dim / 2, 0.01);
    let cos: Vec<f32> = angles.iter().map(|a| 1.0 - a * a / 2.0).collect();
    let rope = gpu.rope(&cos, &angles, head_dim)?;
    let mut kv = gpu.kv(KvShape { blocks: 4, kv_heads, head_dim })?;
    let width = (heads + 2 * kv_heads) * head_dim;
    let mut qkv = gpu.rows(n, width, RowsKind::Intermediate)?;
    let mut values = wave(n * width, 0.37);
    values[3 * width - 1] = f32::INFINITY;
    gpu.write_rows(&mut qkv, &values)?;
    let runs = [Run { tokens: 0..n, start: 0, blocks: 0..2, ..Run::default() }];
    gpu.norm_rope_store(Step::new(&runs, &[2, 1]), heads, &rope, None, &mut qkv, &mut kv)?;
    gpu.copy_block(&mut kv, 2, 3)?;
    let mut out = gpu.rows(n, heads * head_dim, RowsKind::Intermediate)?;
    gpu.attention(Step::new(&runs, &[3, 1]), &qkv, &kv, &mut out)?;
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
    let mut values: Vec<f32> = (0..2 * vocab).map(|i| (i * 7 % 16) as f32).collect();
    values[vocab + 2000] = f32::NAN;
    highest(simulator, vocab, &values)
}

/// Token and status of each row of `vocab` logits.
pub fn highest(simulator: Simulator, vocab: usize, values: &[f32]) -> Bits {
    let n = values.len() / vocab;
    let mut gpu = Gpu::new(simulator)?;
    let mut logits = gpu.rows(n, vocab, RowsKind::Residual)?;
    gpu.write_rows(&mut logits, values)?;
    words(&mut gpu, n, |gpu, out| gpu.argmax(n, &logits, out))
}

/// Every kind of change, in rows with and without a mask, some logits of which are not numbers; then the same again.
pub fn edited(simulator: Simulator) -> Bits {
    let (rows, vocab) = (3, 1100);
    let mut gpu = Gpu::new(simulator)?;
    let mut values = wave(rows * vocab, 0.7);
    (0..rows * vocab).step_by(41).for_each(|i| values[i] = f32::NAN);
    let mut logits = gpu.rows(rows, vocab, RowsKind::Residual)?;
    gpu.write_rows(&mut logits, &values)?;
    let changes = edits(500);
    // All even tokens, which those of the changes are.
    let masks: Vec<u32> =
        (0..2 * vocab as u32).map(|i| if i % 9 == 0 { 0x7555_5555 } else { u32::MAX }).collect();
    let of = |from, to, mask| Wanted::Changed { params: SamplingParams::GREEDY, from, to, mask };
    let wanted = [of(0, 300, Some(7)), Wanted::All, of(300, 500, None)];
    let edits = Edits { changes: &changes, masks: &masks };
    gpu.edit(&wanted, edits, &logits)?;
    gpu.edit(&wanted, edits, &logits)?;
    Ok(bits(&gpu.read_rows(&logits, rows)?))
}

/// Changes of tokens that differ, some of which forbid theirs.
pub fn edits(count: u32) -> Vec<Change> {
    let of = |i| Change {
        token: 2 * i,
        repetition: [1.0, 1.3, 0.7][i as usize % 3],
        less: [0.0, 0.4][i as usize % 2],
        more: if i % 7 == 0 { f32::NEG_INFINITY } else { 0.1 * (i % 5) as f32 },
    };
    (0..count).map(of).collect()
}

/// Many draws from one row.
pub fn drawn(simulator: Simulator) -> Bits {
    let (rows, vocab) = (72, 1100);
    let mut gpu = Gpu::new(simulator)?;
    let mut logits = gpu.rows(rows, vocab, RowsKind::Residual)?;
    gpu.write_rows(&mut logits, &wave(vocab, 0.7).repeat(rows))?;
    let params: Vec<SamplingParams> = (0..rows as u32)
        .map(|i| SamplingParams {
            // That of the last rows is too high for the quotient from a reciprocal.
            temperature: if i >= 64 { 4e9 } else { [0.9, 0.3, 0.3, 0.3, 0.3][i as usize % 5] },
            top_k: if i % 2 == 0 { 0 } else { 60 },
            // Small masses, so that a wrong sum moves the cut.
            top_p: if i % 3 == 0 { 1.0 } else { 0.01 * (1 + i) as f32 },
            min_p: if i % 4 == 0 { 0.3 } else { 0.0 },
            seed: 77 + u64::from(i),
            choice: i,
            position: 9,
        })
        .collect();
    words(&mut gpu, rows, |gpu, out| gpu.sample(&params, &logits, out))
}

/// Draws by top-p from rows of three levels, in which too many tokens are likely for a list.
pub fn drawn_flat(simulator: Simulator) -> Bits {
    let (rows, vocab) = (16, 4401);
    let mut gpu = Gpu::new(simulator)?;
    let mut logits = gpu.rows(rows, vocab, RowsKind::Residual)?;
    let levels: Vec<f32> = (0..vocab).map(|i| (i * i % 7 % 3) as f32).collect();
    gpu.write_rows(&mut logits, &levels.repeat(rows))?;
    let of = |i: u32| SamplingParams {
        temperature: 2.0,
        top_p: 0.04 * (8 + i) as f32,
        seed: 3,
        choice: i,
        ..SamplingParams::GREEDY
    };
    let params: Vec<SamplingParams> = (0..rows as u32).map(of).collect();
    words(&mut gpu, rows, |gpu, out| gpu.sample(&params, &logits, out))
}
