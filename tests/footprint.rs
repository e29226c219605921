//! The memory that a model takes, compared with what the process allocates on the CPU and a driver on a GPU.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        atomic::{AtomicIsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use bitnet_kernels::{Cpu, Footprint, Isa, KvType, gpu::Gpu};
use bitnet_model::{
    Checkpoint, Limits, Model as _, ModelFootprint, ModelSpec, Synthetic, TensorSource, Transformer,
};
use bitnet_tests::{GEMMA_FORMS, HEAD_FORMS, Null, all_forms};

/// Bytes that are allocated and not freed.
static HELD: AtomicIsize = AtomicIsize::new(0);

/// Counts them.
struct Counting;

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size() as isize, Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        HELD.fetch_add(size as isize - layout.size() as isize, Relaxed);
        // SAFETY: the caller upholds the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// How a model is loaded.
#[derive(Debug, Clone, Copy)]
struct Load {
    limits: Limits,
    kv: KvType,
    threads: usize,
    all_logits: bool,
    /// Whether sliding layers have blocks of their own.
    windows: bool,
    /// Drafts for which the logs of recurrent states have room.
    drafts: usize,
}

/// The bytes that loading a model allocates beyond the estimate.
fn beyond(source: &Synthetic, load: Load) -> isize {
    let Load { limits, kv, threads, all_logits, windows, drafts } = load;
    let mut cpu = Cpu::new(Isa::best(), threads).unwrap().keeping(kv);
    if all_logits {
        cpu = cpu.for_all_logits();
    }
    // Threads allocate when they first work.
    cpu.peak_products();
    let footprint = ModelFootprint::new(&cpu, source.spec(), source).with_logs(drafts);
    let estimated = if windows { footprint.with_windows() } else { footprint }.bytes(limits);
    let load = if windows { Transformer::load_with_windows } else { Transformer::load };
    let before = HELD.load(Relaxed);
    let mut model = load(source.spec(), source, cpu, limits, &mut |_, _| {}).unwrap();
    let room = model.reserve_log(drafts).unwrap();
    assert_eq!(room, if limits.state_slots > 0 { drafts } else { 0 });
    let allocated = HELD.load(Relaxed) - before;
    drop(model);
    // The estimate includes the logits, which the caller allocates, but not the two lists of slots.
    let logits = 4 * limits.max_logit_rows * source.spec().vocab;
    allocated + (logits + threads) as isize - (2 * 8 * limits.state_slots) as isize - estimated as isize
}

/// On the CPU, everything that depends on sizes is exact; beyond it are only the structures, whose sizes are fixed.
fn on_the_cpu() {
    // When it first waits for a channel, a thread allocates what it keeps for all later waits, and loading may wait.
    let (send, receive) = mpsc::channel();
    let late = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        send.send(())
    });
    receive.recv().unwrap();
    late.join().unwrap().unwrap();
    let mut families = 0;
    let mut specs: Vec<(String, ModelSpec)> = Vec::new();
    for form in all_forms() {
        let spec = Checkpoint::open(&form.path()).unwrap().spec;
        let spec = ModelSpec { draft_head: false, ..spec };
        if !specs.iter().any(|(_, other)| *other == spec) {
            specs.push((format!("{form:?}"), spec));
        }
    }
    for (name, spec) in &specs {
        families += 1;
        // Matrices of 64 KiB and more are in maps, which nobody counts. Rotations have signs for certain widths.
        let rotated = spec.rotation.is_some();
        let ffn = if rotated { spec.hidden } else { 64 };
        let spec = &ModelSpec { ffn, ..spec.clone() };
        let source = Synthetic::of(spec.clone());
        let states = if spec.state_bytes() > 0 { 5 } else { 0 };
        let limits = Limits { max_tokens: 70, max_logit_rows: 6, kv_blocks: 3, state_slots: states };
        let plain =
            Load { limits, kv: KvType::F32, threads: 1, all_logits: false, windows: false, drafts: 0 };
        let structures = beyond(&source, plain);
        // Less than 4 KiB for each layer, and for what is outside the layers.
        let most = 4096 * (spec.layers as isize + 2);
        assert!((0..most).contains(&structures), "{name}: {structures} of {most} bytes");
        let larger = Limits { max_tokens: 150, max_logit_rows: 33, kv_blocks: 8, state_slots: 2 * states };
        for kv in KvType::ALL {
            assert_eq!(beyond(&source, Load { kv, limits: larger, ..plain }), structures, "{name} {kv}");
        }
        for drafts in [1, 4, 16] {
            assert_eq!(beyond(&source, Load { drafts, ..plain }), structures, "{name}, {drafts} drafts");
        }
        // More blocks than windows need.
        let windows = Load { windows: true, limits: Limits { kv_blocks: 40, ..limits }, ..plain };
        assert_eq!(beyond(&source, windows), structures, "{name}, windows");
        // What a worker allocates as it starts is counted only if it starts in time.
        let workers = beyond(&source, Load { threads: 2, ..plain }) - structures;
        assert!((0..1024).contains(&workers), "{name}, two threads: {workers} more");
        let without_copy = structures - beyond(&source, Load { all_logits: true, ..plain });
        assert!((0..256).contains(&without_copy), "{name} without a copy of the head: {without_copy}");
        let more = if rotated { 0 } else { 64 };
        let (hidden, ffn) = (spec.hidden - more, spec.ffn + more);
        let other = Synthetic::of(ModelSpec { vocab: spec.vocab + 64, hidden, ffn, ..spec.clone() });
        assert_eq!(beyond(&other, plain), structures, "{name}, other widths");
    }
    assert!(families > 8, "{families}");
}

