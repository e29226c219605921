//! Highest logits that are nearly equal, which bounds from an int8 copy must not rule out.

use bitnet_kernels::{Backend, Cpu, Inspect, Isa, RowsKind, Wanted};
use bitnet_tensor::BitNetTensor;

const WIDTH: usize = 100;
/// Not a multiple of a panel, and enough panels to keep the five highest.
const VOCAB: usize = 2600;
/// The column whose activations may stand out.
const OUTLIER: usize = 7;

fn noise(seed: u64) -> impl FnMut() -> f32 {
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

#[test]
fn rows_that_nearly_tie_are_not_ruled_out() {
    for isa in Isa::available() {
        let mut cpu = Cpu::new(isa, 2).unwrap();
        for (what, values) in tables() {
            let weights = BitNetTensor::from_f32([VOCAB, WIDTH], &values).unwrap();
            let (plain, mut screened) = (cpu.table(&weights).unwrap(), cpu.table(&weights).unwrap());
            cpu.screen(&mut screened, None).unwrap();
            // With many tokens, one plane of int8 is enough unless one value stands out.
            for (tokens, outlier) in [(1, false), (2, false), (33, false), (33, true)] {
                let mut next = noise(2);
                let stands_out = |i: usize| outlier && i % WIDTH == OUTLIER;
                let x: Vec<f32> =
                    (0..tokens * WIDTH).map(|i| next() * if stands_out(i) { 40.0 } else { 1.0 }).collect();
                let mut rows = cpu.rows(tokens, WIDTH, RowsKind::Intermediate).unwrap();
                cpu.write(&mut rows, &x).unwrap();
                let (mut all, mut top) = (vec![0.0; tokens * VOCAB], vec![0.0; tokens * VOCAB]);
                let mut drawn = vec![None; tokens];
                cpu.logits(&rows, &plain, &vec![Wanted::All; tokens], &mut all, &mut drawn).unwrap();
                let below = all.chunks(VOCAB).filter(|row| row.iter().all(|&x| x < 0.0)).count();
                assert!(
                    tokens < 33 || outlier || what != "nearly one row" || below > 4,
                    "{below} rows below 0"
                );
                for keep in [1, 2, 5] {
                    let before = cpu.head_work();
                    let wanted = vec![Wanted::Top(keep); tokens];
                    cpu.logits(&rows, &screened, &wanted, &mut top, &mut drawn).unwrap();
                    assert_eq!(cpu.head_work().screened - before.screened, tokens as u64);
                    for (token, (all, top)) in all.chunks(VOCAB).zip(top.chunks(VOCAB)).enumerate() {
                        let case =
                            format!("{isa:?}, {what}, token {token} of {tokens}, {outlier}, {keep} kept");
                        assert_eq!(highest(all, keep), highest(top, keep), "{case}");
                    }
                }
            }
        }
    }
}
