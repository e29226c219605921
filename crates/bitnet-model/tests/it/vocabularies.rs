//! Vocabularies in GGUF files by name, compared with the ids from their own tools (`tools/make-vocabularies/make.py`).

use bitnet_model::{Checkpoint, ModelError, Target, Tokenizer, convert};
use bitnet_tensor::SharedBytes;
use serde_json::Value;

use crate::{
    gguf_edit::GgufEdit,
    support::{fixture, open},
};

fn golden(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture("vocabularies").join(name)).unwrap()).unwrap()
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|v| v.as_str().unwrap().into()).collect()
}

/// A model with the vocabulary of `edit` and enough rows in its embedding.
fn with_vocabulary(edit: impl FnOnce(&mut GgufEdit)) -> Result<Checkpoint, ModelError> {
    let mut gguf = GgufEdit::read(&std::fs::read(fixture("bitnet-packed/model-TQ1_0.gguf")).unwrap());
    let rows = 1024;
    let embedding = gguf.tensor("token_embd.weight");
    embedding.dims[1] = rows;
    embedding.data.resize(rows as usize * 256 * 2, 0);
    edit(&mut gguf);
    Checkpoint::from_gguf("vocabulary.gguf", SharedBytes::new(gguf.write()))
}

fn set_vocabulary(gguf: &mut GgufEdit, golden: &Value) {
    gguf.set_texts("tokenizer.ggml.tokens", &strings(&golden["tokens"]));
    let types = golden["token_type"].as_array().unwrap().iter();
    gguf.set_words("tokenizer.ggml.token_type", 5, types.map(|t| (t.as_i64().unwrap() as i32).to_le_bytes()));
}

fn assert_golden(tokenizer: &Tokenizer, golden: &Value) {
    let texts = golden["texts"].as_array().unwrap();
    assert!(texts.len() > 10);
    for case in texts {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<u32> =
            case["ids"].as_array().unwrap().iter().map(|i| i.as_u64().unwrap() as u32).collect();
        assert_eq!(tokenizer.encode(text, false).unwrap(), ids, "{text:?}");
    }
}

#[test]
fn vocabulary_qwen2_splits_single_digits_and_composes() {
    let golden = golden("qwen2.json");
    let model = with_vocabulary(|g| {
        set_vocabulary(g, &golden);
        g.set_texts("tokenizer.ggml.merges", &strings(&golden["merges"]));
        g.set_text("tokenizer.ggml.pre", "qwen2");
        g.remove("tokenizer.ggml.add_bos_token");
    });
    let tokenizer = model.unwrap().tokenizer.unwrap();
    assert_golden(&tokenizer, &golden);
    assert_eq!(tokenizer.prefix(), [0u32; 0], "no token before a text unless the file says so");
    assert_golden(
        &Tokenizer::from_json(golden["tokenizer_json"].as_str().unwrap().as_bytes()).unwrap(),
        &golden,
    );
}

#[test]
fn vocabulary_sentencepiece_merges_by_score_and_falls_back_to_bytes() {
    let golden = golden("sentencepiece.json");
    let model = with_vocabulary(|g| {
        set_vocabulary(g, &golden);
        g.set_text("tokenizer.ggml.model", "llama");
        let scores = golden["scores"].as_array().unwrap().iter();
        g.set_words("tokenizer.ggml.scores", 6, scores.map(|s| (s.as_f64().unwrap() as f32).to_le_bytes()));
        g.set("tokenizer.ggml.bos_token_id", 4, 1u32.to_le_bytes().into());
        g.set("tokenizer.ggml.eos_token_id", 4, 2u32.to_le_bytes().into());
        g.remove("tokenizer.ggml.merges");
        g.remove("tokenizer.ggml.pre");
    });
    let model = model.unwrap();
    assert_eq!(model.warnings, Vec::<String>::new());
    let tokenizer = model.tokenizer.unwrap();
    assert_golden(&tokenizer, &golden);
    assert_eq!((tokenizer.prefix(), &model.defaults.eos[..]), (&[1u32][..], &[2u32][..]));
    for text in ["plain", "  two spaces ", "你好 🙂 unseen", "a\n\nb\t"] {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text, false).unwrap(), true).unwrap(), text);
        // In the continuation of a prompt, the space before the first word stays.
        let mut stream = tokenizer.stream();
        let ids = tokenizer.encode(text, false).unwrap();
        let streamed: String = ids.iter().map(|&id| stream.push(id)).collect();
        assert_eq!(streamed + &stream.finish(), format!(" {text}"));
    }
}

