//! The engine on real kernels and random weights.

use std::sync::Arc;

use bitnet_inference::{
    Engine, EngineConfig, GenerationConfig,
    metrics::{Counter, Measure},
    names::{
        CudaError, GpuInferenceEngine, PaddedBatch, batch_generate, batch_generate_gpu, forward_batch,
        process_batch,
    },
};
use bitnet_kernels::gpu::{Cuda, Gpu};
use bitnet_kernels::{BackendInfo, Cpu, Isa};
use bitnet_model::{Batch, ForwardError, Limits, Logits, Model, ModelSpec, Synthetic, Transformer};
use parking_lot::Mutex;

use crate::support::mixed;

/// A model whose counters can be read while an engine owns it.
#[derive(Clone)]
struct Watched(Arc<Mutex<Transformer<Cpu>>>, ModelSpec);

impl Watched {
    fn tiny(isa: &str, threads: usize, max_tokens: usize, kv_blocks: usize) -> Watched {
        let max_logit_rows = max_tokens.min(16);
        Self::named("tiny", isa, threads, Limits { max_tokens, max_logit_rows, kv_blocks, state_slots: 0 })
    }

    fn named(name: &str, isa: &str, threads: usize, limits: Limits) -> Watched {
        let synthetic = Synthetic::named(name).unwrap();
        let cpu = Cpu::new(Isa::named(isa).unwrap(), threads).unwrap();
        let model = Transformer::load(synthetic.spec(), &synthetic, cpu, limits, &mut |_, _| {}).unwrap();
        let spec = model.spec().clone();
        Watched(Arc::new(Mutex::new(model)), spec)
    }

    fn bit_linear_calls(&self) -> u64 {
        self.0.lock().backend_ref().bit_linear_calls()
    }
}

impl Model for Watched {
    fn spec(&self) -> &ModelSpec {
        &self.1
    }

    fn limits(&self) -> Limits {
        self.0.lock().limits()
    }

    fn backend(&self) -> BackendInfo {
        self.0.lock().backend()
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), ForwardError> {
        self.0.lock().forward(batch, logits)
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        self.0.lock().copy_block(from, to)
    }

    fn copy_state(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        self.0.lock().copy_state(from, to)
    }

    fn reserve_log(&mut self, drafts: usize) -> Result<usize, ForwardError> {
        self.0.lock().reserve_log(drafts)
    }
}

fn engine(model: Watched, max_batch_size: usize, max_draft: usize) -> Engine {
    Engine::start(model, EngineConfig { max_batch_size, max_draft, ..EngineConfig::default() }).unwrap()
}

#[test]
fn tokens_are_the_same_alone_in_a_batch_in_chunks_and_on_any_number_of_threads() {
    let mut batch = mixed(24, 1);
    batch.iter_mut().for_each(|(_, config)| config.max_new_tokens += 60);
    // One request after another, each prompt in one step.
    let single = engine(Watched::tiny("auto", 1, 512, 64), 1, 0);
    let want: Vec<Vec<u32>> = process_batch(&single, &batch).into_iter().map(Result::unwrap).collect();
    assert!(want.iter().map(Vec::len).sum::<usize>() > 200);
    for (isa, threads, max_tokens, kv_blocks, size, draft) in [
        ("auto", 2, 512, 64, 16, 0),
        ("auto", 1, 33, 64, 16, 3),
        ("scalar", 2, 100, 64, 8, 0),
        // Room for a third of the requests, so they are preempted.
        ("auto", 2, 64, 9, 16, 2),
    ] {
        let many = engine(Watched::tiny(isa, threads, max_tokens, kv_blocks), size, draft);
        let got: Vec<Vec<u32>> = process_batch(&many, &batch).into_iter().map(Result::unwrap).collect();
        assert_eq!(
            got, want,
            "{isa}, {threads} threads, {max_tokens} tokens, {kv_blocks} blocks, {size}, {draft}"
        );
        if kv_blocks < 64 {
            assert!(many.status().scheduler.preemptions > 0, "{:?}", many.status());
        }
    }
}

