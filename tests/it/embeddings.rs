//! Embeddings, compared with those of an independent oracle.

use bitnet::{
    Device, Model, Request,
    model::{Checkpoint, Target, convert},
};
use bitnet_inference::{Engine, EngineConfig, Request as Asked};
use bitnet_kernels::{Cpu, Isa, Reference, gpu::Gpu};
use bitnet_model::{Batch, Limits, Logits, Pooling, Transformer};
use bitnet_tests::{EMBEDDING_FORM, GEMMA_FORMS, Simulator, Tensors, distances};

use crate::goldens::PROMPTS;

#[test]
fn every_form_of_a_model_gives_the_oracles_embeddings_alone_and_together() {
    let (folder, golden) = (tempfile::tempdir().unwrap(), EMBEDDING_FORM.golden());
    let from = Checkpoint::open(&EMBEDDING_FORM.path()).unwrap();
    let mut forms = vec![EMBEDDING_FORM.path()];
    for target in [Target::I2S, Target::Packed] {
        forms.push(folder.path().join(target.to_string()));
        convert(&from, target, &forms[forms.len() - 1], &mut |_, _| {}).unwrap();
    }
    let texts: Vec<Request> =
        (0..PROMPTS).map(|prompt| Request::tokens(golden.ids(&format!("ids_{prompt}")))).collect();
    let expected: Vec<f32> = (0..PROMPTS).flat_map(|p| golden.floats(&format!("embedding_{p}"))).collect();
    let mut first = None;
    for form in forms {
        let model = Model::builder().device(Device::Cpu).threads(2).open(form.to_str().unwrap()).unwrap();
        let together: Vec<_> = model.embed_batch(&texts).into_iter().map(Result::unwrap).collect();
        let actual: Vec<f32> = together.iter().flat_map(|embedding| embedding.values.clone()).collect();
        EMBEDDING_FORM.assert_close(distances(&actual, &expected, from.spec.hidden), &form.to_string_lossy());
        for (text, together) in texts.iter().zip(&together) {
            assert_eq!(model.embed(text).unwrap(), *together);
        }
        assert_eq!(*first.get_or_insert(together.clone()), together, "{}", form.display());
    }
}

#[test]
fn gemma_gives_the_oracles_states_and_both_of_its_embeddings_whatever_the_chunks() {
    for form in GEMMA_FORMS {
        let (golden, from) = (form.golden(), Checkpoint::open(&form.path()).unwrap());
        let width = from.spec.hidden;
        let mut first: Option<Vec<f32>> = None;
        for max_tokens in [1, 7, 96] {
            let limits = Limits { max_tokens, max_logit_rows: max_tokens, kv_blocks: 16, state_slots: 0 };
            let cpu = Cpu::new(Isa::best(), 2).unwrap();
            let model = Transformer::load(&from.spec, &*from.tensors, cpu, limits, &mut |_, _| {}).unwrap();
            let engine = Engine::start(model, EngineConfig::default()).unwrap();
            let mut all = Vec::new();
            for (pooling, name) in [(Pooling::Last, "last"), (Pooling::Mean, "mean")] {
                let asked = (0..PROMPTS).map(|p| Asked::pooled(golden.ids(&format!("ids_{p}")), pooling));
                // Twice, so that the second time finds the first in the cache.
                for asked in [asked.clone().collect::<Vec<_>>(), asked.collect()] {
                    let lengths: Vec<usize> = asked.iter().map(|asked| asked.prompt.len()).collect();
                    let handles = engine.submit_all(asked).unwrap();
                    let embed = |(handle, tokens): (bitnet_inference::RequestHandle, usize)| {
                        bitnet::Embedding::new(handle.wait().unwrap().logits.unwrap(), tokens).values
                    };
                    let actual: Vec<f32> = handles.into_iter().zip(lengths).flat_map(embed).collect();
                    let expected: Vec<f32> =
                        (0..PROMPTS).flat_map(|p| golden.floats(&format!("{name}_{p}"))).collect();
                    let worst = distances(&actual, &expected, width).into_iter().fold(0.0, f64::max);
                    assert!(worst < 1e-4, "{form:?} {name} in steps of {max_tokens}: {worst:.2e}");
                    all.extend(actual);
                }
            }
            assert!(*first.get_or_insert(all.clone()) == all, "{form:?} in steps of {max_tokens}");
        }
    }
}

#[test]
fn gemma_gives_the_oracles_state_at_every_position_on_every_instruction_set() {
    for form in GEMMA_FORMS {
        let (golden, from) = (form.golden(), Checkpoint::open(&form.path()).unwrap());
        let limits = Limits { max_tokens: 96, max_logit_rows: 96, kv_blocks: 4, state_slots: 0 };
        let mut states: Vec<Vec<f32>> = Vec::new();
        let mut take = |model: &mut dyn bitnet_model::Model| states.push(states_of(model, &golden));
        for isa in Isa::available() {
            let cpu = Cpu::new(isa, 2).unwrap();
            take(&mut Transformer::load(&from.spec, &*from.tensors, cpu, limits, &mut |_, _| {}).unwrap());
        }
        let reference = Reference::default();
        take(&mut Transformer::load(&from.spec, &*from.tensors, reference, limits, &mut |_, _| {}).unwrap());
        let expected: Vec<f32> =
            (0..PROMPTS - 1).flat_map(|p| golden.floats(&format!("states_{p}"))).collect();
        let worst = distances(&states[0], &expected, from.spec.hidden).into_iter().fold(0.0, f64::max);
        assert!(worst < 1e-4, "{form:?}: {worst:.2e}");
        assert!(states.iter().all(|state| *state == states[0]), "{form:?}");
        // A GPU rounds to bf16, and so do its windows' keys and values.
        let gpu = Gpu::new(Simulator::default()).unwrap();
        let mut model = Transformer::load(&from.spec, &*from.tensors, gpu, limits, &mut |_, _| {}).unwrap();
        let mut from_oracle = distances(&states_of(&mut model, &golden), &expected, from.spec.hidden);
        from_oracle.sort_by(f64::total_cmp);
        let (median, worst) = (from_oracle[from_oracle.len() / 2], from_oracle[from_oracle.len() - 1]);
        assert!(median < 0.05 && worst < 0.1, "{form:?} on a GPU: median {median:.2e}, worst {worst:.2e}");
    }
}

/// The states of all tokens of all prompts but the last.
fn states_of(model: &mut dyn bitnet_model::Model, golden: &Tensors) -> Vec<f32> {
    let (mut batch, mut logits, mut all) = (Batch::new(), Logits::default(), Vec::new());
    for prompt in 0..PROMPTS - 1 {
        let ids = golden.ids(&format!("ids_{prompt}"));
        batch.clear();
        batch.push(&ids, 0, &[3, 1], 0..ids.len());
        batch.want(|_| bitnet_kernels::Wanted::Hidden);
        model.forward(&batch, &mut logits).unwrap();
        (0..ids.len()).for_each(|row| all.extend_from_slice(logits.hidden(row).unwrap()));
    }
    all
}
