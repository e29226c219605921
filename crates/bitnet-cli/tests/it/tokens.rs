use crate::bitnet::{bitnet, bitnet_reading, fixture};

#[test]
fn a_text_becomes_a_json_array_with_the_models_first_token() {
    let model = fixture("bitnet-packed");
    let ids = bitnet(&["tokenize", &model, "Hello world 123"]).json();
    assert_eq!(ids[0], 509);
    assert!(ids.as_array().unwrap().len() > 1);
    assert_eq!(bitnet(&["tokenize", &model, "Hello world 123", "--json"]).json(), ids);
    assert_eq!(bitnet_reading("Hello world 123", &["tokenize", &model]).json(), ids);
}

#[test]
fn what_was_tokenized_comes_back_as_the_same_text() {
    let text = "Tabs\tand\n\nlines, 12345, it's caf\u{e9} \u{1f600} \u{4e2d}\u{6587}";
    for model in ["bitnet-packed", "llama-bitlinear", "bitnet-packed/model-I2_S.gguf"] {
        let model = fixture(model);
        let ids = bitnet(&["tokenize", &model, text]).success();
        assert_eq!(bitnet(&["detokenize", &model, &ids]).success(), format!("{text}\n"));
        let plain = ids.trim().trim_matches(['[', ']']).to_string();
        assert_eq!(bitnet(&["detokenize", &model, &plain]).success(), format!("{text}\n"));
    }
}

#[test]
fn control_tokens_are_shown_only_when_asked_for() {
    let model = fixture("bitnet-packed");
    assert_eq!(bitnet(&["detokenize", &model, "509"]).success(), "\n");
    assert_ne!(bitnet(&["detokenize", &model, "509", "--special"]).success(), "\n");
}

#[test]
fn stdin_that_is_not_text_is_reported_in_one_line() {
    use std::{fs, process::Stdio};

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bytes");
    fs::write(&file, [b'a', 0xFF, 0xFE]).unwrap();
    let mut command = crate::bitnet::command(&["tokenize", &fixture("bitnet-packed")]);
    let output = command.stdin(fs::File::open(file).unwrap()).stdout(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("UTF-8 from byte 1 on (stdin): convert it") && error.lines().count() == 1,
        "{error}"
    );
}
