//! Measures how close the kernels come to the processor's peak, and the cost of shapes with tails.
//!
//! Prints one JSON object with a row per measurement: the median, minimum and maximum of runs that take turns with a
//! register loop of the same products. `cargo xtask bench` runs it. Names of parts (`products`, `grouped`, `head`,
//! `draws`, `attention`, `depth`, `delta`, `rotation`) select those; `--threads N` and `--isa NAME` set threads and instruction set.

#![allow(clippy::print_stdout, reason = "a benchmark reports")]

use std::time::Instant;

use bitnet_kernels::{
    BLOCK_TOKENS, Backend, Change, Cpu, DeltaShape, DeltaWeights, Edits, Grouping, Inspect, Isa, KvShape,
    KvType, Rotate, RowOrder, RowsKind, Run, SamplingParams, Step, Wanted, memory_bandwidth,
};
use bitnet_tensor::{BitNetTensor, DType, SharedBytes, TernaryTensor};
use half::f16;
use serde_json::{Value, json};

/// Turns per measurement.
const TURNS: usize = 7;
/// Minimum time of a turn in seconds; faster operations are repeated.
const TURN: f64 = 0.03;

fn main() {
    let (mut threads, mut isa) = (std::thread::available_parallelism().map_or(1, usize::from), "auto".into());
    let (mut parts, mut args) = (Vec::new(), std::env::args().skip(1));
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--threads" => threads = args.next().and_then(|n| n.parse().ok()).expect("a number of threads"),
            "--isa" => isa = args.next().expect("a name of an instruction set"),
            // Cargo adds its own flags.
            _ if arg.starts_with('-') => {}
            _ => parts.push(arg),
        }
    }
    let wanted = |name: &str| parts.is_empty() || parts.iter().any(|part| part == name);
    let isa = Isa::named(&isa).unwrap();
    let mut cpu = Cpu::new(isa, threads).unwrap();
    let mut rows = Vec::new();
    if wanted("products") {
        rows.extend(products(&mut cpu));
    }
    if wanted("grouped") {
        rows.extend(grouped(&mut cpu));
    }
    if wanted("head") {
        rows.extend(head(&mut cpu));
    }
    if wanted("draws") {
        rows.extend(draws(&mut cpu));
    }
    if wanted("attention") {
        rows.extend(attention(&mut cpu));
    }
    if wanted("depth") {
        rows.extend(depth(isa, threads));
    }
    if wanted("delta") {
        rows.extend(delta(&mut cpu, threads));
    }
    if wanted("rotation") {
        rows.extend(rotation(&mut cpu));
    }
    println!("{}", json!({ "threads": threads, "isa": isa.name(), "rows": rows }));
}

/// Matrices of 2B-4T, and shapes whose rows or columns do not fill panels, next to similar ones that do.
fn products(cpu: &mut Cpu) -> Vec<Value> {
    let shapes = [
        (512, 6912, 2560),
        (512, 2560, 6912),
        (512, 2560, 2560),
        (32, 6912, 2560),
        (13, 6912, 2560),
        (8, 6912, 2560),
        (7, 6912, 2560),
        (6, 6912, 2560),
        (1, 6912, 2560),
        // Larger than the caches.
        (1, 55_296, 2560),
        (4, 55_296, 2560),
        (6, 55_296, 2560),
        (7, 55_296, 2560),
        (8, 55_296, 2560),
        (13, 55_296, 2560),
        (512, 3200, 3200),
        (512, 8640, 3200),
        (512, 3200, 8640),
        (512, 3201, 3201),
        (1, 3200, 3200),
        (1, 3201, 3201),
        (512, 64, 3200),
        (512, 16, 3200),
        (512, 1, 3200),
    ];
    shapes.map(|(tokens, rows, cols)| product(cpu, tokens, rows, cols)).into()
}

fn product(cpu: &mut Cpu, tokens: usize, rows: usize, cols: usize) -> Value {
    let trits: Vec<i8> = (0..rows * cols).map(|i| (i * i % 7 % 3) as i8 - 1).collect();
    let weights = TernaryTensor::from_trits(rows, cols, &trits, 1.0).unwrap();
    let weights = cpu.linear(&weights, RowOrder::Plain).unwrap();
    let mut x = cpu.rows(tokens, cols, RowsKind::Intermediate).unwrap();
    let values: Vec<f32> = (0..tokens * cols).map(|i| (i * 31 % 255) as f32 - 127.0).collect();
    cpu.write(&mut x, &values).unwrap();
    let mut q = cpu.int8_rows(tokens, cols, Grouping::Row).unwrap();
    cpu.norm_quantize(tokens, &x, [None, None], None, &mut q).unwrap();
    let mut out = cpu.rows(tokens, rows, RowsKind::Intermediate).unwrap();
    let made = (tokens * rows * cols) as f64;
    let row = turns(cpu, made, |cpu| cpu.bit_linear(tokens, &q, &weights, &mut out, 0, None).unwrap());
    with(row, json!({ "op": "bit_linear", "tokens": tokens, "rows": rows, "cols": cols }))
}

