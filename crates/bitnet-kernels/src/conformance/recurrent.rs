//! Cases for layers with a recurrent state, and for what comes with them: transforms, gates, dense projections, and
//! heads that are rotated in part.

use bitnet_tensor::DType;

use super::{Case, Results, Values, floats, logits, norms, quantised, rope};
use crate::{
    BLOCK_TOKENS, DeltaShape, DeltaWeights, DraftLog, Gate, Grouping, Inspect, KernelError, KvShape, Rotate,
    RowsKind, Run, Step, Wanted,
};

/// Adds shapes of golden checkpoints, of the 27B model with fewer heads, and odd ones.
pub(super) fn add_cases(cases: &mut Vec<Case>) {
    for (key_heads, value_heads, head_dim, taps) in [
        (2, 8, 16, 4),
        (4, 8, 32, 4),
        (1, 3, 128, 4),
        (4, 4, 128, 4),
        (1, 1, 1, 1),
        (3, 6, 7, 2),
        (2, 2, 20, 5),
        (1, 17, 48, 3),
    ] {
        let runs: [&[(usize, usize)]; 3] =
            [&[(0, 1)], &[(0, 19), (5, 1), (64, 2)], &[(3, 1), (0, 3), (1, 1), (7, 33), (0, 1), (2, 4)]];
        let delta = |runs| Case::Delta { key_heads, value_heads, head_dim, taps, runs, odd: false };
        cases.extend(runs.map(delta));
        let runs = &[(0, 7), (2, 1), (0, 2)];
        cases.push(Case::Delta { key_heads, value_heads, head_dim, taps, runs, odd: true });
    }
    draft_cases(cases, 2, &[[4, 0, 0], [4, 3, 2], [3, 2, 2], [8, 7, 7], [6, 4, 1], [3, 2, 0], [1, 0, 0]]);
    rotated_cases(cases);
    for (n, width, column) in [(1, 1, 0), (9, 100, 3), (3, 256, 512), (5, 6144, 16)] {
        cases.push(Case::SigmoidGate { n, width, column });
    }
    for (n, width, rows, column, dtype) in [
        (1, 17, 5, 0, DType::F32),
        (3, 256, 16, 700, DType::BF16),
        (9, 5120, 96, 3, DType::BF16),
        (5, 100, 33, 1, DType::F16),
    ] {
        cases.push(Case::Dense { n, width, rows, column, dtype });
    }
    for (start, n, heads, kv_heads, head_dim, rotary, more) in [
        (0, 1, 1, 1, 4, 2, 0),
        (63, 3, 4, 2, 32, 8, 128),
        (5, 70, 3, 1, 36, 20, 7),
        (200, 2, 6, 1, 256, 64, 1536),
        (63, 2, 2, 1, 36, 0, 0),
    ] {
        cases.push(Case::PartialRope { start, n, heads, kv_heads, head_dim, rotary, more });
    }
}

/// Adds more layers whose sequences draft, in long texts.
pub(super) fn add_cpu_cases(cases: &mut Vec<Case>) {
    let runs = &[
        [9, 0, 0],
        [1, 0, 0],
        [4, 3, 2],
        [2, 1, 0],
        [3, 2, 2],
        [1, 0, 0],
        [8, 7, 7],
        [8, 7, 1],
        [5, 0, 0],
        [6, 4, 3],
        [17, 16, 16],
        [7, 6, 5],
        [2, 1, 1],
    ];
    for sequences in [1, 4] {
        draft_cases(cases, sequences, runs);
    }
}

/// Adds layers whose sequences draft: with the runs of [`add_cases`], none, some and all drafts are accepted, fewer than
/// there are taps and more, and steps between have none.
fn draft_cases(cases: &mut Vec<Case>, sequences: usize, runs: &'static [[usize; 3]]) {
    for (key_heads, value_heads, head_dim, taps) in
        [(2, 8, 16, 4), (1, 3, 128, 4), (2, 6, 33, 2), (1, 1, 1, 1), (2, 2, 20, 8), (1, 17, 48, 3)]
    {
        cases.push(Case::DeltaDrafts { key_heads, value_heads, head_dim, taps, sequences, runs });
    }
}