#[test]
fn vocabularies_survive_conversion_to_tokenizer_json_and_back() {
    for (golden, model) in [("qwen2.json", "gpt2"), ("sentencepiece.json", "llama")] {
        let golden = self::golden(golden);
        let from = with_vocabulary(|g| {
            set_vocabulary(g, &golden);
            g.set_text("tokenizer.ggml.model", model);
            g.set_text("tokenizer.ggml.pre", "qwen2");
            g.set("tokenizer.ggml.add_bos_token", 7, vec![0]);
            if model == "gpt2" {
                g.set_texts("tokenizer.ggml.merges", &strings(&golden["merges"]));
            } else {
                let scores = golden["scores"].as_array().unwrap().iter();
                g.set_words(
                    "tokenizer.ggml.scores",
                    6,
                    scores.map(|s| (s.as_f64().unwrap() as f32).to_le_bytes()),
                );
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let (packed, gguf) = (folder.path().join("packed"), folder.path().join("model.gguf"));
        convert(from.unwrap(), Target::Packed, &packed, &mut |_, _| {}).unwrap();
        let middle = Checkpoint::open(&packed).unwrap();
        assert_golden(middle.tokenizer.as_ref().unwrap(), &golden);
        convert(&middle, Target::Tq1_0, &gguf, &mut |_, _| {}).unwrap();
        let last = Checkpoint::open(&gguf).unwrap().tokenizer.unwrap();
        assert_golden(&last, &golden);
        let ids = last.encode("  to and fro 🙂", false).unwrap();
        assert_eq!(last.decode(&ids, false).unwrap(), "  to and fro 🙂");
    }
}

#[test]
fn vocabulary_falcon3_splits_as_llama_bpe() {
    let model = with_vocabulary(|g| g.set_text("tokenizer.ggml.pre", "falcon3")).unwrap();
    let (falcon3, llama) = (model.tokenizer.unwrap(), open("bitnet-packed").tokenizer.unwrap());
    for text in ["It's 1234567 and 12", "x\n\n\ty"] {
        assert_eq!(falcon3.encode(text, true).unwrap(), llama.encode(text, true).unwrap());
    }
}

#[test]
fn vocabulary_without_a_pre_tokenizer_is_llama_bpe_with_one_warning() {
    let model = with_vocabulary(|g| g.remove("tokenizer.ggml.pre")).unwrap();
    let [warning] = &model.warnings[..] else { panic!("{:?}", model.warnings) };
    assert!(warning.contains("tokenizer.ggml.pre") && warning.contains("using llama-bpe"), "{warning}");
    let (missing, llama) = (model.tokenizer.unwrap(), open("bitnet-packed").tokenizer.unwrap());
    let text = "It's 1234567\n\n and 12";
    assert_eq!(missing.encode(text, true).unwrap(), llama.encode(text, true).unwrap());
}

#[test]
fn vocabulary_add_bos_decides_what_is_put_before_a_text() {
    let prefix =
        |edit: fn(&mut GgufEdit)| with_vocabulary(edit).unwrap().tokenizer.unwrap().prefix().to_vec();
    assert_eq!(prefix(|g| g.set("tokenizer.ggml.add_bos_token", 7, vec![0])), [0u32; 0]);
    assert_eq!(prefix(|g| g.set("tokenizer.ggml.add_bos_token", 7, vec![1])), [509]);
    assert_eq!(prefix(|g| g.remove("tokenizer.ggml.add_bos_token")), [509], "the default of llama-bpe");
}

#[test]
fn vocabulary_add_eos_puts_it_behind_a_text() {
    let model = with_vocabulary(|g| g.set("tokenizer.ggml.add_eos_token", 7, vec![1])).unwrap();
    let tokenizer = model.tokenizer.unwrap();
    let (with, without) = (tokenizer.encode("hi", true).unwrap(), tokenizer.encode("hi", false).unwrap());
    assert_eq!(with, [&[509], &without[..], &[511]].concat());
}

#[test]
fn a_gguf_without_a_vocabulary_is_a_model_without_a_tokenizer() {
    let model = with_vocabulary(|g| g.entries.retain(|e| !e.0.starts_with("tokenizer."))).unwrap();
    assert!(model.tokenizer.is_none() && model.chat.is_none());
    assert_eq!(model.warnings, Vec::<String>::new());
}

#[test]
fn vocabularies_that_contradict_themselves_are_refused() {
    let refused = |edit: fn(&mut GgufEdit)| with_vocabulary(edit).err().unwrap().to_string();
    let orphan = refused(|g| g.set_texts("tokenizer.ggml.merges", &["h e".into(), "zzz yyy".into()]));
    assert!(orphan.contains("merge zzz + yyy has a part that is not in the vocabulary"), "{orphan}");
    let one = refused(|g| g.set_texts("tokenizer.ggml.merges", &["he".into()]));
    assert!(one.contains("is not two tokens"), "{one}");

    let json = std::fs::read_to_string(fixture("bitnet-packed/tokenizer.json")).unwrap();
    let refused = |from: &str, to: &str| {
        assert!(json.contains(from), "{from}");
        Tokenizer::from_json(json.replacen(from, to, 1).as_bytes()).err().unwrap().to_string()
    };
    assert!(refused("\"type\": \"BPE\"", "\"type\": \"Unigram\"").contains("model.type is Unigram"));
    assert!(
        refused("\"normalizer\": null", "\"normalizer\": {\"type\": \"Precompiled\"}")
            .contains("Precompiled")
    );
    assert!(refused("\\\\p{N}{1,3}", "((a{999}){999}){999}").contains("a pattern repeats a part"));
    let deep = "(".repeat(1_000) + &")".repeat(1_000);
    assert!(refused("\\\\p{N}{1,3}", &deep).contains(" groups"));
    assert!(refused("\"id\": 511", "\"id\": 4294967295").contains("or more"));
    // Found by fuzzing: an added token of 560 KB took 92 MB.
    let long = format!("\"<|eot_id|>{}\"", "{% for x in range(99999) %}".repeat(20_000));
    assert!(refused("\"<|eot_id|>\"", &long).contains("added tokens have"));
}
