//! The engine on the GPU's kernels, in the simulator: the names that users know, batches, memory, metrics and faults.

use std::sync::Arc;

use bitnet_inference::{
    BatchSizing, Constraint, ConstraintError, Engine, EngineConfig, GenerationConfig, GenerationError,
    Request, RequestError, SubmitError, TokenSet,
    metrics::Counter,
    names::{BatchError, BenchmarkError, GpuInferenceEngine},
};
use bitnet_kernels::{
    Cpu, DeltaShape, Isa, KernelError, KvType,
    gpu::{Gpu, GpuError, table::BITLINEAR_T8},
};
use bitnet_model::{ForwardError, Hybrid, Limits, ModelError, ModelSpec, Synthetic, Transformer};
use bitnet_tests::{Call, Handle, Simulator, Tap};

const LIMITS: Limits = Limits { max_tokens: 32, max_logit_rows: 4, kv_blocks: 8, state_slots: 0 };

fn load_within(limits: Limits, driver: Tap) -> Result<Transformer<Gpu<Tap>>, ModelError> {
    let tiny = Synthetic::named("tiny").unwrap();
    let gpu = Gpu::new(driver).map_err(KernelError::from)?;
    Transformer::load(tiny.spec(), &tiny, gpu, limits, &mut |_, _| {})
}

fn load(driver: Tap) -> Result<Transformer<Gpu<Tap>>, ModelError> {
    load_within(LIMITS, driver)
}

/// An engine on a simulated GPU, and the tap on its driver.
fn engine() -> (GpuInferenceEngine, Handle) {
    let (tap, handle) = Tap::of(Simulator::default());
    (GpuInferenceEngine::new(load(tap).unwrap(), EngineConfig::default()).unwrap(), handle)
}

/// Models with scales for rows, with scales for groups of columns, and with recurrent layers in a rotated basis.
const MODELS: [&str; 3] = ["tiny", "bonsai-tiny", "hybrid-tiny-rotated"];

fn model_of(name: &str, kv: KvType, limits: Limits, tap: Tap) -> Transformer<Gpu<Tap>> {
    let (model, gpu) = (Synthetic::named(name).unwrap(), Gpu::new(tap).unwrap().keeping(kv));
    let state_slots = if model.spec().state_bytes() > 0 { 10 } else { 0 };
    Transformer::load(model.spec(), &model, gpu, Limits { state_slots, ..limits }, &mut |_, _| {}).unwrap()
}

fn engine_of(name: &str, kv: KvType) -> (GpuInferenceEngine, Handle) {
    let (tap, handle) = Tap::of(Simulator::default());
    (GpuInferenceEngine::new(model_of(name, kv, LIMITS, tap), EngineConfig::default()).unwrap(), handle)
}

fn prompt(len: usize, seed: u32) -> Vec<u32> {
    (0..len as u32).map(|i| (i * i + 7 * i + 31 * seed) % 512).collect()
}

/// Requests of several lengths: greedy and sampled, plain and with options that change logits.
fn mixed() -> Vec<(Vec<u32>, GenerationConfig)> {
    let base = GenerationConfig { max_new_tokens: 6, ignore_eos: true, ..GenerationConfig::default() };
    let warm = GenerationConfig { temperature: 1.2, top_p: 0.9, seed: Some(5), ..base.clone() };
    let cut = GenerationConfig { top_k: 7, min_p: 0.01, seed: Some(6), max_new_tokens: 4, ..warm.clone() };
    let penalties = GenerationConfig { repetition_penalty: 1.4, presence_penalty: 0.3, ..warm.clone() };
    let biased = GenerationConfig { logit_bias: vec![(17, 4.0), (3, -9.0)], ..base.clone() };
    vec![
        (prompt(3, 1), base),
        (prompt(40, 2), warm),
        (prompt(1, 3), cut),
        (prompt(9, 4), penalties),
        (prompt(5, 5), biased),
    ]
}

