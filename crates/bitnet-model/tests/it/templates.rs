//! Which of a model's templates is used: in folders, in `tokenizer_config.json` and in GGUF files.

use bitnet_model::{Checkpoint, Message, ModelFiles, Target, TemplateInput, convert};
use bitnet_tensor::SharedBytes;
use serde_json::{Value, json};

use crate::support::{edited, fixture};

/// The prompts without and with a tool.
fn prompts(checkpoint: &Checkpoint) -> [String; 2] {
    let chat = checkpoint.chat.as_ref().unwrap();
    let tools = TemplateInput { tools: vec![r#"{"type": "function"}"#.into()], variables: Vec::new() };
    let user = [Message::new("user", "Hi")];
    [TemplateInput::default(), tools].map(|input| chat.render_with(&user, true, &input).unwrap())
}

/// A fixture with this `chat_template` in its configuration, and these files.
fn folder(in_config: Value, default: Option<&str>, tools: Option<&str>) -> Checkpoint {
    let read = |name: &str| std::fs::read(fixture("bitnet-packed").join(name)).unwrap();
    let mut config: Value = serde_json::from_slice(&read("tokenizer_config.json")).unwrap();
    config["chat_template"] = in_config;
    let bytes = |text: &str| SharedBytes::new(text.as_bytes().to_vec());
    let files = ModelFiles {
        config: SharedBytes::new(read("config.json")),
        tokenizer: Some(SharedBytes::new(read("tokenizer.json"))),
        tokenizer_config: Some(bytes(&config.to_string())),
        chat_template: default.map(bytes),
        tools_template: tools.map(bytes),
        ..ModelFiles::default()
    };
    Checkpoint::from_files("folder", &files, SharedBytes::new(read("model.safetensors"))).unwrap()
}

#[test]
fn a_conversation_with_tools_gets_the_template_named_tool_use() {
    let list = || {
        json!([
            {"name": "default", "template": "default"},
            {"name": "rag", "template": "rag"},
            {"name": "tool_use", "template": "tools {{ tools | length }}"},
        ])
    };
    assert_eq!(prompts(&folder(list(), None, None)), ["default", "tools 1"]);
    assert_eq!(prompts(&folder(json!("one"), None, None)), ["one", "one"]);
    // Files of their own replace what the configuration has.
    assert_eq!(prompts(&folder(list(), Some("file"), None)), ["file", "file"]);
    assert_eq!(prompts(&folder(json!("one"), Some("file"), Some("of tools"))), ["file", "of tools"]);
    assert!(folder(json!([{"name": "tool_use", "template": "x"}]), None, None).chat.is_none());
    let gguf = edited("bitnet-packed/model-I2_S.gguf", |gguf| {
        gguf.set_text("tokenizer.chat_template", "default");
        gguf.set_text("tokenizer.chat_template.tool_use", "tools {{ tools | length }}");
    });
    assert_eq!(prompts(&gguf.unwrap()), ["default", "tools 1"]);
}

#[test]
fn a_converted_model_keeps_both_templates() {
    let model = folder(json!("one"), Some("default"), Some("tools {{ tools | length }}"));
    let folder = tempfile::tempdir().unwrap();
    for (target, name) in [(Target::Tq2_0, "model.gguf"), (Target::Packed, "packed")] {
        let path = folder.path().join(name);
        convert(&model, target, &path, &mut |_, _| {}).unwrap();
        assert_eq!(prompts(&Checkpoint::open(&path).unwrap()), ["default", "tools 1"], "{name}");
    }
}

#[test]
fn the_placeholder_of_a_conversion_is_replaced_for_bitnet_models_only() {
    let placeholder = "{% for message in messages %}{% if message['role'] == 'user' %}\
        {{ 'Human: ' + message['content'] + '\n\nBITNETAssistant: ' }}{% endif %}{% endfor %}";
    let of = |path: &str| edited(path, |gguf| gguf.set_text("tokenizer.chat_template", placeholder)).unwrap();
    let bitnet = of("bitnet-packed/model-I2_S.gguf");
    assert_eq!(prompts(&bitnet)[0], "User: Hi<|eot_id|>Assistant: ");
    assert!(bitnet.warnings.iter().any(|warning| warning.contains("placeholder")), "{:?}", bitnet.warnings);
    let other = of("llama-bitlinear/model-I2_S.gguf");
    assert_eq!(prompts(&other)[0], "Human: Hi\n\nBITNETAssistant: ");
}
