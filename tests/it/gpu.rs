//! The GPU backend beside the CPU's: the same product, and what happens where there is no GPU.
#![allow(clippy::print_stdout, reason = "what was skipped belongs into the output")]

use bitnet_kernels::{
    Backend, Cpu, Isa, Reference, RowOrder, RowsKind,
    gpu::{Cuda, Gpu, GpuError},
};
use bitnet_tensor::TernaryTensor;
use bitnet_tests::Simulator;
use proptest::prelude::*;

/// int32 sums of a product, read as f32 through scales of one.
fn product(b: &mut impl Backend, n: usize, k: usize, rows: usize, x: &[f32], trits: &[i8]) -> Vec<f32> {
    let w = TernaryTensor::from_trits(rows, k, trits, 1.0).unwrap();
    let w = b.linear(&w, RowOrder::Plain).unwrap();
    let mut input = b.rows(n, k, RowsKind::Residual).unwrap();
    b.write(&mut input, x).unwrap();
    let mut q = b.quants(n, k).unwrap();
    b.norm_quantize(n, &input, [None, None], &mut q).unwrap();
    let mut out = b.rows(n, rows, RowsKind::Residual).unwrap();
    b.bit_linear(n, &q, &w, &mut out, 0, false).unwrap();
    b.read(&out, n).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Activations of -127 to 127 with one of 127 in each row quantise to themselves with the multiplier 1: what comes
    /// out is the integer sum itself, below 2^24.
    #[test]
    fn f33_any_product_on_the_gpu_is_the_integer_of_the_cpu_and_of_plain_loops(
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
        let expected: Vec<f32> = (0..n * rows)
            .map(|i| {
                let (t, r) = (i / rows, i % rows);
                let terms = x[t * k..][..k].iter().zip(&trits[r * k..][..k]);
                terms.map(|(&x, &w)| x as i32 * i32::from(w)).sum::<i32>() as f32
            })
            .collect();
        let mut gpu = Gpu::new(Simulator::default()).unwrap();
        prop_assert_eq!(&product(&mut gpu, n, k, rows, &x, &trits), &expected);
        let mut cpu = Cpu::new(Isa::best(), 1).unwrap();
        prop_assert_eq!(&product(&mut cpu, n, k, rows, &x, &trits), &expected);
        prop_assert_eq!(&product(&mut Reference::bf16(), n, k, rows, &x, &trits), &expected);
    }
}

/// What a caller does that would rather have a GPU: it gets an error with its cure, and the CPU's kernels run.
#[test]
fn f33_a_gpu_that_cannot_run_the_kernels_is_an_error_and_the_cpu_goes_on() {
    for broken in [
        Gpu::new(Simulator::with(|info| info.capability = (7, 5))).err(),
        Gpu::new(Simulator::with(|info| info.driver = 11_030)).err(),
        Cuda::open(usize::MAX).err(),
    ] {
        let error = broken.expect("no such GPU can run them");
        assert!(error.to_string().contains("--device cpu"), "{error}");
    }
    let mut cpu = Cpu::new(Isa::best(), 1).unwrap();
    assert_eq!(product(&mut cpu, 1, 2, 1, &[127.0, 5.0], &[1, -1]), [122.0]);
}

#[test]
fn f34_without_a_driver_or_gpu_opening_one_says_so_and_skips_aloud() {
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
