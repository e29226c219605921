//! Models with experts and windows: the same bits in any company, on every backend, and errors that stay with their
//! request.

use std::{collections::BTreeMap, path::Path, process::Command};

use bitnet_inference::{Engine, EngineConfig, GenerationConfig, Request, RequestError};
use bitnet_kernels::{Cpu, Isa, KvType, Reference};
use bitnet_model::{
    Batch, Checkpoint, Limits, Logits, Model, ModelFiles, Synthetic, Target, Transformer, convert, inspect,
};
use bitnet_tensor::{BitNetTensor, SharedBytes};
use bitnet_tests::{EXPERT_FORMS, Tensors, distances, fixture};
use safetensors::{Dtype, tensor::TensorView};

use crate::goldens::{PROMPTS, load, load_on, prefill};

const LIMITS: Limits = Limits { max_tokens: 160, max_logit_rows: 160, kv_blocks: 16, state_slots: 0 };

fn tiny() -> Synthetic {
    Synthetic::named("maple-tiny").unwrap()
}

fn start<B: bitnet_kernels::Backend>(backend: B) -> Transformer<B> {
    Transformer::load(tiny().spec(), &tiny(), backend, LIMITS, &mut |_, _| {}).unwrap()
}

/// Tokens of a sequence of the synthetic model.
fn tokens(n: usize, seed: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i * 31 + i * 7 + seed * 101) % 512) as u32).collect()
}

/// The bits of all logits of a sequence, computed in these chunks, beside others that begin and end meanwhile.
fn chunked(model: &mut dyn Model, sequence: &[u32], chunks: &[usize], beside: usize) -> Vec<u32> {
    let (mut batch, mut logits, mut bits) = (Batch::new(), Logits::default(), Vec::new());
    let (mut at, blocks) = (0, [3, 1, 0]);
    for (i, &chunk) in chunks.iter().cycle().enumerate() {
        if at == sequence.len() {
            return bits;
        }
        let end = sequence.len().min(at + chunk);
        batch.clear();
        let others = (0..beside).map(|other| tokens(1 + (i + other) % 3, 50 + other));
        for (other, others) in others.enumerate() {
            batch.push(&others, 0, &[5 + other as u32], 0..0);
        }
        batch.push(&sequence[at..end], at, &blocks, 0..end - at);
        model.forward(&batch, &mut logits).unwrap();
        (0..end - at).for_each(|row| bits.extend(logits.row(row).iter().map(|x| x.to_bits())));
        at = end;
    }
    unreachable!("chunks go on for ever")
}

#[test]
fn a_sequence_has_the_same_bits_in_any_chunks_beside_any_others_on_every_instruction_set() {
    let sequence = tokens(90, 1);
    let expected = chunked(&mut start(Reference::default()), &sequence, &[90], 0);
    for isa in Isa::available() {
        for threads in [1, 2, 3] {
            let mut model = start(Cpu::new(isa, threads).unwrap());
            for (chunks, beside) in [(&[90][..], 0), (&[1], 0), (&[7, 1, 20], 3), (&[64], 8), (&[1], 5)] {
                let actual = chunked(&mut model, &sequence, chunks, beside);
                assert!(actual == expected, "{isa:?} {threads} {chunks:?} {beside}");
            }
        }
    }
    // Windows read every type of cache.
    for kv in KvType::ALL {
        let expected = chunked(&mut start(Reference::default().keeping(kv)), &sequence, &[90], 0);
        let cpu = Cpu::new(Isa::best(), 2).unwrap().keeping(kv);
        assert!(chunked(&mut start(cpu), &sequence, &[13], 2) == expected, "{kv}");
    }
}

#[test]
fn a_token_whose_router_gives_no_number_fails_its_own_request_alone() {
    let poisoned = 77;
    let mut source = Poisoned { of: tiny(), token: poisoned };
    let start = |source: &Poisoned| {
        let cpu = Cpu::new(Isa::best(), 2).unwrap();
        let model = Transformer::load(tiny().spec(), source, cpu, LIMITS, &mut |_, _| {}).unwrap();
        Engine::start(model, EngineConfig::default()).unwrap()
    };
    let engine = start(&source);
    let config = GenerationConfig { max_new_tokens: 12, ignore_eos: true, ..GenerationConfig::default() };
    let mut prompts: Vec<Vec<u32>> = (0..6).map(|i| tokens(5 + 9 * i, i)).collect();
    prompts.iter_mut().flatten().filter(|t| **t == poisoned).for_each(|t| *t += 1);
    prompts[2][3] = poisoned;
    let requests = prompts.iter().map(|prompt| Request::new(prompt.clone(), config.clone()));
    let done: Vec<_> =
        engine.submit_all(requests.collect()).unwrap().into_iter().map(|handle| handle.wait()).collect();
    source.token = u32::MAX;
    let sound = start(&source);
    for (i, (prompt, done)) in prompts.into_iter().zip(done).enumerate() {
        if i == 2 {
            assert!(matches!(done, Err(RequestError::Sample(_))), "{done:?}");
            continue;
        }
        let alone = sound.submit(Request::new(prompt, config.clone())).unwrap().wait().unwrap();
        assert_eq!(done.unwrap().choices[0].tokens, alone.choices[0].tokens, "{i}");
    }
}

