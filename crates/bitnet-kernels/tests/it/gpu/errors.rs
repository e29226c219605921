//! What the GPU backend refuses, and what it says.

use bitnet_kernels::{
    DeltaShape, DeltaWeights, KvShape, RowsKind, Run, Step,
    gpu::{
        Arg, Cuda, Driver, Gpu, GpuError,
        table::{ARGMAX, EMBED, KERNELS, NORM_QUANTIZE},
    },
};
use bitnet_tests::Simulator;

#[test]
fn a_missing_driver_is_reported_without_a_panic() {
    match Cuda::open(0) {
        Err(GpuError::DriverMissing) => {}
        Err(GpuError::NoDevice { index: 0, count: 0 } | GpuError::Unavailable { .. }) => {
            println!("skipped: this machine has a driver without a GPU")
        }
        Ok(_) => println!("skipped: this machine has a GPU"),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_gpu_or_driver_too_old_for_the_kernels_is_refused_with_its_cure() {
    let old = Gpu::new(Simulator::with(|info| info.capability = (7, 5))).err().unwrap();
    assert!(matches!(old, GpuError::TooOld { major: 7, minor: 5, .. }), "{old}");
    let old = Gpu::new(Simulator::with(|info| info.driver = 11_020)).err().unwrap();
    assert_eq!(old, GpuError::DriverTooOld { version: 11_020 });
    assert!(old.to_string().contains("CUDA 11.2") && old.to_string().contains("driver 470"), "{old}");
}

#[test]
fn too_little_memory_names_what_it_was_for() {
    let mut whole = 0;
    let mut gpu = Gpu::new(Simulator::with(|info| whole = info.memory)).unwrap();
    let taken = whole - gpu.driver().free_memory().unwrap();
    let mut gpu = Gpu::new(Simulator::with(|info| info.memory = taken + (1 << 20))).unwrap();
    let kept = gpu.rows(128, 1024, RowsKind::Residual).unwrap();
    let full = gpu.rows(256, 1024, RowsKind::Residual).err().unwrap();
    assert_eq!(full, GpuError::OutOfMemory { what: "activations", bytes: 1 << 20, free: 1 << 19 });
    drop(kept);
    assert!(gpu.rows(256, 1024, RowsKind::Residual).is_ok(), "dropped memory is there again");
}

#[test]
fn a_kernel_that_the_driver_refuses_is_named_with_its_log() {
    let text = EMBED.text.replace("setp.ge.u32", "setp.ge.q32");
    let refused = Gpu::new(Simulator::default().replace(&EMBED, text)).err().unwrap();
    let GpuError::ModuleRefused { kernel, log } = refused else { panic!("{refused}") };
    assert!(kernel == EMBED.name && log.contains("setp.ge.q32"), "{log}");
}

#[test]
fn heads_wider_than_the_kernels_take_are_refused_with_the_limit() {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let wide = gpu.kv(KvShape { blocks: 1, kv_heads: 1, head_dim: 264 }).err().unwrap();
    assert_eq!(wide, GpuError::HeadTooWide { what: "attention", head_dim: 264, limit: 256 });
    assert!(gpu.kv(KvShape { blocks: 1, kv_heads: 1, head_dim: 256 }).is_ok());
}

#[test]
fn heads_of_recurrent_layers_wider_than_the_kernels_take_are_refused_with_the_limit() {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let floats = vec![0.0; 3 * 129];
    for (head_dim, fits) in [(128, true), (129, false)] {
        let shape = DeltaShape { key_heads: 1, value_heads: 1, head_dim, taps: 1 };
        let (conv, heads, norm) = (&floats[..3 * head_dim], &floats[..1], &floats[..head_dim]);
        let weights = DeltaWeights { conv, a: heads, dt_bias: heads, norm, eps: 1e-6 };
        match gpu.delta(shape, &weights) {
            Ok(_) => assert!(fits),
            Err(wide) => {
                assert!(!fits);
                let told = "heads of recurrent layers are 129 wide, and the GPU kernels take at most 128";
                assert_eq!(wide.to_string(), format!("{told}: use --device cpu"));
            }
        }
    }
}

#[test]
#[should_panic(expected = "no two runs may share a slot")]
fn two_runs_with_one_state_are_stopped_before_the_driver() {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let shape = DeltaShape { key_heads: 1, value_heads: 1, head_dim: 4, taps: 1 };
    let weights = DeltaWeights { conv: &[0.0; 12], a: &[0.0], dt_bias: &[0.0], norm: &[0.0; 4], eps: 1e-6 };
    let layer = gpu.delta(shape, &weights).unwrap();
    let mut state = gpu.state(shape, 2).unwrap();
    let x = gpu.rows(2, shape.columns(), RowsKind::Intermediate).unwrap();
    let mut out = gpu.rows(2, 4, RowsKind::Intermediate).unwrap();
    let runs = [0, 1].map(|i| Run { tokens: i..i + 1, start: 0, blocks: 0..0, state: 1, ..Run::default() });
    let _ = gpu.gated_delta(Step::new(&runs, &[]), &x, &layer, &mut state, &mut out);
}

#[test]
fn a_kernels_parameters_are_read_from_its_text() {
    assert_eq!(EMBED.parameters(), [".u64", ".u64", ".u64", ".u32", ".u32", ".u32", ".f32"]);
    assert_eq!(ARGMAX.parameters(), [".u64", ".u64", ".u32", ".u32"]);
    assert!(NORM_QUANTIZE.parameters().contains(&".f64"));
    for kernel in KERNELS {
        let code = kernel.text.lines().map(|line| line.split("//").next().unwrap());
        let declared: usize =
            code.map(|line| line.matches(".param").count() - line.matches("ld.param").count()).sum();
        assert!(kernel.parameters().len() == declared && declared > 0, "{}", kernel.name);
    }
}

#[test]
#[should_panic(expected = "blocks must be in the cache")]
fn a_block_outside_the_cache_is_stopped_before_the_driver() {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let kv = gpu.kv(KvShape { blocks: 2, kv_heads: 1, head_dim: 16 }).unwrap();
    let qkv = gpu.rows(1, 48, RowsKind::Intermediate).unwrap();
    let mut out = gpu.rows(1, 16, RowsKind::Intermediate).unwrap();
    let run = Run { tokens: 0..1, start: 0, blocks: 0..1, ..Run::default() };
    let _ = gpu.attention(Step::new(&[run], &[2]), &qkv, &kv, &mut out);
}

#[test]
#[should_panic(expected = "sm80_argmax_f32 takes")]
fn a_launch_with_an_argument_too_few_is_stopped_before_the_driver() {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let few = vec![Arg::u64(0); ARGMAX.parameters().len() - 1];
    let _ = gpu.launch(&ARGMAX, [1, 1, 1], 0, &few);
}
