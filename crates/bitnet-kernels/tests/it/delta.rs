//! Gated-delta layers: against a computation in f64 that shares no code with the kernels, and cut in every way.

use bitnet_kernels::{
    Backend, Cpu, DeltaShape, DeltaWeights, DraftLog, Grouping, Inspect, Isa, KvShape, Reference, Rotate,
    RowsKind, Run, Step,
};
use bitnet_tensor::TernaryTensor;
use half::f16;

fn noise(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

fn many(seed: u64, n: usize, scale: f32) -> Vec<f32> {
    let mut next = noise(seed);
    (0..n).map(|_| scale * next()).collect()
}

/// The parameters of a layer, with decays from strong to none.
struct Parameters {
    shape: DeltaShape,
    conv: Vec<f32>,
    a: Vec<f32>,
    dt_bias: Vec<f32>,
    norm: Vec<f32>,
}

impl Parameters {
    fn new(shape: DeltaShape) -> Self {
        let a = many(2, shape.value_heads, 3.0).iter().map(|x| -x * x).collect();
        let (dt_bias, norm) = (many(3, shape.value_heads, 2.0), many(4, shape.head_dim, 1.5));
        Parameters { shape, conv: many(1, shape.channels() * shape.taps, 0.7), a, dt_bias, norm }
    }

    fn weights(&self) -> DeltaWeights<'_> {
        let Parameters { conv, a, dt_bias, norm, .. } = self;
        DeltaWeights { conv, a, dt_bias, norm, eps: 1e-6 }
    }

    /// Input rows, of which some in a row are so small that the constant under a query's or key's length counts.
    fn input(&self, seed: u64, n: usize) -> Vec<f32> {
        let columns = self.shape.columns();
        let mut rows = many(seed, n * columns, 2.0);
        for (t, row) in rows.chunks_exact_mut(columns).enumerate() {
            if t % 32 >= 20 {
                row[..self.shape.channels()].iter_mut().for_each(|x| *x *= 1e-3);
            }
        }
        rows
    }

    /// The outputs of a whole sequence in f64, from the formulas of the model: `S = g S`, `d = beta (v - S k)`,
    /// `S = S + d k^T`, `o = S q`.
    fn exact(&self, x: &[f32]) -> Vec<f64> {
        let DeltaShape { key_heads, value_heads, head_dim: dim, taps } = self.shape;
        let (kw, vw, channels) = (key_heads * dim, value_heads * dim, (2 * key_heads + value_heads) * dim);
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let rows: Vec<Vec<f64>> = x.chunks_exact(channels + vw + 2 * value_heads).map(wide).collect();
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let mut states = vec![vec![vec![0.0f64; dim]; dim]; value_heads];
        let mut out = Vec::new();
        for t in 0..rows.len() {
            let mixed: Vec<f64> = (0..channels)
                .map(|c| {
                    let tap = |j: usize| match (t + j + 1).checked_sub(taps) {
                        Some(s) => f64::from(self.conv[c * taps + j]) * rows[s][c],
                        None => 0.0,
                    };
                    silu((0..taps).map(tap).sum())
                })
                .collect();
            let unit = |x: &[f64]| {
                let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.iter().map(|x| x / length).collect::<Vec<f64>>()
            };
            for (j, s) in states.iter_mut().enumerate() {
                let k_head = j % key_heads;
                let q: Vec<f64> = unit(&mixed[k_head * dim..][..dim]);
                let q: Vec<f64> = q.iter().map(|q| q / (dim as f64).sqrt()).collect();
                let k = unit(&mixed[kw + k_head * dim..][..dim]);
                let v = &mixed[2 * kw + j * dim..][..dim];
                let a = rows[t][channels + vw + j] + f64::from(self.dt_bias[j]);
                let softplus = a.max(0.0) + (-a.abs()).exp().ln_1p();
                let g = (f64::from(self.a[j]) * softplus).exp();
                let beta = 1.0 / (1.0 + (-rows[t][channels + vw + value_heads + j]).exp());
                let mut o = vec![0.0; dim];
                for (i, row) in s.iter_mut().enumerate() {
                    row.iter_mut().for_each(|s| *s *= g);
                    let d = beta * (v[i] - row.iter().zip(&k).map(|(s, k)| s * k).sum::<f64>());
                    row.iter_mut().zip(&k).for_each(|(s, k)| *s += d * k);
                    o[i] = row.iter().zip(&q).map(|(s, q)| s * q).sum();
                }
                let mean = o.iter().map(|o| o * o).sum::<f64>() / dim as f64;
                let z = &rows[t][channels + j * dim..];
                for i in 0..dim {
                    out.push(o[i] / (mean + 1e-6).sqrt() * f64::from(self.norm[i]) * silu(z[i]));
                }
            }
        }
        out
    }
}

