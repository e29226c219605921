//! `best_of` and `suffix` of completions.

use bitnet::{
    inference::EngineConfig,
    model::{Checkpoint, Limits, Tokenizer},
};
use bitnet_hash_model::HashModel;
use bitnet_server::{App, ConnectionLimits, ServerConfig};
use serde_json::{Value, json};

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";

#[test]
fn of_several_choices_the_likeliest_are_returned_and_all_are_counted() {
    let server = demo_server();
    let body = json!({"prompt": ["First Citizen:", "O"], "max_tokens": 12, "temperature": 1, "seed": 4});
    let ask = |more: Value| {
        let mut body = body.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post(COMPLETIONS, &body).ok()
    };
    let all = ask(json!({"n": 5, "logprobs": 0}));
    let best = ask(json!({"n": 2, "best_of": 5}));
    assert_eq!(best["usage"], all["usage"]);
    let mean = |choice: &Value| {
        let each: Vec<f64> = serde_json::from_value(choice["logprobs"]["token_logprobs"].clone()).unwrap();
        each.iter().sum::<f64>() / each.len() as f64
    };
    let mut want = Vec::new();
    for choices in all["choices"].as_array().unwrap().chunks(5) {
        let mut choices: Vec<&Value> = choices.iter().collect();
        choices.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        want.extend(choices[..2].iter().map(|choice| choice["text"].clone()));
    }
    let texts: Vec<Value> =
        best["choices"].as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect();
    assert_eq!(texts, want);
    assert_ne!(
        want[..2],
        [all["choices"][0]["text"].clone(), all["choices"][1]["text"].clone()],
        "an order of its own"
    );
    assert!(best["choices"][0]["logprobs"].is_null(), "they were not asked for");
    let indices: Vec<&Value> =
        best["choices"].as_array().unwrap().iter().map(|choice| &choice["index"]).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_eq!(ask(json!({"n": 2, "best_of": 2}))["choices"], ask(json!({"n": 2}))["choices"]);
    let told = ask(json!({"best_of": 3, "logprobs": 1, "echo": true}));
    assert_eq!(told["choices"].as_array().unwrap().len(), 2);
    assert!(told["choices"][0]["text"].as_str().unwrap().starts_with("First Citizen:"), "{told}");
}

/// A tokenizer with tokens to fill in the middle.
fn filling() -> Tokenizer {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/bitnet-master/tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let next = Tokenizer::from_json(json.to_string().as_bytes()).unwrap().vocab_size();
    let added = json["added_tokens"].as_array_mut().unwrap();
    for (i, token) in ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"].into_iter().enumerate() {
        added.push(
            json!({"id": next + i, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}),
        );
    }
    Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
}

#[test]
fn a_gap_is_filled_where_the_vocabulary_has_tokens_for_it_and_refused_elsewhere() {
    let mut checkpoint = Checkpoint::demo().unwrap();
    let tokenizer = filling();
    let model = HashModel::new(
        tokenizer.vocab_size(),
        512,
        Limits { max_tokens: 64, max_logit_rows: 16, kv_blocks: 64, state_slots: 0 },
    );
    let encode = |text: &str| tokenizer.encode(text, false).unwrap();
    let id = |token: &str| vec![tokenizer.token_id(token).unwrap()];
    let prompt = |text: &str| {
        [
            tokenizer.prefix().to_vec(),
            id("<|fim_prefix|>"),
            encode(text),
            id("<|fim_suffix|>"),
            encode("return x"),
            id("<|fim_middle|>"),
        ]
        .concat()
    };
    checkpoint.defaults.eos = id("<|end_of_text|>");
    checkpoint.tokenizer = Some(tokenizer.clone());
    let service =
        serve_weights(checkpoint, Box::new(model), EngineConfig::default(), ServerConfig::default());
    let server = Server::start(App::ready(service), ConnectionLimits::default(), SOON);
    let ask = |prompt: Value, suffix: Value| {
        let body = json!({"prompt": prompt, "suffix": suffix, "max_tokens": 8, "temperature": 1, "seed": 3});
        server.post(COMPLETIONS, &body)
    };
    let filled = ask(json!(["def f", "x ="]), json!("return x")).ok();
    let ids = ask(json!([prompt("def f"), prompt("x =")]), Value::Null).ok();
    assert_eq!((&filled["choices"], &filled["usage"]), (&ids["choices"], &ids["usage"]));
    assert_eq!(
        ask(json!("def f"), json!("return x")).ok()["choices"][0]["text"],
        filled["choices"][0]["text"]
    );
    assert_eq!(ask(json!([1, 2]), json!("return x")).refusal(), (400, Some("prompt".into())));
    let echoed = json!({"prompt": "a", "suffix": "b", "echo": true});
    assert_eq!(server.post(COMPLETIONS, &echoed).refusal(), (400, Some("echo".into())));
    let without = demo_server().post(COMPLETIONS, &json!({"prompt": "a", "suffix": "b"}));
    assert_eq!(without.refusal(), (400, Some("suffix".into())));
    assert!(without.text().contains("no tokens to fill in the middle"), "{}", without.text());
}