#[test]
fn each_of_a_mixed_batch_gets_on_a_gpu_what_it_gets_alone() {
    for (model, kv) in MODELS.map(|name| (name, KvType::Bf16)).into_iter().chain([("tiny", KvType::Int8)]) {
        let (engine, _) = engine_of(model, kv);
        let batch = mixed();
        let together = engine.process_batch_gpu(&batch).unwrap();
        let draws = engine.engine().status().draws;
        assert!(draws.device >= 26 && draws.host == 0, "{draws:?}");
        for (request, expected) in batch.iter().zip(&together) {
            let (alone, _) = engine_of(model, kv);
            let one = alone.process_batch_gpu(std::slice::from_ref(request)).unwrap();
            assert_eq!(&one[0], expected, "{model} {kv}: {request:?}");
            assert_eq!(expected.len(), request.1.max_new_tokens);
        }
    }
}

/// The device's sampler draws the same tokens as the host's from the same logits.
#[test]
fn a_token_drawn_on_the_gpu_is_the_one_that_the_host_draws() {
    // Warm, and with penalties.
    for request in [1, 3] {
        let drawn = mixed().swap_remove(request);
        let seen = (drawn.0.clone(), GenerationConfig { logprobs: Some(0), ..drawn.1.clone() });
        let tokens = [drawn, seen].map(|(prompt, config)| {
            let (engine, _) = engine();
            let request = Request::new(prompt, GenerationConfig { n: 2, ..config });
            let done = engine.engine().submit(request).unwrap().wait().unwrap();
            let choices: Vec<Vec<u32>> = done.choices.into_iter().map(|choice| choice.tokens).collect();
            (choices, engine.engine().status().draws)
        });
        assert_eq!(tokens[0].0, tokens[1].0);
        assert_ne!(tokens[0].0[0], tokens[0].0[1], "choices are drawn apart");
        assert_eq!(tokens.map(|(_, draws)| (draws.device, draws.host)), [(12, 0), (0, 12)]);
    }
}

#[derive(Debug)]
struct Only(u32);

impl Constraint for Only {
    fn allow(&self, _: u32, _: &[u32], allowed: &mut TokenSet) -> Result<(), ConstraintError> {
        allowed.insert(self.0);
        Ok(())
    }
}

#[test]
fn a_constrained_text_is_drawn_on_the_gpu() {
    let (prompt, config) = mixed().swap_remove(0);
    let (engine, _) = engine();
    let request = Request { constraint: Some(Arc::new(Only(77))), ..Request::new(prompt, config) };
    let done = engine.engine().submit(request).unwrap().wait().unwrap();
    assert_eq!(done.choices[0].tokens, [77; 6]);
    assert_eq!(engine.engine().status().draws.host, 0);
}

/// Before the minimum, the tokens that would end the text are banned.
#[test]
fn a_token_that_may_not_end_the_text_yet_is_drawn_on_the_gpu() {
    let (prompt, config) = mixed().swap_remove(1);
    let (engine, _) = engine();
    engine.process_batch_gpu(&[(prompt, GenerationConfig { min_new_tokens: 2, ..config })]).unwrap();
    let draws = engine.engine().status().draws;
    assert_eq!((draws.device, draws.host), (6, 0));
}

/// One sequence needs fewer launches, since products of one token include the norms before them.
#[test]
fn a_step_on_a_gpu_is_one_forward_whose_launches_do_not_depend_on_the_batch() {
    let config = GenerationConfig { max_new_tokens: 5, ignore_eos: true, ..GenerationConfig::default() };
    let launches = [1, 2, 4].map(|n| {
        let (engine, _) = engine();
        let batch: Vec<_> = (0..n).map(|i| (prompt(4, i), config.clone())).collect();
        engine.process_batch_gpu(&batch).unwrap();
        assert_eq!(engine.metrics().get(Counter::Steps), 5, "a prompt's step and four of decoding");
        engine.engine().status().device.unwrap().counts.launches
    });
    assert_eq!(launches[1], launches[2]);
    // Four norms a layer in each step of decoding.
    assert_eq!(launches[0] + 4 * 4 * Synthetic::named("tiny").unwrap().spec().layers as u64, launches[1]);
}