/// Compares matrices with a scale per group of columns with matrices of the same shape with a scale per row: shapes of
/// a model with 8 billion weights; for one token, larger than the caches.
fn grouped(cpu: &mut Cpu) -> Vec<Value> {
    let mut rows = Vec::new();
    for (tokens, [out, cols]) in [
        (1, [98_304, 4096]),
        (1, [32_768, 12_288]),
        (8, [24_576, 4096]),
        (8, [4096, 12_288]),
        (32, [24_576, 4096]),
        (32, [4096, 12_288]),
        (512, [6144, 4096]),
        (512, [4096, 12_288]),
        // So short that other programs rarely interrupt the fastest run; the weights stay in cache.
        (1, [1024, 4096]),
        (8, [256, 4096]),
        (60, [128, 4096]),
    ] {
        rows.extend([128, 64].map(|group| beside(cpu, tokens, [out, cols], group)));
    }
    rows
}

/// Measures two kinds of weights in turns. The fastest turn of each counts, because other programs only slow turns
/// down.
fn beside(cpu: &mut Cpu, tokens: usize, [rows, cols]: [usize; 2], group: usize) -> Value {
    let codes: Vec<u8> =
        (0..rows * cols / 4).map(|i| [0b0110_0001, 0b1001_0100, 0b0001_1000][i * i % 7 % 3]).collect();
    let scales = (0..rows * cols / group).map(|i| f16::from_f32(0.01 + (i % 31) as f32 / 4096.0)).collect();
    let grouped = TernaryTensor::from_groups(rows, cols, group, codes.clone(), scales).unwrap();
    assert_eq!(grouped.group(), Some(group));
    let plain = TernaryTensor::from_codes(rows, cols, codes, 1.0).unwrap();
    let weights =
        [cpu.linear(&plain, RowOrder::Plain).unwrap(), cpu.linear(&grouped, RowOrder::Plain).unwrap()];
    drop((plain, grouped));
    let mut x = cpu.rows(tokens, cols, RowsKind::Intermediate).unwrap();
    let values: Vec<f32> = (0..tokens * cols).map(|i| (i * 31 % 255) as f32 - 127.0).collect();
    cpu.write(&mut x, &values).unwrap();
    let inputs = [Grouping::Row, Grouping::Groups].map(|grouping| {
        let mut q = cpu.int8_rows(tokens, cols, grouping).unwrap();
        cpu.norm_quantize(tokens, &x, [None, None], None, &mut q).unwrap();
        q
    });
    let mut out = cpu.rows(tokens, rows, RowsKind::Intermediate).unwrap();
    let mut seconds = [f64::INFINITY; 2];
    let begun = Instant::now();
    while begun.elapsed().as_secs_f64() < 10.0 * TURN || seconds[1] == f64::INFINITY {
        for ((weights, input), least) in weights.iter().zip(&inputs).zip(&mut seconds) {
            let begun = Instant::now();
            cpu.bit_linear(tokens, input, weights, &mut out, 0, None).unwrap();
            *least = least.min(begun.elapsed().as_secs_f64());
        }
    }
    let made = (tokens * rows * cols) as f64;
    let bytes = [made / tokens as f64 / 4.0, made / tokens as f64 * (0.25 + 2.0 / group as f64)];
    json!({
        "op": "grouped", "tokens": tokens, "rows": rows, "cols": cols, "group": group,
        "giga_products_s": made / seconds[1] / 1e9,
        "giga_products_s_with_a_scale_a_row": made / seconds[0] / 1e9,
        "part_of_speed": seconds[0] / seconds[1],
        "gb_s": bytes[1] / seconds[1] / 1e9,
        "part_of_bandwidth": bytes[1] / seconds[1] / (bytes[0] / seconds[0]),
    })
}

