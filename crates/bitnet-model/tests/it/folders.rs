//! Folders as people have them: files left over, numbers and texts as other tools write them, settings in several files.

use std::{fs, path::Path};

use bitnet_model::{Checkpoint, ModelError, Tokenizer};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{edited, fixture, open, weights_hash};

/// A copy of a fixture that a test may change.
struct Folder(TempDir);

impl Folder {
    fn copy(name: &str) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
            fs::copy(fixture(name).join(file), folder.path().join(file)).unwrap();
        }
        fs::copy(fixture(name).join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
        Folder(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn json(&self, file: &str, change: impl FnOnce(&mut Value)) -> &Self {
        let path = self.path().join(file);
        let mut json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut json);
        fs::write(path, json.to_string()).unwrap();
        self
    }

    fn text(&self, file: &str, change: impl FnOnce(String) -> String) -> &Self {
        let path = self.path().join(file);
        let text = fs::read_to_string(&path).unwrap_or_default();
        fs::write(path, change(text)).unwrap();
        self
    }

    fn open(&self) -> Result<Checkpoint, ModelError> {
        Checkpoint::open(self.path())
    }
}

const GENERATION: &str = "generation_config.json";

#[test]
fn an_index_beside_a_single_file_is_left_over() {
    let folder = Folder::copy("bitnet-packed");
    let index = json!({"weight_map": {"model.embed_tokens.weight": "model-00001-of-00002.safetensors"}});
    folder.text("model.safetensors.index.json", |_| index.to_string());
    assert_eq!(weights_hash(&folder.open().unwrap()), weights_hash(&open("bitnet-packed")));
    // Without the single file, the index decides.
    fs::rename(folder.path().join("model.safetensors"), folder.path().join("other.safetensors")).unwrap();
    let error = folder.open().unwrap_err().to_string();
    assert!(error.contains("model-00001-of-00002.safetensors"), "{error}");
}

#[test]
fn json_is_read_as_python_and_editors_write_it() {
    let original = open("bitnet-packed");
    let folder = Folder::copy("bitnet-packed");
    folder.text("config.json", |text| {
        let hidden = original.spec.hidden;
        let text =
            text.replace(&format!("\"hidden_size\": {hidden}"), &format!("\"hidden_size\": {hidden}.0"));
        assert!(text.contains(&format!("{hidden}.0")));
        let text = text.replace("\"eos_token_id\": 511", "\"eos_token_id\": 511.0");
        text.replacen(
            '{',
            "{\"note\": \"NaN \\\" -Infinity\", \"initializer_range\": NaN, \"top\": -Infinity,",
            1,
        )
    });
    for file in ["config.json", GENERATION, "tokenizer.json", "tokenizer_config.json"] {
        folder.text(file, |text| format!("\u{feff}{text}"));
    }
    let model = folder.open().unwrap();
    assert_eq!((&model.spec, &model.defaults), (&original.spec, &original.defaults));
    let rounded = |number: &str| {
        let folder = Folder::copy("bitnet-packed");
        folder.json("config.json", |c| c["hidden_size"] = serde_json::from_str(number).unwrap());
        folder.open().unwrap_err().to_string()
    };
    for number in ["256.5", "-256.0", "1e300", "\"256\""] {
        assert!(rounded(number).contains("hidden_size is not a whole number"), "{number}");
    }
    let broken = Folder::copy("bitnet-packed");
    broken.text("config.json", |text| text.replacen('{', "{\"a\": NaNa,", 1));
    assert!(broken.open().unwrap_err().to_string().contains("damaged file"));
}

#[test]
fn a_default_for_sampling_is_honoured_or_named_and_keeps_no_model_from_loading() {
    let with = |settings: Value| {
        let folder = Folder::copy("bitnet-packed");
        folder.json(GENERATION, |g| g.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone()));
        let model = folder.open().unwrap();
        (model.defaults, model.warnings)
    };
    let (d, warnings) = with(json!({"temperature": 0.5, "top_k": 50.0, "top_p": 0.9, "min_p": 0.05,
        "repetition_penalty": 1.5, "do_sample": true, "num_beams": 1, "typical_p": 1.0, "penalty_alpha": null,
        "no_repeat_ngram_size": 0, "suppress_tokens": []}));
    assert_eq!((d.temperature, d.top_k, d.top_p), (Some(0.5), Some(50), Some(0.9)));
    assert_eq!((d.min_p, d.repetition_penalty, d.do_sample), (Some(0.05), Some(1.5), Some(true)));
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(with(json!({"top_k": -1})).0.top_k, Some(0));
    assert_eq!(with(json!({"top_k": 0})).0.top_k, Some(0));
    for (field, value) in [
        ("top_k", json!(1.5)),
        ("top_k", json!("many")),
        ("top_p", json!(1.5)),
        ("top_p", json!(0)),
        ("temperature", json!(-1)),
        ("min_p", json!([0.1])),
        ("repetition_penalty", json!(0)),
        ("do_sample", json!("yes")),
    ] {
        let (_, warnings) = with(json!({ field: value }));
        let [warning] = &warnings[..] else { panic!("{field}: {warnings:?}") };
        assert!(warning.starts_with(&format!("generation_config.json: {field} is ")), "{warning}");
    }
    let (_, warnings) = with(json!({"typical_p": 0.9, "num_beams": 4, "bad_words_ids": [[1]]}));
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.contains("bad_words_ids, num_beams, typical_p has no counterpart"), "{warning}");
}

