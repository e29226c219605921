//! The check of all kernels when a GPU is opened.

use std::collections::BTreeSet;

use bitnet_kernels::gpu::{
    Gpu, GpuError,
    table::{BITLINEAR_T8, BITLINEAR_T16, BOUNDS_T32, BOUNDS_T64, KERNELS, Kernel, NORM_QUANTIZE, SAMPLE},
};
use bitnet_tests::{Simulator, Tap};

fn compiling(name: &'static str) -> Simulator {
    Simulator::with(|info| info.name = name.into()).compiling()
}

#[test]
fn every_kernel_is_tried_when_a_gpu_is_opened_and_once_a_process() {
    // The kernel that is too large for a GPU with little shared memory, and the one that takes its place there.
    tried_once(|| compiling("right"), &BOUNDS_T32);
    tried_once(|| Simulator::older().set(|info| info.shared = 99 << 10).compiling(), &BOUNDS_T64);
}

fn tried_once(simulator: fn() -> Simulator, unused: &Kernel) {
    let (tap, driver) = Tap::of(simulator());
    let mut gpu = Gpu::new(tap).unwrap();
    let tried: BTreeSet<&str> = driver.kernels().into_iter().collect();
    // The others measure the matrix units and are not part of a forward pass.
    let part = |name: &&str| !name.contains("peak") && *name != unused.name;
    let all = KERNELS.iter().map(|kernel| kernel.name).filter(part);
    assert_eq!(tried, all.collect());
    assert_eq!((gpu.counts().launches, gpu.counts().allocations), (0, 0), "a model begins at zero");
    gpu.alloc(16, "what is dropped is freed with the next").unwrap();
    let used = driver.memory_used();
    let (tap, driver) = Tap::of(simulator());
    Gpu::new(tap).unwrap().alloc(16, "the same").unwrap();
    let again: BTreeSet<&str> = driver.kernels().into_iter().collect();
    let recorded = [&BITLINEAR_T8, &NORM_QUANTIZE].map(|kernel| kernel.name);
    assert_eq!(again, recorded.into(), "the same GPU and driver are asked for recordings only");
    assert_eq!(driver.memory_used(), used);
}

#[test]
fn a_kernel_that_computes_wrong_results_is_refused_by_name() {
    for (kernel, right, wrong) in [
        (&BITLINEAR_T16, "  sub.s32 s1, s1, sum_x0;\n", ""),
        (&SAMPLE, "setp.ge.u64 in, w, floor;", "setp.ge.u64 in, w, w;"),
    ] {
        let text = kernel.text.replace(right, wrong);
        assert_ne!(text, kernel.text);
        let refused = Gpu::new(compiling("wrong").replace(kernel, text)).err().unwrap();
        assert!(matches!(&refused, GpuError::WrongResult { .. }), "{refused}");
        let told = refused.to_string();
        assert!(
            told.contains(kernel.name) && told.contains("on wrong with the driver for CUDA 12.4 and sm90"),
            "{told}"
        );
    }
}
