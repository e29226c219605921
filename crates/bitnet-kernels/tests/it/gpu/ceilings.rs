//! The measured limits of a GPU, on the simulator.

use bitnet_kernels::gpu::{
    Arg, Ceilings, Driver, Gpu,
    table::{Kernel, PEAK_BF16, PEAK_W2A8},
};
use bitnet_tests::Simulator;

/// Returns the totals of two blocks after `rounds` rounds.
fn totals(kernel: &'static Kernel, rounds: u32) -> Vec<[u8; 4]> {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let out = gpu.alloc(4 * 2 * 128, "totals").unwrap();
    gpu.launch(kernel, [2, 1, 1], 0, &[Arg::u64(out.address()), Arg::u32(rounds)]).unwrap();
    gpu.fetch(&out, 4 * 2 * 128).unwrap().as_chunks().0.to_vec()
}

/// In every round, each of the 32 accumulators of a thread adds all products of a row and a column.
#[test]
fn the_kernels_that_measure_matrix_units_multiply_in_every_round() {
    for rounds in [0, 1, 3] {
        let int8 = totals(&PEAK_W2A8, rounds);
        assert!(int8.iter().all(|&b| u32::from_le_bytes(b) == 32 * 32 * rounds + 112), "{rounds}");
        let bf16 = totals(&PEAK_BF16, rounds);
        assert!(bf16.iter().all(|&b| f32::from_le_bytes(b) == (32 * 16 * rounds + 112) as f32), "{rounds}");
    }
}

#[test]
fn a_gpu_measures_its_ceilings_and_gives_the_memory_back() {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let Ceilings { copy, int8, bf16 } = gpu.ceilings().unwrap();
    assert!([copy, int8, bf16].iter().all(|rate| rate.is_finite() && *rate > 0.0), "{copy} {int8} {bf16}");
    let free = |gpu: &mut Gpu<Simulator>| gpu.driver().free_memory().unwrap();
    // Dropped memory is freed by the next allocation.
    gpu.alloc(16, "nothing").unwrap();
    let after = free(&mut gpu);
    gpu.ceilings().unwrap();
    gpu.alloc(16, "nothing").unwrap();
    assert_eq!(free(&mut gpu), after);
}