#[test]
fn sampling_defaults_of_gguf_are_those_of_a_folder() {
    let with = |settings: &'static [(&'static str, u32, f32)]| {
        let model = edited("bitnet-packed/model-TQ2_0.gguf", |g| {
            for &(key, kind, value) in settings {
                let bytes = if kind == 5 { (value as i32).to_le_bytes() } else { value.to_le_bytes() };
                g.set(&format!("general.sampling.{key}"), kind, bytes.into());
            }
        });
        let model = model.unwrap();
        (model.defaults, model.warnings)
    };
    let (d, warnings) = with(&[
        ("temp", 6, 0.5),
        ("top_k", 5, 40.0),
        ("top_p", 6, 0.9),
        ("min_p", 6, 0.05),
        ("penalty_repeat", 6, 1.5),
        ("penalty_last_n", 5, -1.0),
        ("mirostat", 5, 0.0),
    ]);
    assert_eq!((d.temperature, d.top_k, d.top_p), (Some(0.5), Some(40), Some(0.9)));
    assert_eq!((d.min_p, d.repetition_penalty, d.do_sample), (Some(0.05), Some(1.5), Some(true)));
    assert_eq!(warnings, Vec::<String>::new());
    let (d, warnings) = with(&[
        ("penalty_repeat", 6, 1.5),
        ("penalty_last_n", 5, 64.0),
        ("mirostat", 5, 2.0),
        ("top_k", 5, -1.0),
    ]);
    assert_eq!((d.repetition_penalty, d.top_k), (Some(1.5), Some(0)));
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.contains("general.sampling.mirostat, penalty_last_n"), "{warning}");
    let (d, warnings) = with(&[("temp", 6, f32::NAN), ("top_p", 6, 2.0)]);
    assert_eq!((d.temperature, d.top_p, warnings.len()), (None, None, 2));
}

#[test]
fn ids_of_minus_one_in_json_name_no_token() {
    let folder = Folder::copy("bitnet-packed");
    folder.json("config.json", |c| c["bos_token_id"] = json!(-1));
    folder.json(GENERATION, |g| {
        g["bos_token_id"] = json!(-1);
        g["eos_token_id"] = json!([-1, 510]);
    });
    let defaults = folder.open().unwrap().defaults;
    assert_eq!((defaults.bos, defaults.eos), (None, vec![510, 511]));
}

#[test]
fn a_folder_that_names_its_end_only_in_the_tokenizer_ends_there() {
    let folder = Folder::copy("bitnet-packed");
    for file in ["config.json", GENERATION] {
        folder.json(file, |json| drop(json.as_object_mut().unwrap().remove("eos_token_id")));
    }
    assert_eq!(folder.open().unwrap().defaults.eos, [511]);
    folder.json("tokenizer_config.json", |t| t["eos_token"] = json!({"content": "<|end_of_text|>"}));
    assert_eq!(folder.open().unwrap().defaults.eos, [510]);
}

/// Ids and decoded text under a `tokenizer_config.json`, as transformers 5.24 gives them for the same two files.
fn under(config: Value) -> impl Fn(&str) -> (Vec<u32>, String) {
    let folder = Folder::copy("bitnet-packed");
    let tokens = ["a", "b", "c", "<", "|", "x", ">", "ab", "<|x|>", "<|y|>", "<|n|>"];
    folder.json("tokenizer.json", |t| {
        t["model"]["vocab"] = tokens.iter().enumerate().map(|(id, token)| (token.to_string(), id)).collect();
        t["model"]["merges"] = json!(["a b"]);
        t["added_tokens"] = json!([{"id": 9, "content": "<|y|>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": false}]);
        t["post_processor"] = Value::Null;
    });
    folder.json("tokenizer_config.json", |t| *t = config);
    for file in ["config.json", GENERATION] {
        folder.json(file, |json| drop(json.as_object_mut().unwrap().remove("eos_token_id")));
    }
    let tokenizer = folder.open().unwrap().tokenizer.unwrap();
    move |text| {
        let ids = tokenizer.encode(text, false).unwrap();
        let text = tokenizer.decode(&ids, true).unwrap();
        (ids, text)
    }
}

