//! The GPU backend compared with the CPU's, and what happens without a GPU.
#![allow(clippy::print_stdout, reason = "the output lists what was skipped")]

use bitnet_inference::names::{Crossing, HybridScheduler};
use bitnet_kernels::{
    Cpu, Grouping, Inspect, Isa, Reference, RowOrder, RowsKind,
    gpu::{Cuda, Gpu, GpuError},
};
use bitnet_tensor::TernaryTensor;
use bitnet_tests::Simulator;
use proptest::prelude::*;

/// The int32 sums of a product, read as f32 with scales of one.
fn product(b: &mut impl Inspect, n: usize, k: usize, rows: usize, x: &[f32], trits: &[i8]) -> Vec<f32> {
    let w = TernaryTensor::from_trits(rows, k, trits, 1.0).unwrap();
    let w = b.linear(&w, RowOrder::Plain).unwrap();
    let mut input = b.rows(n, k, RowsKind::Residual).unwrap();
    b.write(&mut input, x).unwrap();
    let mut q = b.int8_rows(n, k, Grouping::Row).unwrap();
    b.norm_quantize(n, &input, [None, None], None, &mut q).unwrap();
    let mut out = b.rows(n, rows, RowsKind::Residual).unwrap();
    b.bit_linear(n, &q, &w, &mut out, 0, None).unwrap();
    b.read(&out, n).unwrap()
}

/// The same sums, from plain loops.
fn sums(n: usize, k: usize, rows: usize, x: &[f32], trits: &[i8]) -> Vec<f32> {
    let sum = |i: usize| {
        let (t, r) = (i / rows, i % rows);
        let terms = x[t * k..][..k].iter().zip(&trits[r * k..][..k]);
        terms.map(|(&x, &w)| x as i32 * i32::from(w)).sum::<i32>() as f32
    };
    (0..n * rows).map(sum).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Activations of -127 to 127 with a 127 in each row quantise to themselves with multiplier 1, so the results are
    /// the integer sums themselves, below 2^24.
    #[test]
    fn any_product_on_the_gpu_is_the_integer_of_the_cpu_and_of_plain_loops(
        (n, k, rows, x, trits) in (1usize..40, 1usize..400, 1usize..150).prop_flat_map(|(n, k, rows)| (
            Just(n),
            Just(k),
            Just(rows),
            prop::collection::vec(-127i8..=127, n * k),
            prop::collection::vec(-1i8..=1, rows * k),
        )),
    ) {
        let mut x: Vec<f32> = x.into_iter().map(f32::from).collect();
        x.iter_mut().step_by(k).for_each(|x| *x = 127.0);
        let expected = sums(n, k, rows, &x, &trits);
        let mut gpu = Gpu::new(Simulator::default()).unwrap();
        prop_assert_eq!(&product(&mut gpu, n, k, rows, &x, &trits), &expected);
        let mut cpu = Cpu::new(Isa::best(), 1).unwrap();
        prop_assert_eq!(&product(&mut cpu, n, k, rows, &x, &trits), &expected);
        prop_assert_eq!(&product(&mut Reference::bf16(), n, k, rows, &x, &trits), &expected);
    }
}

#[test]
fn a_product_has_the_same_integers_wherever_the_threshold_sends_it() {
    let (mut cpu, mut gpu) = (Cpu::new(Isa::best(), 1).unwrap(), Gpu::new(Simulator::default()).unwrap());
    for (n, k, rows) in [(1, 64, 16), (3, 100, 70), (33, 130, 65)] {
        let x: Vec<f32> =
            (0..n * k).map(|i| if i % k == 0 { 127.0 } else { (i % 251) as f32 - 125.0 }).collect();
        let trits: Vec<i8> = (0..rows * k).map(|i| (i * i % 7 % 3) as i8 - 1).collect();
        let work = (n * k * rows) as u64;
        for threshold in [1, work, work + 1] {
            let scheduler = HybridScheduler::with_threshold(true, threshold);
            let before = gpu.counts().launches;
            let got = if scheduler.should_use_gpu(n, k, rows) {
                product(&mut gpu, n, k, rows, &x, &trits)
            } else {
                product(&mut cpu, n, k, rows, &x, &trits)
            };
            assert_eq!(got, sums(n, k, rows, &x, &trits), "{n} {k} {rows} from {threshold}");
            assert_eq!(gpu.counts().launches > before, threshold <= work, "{n} {k} {rows} from {threshold}");
        }
    }
    // A simulated GPU is always slower, so it is not used once that has been measured.
    let measured =
        [[1, 64, 16], [9, 130, 65]].map(|shape| Crossing::measure(&mut cpu, &mut gpu, shape).unwrap());
    let scheduler = HybridScheduler::from_measurements(true, &measured);
    assert!(scheduler.has_gpu() && !scheduler.should_use_gpu(512, 2560, 6912), "{measured:?}");
}

#[test]
fn a_gpu_that_cannot_run_the_kernels_is_an_error_that_names_the_cpu() {
    for broken in [
        Gpu::new(Simulator::with(|info| info.capability = (7, 5))).err(),
        Gpu::new(Simulator::with(|info| info.driver = 11_030)).err(),
        Cuda::open(usize::MAX).err(),
    ] {
        let error = broken.expect("no such GPU can run them");
        assert!(error.to_string().contains("--device cpu"), "{error}");
    }
}

#[test]
fn without_a_driver_or_gpu_opening_one_is_an_error_and_the_skip_is_printed() {
    match Cuda::open(0).map(Gpu::new) {
        Ok(Ok(mut gpu)) => {
            let x: Vec<f32> = vec![127.0; 3 * 130];
            let sums = product(&mut gpu, 3, 130, 70, &x, &vec![1; 70 * 130]);
            assert!(sums.iter().all(|&y| y == 127.0 * 130.0), "the GPU of this machine multiplies");
        }
        Ok(Err(e)) | Err(e) => {
            assert!(!matches!(e, GpuError::Failed { .. }), "{e}");
            println!("skipped: kernels on silicon ({e})");
        }
    }
}
