//! Constraints after thoughts, and calls in the form that a model's template writes. A scripted model wants to write a
//! given text; the constraint decides what it may.

use std::collections::HashMap;

use bitnet::inference::EngineConfig;
use bitnet::model::{Batch, ChatTemplate, Checkpoint, Limits, Logits, Tokenizer};
use bitnet_hash_model::HashModel;
use bitnet_server::{App, ConnectionLimits, ServerConfig};
use serde_json::{Value, json};

use crate::{
    support::*,
    tools::{ARRAY, BARE, TAGGED, XML},
};

const CHAT: &str = "/v1/chat/completions";
/// Tokens that the demo's vocabulary gets in addition.
const MARKERS: [&str; 4] = ["<think>", "</think>", "<tool_call>", "</tool_call>"];

/// A template that opens a thought unless `enable_thinking` is false.
const THINKS: &str = "{% for m in messages %}({{ m.role }}){% if m.role == 'assistant' %}<think>\n\
    {{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}\
    {{ '\n\n' if loop.first and m.content else '' }}{{ '' if loop.first else '\n' }}<tool_call>\n\
    <function={{ c.function.name }}>\n{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n\
    {{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}(end){% endfor %}\
    {% if add_generation_prompt is not defined or add_generation_prompt %}(assistant)<think>\n\
    {% if enable_thinking is defined and enable_thinking is false %}\n</think>\n\n{% endif %}{% endif %}";

/// The demo's tokenizer with [`MARKERS`] as tokens of their own.
fn tokenizer(markers: bool) -> Tokenizer {
    let bytes = include_bytes!("../../../bitnet-model/demo/tokenizer.json");
    let mut file: Value = serde_json::from_slice(bytes).unwrap();
    let added = file["added_tokens"].as_array_mut().unwrap();
    for marker in MARKERS.iter().filter(|_| markers) {
        let (id, mut token) = (added.last().unwrap()["id"].as_u64().unwrap() + 1, added[0].clone());
        (token["id"], token["content"], token["special"]) = (json!(id), json!(marker), json!(false));
        added.push(token);
    }
    Tokenizer::from_json(&serde_json::to_vec(&file).unwrap()).unwrap()
}

/// A model that wants to write these tokens after a prompt of so many.
fn server(template: &str, markers: bool, prompt: usize, script: &[u32]) -> Server {
    let mut checkpoint = Checkpoint::demo().unwrap();
    checkpoint.chat = Some(ChatTemplate::new(template, "", "").unwrap());
    let tokenizer = tokenizer(markers);
    let vocab = tokenizer.vocab_size();
    checkpoint.tokenizer = Some(tokenizer);
    let eot = checkpoint.defaults.eos[0];
    let wanted: HashMap<usize, u32> =
        script.iter().copied().chain([eot]).enumerate().map(|(i, id)| (prompt + i - 1, id)).collect();
    let lead = move |batch: &Batch, logits: Option<&mut Logits>| {
        let Some(logits) = logits else { return Ok(()) };
        let ends: HashMap<usize, usize> =
            batch.runs().iter().map(|run| (run.tokens.end - 1, run.start + run.tokens.len() - 1)).collect();
        for (row, index) in batch.logit_rows().iter().enumerate() {
            if let Some(&id) = ends.get(index).and_then(|position| wanted.get(position)) {
                logits.row_mut(row)[id as usize] = 1e4;
            }
        }
        Ok(())
    };
    let limits = Limits { max_tokens: 64, max_logit_rows: 16, kv_blocks: 512, state_slots: 0 };
    let model = HashModel::new(vocab, 4096, limits).with_hook(Box::new(lead));
    let service =
        serve_weights(checkpoint, Box::new(model), EngineConfig::default(), ServerConfig::default());
    Server::start(App::ready(service), ConnectionLimits::default(), SOON)
}

/// Asks a model that wants to write `text`, and returns the first choice.
fn written(template: &str, markers: bool, text: &str, body: &Value) -> Value {
    let tokens = tokenizer(markers).encode(text, false).unwrap();
    written_in(template, markers, &tokens, body)
}

fn written_in(template: &str, markers: bool, script: &[u32], body: &Value) -> Value {
    let prompt = prompt(template, markers, body);
    let reply = server(template, markers, prompt.len(), script).post(CHAT, body);
    reply.ok()["choices"][0].clone()
}

fn prompt(template: &str, markers: bool, body: &Value) -> Vec<u64> {
    let mut asked = json!({"messages": body["messages"]});
    for field in ["tools", "chat_template_kwargs"] {
        if let Some(value) = body.get(field) {
            asked[field] = value.clone();
        }
    }
    let tokens = server(template, markers, 1, &[]).post("/tokenize", &asked).ok()["tokens"].clone();
    serde_json::from_value(tokens).unwrap()
}