/// Finds the highest logit of a few tokens with the head of 2B-4T, by bounds: products with every byte of its int8
/// copy, and the logits that are not ruled out.
fn head(cpu: &mut Cpu) -> Vec<Value> {
    let (vocab, cols, most) = (128_256, 2560, 32);
    let mut noise = noise();
    let bytes =
        random_bf16(vocab * cols, &mut noise).into_iter().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let weights = BitNetTensor::new(DType::BF16, [vocab, cols], SharedBytes::new(bytes)).unwrap();
    let mut table = cpu.table(&weights).unwrap();
    cpu.prepare_shortlist(&mut table, None).unwrap();
    let mut x = cpu.rows(most, cols, RowsKind::Intermediate).unwrap();
    let values: Vec<f32> = (0..most * cols).map(|_| (0..4).map(|_| noise() as f32 - 32767.5).sum()).collect();
    cpu.write(&mut x, &values).unwrap();
    let mut logits = vec![0.0; most * vocab];
    let at = |tokens: usize| {
        let made = (tokens * vocab * cols) as f64;
        let (wanted, mut drawn) = (vec![Wanted::Top(1); tokens], vec![None; tokens]);
        let logits = &mut logits[..tokens * vocab];
        let row = turns(cpu, made, |cpu| {
            cpu.logits(&x, &table, &wanted, Edits::default(), logits, &mut drawn).unwrap()
        });
        with(row, json!({ "op": "top_logits", "tokens": tokens, "rows": vocab, "cols": cols }))
    };
    [1, 2, 4, 8, 32].map(at).into()
}

/// Numbers of 16 bits.
fn noise() -> impl FnMut() -> u32 {
    let mut random = 1u32;
    move || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        random >> 16
    }
}

/// Numbers whose sign and mantissa are random, and whose exponent is one of four.
fn random_bf16(count: usize, noise: &mut impl FnMut() -> u32) -> Vec<u16> {
    let mut one = || {
        let bits = noise() as u16;
        bits & 0x807F | (122 - (bits >> 8 & 3)) << 7
    };
    (0..count).map(|_| one()).collect()
}

/// Draws one token of each row, beside finding the most likely one, with heads of three kinds: random and so flat, as
/// `synthetic:2b4t` has; the same, but for each token 50 rows whose logits are `22 - 1.3 ln(rank)`, while the others
/// have a deviation of 1.4; and the latter in the shape of the built-in model's head. Draws take turns with the most
/// likely tokens; times are means, because few draws cost much more than others.
fn draws(cpu: &mut Cpu) -> Vec<Value> {
    let heads = [
        ("flat", [128_256, 2560], [1, 8].as_slice()),
        ("peaked", [128_256, 2560], &[1, 8]),
        ("small", [2048, 256], &[1]),
    ];
    heads.iter().flat_map(|&(head, shape, tokens)| draws_from(cpu, head, shape, tokens)).collect()
}

