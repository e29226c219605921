//! Thoughts of a model whose template knows them: apart from the answer, within budgets, and before formats.

use std::path::Path;

use bitnet::{
    Effort, Message, Model, Piece, Request, Thinking,
    inference::EngineConfig,
    kernels::{Cpu, Isa},
    model::{ChatTemplate, Checkpoint, Limits, Tokenizer, Transformer},
};

fn fixture(name: &str) -> String {
    format!("{}/../../fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Random weights with a vocabulary that has the markers, and this template.
fn thinker(template: &str) -> Model {
    let mut checkpoint = Checkpoint::open(Path::new(&fixture("qwen3-unpacked"))).unwrap();
    let tokenizer = std::fs::read(fixture("thinking/tokenizer.json")).unwrap();
    checkpoint.tokenizer = Some(Tokenizer::from_json(&tokenizer).unwrap());
    let template = std::fs::read_to_string(fixture(&format!("thinking/templates/{template}.jinja"))).unwrap();
    checkpoint.chat = Some(ChatTemplate::new(&template, "", "").unwrap());
    let cpu = Cpu::new(Isa::named("auto").unwrap(), 1).unwrap();
    let limits = Limits { max_tokens: 64, max_logit_rows: 8, kv_blocks: 64, state_slots: 0 };
    let weights = Transformer::load(&checkpoint.spec, &*checkpoint.tensors, cpu, limits, &mut |_, _| {});
    Model::start(checkpoint, Box::new(weights.unwrap()), EngineConfig::default()).unwrap()
}

fn ask(budget: usize) -> Request {
    let budget =
        Thinking { budget: Some(budget), last_words: Some("\nEnough.".into()), ..Thinking::default() };
    Request::chat([Message::new("user", "Why?")]).thinking(budget).max_tokens(60).seed(4)
}

#[test]
fn a_thought_is_apart_from_the_text_in_answers_pieces_and_batches() {
    let model = thinker("xml");
    let answer = model.complete(ask(12)).unwrap();
    assert!(answer.thought.ends_with("Enough.") && answer.thought.len() > 10, "{answer:?}");
    assert!(!answer.text.is_empty() && !answer.text.contains("think>"), "{answer:?}");
    assert!((12..answer.tokens.len()).contains(&answer.thought_tokens), "{answer:?}");
    let whole = model.tokenizer().unwrap().decode(&answer.tokens, true).unwrap();
    assert!(whole.contains("\nEnough.\n</think>\n\n"), "{whole}");
    assert_eq!(answer.to_string(), answer.text);

    let pieces: Vec<Piece> = model.stream(ask(12)).unwrap().map(Result::unwrap).collect();
    let thought: String = pieces.iter().map(Piece::thought).collect();
    let text: String = pieces.iter().map(ToString::to_string).collect();
    assert_eq!((thought, text), (answer.thought.clone(), answer.text.clone()));
    let first_text = pieces.iter().position(|piece| matches!(piece, Piece::Text(_))).unwrap();
    assert!(pieces[first_text..].iter().all(|piece| matches!(piece, Piece::Text(_))));
    assert!(first_text > 3, "the thought comes in pieces too: {pieces:?}");

    let alone = [3, 12].map(|budget| model.complete(ask(budget)).unwrap());
    let together: Vec<_> = model.batch([ask(3), ask(12)]).into_iter().map(Result::unwrap).collect();
    assert_eq!(together, alone);
}

#[test]
fn a_model_does_not_think_if_it_is_told_not_to() {
    let model = thinker("xml");
    let without = |thinking: Thinking| {
        let answer = model.complete(ask(0).thinking(thinking).max_tokens(8)).unwrap();
        (answer.thought, answer.thought_tokens, answer.prompt_tokens)
    };
    let (thought, tokens, prompt) = without(false.into());
    assert_eq!((thought.as_str(), tokens), ("", 0));
    assert_eq!(without(Effort::None.into()), (thought.clone(), 0, prompt));
    assert_eq!(without(Thinking { budget: Some(0), ..Thinking::default() }), (thought, 0, prompt));
    assert!(without(true.into()).1 > 0);
    let raw = model.complete(Request::new("<think>\nSo").max_tokens(8)).unwrap();
    assert_eq!(raw.thought, "", "a text that is continued has no parts");
}

#[test]
fn a_format_begins_after_the_thought() {
    let model = thinker("xml");
    let answer = model.complete(ask(6).choice(["yes", "no"])).unwrap();
    assert!(answer.thought.ends_with("Enough."), "{answer:?}");
    assert!(["yes", "no"].contains(&answer.text.as_str()), "{answer:?}");
}

#[test]
fn earlier_thoughts_stay_in_the_prompt_unless_the_request_drops_them() {
    let model = thinker("xml");
    let said = |thinking: Thinking| {
        let earlier = Message { reasoning: Some("Hm.".into()), ..Message::new("assistant", "So.") };
        let messages = [Message::new("user", "Why?"), earlier, Message::new("user", "And?")];
        let tokens = model.encode(&Request::chat(messages).thinking(thinking)).unwrap();
        model.tokenizer().unwrap().decode(&tokens, false).unwrap()
    };
    assert!(said(Thinking::default()).contains("<think>\nHm.\n</think>\n\nSo."));
    assert!(!said(Thinking { keep: Some(false), ..Thinking::default() }).contains("Hm."));
}