#[test]
fn a_step_takes_no_memory_on_the_gpu_and_decoding_is_replayed() {
    for model in MODELS {
        let (engine, driver) = engine_of(model, KvType::Bf16);
        let taken = driver.count(Call::Alloc);
        assert!(taken > 20);
        let config = GenerationConfig { max_new_tokens: 12, ignore_eos: true, ..GenerationConfig::default() };
        let mut batch: Vec<_> = (0..4).map(|i| (prompt(7 * i as usize + 1, i), config.clone())).collect();
        batch[1].1 = GenerationConfig { temperature: 1.0, seed: Some(1), ..config };
        engine.process_batch_gpu(&batch).unwrap();
        assert_eq!(driver.count(Call::Alloc), taken, "{model}: neither prompts nor decoding take memory");
        assert!(
            driver.count(Call::Record) >= 1 && driver.count(Call::Replay) >= 6,
            "decoding repeats itself"
        );
        let counts = || engine.engine().status().device.unwrap().counts;
        let (once, launched) = (counts(), driver.count(Call::Launch));
        engine.process_batch_gpu(&batch).unwrap();
        assert_eq!(counts().launches, 2 * once.launches, "{model}: the same kernels again");
        assert_eq!(driver.count(Call::Launch), launched, "{model}: a step that comes again is not launched");
        assert!(counts().replays > once.replays);
        assert_eq!(driver.count(Call::Alloc), taken);
    }
}

#[test]
fn weights_are_on_the_gpu_once_and_warming_up_again_does_nothing() {
    let (engine, driver) = engine();
    let device = engine.engine().status().device.unwrap();
    assert_eq!(device.memory_used, driver.memory_used() as u64);
    engine.warmup_gpu_cache().unwrap();
    assert!(engine.is_gpu_cache_warm());
    let calls = (driver.count(Call::Launch), driver.count(Call::Write), driver.count(Call::Alloc));
    engine.warmup_gpu_cache().unwrap();
    assert_eq!((driver.count(Call::Launch), driver.count(Call::Write), driver.count(Call::Alloc)), calls);
}

#[test]
fn times_on_a_gpu_come_from_its_clock_and_memory_from_its_driver() {
    let (engine, _) = engine();
    let before = engine.metrics();
    assert_eq!(
        (before.kernel_launch_overhead_ms(), before.memory_transfer_time_ms(), before.compute_time_ms()),
        (None, None, None)
    );
    engine.process_batch_gpu(&mixed()[..2]).unwrap();
    let (after, status) = (engine.metrics(), engine.engine().status());
    let times = [after.kernel_launch_overhead_ms(), after.memory_transfer_time_ms(), after.compute_time_ms()];
    assert!(times.iter().all(|time| time.is_some_and(|ms| ms > 0.0)), "{times:?}");
    let device = status.device.unwrap();
    assert_eq!(device.memory_total, 4 << 30);
    assert!(
        device.counts.times.compute >= device.counts.times.launch,
        "the simulator computes in its launches"
    );

    let tiny = Synthetic::named("tiny").unwrap();
    let cpu = Cpu::new(Isa::best(), 1).unwrap();
    let model = Transformer::load(tiny.spec(), &tiny, cpu, LIMITS, &mut |_, _| {}).unwrap();
    let cpu = GpuInferenceEngine::new(model, EngineConfig::default()).unwrap();
    cpu.process_batch_gpu(&mixed()[..1]).unwrap();
    assert_eq!((cpu.metrics().compute_time_ms(), cpu.engine().status().device), (None, None));
}

