//! The forward pass of every form of every fixture, compared with an independent oracle.

use std::path::Path;

use bitnet_inference::{
    Engine, EngineConfig, GenerationConfig, Request,
    names::{GpuInferenceEngine, forward_batch},
};
use bitnet_kernels::{Backend, Cpu, Isa, Reference};
use bitnet_model::{Batch, Checkpoint, Limits, Logits, Model, Transformer};
use bitnet_tests::{Tensors, all_forms, assert_close, bitnet, distances};

pub const PROMPTS: usize = 5;

pub fn load(path: &Path, isa: Isa, threads: usize) -> Transformer<Cpu> {
    load_on(path, Cpu::new(isa, threads).unwrap())
}

pub fn load_on<B: Backend>(path: &Path, backend: B) -> Transformer<B> {
    load_within(path, backend, 208)
}

fn load_within<B: Backend>(path: &Path, backend: B, max_tokens: usize) -> Transformer<B> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let state_slots = if checkpoint.spec.state_bytes() > 0 { 8 } else { 0 };
    let limits = Limits { max_tokens, max_logit_rows: max_tokens, kv_blocks: 16, state_slots };
    Transformer::load(&checkpoint.spec, &*checkpoint.tensors, backend, limits, &mut |_, _| {}).unwrap()
}

/// Logits of all prompts, for all positions that the oracle has.
pub fn prefill(model: &mut dyn Model, golden: &Tensors) -> Vec<f32> {
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    let mut all = Vec::new();
    for prompt in 0..PROMPTS {
        let ids = golden.ids(&format!("ids_{prompt}"));
        let rows = golden.shape(&format!("logits_{prompt}"))[0];
        batch.clear();
        batch.push(&ids, 0, &[3, 1, 2, 0], ids.len() - rows..ids.len());
        model.forward(&batch, &mut logits).unwrap();
        (0..rows).for_each(|row| all.extend_from_slice(logits.row(row)));
    }
    all
}

#[test]
fn every_form_is_within_the_oracles_limits_and_every_isa_gives_the_same_bits() {
    // The oracle is another program.
    for form in all_forms() {
        let golden = form.golden();
        let expected: Vec<f32> = (0..PROMPTS).flat_map(|p| golden.floats(&format!("logits_{p}"))).collect();
        let mut first: Option<Vec<f32>> = None;
        for isa in Isa::available() {
            for threads in [1, 2] {
                let mut model = load(&form.path(), isa, threads);
                let vocab = model.spec().vocab;
                let actual = prefill(&mut model, &golden);
                form.assert_close(distances(&actual, &expected, vocab), &format!("{isa:?} {threads}"));
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                match &first {
                    None => first = Some(actual),
                    Some(first) => assert!(bits(first) == bits(&actual), "{form:?} {isa:?} {threads}"),
                }
            }
        }
    }
}

#[test]
fn all_prompts_of_a_form_in_one_batch_give_the_oracles_greedy_tokens_while_its_margin_is_wide() {
    for form in all_forms() {
        let golden = form.golden();
        let of = |name: &str, prompt: usize| golden.ids(&format!("{name}_{prompt}"));
        let batch = (0..PROMPTS).map(|prompt| {
            let max_new_tokens = of("greedy", prompt).len();
            let config = GenerationConfig { max_new_tokens, ignore_eos: true, ..GenerationConfig::default() };
            (of("ids", prompt), config)
        });
        let engine =
            GpuInferenceEngine::new(load(&form.path(), Isa::best(), 2), EngineConfig::default()).unwrap();
        let tokens = engine.process_batch_gpu(&batch.collect::<Vec<_>>()).unwrap();
        let mut compared = 0;
        for (prompt, tokens) in tokens.iter().enumerate() {
            // After a narrow margin either token may follow, and the texts diverge.
            let margins = golden.floats(&format!("margin_{prompt}"));
            let wide = margins.iter().take_while(|&&m| m > 0.2).count();
            assert_eq!(tokens[..wide], of("greedy", prompt)[..wide], "{form:?} prompt {prompt}");
            compared += wide;
        }
        assert!(compared > 0, "{form:?} has wide margins");
    }
}