#[test]
fn recurrent_layers_give_the_same_tokens_in_every_schedule() {
    for name in ["hybrid-tiny", "hybrid-tiny-rotated"] {
        let mut batch = mixed(16, 6);
        for (i, (_, config)) in batch.iter_mut().enumerate() {
            config.max_new_tokens += 50;
            if i % 3 == 0 {
                // Few tokens, so that earlier text often recurs but continues differently.
                config.temperature = 1.0;
                config.logit_bias = (1..4).map(|token| (token, 100.0)).collect();
            }
        }
        let limits = |max_tokens: usize, kv_blocks, state_slots| Limits {
            max_tokens,
            max_logit_rows: max_tokens.min(24),
            kv_blocks,
            state_slots,
        };
        // One request after another, each prompt in one step, and no snapshots.
        let single = engine(Watched::named(name, "auto", 1, limits(512, 64, 1)), 1, 0);
        let want: Vec<_> = process_batch(&single, &batch).into_iter().map(Result::unwrap).collect();
        assert!(want.iter().map(Vec::len).sum::<usize>() > 500);
        let (mut rolled_back, mut hits) = (0, 0);
        for (isa, threads, limits, draft) in [
            ("auto", 2, limits(512, 64, 20), 0),
            ("auto", 1, limits(33, 64, 8), 3),
            ("scalar", 2, limits(100, 64, 12), 2),
            // Room for a third of the requests, so they are preempted.
            ("auto", 2, limits(64, 9, 12), 4),
        ] {
            let many = engine(Watched::named(name, isa, threads, limits), 8, draft);
            // The second time, much of it is in the prefix cache.
            for round in 0..2 {
                let got: Vec<_> = process_batch(&many, &batch).into_iter().map(Result::unwrap).collect();
                assert_eq!(got, want, "{name}, {isa}, {threads} threads, {limits:?}, {draft}, round {round}");
            }
            let (counts, spare) = (many.status().scheduler, limits.state_slots > many.max_batch_size());
            assert!(spare || counts.prefix_hits == 0, "{counts:?}");
            assert!(limits.kv_blocks == 64 || counts.preemptions > 0, "{counts:?}");
            rolled_back += counts.drafted - counts.accepted;
            hits += counts.prefix_hits;
        }
        assert!(rolled_back > 10 && hits > 100, "{rolled_back} drafts rolled back, {hits} tokens found");
    }
}

#[test]
fn logits_are_the_same_alone_and_in_a_batch_to_the_last_bit() {
    let prompts: Vec<Vec<u32>> = mixed(16, 2).into_iter().map(|m| m.0).collect();
    let single = engine(Watched::tiny("auto", 1, 512, 64), 1, 0);
    let many = engine(Watched::tiny("auto", 2, 70, 96), 16, 0);
    let bits = |rows: Vec<Vec<f32>>| rows.into_iter().flatten().map(f32::to_bits).collect::<Vec<_>>();
    let want = bits(forward_batch(&single, &prompts).unwrap());
    assert_eq!(bits(forward_batch(&many, &prompts).unwrap()), want);
}

#[test]
fn neither_padding_nor_a_longer_neighbour_changes_a_bit_of_a_sequences_logits() {
    let of =
        |threads| GpuInferenceEngine::on(Arc::new(engine(Watched::tiny("auto", threads, 200, 64), 8, 0)));
    let bits = |row: &Vec<f32>| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let zeros = |n: usize| vec![0; n];
    let prompts =
        [vec![9, 0, 0], zeros(1), vec![0, 9], zeros(63), vec![5; 130], [vec![7; 64], zeros(3)].concat()];
    let (single, many) = (of(1), of(2));
    let alone =
        |prompt: &Vec<u32>| forward_batch(single.engine(), std::slice::from_ref(prompt)).unwrap().remove(0);
    let want: Vec<_> = prompts.iter().map(|prompt| bits(&alone(prompt))).collect();
    assert!(want.windows(2).all(|pair| pair[0] != pair[1]), "the prompts have logits of their own");
    for width in [130, 512] {
        let padded = PaddedBatch::pack(&prompts, &[width]).unwrap();
        let got = many.forward_batch_gpu(&padded).unwrap();
        assert_eq!(got.iter().map(bits).collect::<Vec<_>>(), want, "padded to {width}");
    }
}

/// A model whose every fourth step fails after it was computed.
struct Flaky {
    model: Watched,
    steps: usize,
}

impl Model for Flaky {
    fn spec(&self) -> &ModelSpec {
        self.model.spec()
    }

    fn limits(&self) -> Limits {
        self.model.limits()
    }

    fn backend(&self) -> BackendInfo {
        self.model.backend()
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), ForwardError> {
        self.steps += 1;
        self.model.forward(batch, logits)?;
        if self.steps.is_multiple_of(4) {
            return Err(ForwardError::StepTooLarge { what: "planted", actual: 1, limit: 0 });
        }
        Ok(())
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        self.model.copy_block(from, to)
    }
}