/// Adds blocks of every power of two, in rows that fill vectors and others.
fn rotated_cases(cases: &mut Vec<Case>) {
    let rotated = |width, block, signs, grouped, norms, grouping| {
        let n = if width > 4000 { 2 } else { 9 };
        Case::Rotated { n, width, block, signs, grouped, norms, grouping }
    };
    for (width, block) in
        [(1, 1), (6, 2), (20, 4), (24, 8), (48, 16), (96, 32), (192, 64), (384, 128), (512, 256), (512, 512)]
    {
        cases.push(rotated(width, block, true, None, 0, Grouping::Groups));
        cases.push(rotated(width, block, width % 3 == 0, None, 1, Grouping::Row));
    }
    for (width, block, grouped) in [
        (5120, 1024, None),
        (6144, 1024, Some((16, 3))),
        (6144, 2048, Some((16, 3))),
        (256, 256, Some((4, 2))),
        (40, 8, Some((2, 5))),
        (96, 32, Some((2, 3))),
    ] {
        cases.push(rotated(width, block, true, grouped, 0, Grouping::Groups));
        cases.push(rotated(width, block, false, grouped, 1, Grouping::Groups));
    }
    for (n, width, vocab, group, block) in
        [(1, 16, 5, 128, 16), (3, 192, 509, 64, 64), (8, 256, 67, 128, 256), (13, 1024, 40, 128, 1024)]
    {
        cases.push(Case::RotatedHead { n, width, vocab, group, block });
    }
}

/// Runs one of these cases.
pub(super) fn outputs<B: Inspect>(b: &mut B, v: &mut Values, case: Case) -> Result<Results, KernelError> {
    match case {
        Case::Delta { key_heads, value_heads, head_dim, taps, runs, odd } => {
            delta(b, v, DeltaShape { key_heads, value_heads, head_dim, taps }, runs, odd)
        }
        Case::DeltaDrafts { key_heads, value_heads, head_dim, taps, sequences, runs } => {
            delta_drafts(b, v, DeltaShape { key_heads, value_heads, head_dim, taps }, sequences, runs)
        }
        Case::Rotated { n, width, block, signs, grouped, norms, grouping } => {
            let signs = signs.then(|| v.signs(width));
            let rotate = Rotate { block, signs: signs.as_deref(), grouped };
            let rotation = b.rotation(width, &rotate)?;
            rotated(b, v, [n, width, norms], grouping, &rotation)
        }
        Case::RotatedHead { n, width, vocab, group, block } => {
            let signs = v.signs(width);
            let rotate = Rotate { block, signs: Some(&signs), grouped: None };
            let rotation = b.rotation(width, &rotate)?;
            rotated_head(b, v, [n, width, vocab], group, rotation)
        }
        Case::SigmoidGate { n, width, column } => {
            let mut x = b.rows(n, column + width, RowsKind::Intermediate)?;
            b.write(&mut x, &v.rows(n, column + width))?;
            let mut out = b.rows(n, width, RowsKind::Intermediate)?;
            b.write(&mut out, &v.many(n * width))?;
            b.sigmoid_gate(n, &x, column, &mut out)?;
            Ok(vec![floats("gated", b.read(&out, n)?)])
        }
        Case::Dense { n, width, rows, column, dtype } => {
            let table = b.table(&v.table(rows, width, dtype))?;
            let norm = norms(b, v, 1, width)?.remove(0);
            let mut x = b.rows(n, width, RowsKind::Residual)?;
            b.write(&mut x, &v.rows(n, width))?;
            let mut out = b.rows(n, column + rows + 2, RowsKind::Intermediate)?;
            b.write(&mut out, &v.many(n * (column + rows + 2)))?;
            b.dense(n, &x, &norm, &table, &mut out, column)?;
            Ok(vec![floats("output", b.read(&out, n)?)])
        }
        Case::PartialRope { start, n, heads, kv_heads, head_dim, rotary, more } => {
            let shape = KvShape { blocks: (start + n).div_ceil(BLOCK_TOKENS), kv_heads, head_dim };
            partial_rope(b, v, [start, n, heads, rotary, more], shape)
        }
        _ => unreachable!("the other cases have outputs of their own"),
    }
}

impl Values {
    /// 1 or -1, as often.
    fn signs(&mut self, n: usize) -> Vec<i8> {
        (0..n).map(|_| if self.bits().is_multiple_of(2) { 1 } else { -1 }).collect()
    }
}

/// Sequences in the slots of a layer.
struct Sequences<B: Inspect> {
    shape: DeltaShape,
    layer: B::Delta,
    state: B::State,
    /// One for each sequence.
    slots: Vec<u32>,
}