fn draws_from(cpu: &mut Cpu, head: &str, [vocab, cols]: [usize; 2], tokens: &[usize]) -> Vec<Value> {
    const LIKELY: usize = 50;
    let most = 8;
    let mut noise = noise();
    let mut table = random_bf16(vocab * cols, &mut noise);
    // Each row has the length of an RMS norm's output.
    let mut values: Vec<f32> =
        (0..most * cols).map(|_| (0..4).map(|_| noise() as f32 - 32767.5).sum()).collect();
    for x in values.chunks_exact_mut(cols) {
        let rms = (x.iter().map(|x| x * x).sum::<f32>() / cols as f32).sqrt();
        x.iter_mut().for_each(|x| *x /= rms);
    }
    if head != "flat" {
        for (token, x) in values.chunks_exact(cols).enumerate() {
            for rank in 0..LIKELY {
                let row = (token * LIKELY + rank) * 37 % vocab;
                let row = &mut table[row * cols..][..cols];
                let float = |bits: u16| f32::from_bits(u32::from(bits) << 16);
                let logit: f32 = row.iter().zip(x).map(|(&w, x)| float(w) * x).sum();
                let more = (22.0 - 1.3 * (1.0 + rank as f32).ln() - logit) / cols as f32;
                row.iter_mut().zip(x).for_each(|(w, x)| *w = ((float(*w) + more * x).to_bits() >> 16) as u16);
            }
        }
    }
    let bytes = table.into_iter().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let weights = BitNetTensor::new(DType::BF16, [vocab, cols], SharedBytes::new(bytes)).unwrap();
    let mut table = cpu.table(&weights).unwrap();
    cpu.prepare_shortlist(&mut table, None).unwrap();
    let mut x = cpu.rows(most, cols, RowsKind::Intermediate).unwrap();
    cpu.write(&mut x, &values).unwrap();
    let mut logits = vec![0.0; most * vocab];
    let warm = SamplingParams { temperature: 1.0, seed: 1, ..SamplingParams::GREEDY };
    let penalties = |change| Change { less: 0.5, ..change };
    let repetition = |change| Change { repetition: 1.1, ..change };
    type Penalty = fn(Change) -> Change;
    let ways: [(_, _, Option<Penalty>); 7] = [
        ("temperature 1", warm, None),
        ("temperature 0.7, top-p 0.9", SamplingParams { temperature: 0.7, top_p: 0.9, ..warm }, None),
        ("temperature 1, top-k 40", SamplingParams { top_k: 40, ..warm }, None),
        ("temperature 1, min-p 0.05", SamplingParams { min_p: 0.05, ..warm }, None),
        ("temperature 1, penalties of 100 tokens", warm, Some(penalties)),
        (
            "temperature 0.7, top-p 0.9, penalties of 100 tokens",
            SamplingParams { temperature: 0.7, top_p: 0.9, ..warm },
            Some(penalties),
        ),
        ("most likely, penalties of 100 tokens", SamplingParams::GREEDY, Some(repetition)),
    ];
    let mut rows = Vec::new();
    for &tokens in tokens {
        for (how, params, penalty) in ways {
            let changes: Vec<Change> =
                penalty.iter().flat_map(|penalty| (0..100).map(|i| penalty(Change::none(i * 19)))).collect();
            let edits = Edits { changes: &changes, masks: &[] };
            let mut drawn = vec![None; tokens];
            let logits = &mut logits[..tokens * vocab];
            let (calls, times) = if vocab > 1 << 14 { (1, 100 / tokens.min(2)) } else { (50, 100) };
            let before = cpu.head_counts();
            let mut seconds = [0.0; 2];
            for turn in 0..times as u32 {
                for (way, seconds) in seconds.iter_mut().enumerate() {
                    let begun = Instant::now();
                    for call in 0..calls {
                        let wanted: Vec<Wanted> = (0..tokens as u32)
                            .map(|token| {
                                let params =
                                    SamplingParams { position: turn * calls + call, choice: token, ..params };
                                match (way, changes.len() as u32) {
                                    (0, _) => Wanted::Token(SamplingParams::GREEDY),
                                    (_, 0) => Wanted::Token(params),
                                    (_, to) => Wanted::Changed { params, from: 0, to, mask: None },
                                }
                            })
                            .collect();
                        cpu.logits(&x, &table, &wanted, edits, logits, &mut drawn).unwrap();
                    }
                    *seconds += begun.elapsed().as_secs_f64() / f64::from(calls) / times as f64;
                }
            }
            let work = cpu.head_counts() - before;
            let draws = (work.drawn + work.undecided) as f64;
            rows.push(json!({
                "op": "draw", "head": head, "rows": vocab, "cols": cols, "tokens": tokens, "how": how,
                "microseconds_most_likely": 1e6 * seconds[0], "microseconds_more": 1e6 * (seconds[1] - seconds[0]),
                "undecided": work.undecided as f64 / draws, "whole": work.whole, "rescored": work.rescored as f64 / draws,
            }));
        }
    }
    rows
}

/// Measures attention of one token over 1,024 keys, for head widths that fill vectors and for others.
fn attention(cpu: &mut Cpu) -> Vec<Value> {
    [128, 48, 100, 256].map(|head_dim| attend(cpu, head_dim, 1024)).into()
}

fn attend(cpu: &mut Cpu, head_dim: usize, keys: usize) -> Value {
    let (heads, kv_heads, blocks) = (20, 5, keys / BLOCK_TOKENS);
    let kv = cpu.kv(KvShape { blocks, kv_heads, head_dim }).unwrap();
    let qkv = cpu.rows(1, (heads + 2 * kv_heads) * head_dim, RowsKind::Intermediate).unwrap();
    let mut out = cpu.rows(1, heads * head_dim, RowsKind::Intermediate).unwrap();
    let table: Vec<u32> = (0..blocks as u32).collect();
    let runs = [Run { tokens: 0..1, start: keys - 1, blocks: 0..blocks, ..Run::default() }];
    // Every dimension has one product with the key and one with the value.
    let made = (2 * heads * keys * head_dim) as f64;
    let step = Step::new(&runs, &table);
    let row = turns(cpu, made, |cpu| cpu.attention(step, &qkv, &kv, &mut out).unwrap());
    with(row, json!({ "op": "attention", "keys": keys, "head_dim": head_dim }))
}