#[test]
fn a_benchmark_on_a_gpu_counts_the_tokens_of_its_results() {
    let (engine, _) = engine();
    assert_eq!(engine.batch_throughput_factor(2), None);
    let rows = engine.benchmark(&[3], &[1, 2]).unwrap();
    assert_eq!(rows.iter().map(|row| row.tokens).collect::<Vec<_>>(), [16, 32]);
    assert!(engine.batch_throughput_factor(2).is_some_and(|factor| factor > 0.0));
}

/// A single sequence uses a different kernel than two.
#[test]
fn a_gpu_whose_batch_differs_from_its_members_is_not_measured() {
    let text = BITLINEAR_T8.text.replacen("shr.u32 a2, w1, 4;", "shr.u32 a2, w1, 6;", 1);
    assert_ne!(text, BITLINEAR_T8.text, "the kernel is another: break it anew");
    let (tap, _) = Tap::of(Simulator::default().replace(&BITLINEAR_T8, text));
    let engine = GpuInferenceEngine::new(load(tap).unwrap(), EngineConfig::default()).unwrap();
    let error = engine.benchmark(&[1], &[2]).unwrap_err();
    assert!(matches!(error, BenchmarkError::BatchDiffers { batch_size: 2, .. }), "{error}");
    assert_eq!(engine.batch_throughput_factor(2), None);
}

/// The recomputed tokens were decoded one at a time before.
#[test]
fn a_preempted_sequence_on_a_gpu_continues_with_the_same_tokens() {
    let config = GenerationConfig { max_new_tokens: 20, ignore_eos: true, ..GenerationConfig::default() };
    // The younger sequence already has its second block when the older needs one.
    let batch = [(prompt(50, 1), config.clone()), (prompt(62, 2), config)];
    let tokens = [3, 8].map(|kv_blocks| {
        let (tap, _) = Tap::of(Simulator::default());
        let model = load_within(Limits { kv_blocks, ..LIMITS }, tap).unwrap();
        let engine = GpuInferenceEngine::new(model, EngineConfig::default()).unwrap();
        let tokens = engine.process_batch_gpu(&batch).unwrap();
        (tokens, engine.engine().status().scheduler.preemptions)
    });
    assert!(tokens[0].1 > 0 && tokens[1].1 == 0, "blocks for one and a half of them: {tokens:?}");
    assert_eq!(tokens[0].0, tokens[1].0);
}

fn lost() -> GpuError {
    GpuError::Failed { during: "cuStreamQuery", reason: "CUDA_ERROR_ILLEGAL_ADDRESS".into() }
}

/// Makes a driver fail.
type Fault = fn(&Handle);

/// Out of memory, a refused kernel or a GPU that is too old at start: no model, and an error that says what to do.
#[test]
fn a_gpu_that_cannot_take_the_model_is_a_typed_error_with_its_cure() {
    let full: Fault = |handle| {
        handle.fail(
            Call::Alloc,
            GpuError::OutOfMemory { what: "ternary weights", bytes: 1 << 30, free: 1 << 20 },
        );
    };
    let refused: Fault = |handle| {
        handle.fail(Call::Load, GpuError::ModuleRefused { kernel: "sm80_embed_bf16", log: "line 7".into() });
    };
    let none: Fault = |_| {};
    let small = Simulator::with(|info| info.memory = 640 << 10);
    let old = Simulator::with(|info| info.capability = (7, 5));
    let cases = [
        (Simulator::default(), full, "no GPU memory for ternary weights (1073741824 bytes, 1048576 free)"),
        (small, none, "lower --memory"),
        (Simulator::default(), refused, "refused kernel sm80_embed_bf16: line 7; update the driver"),
        (old, none, "compute capability 7.5"),
    ];
    for (simulator, fault, tells) in cases {
        let (tap, handle) = Tap::of(simulator);
        fault(&handle);
        let error = load(tap).expect_err("it cannot be loaded");
        assert!(matches!(error, ModelError::Kernel(KernelError::Gpu(_))), "{error:?}");
        assert!(error.to_string().contains(tells), "{error}");
    }
}