#[test]
fn a_failed_step_loses_no_cached_keys_or_values() {
    let mut batch = mixed(12, 5);
    batch.iter_mut().for_each(|(_, config)| config.max_new_tokens += 20);
    let single = engine(Watched::tiny("auto", 1, 512, 64), 1, 0);
    let want: Vec<_> = process_batch(&single, &batch).into_iter().map(Result::unwrap).collect();
    let flaky = Flaky { model: Watched::tiny("auto", 1, 64, 64), steps: 0 };
    let config = EngineConfig { max_batch_size: 12, ..EngineConfig::default() };
    let gpu = GpuInferenceEngine::new(flaky, config).unwrap();
    assert_eq!(gpu.process_batch_gpu(&batch).unwrap(), want);
    assert!(gpu.engine().status().faults.failed_forwards > 10, "{:?}", gpu.engine().status());
}

#[test]
fn a_request_holds_the_blocks_of_its_own_length_and_not_of_the_longest() {
    let prompts: Vec<_> =
        [300, 3, 4, 5, 6, 7].map(|n| (0..n).map(|i| i * 31 % 500).collect::<Vec<u32>>()).into();
    let config = GenerationConfig { max_new_tokens: 8, ignore_eos: true, ..GenerationConfig::default() };
    let want = batch_generate(&engine(Watched::tiny("auto", 1, 512, 64), 1, 0), &prompts, &config).unwrap();
    // Five blocks for the long one, one for each of the others, and one spare.
    let gpu = GpuInferenceEngine::on(Arc::new(engine(Watched::tiny("auto", 1, 512, 5 + 5 + 1), 6, 0)));
    assert_eq!(batch_generate_gpu(&gpu, &prompts, &config).unwrap(), want);
    assert_eq!(gpu.engine().status().scheduler.preemptions, 0);
    assert_eq!(gpu.metrics().measure(Measure::BatchSize).max, 6.0, "all of them ran at once");
    assert_eq!(gpu.metrics().get(Counter::GeneratedTokens), 6 * 8);
}

#[test]
fn the_logits_after_a_prompt_depend_on_every_token_before_and_on_their_order() {
    let single = engine(Watched::tiny("auto", 1, 512, 64), 4, 0);
    let prompt: Vec<u32> = (1..90).collect();
    let mut others = vec![prompt.clone()];
    for at in [0, 40, 87] {
        let mut other = prompt.clone();
        other[at] = 400;
        others.push(other);
    }
    let mut swapped = prompt.clone();
    swapped.swap(10, 70);
    others.push(swapped);
    let logits = forward_batch(&single, &others).unwrap();
    for (i, row) in logits.iter().enumerate() {
        assert!(logits[..i].iter().all(|before| before != row), "prompt {i} has the logits of another");
    }
}

#[test]
fn kernel_calls_do_not_grow_with_the_number_of_requests() {
    let config = GenerationConfig { max_new_tokens: 10, ..GenerationConfig::default() };
    let calls = |requests: u32| {
        let model = Watched::tiny("auto", 1, 64, 64);
        let engine = engine(model.clone(), 16, 0);
        let prompts: Vec<_> = (0..requests).map(|i| vec![i, 1, 2]).collect();
        batch_generate(&engine, &prompts, &config).unwrap();
        model.bit_linear_calls()
    };
    let one = calls(1);
    assert!(one > 0);
    assert_eq!(calls(16), one);
}

#[test]
fn a_benchmark_on_real_kernels_finds_batch_and_single_equal() {
    let gpu = GpuInferenceEngine::new(Watched::tiny("auto", 2, 256, 64), EngineConfig::default()).unwrap();
    let rows = gpu.benchmark(&[20], &[1, 8]).unwrap();
    println!("tiny, 8 at once: {:.2} times one", gpu.batch_throughput_factor(8).unwrap());
    assert_eq!(rows[1].tokens, 8 * 16);
}

#[test]
fn without_a_usable_gpu_the_engine_on_cuda_is_a_typed_error_with_its_cure() {
    let tiny = Synthetic::named("tiny").unwrap();
    let limits = Limits { max_tokens: 64, max_logit_rows: 8, kv_blocks: 16, state_slots: 0 };
    let start =
        |device| GpuInferenceEngine::on_cuda(device, tiny.spec(), &tiny, limits, EngineConfig::default());
    match (Cuda::open(0).and_then(Gpu::new), start(0)) {
        (Err(why), Err(CudaError::Gpu(error))) => {
            assert_eq!(error, why);
            assert!(error.to_string().contains("--device cpu"), "{error}");
            println!("no GPU: {error}");
        }
        (Ok(_), Ok(gpu)) => {
            let config = GenerationConfig { max_new_tokens: 4, ..GenerationConfig::default() };
            assert_eq!(gpu.process_batch_gpu(&[(vec![1, 2], config)]).unwrap()[0].len(), 4);
            // No machine has this many.
            assert!(matches!(start(1 << 20), Err(CudaError::Gpu(_))));
        }
        (there, started) => panic!("a GPU: {}, an engine: {}", there.is_ok(), started.is_ok()),
    }
}