#[test]
fn forward_batch_gives_the_oracles_logits_after_each_prompt() {
    let mut all = Vec::new();
    for form in all_forms() {
        let golden = form.golden();
        let prompts: Vec<_> = (0..PROMPTS).map(|p| golden.ids(&format!("ids_{p}"))).collect();
        let engine = Engine::start(load(&form.path(), Isa::best(), 2), EngineConfig::default()).unwrap();
        for (prompt, row) in forward_batch(&engine, &prompts).unwrap().into_iter().enumerate() {
            let expected = golden.floats(&format!("logits_{prompt}"));
            all.extend(distances(&row, &expected[expected.len() - row.len()..], row.len()));
        }
    }
    // All forms together, because a single one has few last positions.
    assert_close(all, "last positions");
}

#[test]
fn the_hidden_state_of_a_prompt_is_the_oracles_whatever_the_chunks_and_the_backend() {
    let mut all = Vec::new();
    // Only these files have hidden states.
    for form in all_forms().filter(|form| form.golden == "golden.safetensors") {
        let golden = form.golden();
        let [layers, tokens, width] = golden.shape("hidden_7")[..] else { panic!("{form:?}") };
        let (ids, spec) = (golden.ids("ids_2"), Checkpoint::open(&form.path()).unwrap().spec);
        assert_eq!((layers, tokens), (spec.layers + 1, ids.len()), "{form:?}");
        let expected = &golden.floats("hidden_7")[(layers * tokens - 1) * width..];
        let expected: Vec<f32> = expected.iter().map(|x| x / spec.multipliers.logit_divisor).collect();
        let mut states = Vec::new();
        for max_tokens in [1, 3, 7, 208] {
            let config = EngineConfig { max_batch_size: 1, ..EngineConfig::default() };
            let cpu = Cpu::new(Isa::best(), 2).unwrap();
            let engine = Engine::start(load_within(&form.path(), cpu, max_tokens), config).unwrap();
            let done = engine.submit(Request::hidden(ids.clone())).unwrap().wait().unwrap();
            states.push(done.logits.unwrap());
        }
        let engine = load_on(&form.path(), Reference::default());
        let engine = Engine::start(engine, EngineConfig::default()).unwrap();
        states.push(engine.submit(Request::hidden(ids)).unwrap().wait().unwrap().logits.unwrap());
        assert!(states.iter().all(|state| *state == states[0]), "{form:?}");
        all.extend(distances(&states[0], &expected, width));
    }
    // All forms together, because each has one position.
    assert_close(all, "hidden states");
}

#[test]
fn the_binary_gives_the_oracles_logits_on_every_isa_with_one_and_two_threads() {
    let dir = tempfile::tempdir().unwrap();
    for form in all_forms() {
        let golden = form.golden();
        for isa in Isa::available() {
            for threads in ["1", "2"] {
                let mut all = Vec::new();
                let mut expected = Vec::new();
                // All positions that the oracle has; with fewer, a single early rounding would weigh too much.
                for prompt in 0..PROMPTS - 1 {
                    let ids: Vec<String> =
                        golden.ids(&format!("ids_{prompt}")).iter().map(u32::to_string).collect();
                    let out = dir.path().join("logits.safetensors");
                    let run = bitnet(&[
                        "logits",
                        form.path().to_str().unwrap(),
                        "--ids",
                        &ids.join(","),
                        "--out",
                        out.to_str().unwrap(),
                        "--isa",
                        isa.name(),
                        "--threads",
                        threads,
                    ]);
                    assert!(run.status.success(), "{form:?}: {}", String::from_utf8_lossy(&run.stderr));
                    all.extend(Tensors::read(&out).floats("logits"));
                    expected.extend(golden.floats(&format!("logits_{prompt}")));
                }
                let vocab = golden.shape("logits_0")[1];
                form.assert_close(distances(&all, &expected, vocab), &format!("{isa:?} {threads}"));
            }
        }
    }
}