/// Whichever call detects it, all requests fail with the driver's message, and the engine refuses more and says why. A
/// replay that the driver refuses is no such call: its launches are handed over one by one.
#[test]
fn a_lost_gpu_fails_its_requests_and_the_engine_reports_it() {
    for call in [Call::Write, Call::Launch, Call::Read, Call::Synchronize] {
        let (engine, driver) = engine();
        let config = GenerationConfig { max_new_tokens: 40, ignore_eos: true, ..GenerationConfig::default() };
        let batch = [(prompt(5, 1), config.clone()), (prompt(9, 2), config)];
        driver.fail(call, lost());
        let ends = engine.process_batch_gpu_partial(&batch);
        let failed = ForwardError::Kernel(KernelError::Gpu(lost()));
        for end in ends {
            assert_eq!(end, Err(GenerationError::Request(RequestError::Forward(failed.clone()))), "{call:?}");
        }
        let asked = driver.count(call);
        assert_eq!(engine.engine().lost(), Some(failed.clone()), "{call:?}");
        let refused = engine.process_batch_gpu(&batch[..1]);
        let source = GenerationError::Submit(SubmitError::Lost(failed));
        let results = vec![Err(source.clone())];
        assert_eq!(refused, Err(BatchError { index: 0, source, results }), "{call:?}");
        assert!(!engine.engine().is_open() && engine.engine().status().device.unwrap().lost);
        assert_eq!(driver.count(call), asked, "a lost device is asked no more");
    }
}

#[test]
fn requests_that_wait_when_the_gpu_is_lost_get_the_error_too() {
    let (tap, driver) = Tap::of(Simulator::default());
    let config = EngineConfig { max_batch_size: 1, ..EngineConfig::default() };
    let engine = Engine::start(load(tap).unwrap(), config).unwrap();
    driver.fail(Call::Read, lost());
    let requests = (0..5).map(|i| Request::new(prompt(4, i), GenerationConfig::default())).collect();
    for handle in engine.submit_all(requests).unwrap() {
        let end = handle.wait();
        assert!(matches!(&end, Err(RequestError::Forward(error)) if error.is_lost()), "{end:?}");
    }
}

/// A text that begins as an earlier one goes on from a copy of its state.
#[test]
fn a_kept_state_changes_no_token_of_a_recurrent_model_on_a_gpu() {
    let config = GenerationConfig { max_new_tokens: 6, ignore_eos: true, ..GenerationConfig::default() };
    let complete = |engine: &GpuInferenceEngine, prompt: Vec<u32>| {
        engine.process_batch_gpu(&[(prompt, config.clone())]).unwrap()
    };
    let (first, second) = (prompt(70, 1), [prompt(66, 1), prompt(5, 2)].concat());
    let (alone, _) = engine_of("hybrid-tiny-rotated", KvType::Bf16);
    let expected = complete(&alone, second.clone());
    let (engine, _) = engine_of("hybrid-tiny-rotated", KvType::Bf16);
    complete(&engine, first);
    let computed = engine.metrics().get(Counter::PrefillTokens);
    assert_eq!(complete(&engine, second), expected);
    let again = engine.metrics().get(Counter::PrefillTokens) - computed;
    assert_eq!((computed, again), (70, 71 - 64), "the state after the first block is kept");
}