/// The synthetic model with an embedding that is no number for one token.
struct Poisoned {
    of: Synthetic,
    token: u32,
}

impl bitnet_model::TensorSource for Poisoned {
    fn entries(&self) -> &[bitnet_model::TensorEntry] {
        self.of.entries()
    }

    fn ternary(&self, name: &str) -> Result<bitnet_tensor::TernaryTensor, bitnet_model::ModelError> {
        self.of.ternary(name)
    }

    fn dense(&self, name: &str) -> Result<BitNetTensor, bitnet_model::ModelError> {
        let tensor = self.of.dense(name)?;
        if name != "model.embed_tokens.weight" {
            return Ok(tensor);
        }
        let mut values = tensor.to_f32();
        if let Some(row) = values.chunks_exact_mut(tensor.cols()).nth(self.token as usize) {
            row[3] = f32::NAN;
        }
        Ok(BitNetTensor::from_f32([tensor.rows(), tensor.cols()], &values).unwrap())
    }
}

#[test]
fn every_form_of_a_model_has_the_same_weights_before_and_after_every_conversion() {
    let folder = tempfile::tempdir().unwrap();
    let hash = |model: &Checkpoint| inspect(model, true, &mut |_, _| {}).unwrap().weights_sha256.unwrap();
    let mut hashes = BTreeMap::new();
    for (i, form) in EXPERT_FORMS.iter().enumerate() {
        let model = Checkpoint::open(&form.path()).unwrap();
        assert_eq!(model.warnings, Vec::<String>::new(), "{form:?}");
        let (hash_of, golden) = (hash(&model), form.golden());
        assert_eq!(hashes.entry(form.folder).or_insert(hash_of.clone()), &hash_of, "{form:?}");
        let expected = prefill(&mut load(&form.path(), Isa::best(), 2), &golden);
        for target in [Target::Q2_0, Target::Pq2_0, Target::Panels] {
            let to = folder.path().join(format!("{i}-{target}.gguf"));
            convert(&model, target, &to, &mut |_, _| {}).unwrap();
            let converted = Checkpoint::open(&to).unwrap();
            assert_eq!(
                (hash(&converted), &converted.spec),
                (hash_of.clone(), &model.spec),
                "{form:?} {target}"
            );
            let actual = prefill(&mut load(&to, Isa::best(), 2), &golden);
            assert!(actual == expected, "{form:?} {target}");
            let reference = prefill(&mut load_on(&to, Reference::default()), &golden);
            assert!(reference == expected, "{form:?} {target}");
        }
        for target in [Target::Tq2_0, Target::Packed] {
            let told = convert(&model, target, &folder.path().join("no"), &mut |_, _| {}).unwrap_err();
            assert!(told.to_string().contains("q2_0"), "{told}");
        }
    }
}

/// The published form in bf16: every expert's matrix by itself, and a class but no model type.
#[test]
fn experts_stored_one_by_one_as_floats_are_those_of_the_packed_form() {
    let packed = Checkpoint::open(&fixture("maple-unpacked/mlx")).unwrap();
    let written = bf16_folder(&packed, |_, _| {});
    let golden = Tensors::read(&fixture("maple-unpacked/golden.safetensors"));
    let model = written.unwrap();
    assert_eq!((&model.spec, &model.warnings), (&packed.spec, &Vec::new()));
    let cpu = Cpu::new(Isa::best(), 2).unwrap();
    let limits = Limits { max_tokens: 208, max_logit_rows: 208, ..LIMITS };
    let mut model = Transformer::load(&model.spec, &*model.tensors, cpu, limits, &mut |_, _| {}).unwrap();
    let expected: Vec<f32> = (0..PROMPTS).flat_map(|p| golden.floats(&format!("logits_{p}"))).collect();
    let worst = distances(&prefill(&mut model, &golden), &expected, 300).into_iter().fold(0.0, f64::max);
    assert!(worst < 1e-4, "{worst:.2e}");

    let lost = "model.layers.1.mlp.experts.3.up_proj.weight";
    for (told, edit) in [
        (
            "tensor is missing",
            Box::new(|name: &str, stored: &mut Option<(Vec<usize>, Vec<f32>)>| {
                if name == lost {
                    *stored = None;
                }
            }) as Box<dyn Fn(&str, &mut Option<(Vec<usize>, Vec<f32>)>)>,
        ),
        (
            "shape",
            Box::new(|name, stored| {
                if let (true, Some((shape, _))) = (name == lost, stored) {
                    shape.swap(0, 1);
                }
            }),
        ),
    ] {
        let error = bf16_folder(&packed, edit).err().unwrap().to_string();
        assert!(error.contains(lost), "{told}: {error}");
    }
    // What is not ternary is found when it is read, and the expert is named.
    let dense = bf16_folder(&packed, |name, stored| {
        if let (true, Some((_, values))) = (name == lost, stored) {
            values.iter_mut().enumerate().for_each(|(i, value)| *value = (i % 97) as f32);
        }
    });
    let error =
        dense.unwrap().tensors.ternary("model.layers.1.mlp.experts.up_proj.weight").unwrap_err().to_string();
    assert!(error.contains("expert 3") && error.contains("not ternary"), "{error}");
}

