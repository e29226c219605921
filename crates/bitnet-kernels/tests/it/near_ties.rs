//! Highest logits that are nearly equal, which bounds from an int8 copy must not rule out.

use bitnet_kernels::{Backend, Cpu, Edits, Inspect, Isa, RowsKind, Wanted, gpu::Gpu};
use bitnet_tensor::{BitNetTensor, DType, SharedBytes, f16};
use bitnet_tests::Simulator;

const WIDTH: usize = 100;
/// Not a multiple of a panel, and enough panels of every size to keep the five highest.
const VOCAB: usize = 5150;
/// The column whose activations may stand out.
const OUTLIER: usize = 7;

/// Values from -1 to 1.
pub fn noise(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Rows that differ by less than int8 can resolve; and rows that int8 holds exactly, so that only activations have an
/// error, in all columns or in two.
fn tables() -> [(&'static str, BitNetTensor); 3] {
    let mut next = noise(1);
    let base: Vec<f32> = (0..WIDTH).map(|_| next()).collect();
    let near = (0..VOCAB * WIDTH).map(|i| base[i % WIDTH] + 0.003 * next()).collect();
    let whole = (0..VOCAB * WIDTH).map(|i| {
        let scale = 1.0 + (i / WIDTH % 8) as f32 / 64.0;
        scale * if i % WIDTH == 0 { 127.0 } else { (127.0 * next()).round() }
    });
    let pairs = (0..VOCAB * WIDTH).map(|i| {
        let (row, column) = (i / WIDTH, i % WIDTH);
        let here = column != OUTLIER && (column == row % WIDTH || column == (row / WIDTH + 3 * row) % WIDTH);
        if here { 127.0 } else { 0.0 }
    });
    let tables = [("nearly one row", near), ("whole numbers", whole.collect()), ("pairs", pairs.collect())];
    tables
        .map(|(what, values): (_, Vec<f32>)| (what, BitNetTensor::from_f32([VOCAB, WIDTH], &values).unwrap()))
}

/// Rows of 512 values in a type with blocks, made of halves of bytes below 16: `0.02 * code - 0.15`, or with 6 bits
/// `0.02 * code - 0.64`.
fn few_bits(dtype: DType, mut code: impl FnMut() -> u8) -> BitNetTensor {
    let half = |value: f32| f16::from_f32(value).to_le_bytes();
    if dtype == DType::Q6K {
        let mut bytes = Vec::new();
        for _ in 0..VOCAB * 512 / 256 {
            bytes.extend((0..128).map(|_| code() | code() << 4));
            bytes.extend((0..64).map(|_| code() | code() << 4));
            bytes.extend([32; 16]);
            bytes.extend(half(0.02 / 32.0));
        }
        return BitNetTensor::new(dtype, [VOCAB, 512], SharedBytes::new(bytes)).unwrap();
    }
    let head = match dtype {
        // Scales and minima of groups are all 32.
        DType::Q4K => {
            let mut head = [half(0.02 / 32.0), half(0.15 / 32.0)].concat();
            head.extend([[32 | 2 << 6; 8].as_slice(), &[0; 4]].concat());
            head
        }
        _ => [half(0.02), half(-0.15)].concat(),
    };
    let codes = dtype.block_elements() / 2;
    let mut bytes = Vec::new();
    for _ in 0..VOCAB * 512 / dtype.block_elements() {
        bytes.extend(&head);
        bytes.extend((0..codes).map(|_| code() | code() << 4));
    }
    BitNetTensor::new(dtype, [VOCAB, 512], SharedBytes::new(bytes)).unwrap()
}

/// Ids and values of the highest logits, equal ones by id.
fn highest(row: &[f32], keep: usize) -> Vec<(usize, f32)> {
    let mut order: Vec<_> = row.iter().copied().enumerate().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.truncate(keep);
    order
}

/// Steps of a few and of many tokens, and the factor of the column that stands out. With many tokens, one plane of int8
/// is enough on a CPU unless a value stands out. If it stands out far, not even two planes resolve the others.
const STEPS: [(usize, f32); 6] = [(1, 1.0), (2, 1.0), (2, 4e3), (33, 1.0), (33, 40.0), (33, 4e3)];

/// Compares the highest logits of a table with a copy with those among all logits. `shortlisted` says how many rows were.
fn compare<B: Inspect>(
    backend: &mut B,
    what: &str,
    weights: &BitNetTensor,
    shortlisted: impl Fn(&mut B) -> u64,
) {
    let width = weights.cols();
    let (plain, mut copied) = (backend.table(weights).unwrap(), backend.table(weights).unwrap());
    backend.prepare_shortlist(&mut copied, None).unwrap();
    for (tokens, outlier) in STEPS {
        let mut next = noise(2);
        let factor = |i: usize| if i % width == OUTLIER { outlier } else { 1.0 };
        let x: Vec<f32> = (0..tokens * width).map(|i| next() * factor(i)).collect();
        let mut rows = backend.rows(tokens, width, RowsKind::Intermediate).unwrap();
        backend.write(&mut rows, &x).unwrap();
        let (mut all, mut top) = (vec![0.0; tokens * VOCAB], vec![0.0; tokens * VOCAB]);
        let mut drawn = vec![None; tokens];
        backend
            .logits(&rows, &plain, &vec![Wanted::All; tokens], Edits::default(), &mut all, &mut drawn)
            .unwrap();
        let below = all.chunks(VOCAB).filter(|row| row.iter().all(|&x| x < 0.0)).count();
        let ordinary = tokens == 33 && outlier == 1.0 && what.starts_with("nearly one row");
        assert!(!ordinary || below > 4, "{below} rows below 0");
        for keep in [1, 2, 5] {
            let before = shortlisted(backend);
            let wanted = vec![Wanted::Top(keep); tokens];
            backend.logits(&rows, &copied, &wanted, Edits::default(), &mut top, &mut drawn).unwrap();
            assert_eq!(shortlisted(backend) - before, tokens as u64, "{keep} kept of {tokens} tokens");
            for (token, (all, top)) in all.chunks(VOCAB).zip(top.chunks(VOCAB)).enumerate() {
                let case = format!("{what}, token {token} of {tokens}, {outlier}, {keep} kept");
                assert_eq!(highest(all, keep), highest(top, keep), "{case}");
                let same = |(a, t): (&f32, &f32)| a == t || *t == f32::NEG_INFINITY;
                assert!(all.iter().zip(top).all(same), "{case}: a logit differs");
            }
        }
    }
}

#[test]
fn rows_that_nearly_tie_are_not_ruled_out() {
    for isa in Isa::available() {
        let mut cpu = Cpu::new(isa, 2).unwrap();
        for (what, weights) in tables() {
            compare(&mut cpu, &format!("{what}, {isa:?}"), &weights, |cpu| cpu.head_counts().shortlisted);
        }
    }
}

#[test]
fn rows_of_few_bits_that_nearly_tie_are_not_ruled_out_and_nearly_all_others_are() {
    for dtype in [DType::Q4K, DType::Q4_1, DType::Q6K] {
        near_ties_of_few_bits(dtype);
    }
}

fn near_ties_of_few_bits(dtype: DType) {
    let (mut next, mut at) = (noise(3), 0);
    // Rows of which few codes differ, by one; and rows of any codes.
    let halves = if dtype == DType::Q6K { 768 } else { 512 };
    let base: Vec<u8> = (0..halves).map(|_| (8.0 + 6.9 * next()) as u8).collect();
    let near = few_bits(dtype, || {
        at += 1;
        base[at % halves] + u8::from(next() > 0.97)
    });
    let any = few_bits(dtype, || (8.0 + 7.9 * next()) as u8);
    let mut next = noise(4);
    for isa in Isa::available() {
        let mut cpu = Cpu::new(isa, 2).unwrap();
        compare(&mut cpu, &format!("{dtype}, {isa:?}"), &near, |cpu| cpu.head_counts().shortlisted);
        compare(&mut cpu, &format!("any {dtype}, {isa:?}"), &any, |cpu| cpu.head_counts().shortlisted);
        let mut table = cpu.table(&any).unwrap();
        cpu.prepare_shortlist(&mut table, None).unwrap();
        let mut x = cpu.rows(3, 512, RowsKind::Intermediate).unwrap();
        cpu.write(&mut x, &(0..3 * 512).map(|_| next()).collect::<Vec<_>>()).unwrap();
        let before = cpu.head_counts();
        let (mut logits, mut drawn) = (vec![0.0; 3 * VOCAB], vec![None; 3]);
        cpu.logits(&x, &table, &[Wanted::Top(1); 3], Edits::default(), &mut logits, &mut drawn).unwrap();
        let counts = cpu.head_counts() - before;
        assert!(counts.shortlisted == 3 && counts.rescored < 3 * 50, "{counts:?}, {dtype}, {isa:?}");
    }
}

#[test]
fn a_gpu_does_not_rule_out_rows_that_nearly_tie() {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    for (what, weights) in tables() {
        compare(&mut gpu, what, &weights, |gpu| gpu.head_counts().unwrap().shortlisted);
    }
}