/// Measures attention of one token of some sequences over long caches of each type, as a part of the bandwidth. Enough
/// layers take turns that their keys and values exceed the caches.
fn depth(isa: Isa, threads: usize) -> Vec<Value> {
    let bandwidth = 1e9 * memory_bandwidth(threads, None).expect("memory to measure with");
    let (heads, kv_heads, head_dim) = (20, 5, 128);
    let mut rows = Vec::new();
    for (sequences, keys) in [(1, 2048), (1, 6144), (1, 32_768), (8, 2048)] {
        for kv in KvType::ALL {
            let mut cpu = Cpu::new(isa, threads).unwrap().keeping(kv);
            let blocks = sequences * keys / BLOCK_TOKENS;
            let shape = KvShape { blocks, kv_heads, head_dim };
            let mut layers = vec![cpu.kv(shape).unwrap()];
            let block = vec![0; Cpu::block_bytes(&layers[0])];
            let bytes = blocks * block.len();
            layers.extend((1..(256_usize << 20).div_ceil(bytes)).map(|_| cpu.kv(shape).unwrap()));
            // Maps the pages.
            for layer in &mut layers {
                (0..blocks as u32).for_each(|b| cpu.write_block(layer, b, &block).unwrap());
            }
            let values: Vec<f32> =
                (0..sequences * (heads + 2 * kv_heads) * head_dim).map(|i| (i * 31 % 255) as f32).collect();
            let mut qkv =
                cpu.rows(sequences, (heads + 2 * kv_heads) * head_dim, RowsKind::Intermediate).unwrap();
            cpu.write(&mut qkv, &values).unwrap();
            let mut out = cpu.rows(sequences, heads * head_dim, RowsKind::Intermediate).unwrap();
            let table: Vec<u32> = (0..blocks as u32).collect();
            let each = blocks / sequences;
            let run = |i: usize| Run {
                tokens: i..i + 1,
                start: keys - 1,
                blocks: i * each..(i + 1) * each,
                ..Run::default()
            };
            let runs: Vec<Run> = (0..sequences).map(run).collect();
            let step = Step::new(&runs, &table);
            let mut next = 0;
            let seconds = median(&mut cpu, |cpu| {
                next += 1;
                cpu.attention(step, &qkv, &layers[next % layers.len()], &mut out).unwrap();
            });
            rows.push(json!({
                "op": "attention", "sequences": sequences, "keys": keys, "kv": kv.name(),
                "microseconds": 1e6 * seconds,
                "part_of_read_bandwidth": bytes as f64 / seconds / bandwidth,
            }));
        }
    }
    rows
}

/// Computes gated-delta layers of a model with 27 billion weights: single tokens of some sequences, and a prompt. Enough
/// layers take turns that their states exceed the caches.
fn delta(cpu: &mut Cpu, threads: usize) -> Vec<Value> {
    let shape = DeltaShape { key_heads: 16, value_heads: 48, head_dim: 128, taps: 4 };
    let conv: Vec<f32> = (0..shape.channels() * shape.taps).map(|i| (i % 7) as f32 / 7.0 - 0.4).collect();
    let (heads, norm) = (vec![-0.1; shape.value_heads], vec![1.0; shape.head_dim]);
    let weights = DeltaWeights { conv: &conv, a: &heads, dt_bias: &heads, norm: &norm, eps: 1e-6 };
    let layer = cpu.delta(shape, &weights).unwrap();
    let (layers, most) = (48, 512);
    let mut states: Vec<_> = (0..layers).map(|_| cpu.state(shape, 8).unwrap()).collect();
    let mut x = cpu.rows(most, shape.columns(), RowsKind::Intermediate).unwrap();
    let values: Vec<f32> = (0..most * shape.columns()).map(|i| (i * 31 % 255) as f32 / 127.0 - 1.0).collect();
    cpu.write(&mut x, &values).unwrap();
    let mut out = cpu.rows(most, shape.value_width(), RowsKind::Intermediate).unwrap();
    let bandwidth = 1e9 * memory_bandwidth(threads, None).expect("memory to measure with");
    let mut measure = |sequences: usize, tokens: usize| {
        let run = |i: usize| Run {
            tokens: i * tokens..(i + 1) * tokens,
            start: if tokens > 1 { 0 } else { 1 },
            blocks: 0..0,
            state: i as u32,
            ..Run::default()
        };
        let runs: Vec<Run> = (0..sequences).map(run).collect();
        let step = Step::new(&runs, &[]);
        let mut one = |cpu: &mut Cpu, i: usize| {
            cpu.gated_delta(step, &x, &layer, &mut states[i % layers], &mut out).unwrap();
        };
        // Maps the pages of all states.
        (0..layers).for_each(|i| one(cpu, i));
        let mut next = 0;
        let seconds = median(cpu, |cpu| {
            next += 1;
            one(cpu, next);
        });
        // A state is read and written.
        let bytes = (2 * 4 * sequences * shape.state_len()) as f64;
        let values = (sequences * tokens * shape.value_heads * shape.head_dim * shape.head_dim) as f64;
        json!({
            "op": "delta", "sequences": sequences, "tokens": tokens,
            "microseconds": 1e6 * seconds,
            "microseconds_a_token": 1e6 * seconds / (sequences * tokens) as f64,
            "state_gb_s": bytes / seconds / 1e9,
            "part_of_read_bandwidth": bytes / seconds / bandwidth,
            "giga_operations_s": 4.0 * values / seconds / 1e9,
        })
    };
    [(1, 1), (8, 1), (1, 16), (1, 512)].map(|(sequences, tokens)| measure(sequences, tokens)).into()
}

