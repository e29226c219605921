//! Logits on the simulator: every tile adds in the same order, and rows too wide for a shortlist get all logits.

use bitnet_kernels::{
    Backend, Edits, RowsKind, Wanted,
    gpu::{Gpu, GpuError},
};
use bitnet_tensor::{BitNetTensor, DType, SharedBytes};
use bitnet_tests::{MatrixUnit, Simulator};
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

/// Each kind of matrix units, and a GPU that has it.
fn units() -> [(MatrixUnit, fn() -> Simulator); 2] {
    [(MatrixUnit::Hopper, Simulator::default), (MatrixUnit::Ampere, Simulator::older)]
}

/// A dot product of two rows, and the sum of the absolute values of its products.
fn exact(a: &[f32], b: &[f32]) -> (f64, f64) {
    let products = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b));
    products.fold((0.0, 0.0), |(sum, size), product| (sum + product, size + product.abs()))
}

/// Every kernel, with tails of tokens, vocabulary and features. All use the same order of additions. The kernels add
/// nothing to the error of the matrix units, which follows from the model of these.
#[test]
fn logits_are_dot_products_whose_bits_depend_on_no_other_token() {
    for ((width, vocab), (unit, gpu)) in
        [(1, 1), (17, 67), (192, 130), (264, 257)].into_iter().flat_map(|s| units().map(|unit| (s, unit)))
    {
        let (table, x) = (values(vocab * width, 0.3), values(70 * width, 0.7));
        let all = logits(gpu(), width, vocab, &x, &table).unwrap();
        for (t, row) in all.chunks_exact(vocab).enumerate() {
            for (v, &logit) in row.iter().enumerate() {
                let (sum, size) = exact(&x[t * width..][..width], &table[v * width..][..width]);
                let error = (f64::from(logit) - sum).abs();
                let near = error <= size * unit.error(width);
                assert!(near, "{unit:?}, {width} x {vocab}: token {t} row {v}: {error}");
            }
        }
        for n in [1, 7, 9, 32, 33] {
            let few = logits(gpu(), width, vocab, &x[x.len() - n * width..], &table).unwrap();
            assert!(
                few == all[all.len() - n * vocab..],
                "{unit:?}, {width} x {vocab}: {n} tokens alone differ"
            );
        }
    }
}

/// Products of one sign lose something in every addition, and always in the same direction. `docs/dev/kernels.md` says
/// how much of `rho`, which bounds allow for this, they use.
#[test]
fn rows_that_err_most_use_a_small_part_of_what_bounds_allow_for_rounding() {
    let vocab = 64;
    let mut most = [0f64; 2];
    for (width, decades) in [(640, 0), (2560, 0), (2560, 8), (6912, 0), (6912, 8)] {
        let positive = |n: usize, seed: f32| -> Vec<f32> {
            let spread = |i: usize| 10f32.powf(decades as f32 * ((i as f32 * 0.37 + seed).sin() - 1.0) / 2.0);
            values(n, seed)
                .into_iter()
                .enumerate()
                .map(|(i, v)| bf16::from_f32(v.abs() * spread(i)).to_f32())
                .collect()
        };
        let (table, x) = (positive(vocab * width, 0.3), positive(width, 0.7));
        let length = |row: &[f32]| exact(row, row).0.sqrt();
        for (most, (unit, gpu)) in most.iter_mut().zip(units()) {
            let logits = logits(gpu(), width, vocab, &x, &table).unwrap();
            for (row, logit) in table.chunks_exact(width).zip(logits) {
                let (sum, size) = exact(row, &x);
                let error = (f64::from(logit) - sum).abs();
                assert!(error <= size * unit.error(width), "{unit:?}, {width} columns: {error} of {size}");
                let rho = (width + 64) as f64 * 2f64.powi(-22);
                *most = most.max(error / (rho * length(row) * length(&x)));
            }
        }
    }
    println!("{:.1} % of rho from 9.0 on, {:.1} % on 8.x", 100.0 * most[0], 100.0 * most[1]);
    assert!(most[0] > 0.001 && most[0] < most[1] && most[1] < 0.04, "{most:?}");
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
        gpu.logits(&x, &table, &[Wanted::Top(1)], Edits::default(), &mut logits, &mut [None]).unwrap();
        let work = gpu.head_counts().unwrap();
        assert_eq!((work.shortlisted, work.whole), (shortlisted, 1 - shortlisted), "{shared} bytes");
        assert_eq!(logits.iter().all(|x| x.is_finite()), shortlisted == 0);
    }
}
