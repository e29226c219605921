//! `bitnet logits`: a file of logits for every token of a text.

use std::path::Path;

use safetensors::{Dtype, SafeTensors};

use crate::bitnet::{bitnet, fixture};

/// Shape and values of the file that `bitnet logits` writes.
fn logits(model: &str, ids: &str, more: &[&str]) -> (Vec<usize>, Vec<f32>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("logits.safetensors");
    let out = file.to_str().unwrap();
    let printed = bitnet(&[&["logits", model, "--ids", ids, "--out", out], more].concat()).success();
    assert_eq!(printed, "");
    assert_eq!(names(folder.path()), ["logits.safetensors"]);
    let bytes = std::fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.names(), ["logits"]);
    let tensor = tensors.tensor("logits").unwrap();
    assert_eq!(tensor.dtype(), Dtype::F32);
    let values = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    (tensor.shape().to_vec(), values)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_token_has_a_row_of_the_vocabulary() {
    let (shape, values) = logits("synthetic:tiny", "1,2,3", &[]);
    assert_eq!(shape, [3, 512]);
    assert!(values.iter().all(|v| v.is_finite()));
    let (shape, _) = logits(&fixture("bitnet-odd"), "508,1", &[]);
    assert_eq!(shape, [2, 509]);
}

#[test]
fn a_row_depends_on_the_tokens_before_it_and_on_nothing_else() {
    let (_, two) = logits("synthetic:tiny", "1,2", &[]);
    let (_, three) = logits("synthetic:tiny", "1,2,3", &[]);
    let (_, other) = logits("synthetic:tiny", "4,2", &[]);
    assert_eq!(three[..2 * 512], two);
    assert_ne!(other[512..], two[512..]);
}

#[test]
fn long_inputs_in_many_steps_give_the_same_bits_on_every_level_and_number_of_threads() {
    let ids: Vec<String> = (0..300).map(|i| (i * 7 % 512).to_string()).collect();
    let expected = logits("synthetic:tiny", &ids.join(","), &[]);
    // With this little memory, a step has 32 tokens instead of 128.
    for more in [&["--threads", "1"][..], &["--isa", "scalar"], &["--memory", "2200K"]] {
        assert!(logits("synthetic:tiny", &ids.join(","), more) == expected, "{more:?}");
    }
}

#[test]
fn a_failure_leaves_the_old_file_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.safetensors");
    std::fs::write(&file, "old").unwrap();
    let out = file.to_str().unwrap();
    bitnet(&["logits", "synthetic:tiny", "--ids", "1,600", "--out", out]).failure(1);
    bitnet(&["logits", "synthetic:tiny", "--ids", "1", "--out", out, "--memory", "1K"]).failure(1);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "old");
    assert_eq!(names(folder.path()), ["out.safetensors"]);
}

#[test]
fn more_logits_than_a_file_should_hold_are_refused_before_any_work() {
    let ids = vec!["1"; 3000].join(",");
    let error = bitnet(&["logits", "synthetic:2b4t", "--ids", &ids, "--out", "never"]).failure(1);
    assert!(error.contains("at most 2092 ids"), "{error}");
    let ids = vec!["1"; 8193].join(",");
    let error = bitnet(&["logits", "synthetic:tiny", "--ids", &ids, "--out", "never"]).failure(1);
    assert!(error.contains("at most 8192 ids"), "{error}");
    assert!(!Path::new("never").exists());
}

#[test]
fn an_output_that_cannot_be_written_is_reported_before_any_work() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing/out.safetensors");
    for out in [missing.to_str().unwrap(), folder.path().to_str().unwrap()] {
        let error = bitnet(&["logits", "synthetic:2b4t", "--ids", "1", "--out", out]).failure(1);
        assert!(error.contains("cannot write") && error.contains(out), "{error}");
    }
}