/// Quantises a prompt's rows of the widths of the same model, without and with a transform of blocks of 1,024.
fn rotation(cpu: &mut Cpu) -> Vec<Value> {
    let mut rows = Vec::new();
    for (width, grouped) in [(5120, None), (6144, Some((16, 3))), (17_408, None)] {
        let (tokens, signs) = (512, vec![-1; width]);
        let rotate = Rotate { block: 1024, signs: Some(&signs), grouped };
        let turned = cpu.rotation(width, &rotate).unwrap();
        let mut x = cpu.rows(tokens, width, RowsKind::Intermediate).unwrap();
        let values: Vec<f32> = (0..tokens * width).map(|i| (i * 31 % 255) as f32 - 127.0).collect();
        cpu.write(&mut x, &values).unwrap();
        let mut q = cpu.int8_rows(tokens, width, Grouping::Groups).unwrap();
        let [plain, with] = [None, Some(&turned)].map(|rotation| {
            median(cpu, |cpu| cpu.norm_quantize(tokens, &x, [None, None], rotation, &mut q).unwrap())
        });
        rows.push(json!({
            "op": "rotation", "tokens": tokens, "cols": width,
            "microseconds_a_token": 1e6 * with / tokens as f64,
            "microseconds_a_token_without": 1e6 * plain / tokens as f64,
        }));
    }
    rows
}

/// Median seconds of `op`.
fn median(cpu: &mut Cpu, mut op: impl FnMut(&mut Cpu)) -> f64 {
    op(cpu);
    let mut seconds = Vec::new();
    for _ in 0..TURNS {
        let (begun, mut runs) = (Instant::now(), 0);
        while runs == 0 || begun.elapsed().as_secs_f64() < TURN {
            op(cpu);
            runs += 1;
        }
        seconds.push(begun.elapsed().as_secs_f64() / f64::from(runs));
    }
    seconds.sort_by(f64::total_cmp);
    seconds[TURNS / 2]
}

/// Measures `op`, which computes `made` products, in turns with the register loop.
fn turns(cpu: &mut Cpu, made: f64, mut op: impl FnMut(&mut Cpu)) -> Value {
    op(cpu);
    let (mut speeds, mut parts) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let peak = cpu.peak_products();
        let (begun, mut runs) = (Instant::now(), 0);
        while runs == 0 || begun.elapsed().as_secs_f64() < TURN {
            op(cpu);
            runs += 1;
        }
        let speed = made * f64::from(runs) / begun.elapsed().as_secs_f64();
        speeds.push(speed / 1e9);
        parts.push(speed / peak);
    }
    speeds.sort_by(f64::total_cmp);
    parts.sort_by(f64::total_cmp);
    json!({
        "giga_products_s": speeds[TURNS / 2],
        "part_of_integer_peak": parts[TURNS / 2],
        "least": parts[0],
        "most": parts[TURNS - 1],
    })
}

fn with(mut row: Value, what: Value) -> Value {
    if let (Value::Object(row), Value::Object(what)) = (&mut row, what) {
        row.extend(what);
    }
    row
}