/// A piece of a sequence: its slot, the position of its first token, and its input rows.
type Piece<'a> = (u32, usize, &'a [f32]);

/// A layer with its states on a backend.
struct Layer<B: Inspect> {
    b: B,
    shape: DeltaShape,
    layer: B::Delta,
    state: B::State,
}

impl<B: Inspect> Layer<B> {
    fn new(mut b: B, parameters: &Parameters, slots: usize) -> Self {
        let shape = parameters.shape;
        let layer = b.delta(shape, &parameters.weights()).unwrap();
        let state = b.state(shape, slots).unwrap();
        Layer { b, shape, layer, state }
    }

    /// The outputs of some pieces in one step, of each in turn.
    fn step(&mut self, pieces: &[Piece<'_>]) -> Vec<Vec<f32>> {
        self.step_with(pieces, &vec![DraftLog::default(); pieces.len()])
    }

    /// The same with drafts in and before the pieces.
    fn step_with(&mut self, pieces: &[Piece<'_>], logs: &[DraftLog]) -> Vec<Vec<f32>> {
        let (columns, width) = (self.shape.columns(), self.shape.value_width());
        let (mut n, mut runs, mut values) = (0, Vec::new(), Vec::new());
        for (&(state, start, rows), &log) in pieces.iter().zip(logs) {
            let len = rows.len() / columns;
            runs.push(Run { tokens: n..n + len, start, blocks: 0..0, state, log });
            n += len;
            values.extend_from_slice(rows);
        }
        let mut x = self.b.rows(n, columns, RowsKind::Intermediate).unwrap();
        self.b.write(&mut x, &values).unwrap();
        let mut out = self.b.rows(n, width, RowsKind::Intermediate).unwrap();
        let step = Step::new(&runs, &[]);
        self.b.gated_delta(step, &x, &self.layer, &mut self.state, &mut out).unwrap();
        let values = self.b.read(&out, n).unwrap();
        runs.iter().map(|run| values[run.tokens.start * width..run.tokens.end * width].to_vec()).collect()
    }

    /// The bytes of a slot.
    fn slot(&mut self, slot: u32) -> Vec<u8> {
        let mut bytes = vec![0; B::state_bytes(&self.state)];
        self.b.read_state(&mut self.state, slot, &mut bytes).unwrap();
        bytes
    }

    fn copy(&mut self, from: u32, to: u32) {
        self.b.copy_state(&mut self.state, from, to).unwrap();
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

const SHAPES: [DeltaShape; 4] = [
    DeltaShape { key_heads: 2, value_heads: 8, head_dim: 16, taps: 4 },
    DeltaShape { key_heads: 4, value_heads: 8, head_dim: 32, taps: 4 },
    DeltaShape { key_heads: 2, value_heads: 6, head_dim: 128, taps: 4 },
    DeltaShape { key_heads: 3, value_heads: 3, head_dim: 10, taps: 3 },
];

#[test]
fn the_delta_rule_is_within_1e_5_of_its_formulas_in_f64() {
    for shape in SHAPES {
        let parameters = Parameters::new(shape);
        let x = parameters.input(7, 200);
        let exact = parameters.exact(&x);
        let scale = exact.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        let mut worst = 0.0f64;
        for values in [
            Layer::new(Reference::default(), &parameters, 1).step(&[(0, 0, &x)]),
            Layer::new(Cpu::new(Isa::best(), 2).unwrap(), &parameters, 1).step(&[(0, 0, &x)]),
        ] {
            let off = values[0].iter().zip(&exact).map(|(&a, e)| (f64::from(a) - e).abs() / scale);
            worst = off.fold(worst, f64::max);
        }
        println!("{shape:?}: {worst:.1e}");
        assert!(worst < 1e-5, "{shape:?}: {worst:e}");
    }
}

#[test]
fn a_sequence_cut_anywhere_gives_the_bits_of_one_run() {
    for shape in SHAPES {
        let parameters = Parameters::new(shape);
        let (n, columns) = (24, shape.columns());
        let x = parameters.input(8, n);
        for isa in Isa::available() {
            let mut layer = Layer::new(Cpu::new(isa, 2).unwrap(), &parameters, 2);
            let whole = bits(&layer.step(&[(0, 0, &x)])[0]);
            for cut in 1..n {
                let (low, high) = x.split_at(cut * columns);
                let mut parts = layer.step(&[(1, 0, low)]).concat();
                parts.extend(layer.step(&[(1, cut, high)]).concat());
                assert_eq!(bits(&parts), whole, "{isa:?} {shape:?} cut at {cut}");
            }
            let single = |(t, row)| layer.step(&[(1, t, row)]).concat();
            let parts: Vec<f32> = x.chunks_exact(columns).enumerate().flat_map(single).collect();
            assert_eq!(bits(&parts), whole, "{isa:?} {shape:?} token by token");
        }
    }
}

#[test]
fn every_instruction_set_and_number_of_threads_gives_the_bits_of_the_reference_at_the_27b_heads() {
    let shape = DeltaShape { key_heads: 16, value_heads: 48, head_dim: 128, taps: 4 };
    let parameters = Parameters::new(shape);
    let [x, y] = [parameters.input(9, 5), parameters.input(10, 1)];
    let mut reference = Layer::new(Reference::default(), &parameters, 2);
    let expected =
        [reference.step(&[(0, 0, &x)]), reference.step(&[(1, 0, &y), (0, 5, &y)])].concat().concat();
    for isa in Isa::available() {
        for threads in 1..=4 {
            let mut layer = Layer::new(Cpu::new(isa, threads).unwrap(), &parameters, 2);
            let values = [layer.step(&[(0, 0, &x)]), layer.step(&[(1, 0, &y), (0, 5, &y)])].concat().concat();
            assert_eq!(bits(&values), bits(&expected), "{isa:?} with {threads} threads");
        }
    }
}

#[test]
fn sequences_in_a_batch_give_the_bits_that_each_gives_alone() {
    for shape in SHAPES {
        let parameters = Parameters::new(shape);
        let columns = shape.columns();
        let inputs: Vec<Vec<f32>> = (0..5).map(|i| parameters.input(20 + i, 9 + 3 * i as usize)).collect();
        let mut alone = Layer::new(Cpu::new(Isa::best(), 1).unwrap(), &parameters, 1);
        let expected: Vec<Vec<u32>> =
            inputs.iter().map(|x| bits(&alone.step(&[(0, 0, x)]).concat())).collect();
        let mut batch = Layer::new(Cpu::new(Isa::best(), 3).unwrap(), &parameters, 8);
        let slots = [6, 0, 3, 1, 7];
        let mut outputs = vec![Vec::new(); 5];
        // Every sequence advances at its own pace: prompts and single tokens share steps.
        let mut at = [0; 5];
        while at.iter().zip(&inputs).any(|(&at, x)| at * columns < x.len()) {
            let mut pieces = Vec::new();
            let mut whose = Vec::new();
            for (i, x) in inputs.iter().enumerate() {
                let end = (at[i] + 1 + 2 * i).min(x.len() / columns);
                if at[i] < end {
                    pieces.push((slots[i], at[i], &x[at[i] * columns..end * columns]));
                    whose.push((i, end));
                }
            }
            for (values, (i, end)) in batch.step(&pieces).into_iter().zip(whose) {
                outputs[i].extend(bits(&values));
                at[i] = end;
            }
        }
        assert!(outputs == expected, "{shape:?}");
    }
}

#[test]
fn a_sequence_that_starts_reads_nothing_of_what_its_slot_held() {
    let parameters = Parameters::new(SHAPES[0]);
    let x = parameters.input(11, 3);
    for isa in Isa::available() {
        let mut layer = Layer::new(Cpu::new(isa, 2).unwrap(), &parameters, 2);
        let clean = bits(&layer.step(&[(0, 0, &x)]).concat());
        for poison in [f32::NAN, f32::INFINITY, 3.0] {
            let other = vec![poison; 7 * SHAPES[0].columns()];
            layer.step(&[(1, 0, &other)]);
            assert_eq!(bits(&layer.step(&[(1, 0, &x)]).concat()), clean, "{isa:?} after {poison}");
        }
    }
}

#[test]
fn a_copied_state_continues_as_its_original_and_leaves_it_alone() {
    let parameters = Parameters::new(SHAPES[1]);
    let columns = SHAPES[1].columns();
    let (x, other) = (parameters.input(12, 12), parameters.input(13, 4));
    let (prompt, rest) = x.split_at(6 * columns);
    for isa in Isa::available() {
        let mut layer = Layer::new(Cpu::new(isa, 2).unwrap(), &parameters, 3);
        let expected = bits(&layer.step(&[(0, 0, &x)]).concat()[6 * SHAPES[1].value_width()..]);
        layer.step(&[(1, 0, prompt)]);
        layer.copy(1, 2);
        // A draft that is rejected changes one of the two.
        layer.step(&[(1, 6, &other)]);
        assert_eq!(bits(&layer.step(&[(2, 6, rest)]).concat()), expected, "{isa:?}: the copy");
        layer.step(&[(1, 0, prompt)]);
        layer.copy(1, 2);
        layer.step(&[(2, 6, &other)]);
        assert_eq!(bits(&layer.step(&[(1, 6, rest)]).concat()), expected, "{isa:?}: the original");
    }
}

/// Every sequence is computed with drafts, of which the first few are its own next tokens, and again without. Outputs and
/// states must be the same.
#[test]
fn a_state_with_a_log_has_the_bits_of_one_without_whatever_is_rejected() {
    let most = 16;
    for (shape, seed) in SHAPES.into_iter().zip(40..) {
        let parameters = Parameters::new(shape);
        let (columns, width) = (shape.columns(), shape.value_width());
        let texts: Vec<Vec<f32>> = (0..3).map(|i| parameters.input(seed + i, 60)).collect();
        let wrong = parameters.input(90, most);
        for isa in Isa::available() {
            let mut layer = Layer::new(Cpu::new(isa, 3).unwrap(), &parameters, 6);
            assert_eq!(layer.b.reserve_log(&mut layer.state, most).unwrap(), most);
            let expected: Vec<Vec<f32>> =
                (0..3).map(|i| layer.step(&[(i, 0, &texts[i as usize])]).remove(0)).collect();
            let states: Vec<Vec<u8>> = (0..3).map(|i| layer.slot(i)).collect();
            let mut next = noise(seed);
            let mut below = |n: usize| ((next() + 1.0) * 0.5 * n as f32) as usize % n;
            let (mut at, mut accepted) = ([0; 3], [0; 3]);
            while at.iter().any(|&at| at < 60) {
                let (mut rows, mut logs, mut whose) = (Vec::new(), Vec::new(), Vec::new());
                for i in (0..3).filter(|&i| at[i] < 60) {
                    let certain = 1 + if below(3) == 0 { below(5) } else { 0 };
                    let certain = certain.min(60 - at[i]);
                    let drafts = below(most + 1);
                    let right = below(drafts + 1).min(60 - at[i] - certain);
                    // The text ends with a token that is no draft, so that the state reaches its end.
                    let right = if at[i] + certain + right == 60 { 0 } else { right };
                    let mut input = texts[i][at[i] * columns..][..(certain + right) * columns].to_vec();
                    input.extend_from_slice(&wrong[..(drafts - right) * columns]);
                    rows.push((3 + i as u32, at[i], input));
                    logs.push(DraftLog { accepted: accepted[i], drafts });
                    whose.push((i, certain + right));
                    accepted[i] = right;
                }
                let pieces: Vec<Piece<'_>> = rows.iter().map(|(slot, at, x)| (*slot, *at, &x[..])).collect();
                for (values, (i, kept)) in layer.step_with(&pieces, &logs).iter().zip(whose) {
                    let expected = &expected[i][at[i] * width..][..kept * width];
                    assert_eq!(bits(&values[..kept * width]), bits(expected), "{isa:?} {shape:?} {at:?}");
                    at[i] += kept;
                }
            }
            let read: Vec<Vec<u8>> = (3..6).map(|slot| layer.slot(slot)).collect();
            assert!(read == states, "{isa:?} {shape:?}: states");
        }
    }
}

#[test]
fn a_copy_of_a_slot_has_the_state_before_its_drafts() {
    let parameters = Parameters::new(SHAPES[1]);
    let columns = SHAPES[1].columns();
    let (x, other) = (parameters.input(17, 12), parameters.input(18, 5));
    let mut layer = Layer::new(Cpu::new(Isa::best(), 2).unwrap(), &parameters, 3);
    layer.b.reserve_log(&mut layer.state, 5).unwrap();
    let expected = bits(&layer.step(&[(0, 0, &x)]).concat()[7 * SHAPES[1].value_width()..]);
    let drafted = [&x[..7 * columns], &other].concat();
    layer.step_with(&[(1, 0, &drafted)], &[DraftLog { accepted: 0, drafts: 5 }]);
    layer.copy(1, 2);
    assert_eq!(layer.slot(1), layer.slot(2));
    assert_eq!(bits(&layer.step(&[(2, 7, &x[7 * columns..])]).concat()), expected);
}

#[test]
#[should_panic(expected = "no two runs may share a slot")]
fn two_runs_in_one_slot_are_a_bug_of_the_caller() {
    let parameters = Parameters::new(SHAPES[0]);
    let x = parameters.input(14, 1);
    Layer::new(Cpu::new(Isa::best(), 1).unwrap(), &parameters, 2).step(&[(1, 0, &x), (1, 0, &x)]);
}

/// A row that holds a NaN fails its own sequence and no other.
#[test]
fn a_nan_in_one_sequence_changes_no_bit_of_another() {
    let parameters = Parameters::new(SHAPES[0]);
    let columns = SHAPES[0].columns();
    let (x, mut sick) = (parameters.input(15, 4), parameters.input(16, 4));
    let mut layer = Layer::new(Cpu::new(Isa::best(), 3).unwrap(), &parameters, 3);
    let clean = layer.step(&[(0, 0, &x), (1, 0, &sick), (2, 0, &x)]);
    sick[2 * columns + 5] = f32::NAN;
    let poisoned = layer.step(&[(0, 0, &x), (1, 0, &sick), (2, 0, &x)]);
    assert_eq!((bits(&poisoned[0]), bits(&poisoned[2])), (bits(&clean[0]), bits(&clean[2])));
    assert!(poisoned[1].iter().any(|x| x.is_nan()));
}

/// The transform in f64, from its definition: `y[i] = sum_j (-1)^popcount(i & j) x[j] / sqrt(B)`.
#[test]
fn a_rotated_row_holds_the_transform_of_its_definition() {
    for (block, grouped) in [(1024, None), (256, Some((4, 3))), (512, Some((16, 6)))] {
        let width = 3 * block;
        let (x, mut next) = (many(17, width, 1.0), noise(18));
        let signs: Vec<i8> = (0..width).map(|_| if next() < 0.0 { -1 } else { 1 }).collect();
        let mut from: Vec<usize> = (0..width).collect();
        if let Some((key_heads, per_key)) = grouped {
            let dim = width / (key_heads * per_key);
            let head = |h: usize| h % per_key * key_heads + h / per_key;
            from = (0..width).map(|i| head(i / dim) * dim + i % dim).collect();
        }
        let turned = |i: usize| {
            let first = i / block * block;
            let term = |j: usize| {
                let sign =
                    if ((i - first) & (j - first)).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                sign * f64::from(signs[j]) * f64::from(x[from[j]])
            };
            (first..first + block).map(term).sum::<f64>() / (block as f64).sqrt()
        };
        let exact: Vec<f64> = (0..width).map(turned).collect();
        for isa in Isa::available() {
            let mut b = Cpu::new(isa, 2).unwrap();
            let rotation = b.rotation(width, &Rotate { block, signs: Some(&signs), grouped }).unwrap();
            let mut rows = b.rows(1, width, RowsKind::Residual).unwrap();
            b.write(&mut rows, &x).unwrap();
            let mut q = b.int8_rows(1, width, Grouping::Row).unwrap();
            b.norm_quantize(1, &rows, [None, None], Some(&rotation), &mut q).unwrap();
            let (values, multipliers, _) = b.read_int8_rows(&q, 1).unwrap();
            for (i, (&q, exact)) in values.iter().zip(&exact).enumerate() {
                let step = 1.0 / f64::from(multipliers[0]);
                let off = (f64::from(q) * step - exact).abs() / step;
                assert!(off < 0.501, "{isa:?} block {block} {grouped:?} column {i}: {off}");
            }
        }
    }
}

/// `e = s . WHT(z)`, in f64: the transform comes first.
#[test]
fn an_embedded_row_of_a_rotated_table_is_transformed_and_then_signed() {
    let (width, block) = (512, 256);
    let mut next = noise(31);
    let signs: Vec<i8> = (0..width).map(|_| if next() < 0.0 { -1 } else { 1 }).collect();
    let codes: Vec<u8> = (0..3 * width / 4).map(|i| (i * i * 37 % 251) as u8).collect();
    let scales = (0..3 * width / 128).map(|i| f16::from_f32(0.5 + i as f32 / 64.0)).collect();
    let weights = TernaryTensor::from_groups(3, width, 128, codes, scales).unwrap();
    for isa in Isa::available() {
        let mut b = Cpu::new(isa, 1).unwrap();
        let mut table = b.table(&weights).unwrap();
        let rotation = b.rotation(width, &Rotate { block, signs: Some(&signs), grouped: None }).unwrap();
        b.rotate_table(&mut table, rotation);
        let mut out = b.rows(3, width, RowsKind::Residual).unwrap();
        b.embed(&table, &[2, 0, 1], 1.0, &mut out).unwrap();
        let values = b.read(&out, 3).unwrap();
        for (row, values) in [2, 0, 1].into_iter().zip(values.chunks_exact(width)) {
            let mut z = vec![0.0; width];
            weights.decode_row(row, &mut z);
            for (i, &value) in values.iter().enumerate() {
                let first = i / block * block;
                let term = |j: usize| match ((i - first) & (j - first)).count_ones() % 2 {
                    0 => f64::from(z[j]),
                    _ => -f64::from(z[j]),
                };
                let sum: f64 = (first..first + block).map(term).sum();
                let exact = f64::from(signs[i]) * sum / (block as f64).sqrt();
                assert!((f64::from(value) - exact).abs() < 1e-5, "{isa:?} row {row} column {i}");
            }
        }
    }
}

#[test]
fn a_rotary_embedding_of_a_part_of_a_head_pairs_within_it_and_leaves_the_rest() {
    let (heads, dim, width, more) = (3, 20, 8, 5);
    let columns = (heads + 2) * dim + more;
    let (x, angle) = (many(41, columns, 1.0), |i: usize| 0.3 + i as f32);
    let (sin, cos): (Vec<f32>, Vec<f32>) = (0..width / 2).map(|i| angle(i).sin_cos()).unzip();
    for isa in Isa::available() {
        let mut b = Cpu::new(isa, 1).unwrap();
        let rope = b.rope(&cos, &sin, width).unwrap();
        let mut kv = b.kv(KvShape { blocks: 1, kv_heads: 1, head_dim: dim }).unwrap();
        let mut qkv = b.rows(1, columns, RowsKind::Intermediate).unwrap();
        b.write(&mut qkv, &x).unwrap();
        let runs = [Run { tokens: 0..1, start: 0, blocks: 0..1, ..Run::default() }];
        b.norm_rope_store(Step::new(&runs, &[0]), heads, &rope, None, &mut qkv, &mut kv).unwrap();
        let turned = b.read(&qkv, 1).unwrap();
        for (at, &value) in turned.iter().enumerate() {
            let (head, i) = (at / dim, at % dim);
            let exact = if head > heads || i >= width {
                x[at]
            } else if i < width / 2 {
                x[at] * cos[i] - x[at + width / 2] * sin[i]
            } else {
                x[at] * cos[i - width / 2] + x[at - width / 2] * sin[i - width / 2]
            };
            assert!((value - exact).abs() < 1e-6, "{isa:?} head {head} dimension {i}: {value} for {exact}");
        }
    }
}