fn ask(more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Rain?"}], "max_tokens": 300, "temperature": 0,
        "return_token_ids": true,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn generated(choice: &Value) -> Vec<u64> {
    serde_json::from_value(choice["token_ids"].clone()).unwrap()
}

fn text_of(choice: &Value) -> String {
    let ids: Vec<u32> = serde_json::from_value(choice["token_ids"].clone()).unwrap();
    tokenizer(true).decode(&ids, true).unwrap()
}

fn yes_or_no() -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "object", "properties": {"rain": {"type": "boolean"}}, "required": ["rain"],
        "additionalProperties": false}}}})
}

fn weather() -> Value {
    json!([{"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "hot": {"type": "boolean"},
            "spots": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
    }}}])
}

#[test]
fn a_format_begins_after_the_thought_and_the_templates_gap() {
    let json = "{\"rain\":true}";
    for (markers, wanted, shown) in [
        (true, "Clouds.\n</think>\n\n{\"rain\":true}", "Clouds.\n</think>\n\n{\"rain\":true}"),
        // The gap is written as the template writes it, whatever the model wants.
        (true, "Clouds.</think>xxxx{\"rain\":true}", "Clouds.</think>\n\n"),
        (true, "</think>\n\n{\"rain\":true}", "</think>\n\n{\"rain\":true}"),
        (false, "Clouds.\n</think>\n\n{\"rain\":true}", "Clouds.\n</think>\n\n{\"rain\":true}"),
    ] {
        let choice = written(THINKS, markers, wanted, &ask(yes_or_no()));
        let text = if markers {
            text_of(&choice)
        } else {
            choice["message"]["content"].as_str().unwrap_or_default().to_owned()
        };
        assert!(text.starts_with(shown) || json.starts_with(&text), "{wanted:?}: {text}");
        let (_, answer) = text.rsplit_once("\n\n").unwrap_or(("", &text));
        let answer: Value = serde_json::from_str(answer).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(answer["rain"].is_boolean(), "{text}");
        assert_eq!(choice["finish_reason"], "stop");
    }
}

#[test]
fn without_a_thought_a_format_begins_at_once() {
    let off = json!({"chat_template_kwargs": {"enable_thinking": false}});
    let mut body = ask(yes_or_no());
    body.as_object_mut().unwrap().extend(off.as_object().unwrap().clone());
    let choice = written(THINKS, true, "{\"rain\":false}", &body);
    assert_eq!(text_of(&choice), "{\"rain\":false}");
}

#[test]
fn a_thought_that_never_ends_leaves_no_room_for_the_format() {
    let mut body = ask(yes_or_no());
    body["max_tokens"] = json!(6);
    let choice = written(THINKS, true, "one two three four five six seven eight", &body);
    assert_eq!(choice["finish_reason"], "length");
}

#[test]
fn a_format_that_allows_nothing_but_the_end_ends_after_the_gap() {
    let body = ask(json!({"guided_regex": "x?"}));
    let choice = written(THINKS, true, "So.\n</think>\n\n", &body);
    assert_eq!(
        (text_of(&choice).trim_end_matches('x'), &choice["finish_reason"]),
        ("So.\n</think>\n\n", &json!("stop"))
    );
}

/// A whole turn, sent back, must have the tokens with which it was generated.
fn comes_back(template: &str, wanted: &str, body: &Value) -> Value {
    let script = tokenizer(true).encode(wanted, false).unwrap();
    let begun = prompt(template, true, body);
    let choice = server(template, true, begun.len(), &script).post(CHAT, body).ok()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
    let calls = choice["message"]["tool_calls"].clone();
    let message = json!({"role": "assistant", "content": choice["message"]["content"], "tool_calls": calls});
    let mut next = body.clone();
    let id = calls[0]["id"].clone();
    next["messages"].as_array_mut().unwrap().push(message);
    next["messages"]
        .as_array_mut()
        .unwrap()
        .push(json!({"role": "tool", "tool_call_id": id, "content": "yes"}));
    let whole = [begun, generated(&choice)].concat();
    let again = prompt(template, true, &next);
    assert!(again.starts_with(&whole), "{:?} {}", text_of(&choice), &choice);
    choice
}