/// What loading a model on a GPU allocates, and what was estimated.
fn loaded(
    spec: &ModelSpec,
    tensors: &dyn TensorSource,
    limits: Limits,
    kv: KvType,
    [all_logits, windows]: [bool; 2],
    drafts: usize,
) -> (usize, usize) {
    let mut gpu = Gpu::new(Null::default()).unwrap().keeping(kv);
    if all_logits {
        gpu = gpu.for_all_logits();
    }
    let footprint = ModelFootprint::new(&gpu, spec, tensors).with_logs(drafts);
    let footprint = if windows { footprint.with_windows() } else { footprint };
    let recordings = gpu.recordings_bytes(footprint.max_launches());
    let estimated = footprint.bytes(limits) as usize - recordings;
    let opened = gpu.driver().held();
    let load = if windows { Transformer::load_with_windows } else { Transformer::load };
    let mut model = load(spec, tensors, gpu, limits, &mut |_, _| {}).unwrap();
    model.reserve_log(drafts).unwrap();
    // Another allocation frees what has been dropped.
    let last = model.backend_mut().alloc(16, "the last").unwrap();
    (model.backend_mut().driver().held() - opened - last.bytes(), estimated)
}

/// A GPU's driver is asked for exactly what was estimated.
fn on_a_gpu() {
    let mut checked = 0;
    for form in all_forms().chain(HEAD_FORMS).chain(GEMMA_FORMS) {
        let Checkpoint { spec, tensors, .. } = Checkpoint::open(&form.path()).unwrap();
        // A file of floats tells the groups of its weights only when it is read.
        let known = tensors.entries().iter().all(|entry| entry.group != Some(64));
        let states = if spec.state_bytes() > 0 { 3 } else { 0 };
        let large = Limits { max_tokens: 300, max_logit_rows: 70, kv_blocks: 9, state_slots: 4 * states };
        let [bf16, int8] = Gpu::<Null>::KV_TYPES;
        let small = Limits { max_tokens: 1, max_logit_rows: 1, kv_blocks: 1, state_slots: states };
        // More blocks than windows need.
        let long = Limits { max_logit_rows: 1, kv_blocks: 60, ..large };
        for (limits, kv, how, drafts) in [
            (small, bf16, [false, false], 0),
            (large, bf16, [false, false], 4),
            (large, int8, [false, false], 1),
            (large, bf16, [true, false], 0),
            (long, bf16, [false, true], 0),
        ] {
            let (allocated, estimated) = loaded(&spec, &*tensors, limits, kv, how, drafts);
            assert!(allocated <= estimated, "{form:?} {limits:?}: {allocated}, not {estimated}");
            assert!(!known || allocated == estimated, "{form:?} {limits:?}: {allocated}, not {estimated}");
            checked += usize::from(known);
        }
    }
    assert!(checked > 30, "only {checked} forms");
}

/// One test, so that nothing else in the process allocates meanwhile.
#[test]
fn a_model_takes_the_memory_that_was_estimated_for_every_family_and_cache_type() {
    on_the_cpu();
    on_a_gpu();
}
