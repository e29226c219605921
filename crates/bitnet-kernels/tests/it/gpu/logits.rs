//! Logits on the simulator: every tile adds in the same order, and rows too wide for a shortlist get all logits.

use bitnet_kernels::{
    Backend, RowsKind, Wanted,
    gpu::{Gpu, GpuError},
};
use bitnet_tensor::{BitNetTensor, DType, SharedBytes};
use bitnet_tests::Simulator;
use half::bf16;

/// Values that bf16 represents exactly.
pub fn values(n: usize, seed: f32) -> Vec<f32> {
    (0..n).map(|i| bf16::from_f32((i as f32 * 0.61 + seed).sin() * (1.0 + (i % 7) as f32)).to_f32()).collect()
}

/// Logits of all rows of `x`.
pub fn logits(
    simulator: Simulator,
    width: usize,
    vocab: usize,
    x: &[f32],
    table: &[f32],
) -> Result<Vec<f32>, GpuError> {
    let bytes: Vec<u8> = table.iter().flat_map(|v| v.to_le_bytes()).collect();
    let table = BitNetTensor::new(DType::F32, [vocab, width], SharedBytes::new(bytes)).unwrap();
    let n = x.len() / width;
    let mut gpu = Gpu::new(simulator)?;
    let table = gpu.table(&table)?;
    let mut rows = gpu.rows(n, width, RowsKind::Intermediate)?;
    gpu.write_rows(&mut rows, x)?;
    let mut out = gpu.rows(n, vocab, RowsKind::Residual)?;
    gpu.head(n, &rows, &table, &mut out)?;
    gpu.read_rows(&out, n)
}

/// Every kernel, with tails of tokens, vocabulary and features. All use the same order of additions.
#[test]
fn logits_are_dot_products_whose_bits_depend_on_no_other_token() {
    for (width, vocab) in [(1, 1), (17, 67), (192, 130), (264, 257)] {
        let (table, x) = (values(vocab * width, 0.3), values(70 * width, 0.7));
        let all = logits(Simulator::default(), width, vocab, &x, &table).unwrap();
        for (t, row) in all.chunks_exact(vocab).enumerate() {
            for (v, &logit) in row.iter().enumerate() {
                let (a, b) = (&x[t * width..][..width], &table[v * width..][..width]);
                let exact: f64 = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                let size: f64 = a.iter().zip(b).map(|(&a, &b)| f64::from(a * b).abs()).sum();
                let error = (f64::from(logit) - exact).abs();
                assert!(error <= size * 2f64.powi(-20), "{width} x {vocab}: token {t} row {v}: {error}");
            }
        }
        for n in [1, 7, 9, 32, 33] {
            let few = logits(Simulator::default(), width, vocab, &x[x.len() - n * width..], &table).unwrap();
            assert!(few == all[all.len() - n * vocab..], "{width} x {vocab}: {n} tokens alone differ");
        }
    }
}

/// A block needs a row of the head's input in shared memory, which a wide one does not fit.
#[test]
fn a_row_too_wide_for_bounds_gets_all_logits() {
    let (width, vocab) = (300, 700);
    let table = BitNetTensor::from_f32([vocab, width], &values(vocab * width, 0.3)).unwrap();
    for (shared, shortlisted) in [(99 << 10, 1), (64 << 10, 0)] {
        let mut gpu = Gpu::new(Simulator::with(|info| info.shared = shared)).unwrap();
        let mut table = gpu.table(&table).unwrap();
        Backend::prepare_shortlist(&mut gpu, &mut table, None).unwrap();
        let mut x = gpu.rows(1, width, RowsKind::Intermediate).unwrap();
        gpu.write_rows(&mut x, &values(width, 0.7)).unwrap();
        let mut logits = vec![0.0; vocab];
        gpu.logits(&x, &table, &[Wanted::Top(1)], &mut logits, &mut [None]).unwrap();
        let work = gpu.head_counts().unwrap();
        assert_eq!((work.shortlisted, work.whole), (shortlisted, 1 - shortlisted), "{shared} bytes");
        assert_eq!(logits.iter().all(|x| x.is_finite()), shortlisted == 0);
    }
}
