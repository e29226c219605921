//! How models are found, and the errors for those that are not.

use bitnet::{Device, Error, KvType, Memory, Model, Request};

#[test]
fn what_cannot_be_opened_is_reported_in_one_line_with_its_cure() {
    let gpu = Model::builder().device(Device::Cuda(0)).cache(KvType::F32);
    let cases: [(&str, Result<Model, Error>); 4] = [
        ("no-such-folder", Model::open("no-such-folder")),
        ("synthetic:NAME", Model::open("synthetic:none")),
        ("(memory)", Model::builder().memory(Memory::Bytes(1000)).open("demo")),
        ("(cache)", gpu.open("demo")),
    ];
    for (place, opened) in cases {
        let error = opened.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(place) && text.contains("): ") && !text.contains('\n'), "{text}");
        assert!(!error.cure().is_empty() && text.ends_with(&error.cure()), "{text} / {}", error.cure());
    }
}

#[test]
fn a_model_without_a_tokenizer_takes_token_ids_and_reports_it() {
    let model = Model::open("synthetic:tiny").unwrap();
    let error = model.complete("words").unwrap_err();
    assert!(matches!(error, Error::NoTokenizer { .. }), "{error}");
    let answer = model.complete(Request::tokens([1, 2, 3]).max_tokens(4).seed(1)).unwrap();
    assert_eq!((answer.tokens.len(), answer.text.as_str(), answer.prompt_tokens), (4, "", 3));
}

#[test]
fn a_shorter_context_takes_less_memory_and_refuses_longer_prompts() {
    let open =
        |context| Model::builder().context(context).device(Device::Cpu).open("synthetic:tiny").unwrap();
    let (short, long) = (open(128), open(4096));
    let bytes = |model: &Model| model.plan().bytes.unwrap();
    assert!(bytes(&short) * 2 < bytes(&long), "{} {}", short.plan(), long.plan());
    let prompt = Request::tokens(vec![1; 200]).max_tokens(1);
    let error = short.complete(&prompt).unwrap_err();
    assert!(error.to_string().contains("128") && error.cure().contains("shorter prompt"), "{error}");
    assert!(long.complete(&prompt).is_ok());
    assert!(short.notes().is_empty(), "{:?}", short.notes());
}

#[test]
fn memory_is_read_as_people_write_it() {
    for (text, memory) in [("50%", Memory::Percent(50.0)), ("4GiB", Memory::Bytes(4 << 30))] {
        assert_eq!(text.parse(), Ok(memory));
    }
    assert!("half".parse::<Memory>().is_err());
}
