//! Attention on the simulator: near the reference, and the same bits whatever the chunks and neighbours.

use bitnet_kernels::{
    BLOCK_TOKENS, Backend, Cpu, Grouping, Inspect, Isa, KvShape, KvType, Reference, RowOrder, RowsKind, Run,
    Step,
    gpu::{Gpu, GpuError},
};
use bitnet_tensor::TernaryTensor;
use bitnet_tests::Simulator;
use half::bf16;

/// Number of input features from which queries, keys and values are computed.
pub const HIDDEN: usize = 40;

/// Numbers and width of the heads.
#[derive(Clone, Copy)]
pub struct Heads {
    pub queries: usize,
    pub keys: usize,
    pub dim: usize,
    /// Type of the cache.
    pub kv: KvType,
    /// Number of keys that a token sees; all if `None`.
    pub window: Option<usize>,
}

/// A piece of a sequence in one step: sequence, first token, one past the last token.
pub type Piece = (usize, usize, usize);

fn value(i: usize, seed: usize) -> f32 {
    let z = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ (seed as u64) << 17);
    let z = (z ^ z >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (z >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// The features of a sequence of tokens.
pub fn sequence(tokens: usize, seed: usize) -> Vec<f32> {
    (0..tokens * HIDDEN).map(|i| value(i, seed)).collect()
}

/// Queries and attention results of every token, `[sequence][token]`.
pub type Outputs = Vec<Vec<[Vec<f32>; 2]>>;

/// Projects, rotates, stores and attends in steps, on the GPU and on the reference.
pub fn attend(
    simulator: Simulator,
    heads: Heads,
    sequences: &[Vec<f32>],
    steps: &[&[Piece]],
) -> Result<(Outputs, Outputs), GpuError> {
    let Heads { queries, keys, dim, kv, window } = heads;
    let rows = (queries + 2 * keys) * dim;
    let (mut gpu, mut reference) = (Gpu::new(simulator)?.keeping(kv), Reference::bf16().keeping(kv));
    let trits: Vec<i8> = (0..rows * HIDDEN).map(|i| (value(i, 99) * 1.5).round() as i8).collect();
    let w = TernaryTensor::from_trits(rows, HIDDEN, &trits, 0.35).unwrap();
    let order = RowOrder::Rope { head_dim: dim };
    let (w_gpu, w) = (gpu.linear(&w, order)?, reference.linear(&w, order).unwrap());
    let lengths: Vec<usize> = sequences.iter().map(|s| s.len() / HIDDEN).collect();
    let half = dim / 2;
    let longest = lengths.iter().max().copied().unwrap();
    let angle = |i: usize| ((i / half) as f32 * 0.01 * (1 + i % half) as f32).sin_cos();
    let (sin, cos): (Vec<f32>, Vec<f32>) = (0..longest * half).map(angle).unzip();
    let (rope_gpu, rope) = (gpu.rope(&cos, &sin, dim)?, reference.rope(&cos, &sin, dim).unwrap());
    // Blocks are assigned from the end, so that neighbours in a sequence are not neighbours in memory.
    let needed: Vec<usize> = lengths.iter().map(|l| l.div_ceil(BLOCK_TOKENS)).collect();
    let total: usize = needed.iter().sum();
    let blocks: Vec<u32> = (0..total as u32).rev().collect();
    let first = |s: usize| needed[..s].iter().sum::<usize>();
    let shape = KvShape { blocks: total, kv_heads: keys, head_dim: dim };
    let (mut kv_gpu, mut kv) = (gpu.kv(shape)?, reference.kv(shape).unwrap());
    let empty = || lengths.iter().map(|&l| vec![[vec![], vec![]]; l]).collect::<Outputs>();
    let (mut actual, mut expected) = (empty(), empty());
    for step in steps {
        let (mut runs, mut features) = (Vec::new(), Vec::new());
        for &(s, start, end) in *step {
            let at = features.len() / HIDDEN;
            features.extend_from_slice(&sequences[s][start * HIDDEN..end * HIDDEN]);
            let blocks = first(s)..first(s) + needed[s];
            runs.push(Run { tokens: at..at + end - start, start, blocks, ..Run::default() });
        }
        let n = features.len() / HIDDEN;
        let mut x = reference.rows(n, HIDDEN, RowsKind::Residual).unwrap();
        reference.write(&mut x, &features).unwrap();
        let mut q = reference.int8_rows(n, HIDDEN, Grouping::Row).unwrap();
        reference.norm_quantize(n, &x, [None, None], None, &mut q).unwrap();
        let mut qkv = reference.rows(n, rows, RowsKind::Intermediate).unwrap();
        let all = Step::new(&runs, &blocks).within(window);
        reference.bit_linear_norm_rope_store(all, &q, &w, queries, &rope, None, &mut qkv, &mut kv).unwrap();
        let mut out = reference.rows(n, queries * dim, RowsKind::Intermediate).unwrap();
        reference.attention(all, &qkv, &kv, &mut out).unwrap();
        let (e_queries, e_out) = (reference.read(&qkv, n).unwrap(), reference.read(&out, n).unwrap());

        let (values, multipliers, sums) = reference.read_int8_rows(&q, n).unwrap();
        let q = gpu.int8_rows(n, HIDDEN, Grouping::Row)?;
        gpu.write_int8_rows(&q, &values, &multipliers, &sums)?;
        let mut qkv = gpu.rows(n, rows, RowsKind::Intermediate)?;
        gpu.bit_linear_norm_rope_store(all, &q, &w_gpu, &rope_gpu, None, &mut qkv, &mut kv_gpu)?;
        let mut out = gpu.rows(n, queries * dim, RowsKind::Intermediate)?;
        gpu.attention(all, &qkv, &kv_gpu, &mut out)?;
        let (a_queries, a_out) = (gpu.read_rows(&qkv, n)?, gpu.read_rows(&out, n)?);
        for (run, &(s, start, _)) in runs.iter().zip(*step) {
            for (i, t) in run.tokens.clone().enumerate() {
                let cut = |values: &[f32], width: usize| values[t * width..][..queries * dim].to_vec();
                actual[s][start + i] = [cut(&a_queries, rows), cut(&a_out, queries * dim)];
                expected[s][start + i] = [cut(&e_queries, rows), cut(&e_out, queries * dim)];
            }
        }
    }
    Ok((actual, expected))
}

/// GPUs of both kinds of matrix units.
const GPUS: [fn() -> Simulator; 2] = [Simulator::default, Simulator::older];
const KV_TYPES: [KvType; 2] = Gpu::<Simulator>::KV_TYPES;

/// Heads of several widths, with tails; query heads that share a key head or not; prompts and single tokens together.
#[test]
fn queries_are_exact_and_attention_is_near_the_reference() {
    for (queries, keys, dim) in
        [(1, 1, 2), (4, 1, 48), (4, 2, 64), (5, 5, 32), (7, 1, 100), (3, 1, 256), (8, 2, 128), (20, 1, 16)]
    {
        let sequences = [sequence(1, 1), sequence(79, 2), sequence(130, 3)];
        let steps: &[&[Piece]] = &[
            &[(1, 0, 63), (2, 0, 61)],
            &[(0, 0, 1), (1, 63, 64), (2, 61, 129)],
            &[(2, 129, 130), (1, 64, 79)],
        ];
        for (gpu, kv) in GPUS.into_iter().flat_map(|gpu| KV_TYPES.map(|kv| (gpu, kv))) {
            let heads = Heads { queries, keys, dim, kv, window: None };
            let (actual, expected) = attend(gpu(), heads, &sequences, steps).unwrap();
            for (s, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
                for (t, ([a_query, a], [e_query, e])) in actual.iter().zip(expected).enumerate() {
                    assert_eq!(a_query, e_query, "{queries} {keys} {dim}: query of sequence {s} token {t}");
                    for (i, (&a, &e)) in a.iter().zip(e).enumerate() {
                        let near = (a - e).abs() <= 0.008 * e.abs() + 5e-4;
                        assert!(
                            near,
                            "{queries} {keys} {dim} {kv}: sequence {s} token {t} value {i}: {a}, not {e}"
                        );
                    }
                }
            }
        }
    }
}

pub fn bits(outputs: &[Vec<[Vec<f32>; 2]>]) -> Vec<u32> {
    outputs.iter().flatten().flatten().flatten().map(|x| x.to_bits()).collect()
}

/// One prompt in one piece, in chunks, token by token, together with others, and with its keys split over thread
/// blocks.
#[test]
fn attention_does_not_depend_on_chunks_or_on_other_sequences() {
    let [newer, older] = GPUS;
    for (queries, keys, dim, kv, gpu, window) in [
        (4, 2, 64, KvType::Bf16, newer, None),
        (4, 2, 64, KvType::Bf16, older, None),
        (6, 1, 128, KvType::Bf16, older, None),
        (2, 1, 200, KvType::Bf16, newer, None),
        (4, 2, 64, KvType::Int8, newer, None),
        (6, 1, 100, KvType::Int8, older, None),
        (2, 1, 200, KvType::Int8, older, None),
        (4, 2, 64, KvType::Bf16, older, Some(5)),
        (2, 1, 64, KvType::Bf16, newer, Some(70)),
        (2, 1, 36, KvType::Int8, newer, Some(66)),
        (2, 1, 200, KvType::Int8, older, Some(64)),
    ] {
        let heads = Heads { queries, keys, dim, kv, window };
        let (tokens, other) = (141, sequence(70, 8));
        let alone = [sequence(tokens, 7)];
        let one = |processors| gpu().set(|info| info.processors = processors);
        let whole = bits(&attend(one(1), heads, &alone, &[&[(0, 0, tokens)]]).unwrap().0);
        let chunks: &[&[Piece]] = &[&[(0, 0, 3)], &[(0, 3, 90)], &[(0, 90, 91)], &[(0, 91, tokens)]];
        assert!(bits(&attend(one(1), heads, &alone, chunks).unwrap().0) == whole, "chunks");
        let single: Vec<[Piece; 1]> =
            [(0, 0, 120)].into_iter().chain((120..tokens).map(|t| (0, t, t + 1))).map(|p| [p]).collect();
        let single: Vec<&[Piece]> = single.iter().map(|step| &step[..]).collect();
        for processors in [1, 16] {
            let actual = bits(&attend(one(processors), heads, &alone, &single).unwrap().0);
            assert!(actual == whole, "token by token, {processors} processors");
        }
        let two = [alone[0].clone(), other];
        let beside: &[&[Piece]] =
            &[&[(1, 0, 69), (0, 0, 100)], &[(0, 100, 140), (1, 69, 70)], &[(0, 140, tokens)]];
        assert!(bits(&attend(one(4), heads, &two, beside).unwrap().0[..1]) == whole, "beside another");
    }
}

/// A warp merges the parts of 32 tiles of keys at a time; here are 34.
#[test]
fn one_token_after_more_tiles_than_a_warp_merges_at_once_is_attended_as_in_a_prompt() {
    let heads = Heads { queries: 1, keys: 1, dim: 16, kv: KvType::Bf16, window: None };
    let (tokens, one) = (34 * 64, [sequence(34 * 64, 7)]);
    let whole = bits(&attend(Simulator::default(), heads, &one, &[&[(0, 0, tokens)]]).unwrap().0);
    let last: &[&[Piece]] = &[&[(0, 0, tokens - 1)], &[(0, tokens - 1, tokens)]];
    let (outputs, _) = attend(Simulator::default(), heads, &one, last).unwrap();
    assert!(bits(&outputs) == whole);
}

/// What a prompt of `tokens` tokens gives, and what it gives if token 20 is not a number.
fn with_and_without_a_nan(heads: Heads, tokens: usize) -> [Vec<[Vec<f32>; 2]>; 2] {
    let clean = sequence(tokens, 5);
    let mut poisoned = clean.clone();
    poisoned[20 * HIDDEN + 3] = f32::NAN;
    [clean, poisoned].map(|sequence| {
        let outputs = attend(Simulator::default(), heads, &[sequence], &[&[(0, 0, tokens)]]).unwrap().0;
        outputs.into_iter().next().unwrap()
    })
}

#[test]
fn a_token_behind_one_that_is_not_a_number_is_not_touched() {
    for kv in KV_TYPES {
        let heads = Heads { queries: 2, keys: 1, dim: 32, kv, window: None };
        let [clean, poisoned] = with_and_without_a_nan(heads, 40);
        assert_eq!(bits(&[clean[..20].to_vec()]), bits(&[poisoned[..20].to_vec()]), "{kv}");
        assert!(
            poisoned[20..].iter().all(|[_, out]| out.iter().all(|x| x.is_nan())),
            "it reaches all after it: {kv}"
        );
    }
}

/// Within one tile of keys, and with the whole tile before the window.
#[test]
fn a_token_whose_window_begins_after_one_that_is_not_a_number_is_not_touched() {
    for (kv, window) in [(KvType::Bf16, 3), (KvType::Int8, 10)] {
        let heads = Heads { queries: 2, keys: 1, dim: 32, kv, window: Some(window) };
        let [clean, poisoned] = with_and_without_a_nan(heads, 90);
        let sees = 20..20 + window;
        for (t, (clean, poisoned)) in clean.iter().zip(&poisoned).enumerate() {
            assert_eq!(poisoned[1].iter().all(|x| x.is_nan()), sees.contains(&t), "{kv}: token {t}");
            assert!(sees.contains(&t) || clean == poisoned, "{kv}: token {t}");
        }
    }
}

/// Keys and values of one token in every place of a block, of ordinary, tiny, huge, equal, zero and not finite numbers.
/// Nothing is rotated, and all numbers are bf16, so that the CPU rounds the same numbers. A NaN or an infinity in a value
/// is not tried: the GPU stores the largest finite number for it.
#[test]
fn int8_keys_and_values_are_stored_with_the_numbers_and_scales_of_the_cpu() {
    let (heads, kv_heads) = (1, 2);
    for (head_dim, rotary) in [(36, 20), (64, 64), (256, 256)] {
        let width = (heads + 2 * kv_heads) * head_dim;
        let mut values: Vec<f32> = (0..BLOCK_TOKENS * width).map(|i| value(i, head_dim)).collect();
        for (t, row) in values.chunks_exact_mut(width).enumerate() {
            let factor = [1.0, 1e-7, 1e18, 0.0, 1e-38, 1e-43, 1e38][t % 7];
            row.iter_mut().for_each(|x| *x = bf16::from_f32(*x * factor).to_f32());
            if t % 9 == 8 {
                row[(heads + 1) * head_dim - 1 - t] = if t % 2 == 0 { f32::NAN } else { f32::NEG_INFINITY };
            }
        }
        let angles = BLOCK_TOKENS * rotary / 2;
        let (cos, sin) = (vec![1.0; angles], vec![0.0; angles]);
        let shape = KvShape { blocks: 2, kv_heads, head_dim };
        let runs = [Run { tokens: 0..BLOCK_TOKENS, blocks: 0..1, ..Run::default() }];
        let stored = |bytes: &[u8], stride: usize, at: &dyn Fn(usize, usize) -> usize| {
            let panels = bytes.chunks_exact(BLOCK_TOKENS * (stride + 4));
            let panel = |panel: &[u8]| {
                let (numbers, scales) = panel.split_at(BLOCK_TOKENS * stride);
                let row = |t: usize| (0..head_dim).map(|d| numbers[at(t, d)]).collect::<Vec<u8>>();
                let scale = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
                let scale = |bytes| Some(scale(bytes)).filter(|scale| !scale.is_nan()).map(f32::to_bits);
                let scales = scales.as_chunks().0.iter().map(scale).collect::<Vec<_>>();
                ((0..BLOCK_TOKENS).map(row).collect::<Vec<_>>(), scales)
            };
            panels.map(panel).collect::<Vec<_>>()
        };

        let mut cpu = Cpu::new(Isa::named("scalar").unwrap(), 1).unwrap().keeping(KvType::Int8);
        let (rope, mut kv) = (cpu.rope(&cos, &sin, rotary).unwrap(), cpu.kv(shape).unwrap());
        let mut rows = cpu.rows(BLOCK_TOKENS, width, RowsKind::Intermediate).unwrap();
        cpu.write(&mut rows, &values).unwrap();
        cpu.norm_rope_store(Step::new(&runs, &[1]), heads, &rope, None, &mut rows, &mut kv).unwrap();
        let mut bytes = vec![0; Cpu::block_bytes(&kv)];
        cpu.read_block(&mut kv, 1, &mut bytes).unwrap();
        let value_stride = head_dim.next_multiple_of(16);
        let (keys, cpu_values) = bytes.split_at(kv_heads * BLOCK_TOKENS * (head_dim + 4));
        let expected = [
            stored(keys, head_dim, &|t, d| (t / 16 * head_dim + d) * 16 + t % 16),
            stored(cpu_values, value_stride, &|t, d| t * value_stride + d),
        ];

        let mut gpu = Gpu::new(Simulator::default()).unwrap().keeping(KvType::Int8);
        let (rope, mut kv) = (gpu.rope(&cos, &sin, rotary).unwrap(), gpu.kv(shape).unwrap());
        let mut rows = gpu.rows(BLOCK_TOKENS, width, RowsKind::Intermediate).unwrap();
        gpu.write_rows(&mut rows, &values).unwrap();
        gpu.norm_rope_store(Step::new(&runs, &[1]), heads, &rope, None, &mut rows, &mut kv).unwrap();
        let mut bytes = vec![0; <Gpu<Simulator> as Backend>::block_bytes(&kv)];
        Backend::read_block(&mut gpu, &mut kv, 1, &mut bytes).unwrap();
        let (keys, values) = bytes.split_at(bytes.len() / 2);
        let actual = [keys, values].map(|side| stored(side, value_stride, &|t, d| t * value_stride + d));
        assert!(actual == expected, "{head_dim}");
        let scales = actual.iter().flatten().flat_map(|(_, scales)| scales);
        assert!(scales.clone().any(Option::is_none) && scales.clone().any(|&scale| scale == Some(0)));
    }
}
