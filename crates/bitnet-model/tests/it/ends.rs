//! The tokens of a GGUF file that begin and end texts, whatever the file says about their types.

use bitnet_model::{Checkpoint, Target, convert};

use crate::{gguf_edit::GgufEdit, support::edited};

const EOT: u32 = 511;
const FREE: usize = 300;

/// A fixture in which token 300 has this text and this type.
fn with_token(text: &str, kind: i32, edit: impl FnOnce(&mut GgufEdit)) -> Checkpoint {
    let model = edited("bitnet-packed/model-TQ2_0.gguf", |g| {
        let mut tokens = g.texts("tokenizer.ggml.tokens");
        let types: Vec<i32> = (0..tokens.len() as i32).map(|id| if id < 509 { 1 } else { 3 }).collect();
        let types = types.into_iter().enumerate().map(|(id, k)| if id == FREE { kind } else { k });
        let joined = tokens[FREE].clone();
        tokens[FREE] = text.into();
        g.set_texts("tokenizer.ggml.tokens", &tokens);
        let types: Vec<i32> = types.collect();
        g.set_words("tokenizer.ggml.token_type", 5, types.into_iter().map(i32::to_le_bytes));
        // Merges may not name the token that is gone.
        let merges = g.texts("tokenizer.ggml.merges").into_iter().filter(|merge| {
            let (a, b) = merge.split_once(' ').unwrap();
            ![a.to_owned(), b.to_owned(), format!("{a}{b}")].contains(&joined)
        });
        let merges: Vec<String> = merges.collect();
        g.set_texts("tokenizer.ggml.merges", &merges);
        edit(g);
    });
    model.unwrap()
}

#[test]
fn a_token_whose_text_ends_a_turn_ends_an_answer_whatever_its_type() {
    for text in
        ["<|im_end|>", "<end_of_turn>", "<|eom_id|>", "<|end|>", "[EOT]", "</s>", "<｜end▁of▁sentence｜>"]
    {
        // Normal, control, user-defined, unused.
        for kind in [1, 3, 4, 5] {
            let model = with_token(text, kind, |_| {});
            assert!(model.defaults.eos.contains(&(FREE as u32)), "{text} {kind}: {:?}", model.defaults.eos);
            let tokenizer = model.tokenizer.unwrap();
            assert!(tokenizer.is_special(FREE as u32), "{text} {kind}");
            let ids = tokenizer.encode(&format!("a{text}b"), false).unwrap();
            assert_eq!(ids[1], FREE as u32, "{text} {kind}: {ids:?}");
        }
    }
    let other = with_token("<|python_tag|>", 1, |_| {});
    assert!(!other.defaults.eos.contains(&(FREE as u32)));
}

#[test]
fn an_end_of_message_named_by_its_id_ends_an_answer() {
    for key in ["eos", "eot", "eom"] {
        let key = format!("tokenizer.ggml.{key}_token_id");
        let model = with_token("<other>", 1, |g| g.set(&key, 4, (FREE as u32).to_le_bytes().into()));
        assert!(model.defaults.eos.contains(&(FREE as u32)), "{key}");
        let tokenizer = model.tokenizer.unwrap();
        assert!(!tokenizer.is_special(FREE as u32), "a piece of text stays one");
    }
}

#[test]
fn the_end_of_a_message_is_not_the_end_of_an_answer_where_calls_have_their_own_ends() {
    let model = |tokens: &'static [&'static str]| {
        let edit = |g: &mut GgufEdit| {
            let mut all = g.texts("tokenizer.ggml.tokens");
            all.extend(tokens.iter().map(|&token| token.to_owned()));
            g.set_texts("tokenizer.ggml.tokens", &all);
            let embedding = g.tensor("token_embd.weight");
            let row = embedding.data.len() / embedding.dims[1] as usize;
            embedding.dims[1] = 600;
            embedding.data.resize(600 * row, 0);
        };
        with_token("<|end|>", 3, edit).defaults.eos
    };
    assert!(model(&[]).contains(&(FREE as u32)));
    assert!(model(&["<|call|>"]).contains(&(FREE as u32)));
    let harmony = model(&["<|call|>", "<|return|>"]);
    assert!(!harmony.contains(&(FREE as u32)) && harmony.contains(&512) && harmony.contains(&513));
    assert!(!model(&["<|calls|>", "<|flush|>"]).contains(&(FREE as u32)));
}

#[test]
fn a_vocabulary_without_token_types_has_its_ends() {
    let model = edited("bitnet-packed/model-TQ2_0.gguf", |g| g.remove("tokenizer.ggml.token_type")).unwrap();
    assert!(model.defaults.eos.contains(&EOT));
    let tokenizer = model.tokenizer.unwrap();
    assert_eq!(tokenizer.encode("a<|eot_id|>b", false).unwrap(), [64, EOT, 65]);
    assert_eq!(tokenizer.decode(&[64, EOT, 65], true).unwrap(), "ab");
}

#[test]
fn an_id_of_minus_one_names_no_token_in_any_integer_type() {
    let minus_one: [(u32, &[u8]); 4] = [(4, &[255; 4]), (5, &[255; 4]), (10, &[255; 8]), (11, &[255; 8])];
    for (kind, bytes) in minus_one {
        for key in ["bos", "eos", "eot", "unknown"] {
            let model = edited("bitnet-packed/model-TQ2_0.gguf", |g| {
                g.set(&format!("tokenizer.ggml.{key}_token_id"), kind, bytes.into());
            });
            let model = model.unwrap();
            assert_eq!(model.warnings, Vec::<String>::new(), "{key} {kind}");
            assert!(!model.defaults.eos.is_empty(), "the ends by text stay");
            if key == "bos" {
                assert_eq!((model.defaults.bos, model.tokenizer.unwrap().prefix()), (None, &[][..]));
            }
        }
    }
}

#[test]
fn an_id_beyond_the_vocabulary_names_no_token_and_is_told() {
    let model = edited("bitnet-packed/model-TQ2_0.gguf", |g| {
        g.set("tokenizer.ggml.bos_token_id", 4, 5000u32.to_le_bytes().into());
    });
    let model = model.unwrap();
    let [warning] = &model.warnings[..] else { panic!("{:?}", model.warnings) };
    assert!(warning.contains("tokenizer.ggml.bos_token_id is 5000, not one of the 512 tokens"), "{warning}");
    assert_eq!((model.defaults.bos, model.tokenizer.unwrap().prefix()), (None, &[][..]));
}

#[test]
fn a_conversion_changes_no_end() {
    for ends in [vec![510], vec![EOT], vec![510, EOT], vec![7, 510, 9], vec![]] {
        let mut from = edited("bitnet-packed/model-TQ2_0.gguf", |_| {}).unwrap();
        from.defaults.eos.clone_from(&ends);
        for target in [Target::Tq2_0, Target::Tq1_0, Target::Panels, Target::Packed] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("model");
            convert(&from, target, &path, &mut |_, _| {}).unwrap();
            let to = Checkpoint::open(&path).unwrap();
            // A file that names no end at all has those that its vocabulary shows.
            if !ends.is_empty() {
                assert_eq!(to.defaults.eos, ends, "{target}");
            }
        }
    }
}
