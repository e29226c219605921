//! The built-in model, compared with transformers and with plain loops.

#![allow(clippy::print_stdout, reason = "tests report what they covered")]

use std::{collections::HashSet, ops::ControlFlow};

use bitnet_inference::{EngineConfig, GenerationConfig, Request, generate};
use bitnet_kernels::{Cpu, Isa, KvType};
use bitnet_model::{Batch, Checkpoint, Limits, Logits, Model, Transformer};
use bitnet_tests::{Tensors, assert_close, distances, fixture};

fn load(checkpoint: &Checkpoint) -> Transformer<Cpu> {
    keeping(KvType::F32, checkpoint)
}

fn keeping(kv: KvType, checkpoint: &Checkpoint) -> Transformer<Cpu> {
    let cpu = Cpu::new(Isa::best(), 2).unwrap().keeping(kv);
    let limits = Limits { max_tokens: 160, max_logit_rows: 160, kv_blocks: 8, state_slots: 0 };
    Transformer::load(&checkpoint.spec, &*checkpoint.tensors, cpu, limits, &mut |_, _| {}).unwrap()
}

#[test]
fn the_demo_has_the_logits_and_greedy_tokens_that_transformers_gives_it() {
    let checkpoint = Checkpoint::demo().unwrap();
    let golden = Tensors::read(&fixture("demo/golden.safetensors"));
    let mut model = load(&checkpoint);
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    let (mut actual, mut expected) = (Vec::new(), Vec::new());
    let mut compared = 0;
    for prompt in 0..5 {
        let ids = golden.ids(&format!("ids_{prompt}"));
        let rows = golden.shape(&format!("logits_{prompt}"))[0];
        batch.clear();
        batch.push(&ids, 0, &[3, 1, 2], ids.len() - rows..ids.len());
        model.forward(&batch, &mut logits).unwrap();
        (0..rows).for_each(|row| actual.extend_from_slice(logits.row(row)));
        expected.extend(golden.floats(&format!("logits_{prompt}")));

        let (greedy, margins) =
            (golden.ids(&format!("greedy_{prompt}")), golden.floats(&format!("margin_{prompt}")));
        let config = GenerationConfig {
            max_new_tokens: greedy.len(),
            ignore_eos: true,
            ..GenerationConfig::default()
        };
        let tokens = generate(&mut model, Request::new(&ids[..], config), &EngineConfig::default(), |_| {
            ControlFlow::Continue(())
        })
        .unwrap()
        .tokens;
        let wide = margins.iter().take_while(|&&m| m > 0.2).count();
        assert_eq!(tokens[..wide], greedy[..wide], "prompt {prompt}");
        compared += wide;
    }
    assert_close(distances(&actual, &expected, checkpoint.spec.vocab), "demo");
    assert!(compared >= 10, "only {compared} tokens lie before a narrow margin");
}

/// `docs/dev/cache.md` states these distances; most of each comes from activations that round to another int8.
#[test]
fn smaller_types_of_cache_move_the_logits_of_a_text_by_no_more_than_is_stated() {
    let checkpoint = Checkpoint::demo().unwrap();
    let text = std::fs::read_to_string(fixture("demo/heldout.txt")).unwrap();
    let ids = checkpoint.tokenizer.as_ref().unwrap().encode(&text[..8000], true).unwrap();
    let (ids, vocab) = (&ids[..512], checkpoint.spec.vocab);
    let logits_of = |kv: KvType| {
        let mut model = keeping(kv, &checkpoint);
        let (mut batch, mut logits, mut all) = (Batch::new(), Logits::default(), Vec::new());
        for (i, chunk) in ids.chunks(160).enumerate() {
            batch.clear();
            batch.push(chunk, 160 * i, &[3, 1, 2, 0, 7, 5, 6, 4], 0..chunk.len());
            model.forward(&batch, &mut logits).unwrap();
            (0..chunk.len()).for_each(|row| all.extend_from_slice(logits.row(row)));
        }
        all
    };
    let likely = |row: &[f32]| (0..vocab).max_by(|&a, &b| row[a].total_cmp(&row[b]));
    let exact = logits_of(KvType::F32);
    for kv in [KvType::F16, KvType::Bf16, KvType::Int8] {
        let kept = logits_of(kv);
        let mut apart = distances(&kept, &exact, vocab);
        apart.sort_by(f64::total_cmp);
        let (middle, most) = (apart[apart.len() / 2], apart[apart.len() - 1]);
        let pairs = kept.chunks_exact(vocab).zip(exact.chunks_exact(vocab));
        let same = pairs.filter(|(kept, exact)| likely(kept) == likely(exact)).count();
        println!(
            "{kv}: distance {middle:.1e} in the median, {most:.1e} at most; {same} of 512 likely tokens the same"
        );
        assert!(0.0 < middle && middle < 0.006 && most < 0.05, "{kv}: {middle} {most}");
    }
}

#[test]
fn eighty_tokens_of_the_demo_repeat_no_six_words() {
    let checkpoint = Checkpoint::demo().unwrap();
    let tokenizer = checkpoint.tokenizer.as_ref().unwrap();
    let mut model = load(&checkpoint);
    let prompt = tokenizer.encode("First Citizen:", true).unwrap();
    let mut repeating = 0;
    for seed in 1..=10 {
        let config = GenerationConfig {
            max_new_tokens: 80,
            temperature: checkpoint.defaults.temperature.unwrap(),
            top_p: checkpoint.defaults.top_p.unwrap(),
            seed: Some(seed),
            ..GenerationConfig::default()
        };
        let engine = EngineConfig::default();
        let tokens =
            generate(&mut model, Request::new(&prompt[..], config), &engine, |_| ControlFlow::Continue(()))
                .unwrap()
                .tokens;
        let text = tokenizer.decode(&tokens, true).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(words.len() > 20, "seed {seed}: {text}");
        let mut seen = HashSet::new();
        assert!(words.windows(6).all(|six| seen.insert(six)), "seed {seed} repeats itself: {text}");
        let mut seen = HashSet::new();
        repeating += usize::from(!tokens.windows(6).all(|six| seen.insert(six)));
    }
    // Names of speakers and what surrounds them may be six tokens.
    assert!(repeating <= 2, "{repeating} of 10 texts repeat six tokens");
}
