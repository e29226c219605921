//! Runs the conformance table on the simulator.

use std::{sync::Mutex, thread};

use bitnet_kernels::{
    Gate, Grouping, KvType,
    conformance::{Case, cases, check_rounded},
    gpu::Gpu,
};
use bitnet_tests::Simulator;

/// Whether the matrix units add floats in a case, which two kinds of GPU do differently.
fn adds_floats(case: &Case) -> bool {
    matches!(case, Case::Head { .. } | Case::Top { .. } | Case::Race { .. }) || case.caches()
}

/// Runs cases on simulated GPUs with this type of cache, two at a time, each with a different order of blocks and warps.
fn failures(cases: Vec<Case>, kv: KvType) -> Vec<String> {
    let older = cases.iter().enumerate().filter(|(i, case)| i % 4 == 3 || adds_floats(case));
    let newer = cases.iter().enumerate().filter(|(i, case)| i % 4 != 3 || adds_floats(case));
    let runs = older.map(|run| (run, true)).chain(newer.map(|run| (run, false))).collect::<Vec<_>>();
    let (next, failures) = (Mutex::new(runs.into_iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(((i, &case), older)) = next.lock().unwrap().next() else { return };
                    // Both sets of texts; all kernels of the older one are tried in `self_test`.
                    let simulator = if older { Simulator::older() } else { Simulator::default() };
                    let mut gpu = Gpu::new(simulator.seed(i as u64)).unwrap().keeping(kv);
                    if let Err(failure) = check_rounded(&mut gpu, case) {
                        failures.lock().unwrap().push(failure.to_string());
                    }
                }
            });
        }
    });
    failures.into_inner().unwrap()
}

#[test]
fn every_shared_case_equals_the_reference_on_the_simulated_gpu() {
    let started = std::time::Instant::now();
    let failures = failures(cases(), KvType::Bf16);
    println!("{} cases on the simulator in {:.0?}", cases().len(), started.elapsed());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_shared_case_that_caches_equals_the_reference_with_int8_on_the_simulated_gpu() {
    let caching: Vec<Case> = cases().into_iter().filter(Case::caches).collect();
    assert!(caching.len() > 30, "{}", caching.len());
    let failures = failures(caching, KvType::Int8);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Widths of real models, with two tiles of rows and a tail, and a number of tokens for every kernel.
#[test]
fn every_number_of_tokens_equals_the_reference_at_the_widths_of_real_models() {
    let tokens = [1, 2, 7, 8, 9, 16, 33, 64, 130];
    let mut cases = Vec::new();
    for (i, n) in tokens.into_iter().enumerate() {
        let k = [2560, 6912, 3200, 8640][i % 4];
        cases.push(Case::BitLinear { n, k, rows: &[200, 73], group: None, column: 0, add: i % 2 == 0 });
        cases.push(Case::NormQuantize { n, width: k, norms: i % 3, grouping: Grouping::Row });
        let gate = [Gate::SquaredRelu, Gate::Silu][i % 2];
        cases.push(Case::GateUp { n, k: 2560, ffn: 137, group: None, gate });
        let (heads, kv_heads, head_dim) = [(2, 1, 128), (2, 1, 100), (3, 1, 48), (1, 1, 256)][i % 4];
        cases.push(Case::Qkv {
            start: 60 * (i % 3),
            n,
            k: 2560,
            heads,
            kv_heads,
            head_dim,
            group: None,
            norms: false,
        });
        let (k, group) = [(2048, 128), (2560, 64), (4096, 128), (9728, 128)][i % 4];
        cases.push(Case::BitLinear {
            n,
            k,
            rows: &[200, 73],
            group: Some(group),
            column: 0,
            add: i % 2 == 1,
        });
        cases.push(Case::GateUp { n, k: 2048, ffn: 137, group: Some(group), gate: Gate::Silu });
        cases.push(Case::Qkv {
            start: 60 * (i % 3),
            n,
            k: 2048,
            heads,
            kv_heads,
            head_dim,
            group: Some(128),
            norms: true,
        });
    }
    let failures = failures(cases, KvType::Bf16);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