#[test]
fn tokens_that_stand_only_in_tokenizer_config_are_tokens() {
    let token = |content: &str, special: bool| {
        json!({"content": content, "special": special, "lstrip": false,
        "rstrip": false, "normalized": false, "single_word": false})
    };
    let split = under(json!({}));
    assert_eq!(split("a<|x|>b").0, [0, 3, 4, 5, 4, 6, 1]);
    let listed =
        under(json!({"added_tokens_decoder": {"8": token("<|x|>", true), "11": token("<|z|>", true)}}));
    assert_eq!(listed("a<|x|>b"), (vec![0, 8, 1], "ab".into()));
    assert_eq!(listed("a<|z|>b"), (vec![0, 11, 1], "ab".into()));
    // The next id, whatever the file says.
    let gap = under(json!({"added_tokens_decoder": {"15": token("<|z|>", true)}}));
    assert_eq!(gap("a<|z|>b").0, [0, 11, 1]);
    let named =
        under(json!({"eos_token": "<|x|>", "additional_special_tokens": ["<|n|>"], "bos_token": null}));
    assert_eq!(named("a<|x|>b"), (vec![0, 8, 1], "ab".into()));
    assert_eq!(named("a<|n|>b"), (vec![0, 10, 1], "ab".into()));
    // Where both files have a token, this one says whether it is special.
    assert_eq!(under(json!({}))("a<|y|>b"), (vec![0, 9, 1], "a<|y|>b".into()));
    let special = under(json!({"added_tokens_decoder": {"9": token("<|y|>", true)}}));
    assert_eq!(special("a<|y|>b"), (vec![0, 9, 1], "ab".into()));
    let stripped = json!({"content": "<|y|>", "special": true, "lstrip": true});
    assert_eq!(under(json!({"added_tokens_decoder": {"9": stripped}}))("a  <|y|>b").0, [0, 9, 1]);
}

/// A tokenizer of four pieces with SentencePiece's spelling.
fn metaspace(pre_tokenizer: Value, decoder: Value) -> Result<Tokenizer, ModelError> {
    let json = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
        "pre_tokenizer": pre_tokenizer, "decoder": decoder,
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": false,
            "vocab": {"<unk>": 0, "▁": 1, "a": 2, "b": 3}, "merges": []},
    });
    Tokenizer::from_json(json.to_string().as_bytes())
}

#[test]
fn metaspace_puts_and_removes_a_space_as_its_scheme_says() {
    // Ids and texts by tokenizers 0.23.3.
    let cases: [(&str, &[u32], &str); 3] =
        [("never", &[1, 2], " a"), ("always", &[1, 2], "a"), ("first", &[1, 2], "a")];
    for (scheme, ids, text) in cases {
        let part = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false});
        let tokenizer = metaspace(part.clone(), part).unwrap();
        assert_eq!(tokenizer.encode(" a", false).unwrap(), ids, "{scheme}");
        assert_eq!(tokenizer.decode(ids, false).unwrap(), text, "{scheme}");
        let spaces = usize::from(scheme != "never");
        assert_eq!(tokenizer.encode("a", false).unwrap().len(), 1 + spaces, "{scheme}");
    }
    let old = json!({"type": "Metaspace", "replacement": "▁", "add_prefix_space": false, "prepend_scheme": "never"});
    assert_eq!(metaspace(old.clone(), old).unwrap().decode(&[1, 2], false).unwrap(), " a");
}

#[test]
fn a_decoder_that_would_decode_otherwise_is_refused_by_its_field() {
    let meta = |replacement: &str| json!({"type": "Metaspace", "replacement": replacement, "prepend_scheme": "first"});
    let sequence = |steps: Value| json!({"type": "Sequence", "decoders": steps});
    for (decoder, told) in [
        (meta("_"), "decoder.Metaspace.replacement is \"_\""),
        (
            sequence(json!([meta("▁"), {"type": "Strip", "content": "x", "start": 1, "stop": 0}])),
            "Strip.content",
        ),
        (
            sequence(json!([meta("▁"), {"type": "Replace", "pattern": {"String": "a"}, "content": " "}])),
            "decoder.Replace.pattern",
        ),
        (json!({"type": "WordPiece"}), "decoder.type is WordPiece"),
    ] {
        let error = metaspace(meta("▁"), decoder).err().unwrap().to_string();
        assert!(error.contains(told), "{error}");
    }
}