impl<B: Inspect> Sequences<B> {
    /// Makes a layer whose decays range from strong to none, with two slots more than there are sequences.
    fn new(b: &mut B, v: &mut Values, shape: DeltaShape, count: usize) -> Result<Self, KernelError> {
        let conv = v.many(shape.channels() * shape.taps);
        let a: Vec<f32> = v.many(shape.value_heads).iter().map(|x| -4.0 * x * x).collect();
        let (dt_bias, norm) = (v.many(shape.value_heads), v.many(shape.head_dim));
        let weights = DeltaWeights { conv: &conv, a: &a, dt_bias: &dt_bias, norm: &norm, eps: 1e-6 };
        let (layer, state) = (b.delta(shape, &weights)?, b.state(shape, count + 2)?);
        // Slots are assigned from the end.
        Ok(Sequences { shape, layer, state, slots: (0..count as u32).rev().collect() })
    }

    /// Takes sequences through the runs `(start, tokens)`, and returns their outputs.
    fn step(
        &mut self,
        b: &mut B,
        v: &mut Values,
        sequences: &[(usize, usize)],
        odd: bool,
    ) -> Result<(&'static str, Vec<f64>, Vec<u32>), KernelError> {
        let (mut n, mut runs) = (0, Vec::new());
        for (&(start, len), &state) in sequences.iter().zip(&self.slots).filter(|((_, len), _)| *len > 0) {
            runs.push(Run { tokens: n..n + len, start, blocks: 0..0, state, ..Run::default() });
            n += len;
        }
        let columns = self.shape.columns();
        let mut x = b.rows(n.max(1), columns, RowsKind::Intermediate)?;
        b.write(&mut x, &if odd { v.rows(n, columns) } else { v.many(n * columns) })?;
        let mut out = b.rows(n.max(1), self.shape.value_width(), RowsKind::Intermediate)?;
        let step = Step::new(&runs, &[]);
        b.gated_delta(step, &x, &self.layer, &mut self.state, &mut out)?;
        Ok(floats("delta", b.read(&out, n)?))
    }
}

/// Takes sequences to their starts, then through a step together, then through one more token each.
fn delta<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    shape: DeltaShape,
    sequences: &[(usize, usize)],
    odd: bool,
) -> Result<Results, KernelError> {
    let count = sequences.len();
    let mut all = Sequences::new(b, v, shape, count)?;
    // What slots hold must not reach a sequence that starts.
    let stale = all.step(b, v, &vec![(0, 3); count], true)?;
    let last = |start: usize| start.min(shape.taps.saturating_sub(2));
    let first: Vec<_> = sequences.iter().map(|&(start, _)| (0, start - last(start))).collect();
    let second: Vec<_> = sequences.iter().map(|&(start, _)| (start - last(start), last(start))).collect();
    let before = [all.step(b, v, &first, false)?, all.step(b, v, &second, false)?];
    // Moves the first sequence, which must find its state in the copy.
    b.copy_state(&mut all.state, all.slots[0], count as u32)?;
    all.slots[0] = count as u32;
    // Moves the last through memory of the host.
    let mut bytes = vec![0; B::state_bytes(&all.state)];
    b.read_state(&mut all.state, all.slots[count - 1], &mut bytes)?;
    b.write_state(&mut all.state, count as u32 + 1, &bytes)?;
    all.slots[count - 1] = count as u32 + 1;
    let main = all.step(b, v, sequences, odd)?;
    let next: Vec<_> = sequences.iter().map(|&(start, len)| (start + len, 1)).collect();
    Ok([stale].into_iter().chain(before).chain([main, all.step(b, v, &next, false)?]).collect())
}

