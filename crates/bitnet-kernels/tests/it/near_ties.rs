//! Highest logits that are nearly equal, which bounds from an int8 copy must not rule out.

use bitnet_kernels::{Cpu, Edits, Inspect, Isa, RowsKind, Wanted, gpu::Gpu};
use bitnet_tensor::BitNetTensor;
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
fn tables() -> [(&'static str, Vec<f32>); 3] {
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
    [("nearly one row", near), ("whole numbers", whole.collect()), ("pairs", pairs.collect())]
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
fn compare<B: Inspect>(backend: &mut B, what: &str, values: &[f32], shortlisted: impl Fn(&mut B) -> u64) {
    let weights = BitNetTensor::from_f32([VOCAB, WIDTH], values).unwrap();
    let (plain, mut copied) = (backend.table(&weights).unwrap(), backend.table(&weights).unwrap());
    backend.prepare_shortlist(&mut copied, None).unwrap();
    for (tokens, outlier) in STEPS {
        let mut next = noise(2);
        let factor = |i: usize| if i % WIDTH == OUTLIER { outlier } else { 1.0 };
        let x: Vec<f32> = (0..tokens * WIDTH).map(|i| next() * factor(i)).collect();
        let mut rows = backend.rows(tokens, WIDTH, RowsKind::Intermediate).unwrap();
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
        for (what, values) in tables() {
            compare(&mut cpu, &format!("{what}, {isa:?}"), &values, |cpu| cpu.head_counts().shortlisted);
        }
    }
}

#[test]
fn a_gpu_does_not_rule_out_rows_that_nearly_tie() {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    for (what, values) in tables() {
        compare(&mut gpu, what, &values, |gpu| gpu.head_counts().unwrap().shortlisted);
    }
}
