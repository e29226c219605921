//! How text is split by the name in `tokenizer.ggml.pre`, compared with llama.cpp (`tools/make-vocabularies`).

use bitnet_model::{Checkpoint, ModelError, Target, convert};
use serde_json::Value;

use crate::{
    gguf_edit::GgufEdit,
    support::{edited, fixture},
};

fn golden() -> Value {
    let bytes = std::fs::read(fixture("vocabularies/pre-tokenizers.json")).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|v| v.as_str().unwrap().into()).collect()
}

/// A model with the golden vocabulary, split as `pre` says.
fn model(golden: &Value, pre: &str) -> Result<Checkpoint, ModelError> {
    edited("bitnet-packed/model-TQ1_0.gguf", |g: &mut GgufEdit| {
        g.set_texts("tokenizer.ggml.tokens", &strings(&golden["tokens"]));
        g.set_texts("tokenizer.ggml.merges", &strings(&golden["merges"]));
        g.set_words("tokenizer.ggml.token_type", 5, [[0; 4]; 0].into_iter());
        g.set_text("tokenizer.ggml.pre", pre);
        g.set("tokenizer.ggml.add_bos_token", 7, vec![0]);
    })
}

fn ids(model: &Checkpoint, golden: &Value) -> Vec<Vec<u32>> {
    let tokenizer = model.tokenizer.as_ref().unwrap();
    strings(&golden["texts"]).iter().map(|text| tokenizer.encode(text, false).unwrap()).collect()
}

#[test]
fn every_rule_splits_as_llama_cpp_does() {
    let golden = golden();
    let by_name = golden["ids"].as_object().unwrap();
    assert!(by_name.len() > 25, "{}", by_name.len());
    for (pre, expected) in by_name {
        let found = ids(&model(&golden, pre).unwrap(), &golden);
        assert_eq!(serde_json::to_value(found).unwrap(), *expected, "{pre}");
    }
}

#[test]
fn a_vocabulary_converts_to_gguf_and_back_whatever_splits_its_text() {
    let golden = golden();
    for pre in golden["ids"].as_object().unwrap().keys() {
        let folder = tempfile::tempdir().unwrap();
        let (packed, gguf) = (folder.path().join("packed"), folder.path().join("model.gguf"));
        let from = model(&golden, pre).unwrap();
        convert(&from, Target::Packed, &packed, &mut |_, _| {}).unwrap();
        convert(Checkpoint::open(&packed).unwrap(), Target::Tq1_0, &gguf, &mut |_, _| {}).unwrap();
        assert_eq!(ids(&Checkpoint::open(&gguf).unwrap(), &golden), ids(&from, &golden), "{pre}");
    }
}

#[test]
fn names_of_one_rule_split_alike() {
    let golden = golden();
    for (rule, names) in [
        ("llama-bpe", &["llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "midm-2.0"][..]),
        ("qwen2", &["deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"]),
        ("starcoder", &["refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"]),
        ("gpt-2", &["phi-2", "mpt", "olmo", "jais", "exaone4", "modern-bert", "gigachat"]),
        ("dbrx", &["smaug-bpe", "glm4", "chatglm-bpe"]),
        ("deepseek-v3", &["hunyuan-dense", "joyai-llm"]),
        ("gpt-4o", &["llama4", "kanana2", "minimax-m2"]),
    ] {
        let expected = ids(&model(&golden, rule).unwrap(), &golden);
        for name in names {
            assert_eq!(ids(&model(&golden, name).unwrap(), &golden), expected, "{name}");
        }
    }
}

#[test]
fn a_splitter_that_is_no_list_of_patterns_is_refused_by_its_name() {
    for name in [
        "kimi-k2",
        "deepseek-llm",
        "gemma4",
        "superbpe",
        "afmoe",
        "jina-v2-code",
        "whitespace",
        "no-such-name",
    ] {
        let error = model(&golden(), name).err().unwrap().to_string();
        assert!(error.contains(&format!("tokenizer.ggml.pre is {name}, which is not supported")), "{error}");
        assert!(error.contains("tokenizer.json"), "{error}");
    }
}