/// Takes sequences through runs with drafts; between two steps one of them goes on in a copy of its slot, which has no log.
fn delta_drafts<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    shape: DeltaShape,
    sequences: usize,
    steps: &[[usize; 3]],
) -> Result<Results, KernelError> {
    let Sequences { layer, mut state, mut slots, .. } = Sequences::new(b, v, shape, sequences)?;
    let most = steps.iter().map(|run| run[1]).max().unwrap_or(0);
    b.reserve_log(&mut state, most)?;
    let mut free = sequences as u32;
    let (mut at, mut accepted) = (vec![0; sequences], vec![0; sequences]);
    let mut results = Vec::new();
    for step in 0..steps.len() {
        let (mut n, mut runs) = (0, Vec::new());
        for sequence in 0..sequences {
            let [len, drafts, right] = steps[(step + sequence) % steps.len()];
            let log = DraftLog { accepted: accepted[sequence], drafts };
            let tokens = n..n + len;
            runs.push(Run { tokens, start: at[sequence], blocks: 0..0, state: slots[sequence], log });
            (at[sequence], accepted[sequence]) = (at[sequence] + len - drafts + right, right);
            n += len;
        }
        let mut x = b.rows(n, shape.columns(), RowsKind::Intermediate)?;
        b.write(&mut x, &v.many(n * shape.columns()))?;
        let mut out = b.rows(n, shape.value_width(), RowsKind::Intermediate)?;
        b.gated_delta(Step::new(&runs, &[]), &x, &layer, &mut state, &mut out)?;
        results.push(floats("delta", b.read(&out, n)?));
        if let Some(moves) = accepted.iter().position(|&accepted| accepted == 0) {
            b.copy_state(&mut state, slots[moves], free)?;
            std::mem::swap(&mut slots[moves], &mut free);
        }
    }
    Ok(results)
}

/// Transforms and quantises ordinary and extreme rows, as they are and as the product of a gate.
fn rotated<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    [n, width, count]: [usize; 3],
    grouping: Grouping,
    rotation: &B::Rotation,
) -> Result<Results, KernelError> {
    let norms = norms(b, v, count, width)?;
    let norms = [norms.first(), None];
    let mut x = b.rows(n, width, RowsKind::Residual)?;
    b.write(&mut x, &v.rows(n, width))?;
    let mut q = b.int8_rows(n, width, grouping)?;
    b.norm_quantize(n, &x, norms, Some(rotation), &mut q)?;
    let mut results = quantised(b, &q, n)?;
    let mut gate_up = b.rows(n, 2 * width, RowsKind::Intermediate)?;
    b.write(&mut gate_up, &v.rows(n, 2 * width))?;
    b.gate_norm_quantize(n, &gate_up, Gate::Silu, norms, Some(rotation), &mut q)?;
    results.append(&mut quantised(b, &q, n)?);
    Ok(results)
}

/// Embeds tokens and computes logits with a ternary table that contains a transform.
fn rotated_head<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    [n, width, vocab]: [usize; 3],
    group: usize,
    rotation: B::Rotation,
) -> Result<Results, KernelError> {
    let mut table = b.table(&v.ternary(&[vocab], width, Some(group)))?;
    b.rotate_table(&mut table, rotation);
    let tokens: Vec<u32> = (0..n).map(|_| (v.bits() % vocab as u64) as u32).collect();
    let mut x = b.rows(n, width, RowsKind::Residual)?;
    b.embed(&table, &tokens, 3.0, &mut x)?;
    let embedded = floats("embedding", b.read(&x, n)?);
    let mut x = b.rows(n, width, RowsKind::Intermediate)?;
    b.write(&mut x, &v.rows(n, width))?;
    let logits = logits(b, &x, &table, &vec![Wanted::All; n], vocab)?;
    Ok(vec![embedded, floats("logit", logits)])
}

/// Rotates and stores the heads of a sequence in two steps, and attends.
fn partial_rope<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    [start, n, heads, rotary, more]: [usize; 5],
    shape: KvShape,
) -> Result<Results, KernelError> {
    let width = (heads + 2 * shape.kv_heads) * shape.head_dim + more;
    let rope = rope(b, v, start + n, rotary)?;
    let norms = norms(b, v, 2, shape.head_dim)?;
    let blocks: Vec<u32> = (0..shape.blocks as u32).rev().collect();
    let mut kv = b.kv(shape)?;
    let mut out = b.rows(n, heads * shape.head_dim, RowsKind::Intermediate)?;
    let mut results = Vec::new();
    for (first, len) in [(0, start), (start, n)] {
        let mut qkv = b.rows(len.max(1), width, RowsKind::Intermediate)?;
        b.write(&mut qkv, &v.many(len * width))?;
        let runs = [Run { tokens: 0..len, start: first, blocks: 0..blocks.len(), ..Run::default() }];
        let step = Step::new(&runs, &blocks);
        b.norm_rope_store(step, heads, &rope, Some([&norms[0], &norms[1]]), &mut qkv, &mut kv)?;
        results.push(floats("rows", b.read(&qkv, len)?));
        if first == start && len == n {
            b.attention(step, &qkv, &kv, &mut out)?;
        }
    }
    results.push(floats("attention", b.read(&out, n)?));
    Ok(results)
}