#[test]
fn a_call_in_tags_is_forced_and_read_in_that_form_and_comes_back_with_the_same_tokens() {
    let call = "<tool_call>\n<function=weather>\n<parameter=city>\nSan \"José\"\n\nhere!\n</parameter>\n<parameter=days>\n12\n\
                </parameter>\n<parameter=hot>\ntrue\n</parameter>\n<parameter=spots>\n[\"a\", \"b\"]\n</parameter>\n</function>\n</tool_call>";
    let read = json!({"city": "San \"José\"\n\nhere!", "days": 12, "hot": true, "spots": ["a", "b"]});
    for choice in ["auto", "required"] {
        let body = ask(json!({"tools": weather(), "tool_choice": choice, "parallel_tool_calls": false}));
        let choice = comes_back(XML, call, &body);
        let function = &choice["message"]["tool_calls"][0]["function"];
        let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        assert_eq!((arguments, &function["name"]), (read.clone(), &json!("weather")));
        assert_eq!(choice["message"]["content"], Value::Null);
    }
    let swapped = "<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n<parameter=city>\n42\n</parameter>\n\
                   </function>\n</tool_call>\n<tool_call>\n<function=weather>\n<parameter=city>\n\n</parameter>\n</function>\n</tool_call>";
    let body = ask(json!({"tools": weather(), "tool_choice": "required"}));
    let choice = comes_back(XML, swapped, &body);
    let arguments = |i: usize| choice["message"]["tool_calls"][i]["function"]["arguments"].clone();
    assert_eq!(
        [arguments(0), arguments(1)],
        [json!("{\"days\": 3, \"city\": \"42\"}"), json!("{\"city\": \"\"}")]
    );
}

#[test]
fn a_call_follows_the_thought_and_the_text_before_it() {
    let one =
        "<tool_call>\n<function=weather>\n<parameter=city>\nBath\n</parameter>\n</function>\n</tool_call>";
    for (choice, before) in [
        ("auto", "Rain?\n</think>\n\nI look.\n\n"),
        ("auto", "Rain?\n</think>\n\n"),
        ("required", "Rain?\n</think>\n\n"),
    ] {
        let body = ask(json!({"tools": weather(), "tool_choice": choice, "parallel_tool_calls": false}));
        let choice = written(THINKS, true, &format!("{before}{one}"), &body);
        assert_eq!(text_of(&choice), format!("{before}{one}"), "the text that the template writes");
        assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\": \"Bath\"}");
    }
}

#[test]
fn the_token_of_a_call_closes_an_open_thought_before_it() {
    let tokens = |text: &str| tokenizer(true).encode(text, false).unwrap();
    let rest = "\n<function=weather>\n<parameter=city>\nBath\n</parameter>\n</function>\n</tool_call>";
    let (thought, closed) = (tokens("I must look.\n"), tokens("</think>\n\n<tool_call>"));
    // The model goes on with the call only after what is written instead.
    let script = [&thought, &tokens("<tool_call>"), &closed[1..], &tokens(rest)].concat();
    for choice in ["auto", "required"] {
        let body = ask(json!({"tools": weather(), "tool_choice": choice, "parallel_tool_calls": false}));
        let choice = written_in(THINKS, true, &script, &body);
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        assert_eq!(text_of(&choice), format!("I must look.\n</think>\n\n<tool_call>{rest}"));
        assert_eq!(choice["message"]["reasoning_content"], "I must look.");
        assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\": \"Bath\"}");
    }
}

#[test]
fn text_that_a_grammar_forces_has_the_tokens_of_a_prompt() {
    let forced = json!([{"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Bath, Spa!"]}, "days": {"enum": [3]}},
        "required": ["city", "days"]}}}]);
    for template in [TAGGED, BARE] {
        let body = ask(json!({"tools": forced, "tool_choice": "required", "parallel_tool_calls": false}));
        comes_back(template, "", &body);
    }
}

#[test]
fn several_calls_are_one_array_where_the_template_writes_one() {
    let two = "<tool_call>\n[\n  {\"name\": \"weather\", \"arguments\": {\"city\": \"Bath\"}},\n  {\"name\": \"weather\", \
               \"arguments\": {\"city\": \"Rome\"}}\n]\n</tool_call>";
    for choice in ["auto", "required"] {
        let body = ask(json!({"tools": weather(), "tool_choice": choice}));
        let choice = written(ARRAY, true, two, &body);
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        let cities = calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap());
        assert_eq!(cities.collect::<Vec<_>>(), ["{\"city\": \"Bath\"}", "{\"city\": \"Rome\"}"], "{choice}");
    }
}

