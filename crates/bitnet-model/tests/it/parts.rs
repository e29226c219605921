//! GGUF files in several parts, and of an earlier version.

use std::{fs, path::Path};

use bitnet_model::Checkpoint;

use crate::{
    gguf_edit::GgufEdit,
    support::{edited, fixture, open, weights_hash},
};

const WHOLE: &str = "bitnet-packed/model-TQ2_0.gguf";

/// Writes the fixture in three parts as `llama-gguf-split` does: metadata in the first, tensors in order over all.
fn split(folder: &Path, edit: impl Fn(usize, &mut GgufEdit)) {
    let whole = GgufEdit::read(&fs::read(fixture(WHOLE)).unwrap());
    let share = whole.tensors.len().div_ceil(3);
    for (no, tensors) in whole.tensors.chunks(share).enumerate() {
        let entries = if no == 0 { whole.entries.clone() } else { Vec::new() };
        let mut part = GgufEdit { entries, tensors: tensors.to_vec() };
        part.set("split.no", 2, (no as u16).to_le_bytes().into());
        part.set("split.count", 2, 3u16.to_le_bytes().into());
        part.set("split.tensors.count", 5, (whole.tensors.len() as i32).to_le_bytes().into());
        edit(no, &mut part);
        fs::write(folder.join(format!("m-0000{}-of-00003.gguf", no + 1)), part.write()).unwrap();
    }
}

#[test]
fn a_model_in_parts_is_the_whole_model_whichever_part_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    split(folder.path(), |_, _| {});
    let whole = open(WHOLE);
    for part in 1..=3 {
        let path = folder.path().join(format!("m-0000{part}-of-00003.gguf"));
        let model = Checkpoint::open(&path).unwrap();
        assert_eq!(weights_hash(&model), weights_hash(&whole));
        assert_eq!((&model.spec, &model.defaults), (&whole.spec, &whole.defaults));
        assert_eq!(model.warnings, Vec::<String>::new());
    }
}

#[test]
fn missing_parts_are_named() {
    let folder = tempfile::tempdir().unwrap();
    split(folder.path(), |_, _| {});
    let part = |n: usize| folder.path().join(format!("m-0000{n}-of-00003.gguf"));
    fs::remove_file(part(2)).unwrap();
    let error = Checkpoint::open(&part(3)).unwrap_err().to_string();
    assert!(error.contains("missing: m-00002-of-00003.gguf (") && error.contains("all 3 parts"), "{error}");
    fs::remove_file(part(1)).unwrap();
    let error = Checkpoint::open(&part(3)).unwrap_err().to_string();
    assert!(error.contains("missing: m-00001-of-00003.gguf, m-00002-of-00003.gguf"), "{error}");
    fs::rename(part(3), folder.path().join("renamed.gguf")).unwrap();
    let error = Checkpoint::open(&folder.path().join("renamed.gguf")).unwrap_err().to_string();
    assert!(error.contains("split.count is 3") && error.contains("NAME-00001-of-00003.gguf"), "{error}");
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let refused = |edit: fn(usize, &mut GgufEdit)| {
        let folder = tempfile::tempdir().unwrap();
        split(folder.path(), edit);
        Checkpoint::open(&folder.path().join("m-00001-of-00003.gguf")).unwrap_err().to_string()
    };
    let order = refused(|no, part| {
        if no == 1 {
            part.set("split.no", 2, 2u16.to_le_bytes().into());
        }
    });
    assert!(order.contains("split.no is not 1 of 3") && order.contains("m-00002"), "{order}");
    let twice = refused(|no, part| {
        if no == 2 {
            part.tensors[0].name = "token_embd.weight".into();
        }
    });
    assert!(twice.contains("tensor token_embd.weight is in another part too"), "{twice}");
    let count = refused(|_, part| part.set("split.tensors.count", 5, 9i32.to_le_bytes().into()));
    assert!(count.contains("split.tensors.count is 9, but the parts have"), "{count}");
    let huge = refused(|_, part| part.set("split.count", 10, u64::MAX.to_le_bytes().into()));
    assert!(huge.contains("split.count is 18446744073709551615"), "{huge}");
}

#[test]
fn version_2_of_gguf_is_read_and_version_1_is_refused() {
    let mut bytes = fs::read(fixture(WHOLE)).unwrap();
    bytes[4] = 2;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, &bytes).unwrap();
    assert_eq!(weights_hash(&Checkpoint::open(&path).unwrap()), weights_hash(&open(WHOLE)));
    bytes[4] = 1;
    fs::write(&path, &bytes).unwrap();
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("GGUF version is 1") && error.contains("versions 2 and 3"), "{error}");
}

#[test]
fn a_size_that_is_listed_for_every_layer_is_read_if_it_is_the_same_in_all() {
    let listed = |key: &'static str, values: &[u32]| {
        let values = values.to_vec();
        edited(WHOLE, move |g| {
            g.set_words(&format!("bitnet-b1.58.{key}"), 4, values.into_iter().map(u32::to_le_bytes));
        })
    };
    let whole = open(WHOLE);
    let (layers, heads) = (whole.spec.layers, whole.spec.heads as u32);
    assert_eq!(layers, 3);
    let kv_heads = whole.spec.kv_heads as u32;
    let model = listed("attention.head_count_kv", &vec![kv_heads; layers]).unwrap();
    assert_eq!(model.spec, whole.spec);
    assert_eq!(listed("attention.head_count", &vec![heads; layers]).unwrap().spec, whole.spec);
    assert_eq!(listed("feed_forward_length", &vec![whole.spec.ffn as u32; layers]).unwrap().spec, whole.spec);
    let error =
        listed("attention.head_count_kv", &[kv_heads, 2 * kv_heads, kv_heads]).err().unwrap().to_string();
    assert!(error.contains("attention.head_count_kv is a list") && error.contains("in layer 1"), "{error}");
    let error = listed("attention.head_count_kv", &[kv_heads]).err().unwrap().to_string();
    assert!(error.contains("a list of 1, fewer than 3 layers"), "{error}");
}