/// A draft that is refused has advanced the state, which goes back to a copy.
#[test]
fn drafts_change_no_token_of_a_recurrent_model_on_a_gpu() {
    let (mut accepted, mut refused) = (0, 0);
    for name in ["hybrid-tiny", "hybrid-tiny-rotated"] {
        let source = Synthetic::named(name).unwrap();
        let tokens = [0, 4].map(|max_draft| {
            let limits = Limits { state_slots: 10, ..LIMITS };
            let gpu = Gpu::new(Simulator::default()).unwrap();
            let model = Transformer::load(source.spec(), &source, gpu, limits, &mut |_, _| {}).unwrap();
            // The simulator is too slow for drafts within the default goal for the time between tokens.
            let sizing = BatchSizing::Fixed(2);
            let config = EngineConfig { max_draft, sizing, ..EngineConfig::default() };
            let engine = GpuInferenceEngine::new(model, config).unwrap();
            // Few tokens to draw from, so that what was written often recurs and sometimes goes on differently.
            let few = GenerationConfig {
                max_new_tokens: 16,
                ignore_eos: true,
                temperature: 1.0,
                seed: Some(9),
                logit_bias: vec![(5, 90.0), (6, 90.0)],
                ..GenerationConfig::default()
            };
            let batch = [(prompt(9, 1), few.clone()), ([5, 6, 5, 5].repeat(5), few)];
            let tokens = engine.process_batch_gpu(&batch).unwrap();
            (tokens, engine.engine().status().scheduler)
        });
        assert_eq!(tokens[0].0, tokens[1].0, "{name}");
        assert_eq!(tokens[0].1.drafted, 0, "{name}");
        accepted += tokens[1].1.accepted;
        refused += tokens[1].1.drafted - tokens[1].1.accepted;
    }
    assert!(accepted > 0 && refused > 0, "{accepted} drafts accepted, {refused} refused");
}

#[test]
fn a_model_with_recurrent_heads_too_wide_for_the_gpu_is_refused_when_it_is_loaded() {
    let tiny = Synthetic::named("hybrid-tiny").unwrap();
    let spec = tiny.spec().clone();
    let hybrid = spec.hybrid.clone().unwrap();
    for (head_dim, told) in [(128, None), (136, Some("heads of recurrent layers are 136 wide"))] {
        let delta = DeltaShape { key_heads: 2, value_heads: 4, head_dim, taps: 4 };
        let hybrid = Some(Hybrid { delta, ..hybrid.clone() });
        let wide = Synthetic::of(ModelSpec { hybrid, ..spec.clone() });
        let limits = Limits { state_slots: 4, ..LIMITS };
        let gpu = Gpu::new(Simulator::default()).unwrap();
        let loaded = Transformer::load(wide.spec(), &wide, gpu, limits, &mut |_, _| {});
        let error = loaded.err().map(|error| error.to_string());
        match (told, error) {
            (None, None) => {}
            (Some(told), Some(error)) => {
                assert!(error.contains(told) && error.contains("--device cpu"), "{error}");
            }
            other => panic!("{head_dim}: {other:?}"),
        }
    }
}

#[test]
fn a_prompt_that_left_a_gpu_comes_back_from_host_memory_with_the_same_tokens() {
    for (name, kv) in [
        ("tiny", KvType::Bf16),
        ("tiny", KvType::Int8),
        ("hybrid-tiny-rotated", KvType::Bf16),
        ("hybrid-tiny-rotated", KvType::Int8),
    ] {
        // Room for one text.
        let limits = Limits { max_tokens: 72, kv_blocks: 2, ..LIMITS };
        let model = model_of(name, kv, limits, Tap::of(Simulator::default()).0);
        let engine =
            Engine::start(model, EngineConfig { host_cache: 1 << 30, ..EngineConfig::default() }).unwrap();
        let config = GenerationConfig { max_new_tokens: 3, ignore_eos: true, ..GenerationConfig::default() };
        let [computed, _, read] = [1, 2, 1].map(|seed| {
            let request = Request::new(prompt(66, seed), config.clone());
            engine.submit(request).unwrap().wait().unwrap().choices.remove(0).tokens
        });
        let status = engine.status();
        assert_eq!(read, computed, "{name}");
        let tokens = (status.tier.unwrap().host_tokens, status.scheduler.prefix_hits);
        assert_eq!(tokens, (64, 64), "{name}");
    }
}