#[test]
fn parameters_in_tags_follow_their_schemas() {
    let tool = |schema: Value| {
        json!([{"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"x": schema}, "required": ["x"], "$defs": {"n": {"type": "integer"}}}}}])
    };
    type Allowed = fn(&str) -> bool;
    // What the model wants to write, and the values that it may.
    let cases: [(Value, &str, Allowed); 10] = [
        (json!({"type": "string", "maxLength": 3}), "abcdef", |x| x.chars().count() <= 3),
        (json!({"type": "string", "pattern": "^[ab]{2}$"}), "xyz", |x| {
            x.len() == 2 && x.bytes().all(|b| b"ab".contains(&b))
        }),
        (json!({"type": "string", "minLength": 2, "maxLength": 2}), "a", |x| x.chars().count() == 2),
        (json!({"enum": ["Bath", "Rome"]}), "Oslo", |x| ["Bath", "Rome"].contains(&x)),
        (json!({"const": "only this"}), "that", |x| x == "only this"),
        (json!({"type": "integer"}), "12345678901234567890123", |x| {
            x.parse::<i128>().is_ok() && x.len() <= 21
        }),
        (json!({"type": "integer", "minimum": 5, "maximum": 7}), "9", |x| ["5", "6", "7"].contains(&x)),
        (json!({"$ref": "#/$defs/n"}), "x", |x| x.parse::<i128>().is_ok() && x.len() <= 21),
        (json!({"type": ["boolean", "null"]}), "maybe", |x| ["true", "false", "null"].contains(&x)),
        (json!({"anyOf": [{"const": 1}, {"type": "boolean"}]}), "2", |x| ["1", "true", "false"].contains(&x)),
    ];
    for (schema, wanted, allowed) in cases {
        let text = format!(
            "<tool_call>\n<function=f>\n<parameter=x>\n{wanted}\n</parameter>\n</function>\n</tool_call>"
        );
        let body = ask(
            json!({"tools": tool(schema.clone()), "tool_choice": "required", "parallel_tool_calls": false}),
        );
        let choice = written(XML, true, &text, &body);
        let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
        let value: Value = serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{e}: {arguments}"));
        let value = value["x"].as_str().map_or(value["x"].to_string(), str::to_owned);
        assert!(allowed(&value), "{schema}: {value:?}");
    }
}

#[test]
fn a_schema_that_a_grammar_cannot_hold_is_relaxed_with_a_warning_or_refused_by_name() {
    for template in [XML, TAGGED] {
        let impossible = json!({"type": "string", "pattern": "(?=x)y"});
        let tools = json!([
            {"type": "function", "function": {"name": "odd", "parameters":
                {"type": "object", "properties": {"x": impossible}, "required": ["x"]}}},
            weather()[0],
        ]);
        let body = |choice: Value| ask(json!({"tools": tools, "tool_choice": choice}));
        let server = server(template, true, 1, &[]);
        let reply = server.post(CHAT, &body(json!("auto")));
        assert_eq!(reply.header("x-relaxed-tools"), Some("odd"), "{}", reply.text());
        assert_eq!(reply.status, 200);
        for choice in [json!("required"), json!({"type": "function", "function": {"name": "odd"}})] {
            let reply = server.post(CHAT, &body(choice));
            assert_eq!(reply.refusal(), (400, Some("tools".into())));
            assert!(reply.text().contains("odd"), "{}", reply.text());
        }
        let reply = server.post(CHAT, &body(json!({"type": "function", "function": {"name": "weather"}})));
        assert_eq!((reply.status, reply.header("x-relaxed-tools")), (200, None), "{}", reply.text());
    }
}

#[test]
fn arguments_of_an_earlier_call_may_be_empty_and_types_may_be_listed() {
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": ["object"]}}}]);
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}});
    let messages = json!([{"role": "user", "content": "Hi"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "r"}]);
    let server = server(TAGGED, true, 1, &[]);
    let tokens =
        server.post("/tokenize", &json!({"messages": messages, "tools": tools})).ok()["tokens"].clone();
    let text = server.post("/detokenize", &json!({"tokens": tokens})).ok()["prompt"].clone();
    assert!(text.as_str().unwrap().contains("\"arguments\": {}"), "{text}");
}

#[test]
fn an_answer_that_is_cut_off_in_a_call_shows_no_markup() {
    let call = "I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nBath\n</parameter>\n</function>\n</tool_call>";
    for choice in ["auto", "required"] {
        for max_tokens in 1..24 {
            let body = ask(json!({"tools": weather(), "tool_choice": choice, "max_tokens": max_tokens}));
            let text = if choice == "auto" { call } else { &call["I look.\n\n".len()..] };
            let choice = written(XML, true, text, &body);
            assert_eq!(choice["finish_reason"], "length", "{choice}");
            let content = choice["message"]["content"].as_str().unwrap_or_default();
            assert!("I look.".starts_with(content), "{content:?} after {max_tokens} tokens");
        }
    }
}