/// The model as a folder in bf16 would be read, after an edit of its tensors.
fn bf16_folder(
    packed: &Checkpoint,
    edit: impl Fn(&str, &mut Option<(Vec<usize>, Vec<f32>)>),
) -> Result<Checkpoint, bitnet_model::ModelError> {
    let mut stored: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    let mut push = |name: String, shape: Vec<usize>, values: Vec<f32>| {
        let mut tensor = Some((shape, values));
        edit(&name, &mut tensor);
        let Some((shape, values)) = tensor else { return };
        let bytes = values.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect();
        stored.push((name, shape, bytes));
    };
    for entry in packed.tensors.entries() {
        let name = entry.name.replace("embed_tokens", "word_embeddings");
        if !matches!(entry.kind, bitnet_model::TensorKind::Grouped) {
            push(name, entry.shape.clone(), packed.tensors.dense(&entry.name)?.to_f32());
            continue;
        }
        let trits = packed.tensors.ternary(&entry.name)?;
        let mut row = vec![0.0; trits.cols()];
        let mut values = Vec::with_capacity(trits.rows() * trits.cols());
        for r in 0..trits.rows() {
            trits.decode_row(r, &mut row);
            values.extend_from_slice(&row);
        }
        let [experts, rows, cols] = entry.shape[..] else {
            push(name, entry.shape.clone(), values);
            continue;
        };
        for (expert, values) in values.chunks_exact(rows * cols).enumerate() {
            let name = name.replace(".experts.", &format!(".experts.{expert}."));
            push(name, vec![rows, cols], values.to_vec());
        }
        assert!(experts > 1);
    }
    let views = stored
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::BF16, shape.clone(), bytes).unwrap()));
    let weights = safetensors::serialize(views, None).unwrap();
    let read = |name: &str| std::fs::read(fixture("maple-unpacked/mlx").join(name)).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&read("config.json")).unwrap();
    for field in ["model_type", "quantization", "quantization_config"] {
        config[field] = serde_json::Value::Null;
    }
    let files = ModelFiles {
        config: SharedBytes::new(config.to_string().into_bytes()),
        tokenizer: Some(SharedBytes::new(read("tokenizer.json"))),
        generation_config: Some(SharedBytes::new(read("generation_config.json"))),
        ..ModelFiles::default()
    };
    Checkpoint::from_files("bf16", &files, SharedBytes::new(weights))
}

/// Every command of the binary takes such a model.
#[test]
fn every_command_runs_a_model_with_experts() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let model = EXPERT_FORMS[0].path();
    let model = Path::new(&model).to_str().unwrap();
    let text = path("text");
    std::fs::write(&text, "The river flows past the old mill, and the miller counts his sacks. ".repeat(9))
        .unwrap();
    let to = path("to.gguf");
    std::fs::write(
        path("in.jsonl"),
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"To be\",\"max_tokens\":5}}\n",
    )
    .unwrap();
    for (args, told) in [
        (vec!["run", model, "To be", "--raw", "-n", "20", "--temperature", "0"], ""),
        (vec!["inspect", model, "--hash"], "2 of 8 for a token"),
        (vec!["perplexity", model, &text, "--context", "100"], "perplexity"),
        (vec!["convert", model, &to, "--to", "panels"], ""),
        (vec!["batch", model, &path("in.jsonl"), "-"], "\"status_code\":200"),
        (vec!["bench", model, "-p", "40", "-n", "4", "-b", "1,3", "--kernels"], "experts"),
    ] {
        let run = Command::new(bitnet_tests::binary())
            .args(&args)
            .args(["--device", "cpu", "--threads", "2"])
            .env("BITNET_CACHE", folder.path())
            .output()
            .unwrap();
        let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success() && out.contains(told), "{args:?}: {out} {err}");
    }
}
