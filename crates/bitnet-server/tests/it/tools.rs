//! Tools: what a model of random numbers writes under a grammar is still a valid call.

use std::collections::HashMap;

use bitnet::inference::EngineConfig;
use bitnet::model::{Batch, ChatTemplate, Checkpoint, Limits, Logits, Tokenizer};
use bitnet_hash_model::{HashModel, Hook};
use bitnet_server::{App, ConnectionLimits, ServerConfig};
use serde_json::{Value, json};

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

/// As Qwen 3 and Hermes write calls.
pub const TAGGED: &str = "{% if tools %}[tools]{% for t in tools %}{{ t | tojson }}{% endfor %} {% endif %}\
    {% for m in messages %}[{{ m.role }}]{{ m.content or '' }}{% for c in m.tool_calls or [] %}\n<tool_call>\n\
    {\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}\
    {% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
/// As Llama 3 writes calls.
pub const BARE: &str = "{% if tools %}[ipython]{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}\
    {% for m in messages %}({{ m.role }}): {% if m.tool_calls %}{% if m.tool_calls | length > 1 %}\
    {{ raise_exception('one call at a time') }}{% endif %}{% set c = m.tool_calls[0].function %}\
    {\"name\": \"{{ c.name }}\", \"parameters\": {{ c.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}{% endfor %}\
    {% if add_generation_prompt %}(assistant): {% endif %}";
/// As Qwen 3.5 and later write calls.
pub const XML: &str = "{% if tools %}[tools]{% for t in tools %}{{ t | tojson }}{% endfor %} {% endif %}\
    {% for m in messages %}[{{ m.role }}]{{ m.content or '' }}{% for c in m.tool_calls or [] %}\
    {{ '\n\n' if loop.first and m.content else '' }}{{ '' if loop.first else '\n' }}<tool_call>\n\
    <function={{ c.function.name }}>\n{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n\
    {{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}{% endfor %}\
    {% if add_generation_prompt %}[assistant]{% endif %}";
/// As Falcon 3 writes calls.
pub const ARRAY: &str = "{% if tools %}[tools]{% for t in tools %}{{ t | tojson }}{% endfor %} {% endif %}\
    {% for m in messages %}[{{ m.role }}]{{ m.content or '' }}{% if m.tool_calls %}\n<tool_call>\n\
    {{ m.tool_calls | tojson }}\n</tool_call>{% endif %}{% endfor %}\
    {% if add_generation_prompt %}[assistant]{% endif %}";
/// A template that knows no tools.
pub const PLAIN: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]";
pub const TEMPLATES: [&str; 5] = [TAGGED, BARE, XML, ARRAY, PLAIN];

/// Text that a model writes after a prompt of so many tokens, before it goes on by itself.
#[derive(Clone, Default)]
pub struct Script(HashMap<usize, u32>);

impl Script {
    pub fn new(text: &str, prompt: usize) -> Self {
        let ids = tokenizer().encode(text, false).unwrap();
        // The token that is drawn after position p is that of p + 1.
        Script(ids.into_iter().enumerate().map(|(i, id)| (prompt + i - 1, id)).collect())
    }

    fn lead(&self, batch: &Batch, logits: &mut Logits) {
        let ends: HashMap<usize, usize> =
            batch.runs().iter().map(|run| (run.tokens.end - 1, run.start + run.tokens.len() - 1)).collect();
        for (row, index) in batch.logit_rows().iter().enumerate() {
            if let Some(&id) = ends.get(index).and_then(|position| self.0.get(position)) {
                logits.row_mut(row)[id as usize] = 1e4;
            }
        }
    }
}

fn tokenizer() -> Tokenizer {
    Checkpoint::demo().unwrap().tokenizer.unwrap()
}

/// A model of random numbers with the demo's vocabulary.
pub fn random(template: &str, script: Script) -> Server {
    hooked(
        template,
        Box::new(move |batch: &Batch, logits: Option<&mut Logits>| {
            logits.into_iter().for_each(|logits| script.lead(batch, logits));
            Ok(())
        }),
    )
}

/// As [`random`], with a hook that sees every step.
pub fn hooked(template: &str, hook: Hook) -> Server {
    let mut checkpoint = Checkpoint::demo().unwrap();
    checkpoint.chat = Some(ChatTemplate::new(template, "", "").unwrap());
    let vocab = tokenizer().vocab_size();
    let limits = Limits { max_tokens: 64, max_logit_rows: 16, kv_blocks: 512, state_slots: 0 };
    let model = HashModel::new(vocab, 4096, limits).with_hook(hook);
    let (engine, config) = (EngineConfig::default(), ServerConfig::default());
    let service = serve_weights(checkpoint, Box::new(model), engine, config);
    Server::start(App::ready(service), ConnectionLimits::default(), SOON)
}

pub fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "weather", "description": "The weather of a city.", "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "unit": {"enum": ["C", "F"]},
            },
            "required": ["city", "days", "unit"],
        }}},
        {"type": "function", "function": {"name": "now"}},
    ])
}

fn ask(more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "What is the weather?"}], "tools": tools(), "max_tokens": 400,
        "temperature": 1,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Checks a call against its schema, and gives its name.
fn checked(call: &Value) -> String {
    assert_eq!(call["type"], "function", "{call}");
    assert!(call["id"].as_str().unwrap().starts_with("call_"), "{call}");
    let text = call["function"]["arguments"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let name = call["function"]["name"].as_str().unwrap();
    match name {
        "now" => assert_eq!(arguments, json!({})),
        "weather" => {
            assert_eq!(arguments.as_object().unwrap().len(), 3, "{text}");
            assert!(arguments["city"].as_str().unwrap().chars().count() <= 12, "{text}");
            assert!((1..=9).contains(&arguments["days"].as_u64().unwrap()), "{text}");
            assert!(["C", "F"].contains(&arguments["unit"].as_str().unwrap()), "{text}");
        }
        other => panic!("{other} was not offered"),
    }
    name.to_owned()
}

#[test]
fn a_required_call_is_valid_whatever_the_model() {
    let mut names = Vec::new();
    for template in TEMPLATES {
        let server = random(template, Script::default());
        for seed in 0..6 {
            let choice = json!({"tool_choice": "required", "seed": seed, "n": 2, "parallel_tool_calls": seed % 2 == 0});
            let answer = server.post(CHAT, &ask(choice)).ok();
            for choice in answer["choices"].as_array().unwrap() {
                assert_eq!(choice["finish_reason"], "tool_calls", "{template}: {choice}");
                assert_eq!(choice["message"]["content"], Value::Null, "{choice}");
                let calls = choice["message"]["tool_calls"].as_array().unwrap();
                assert!(calls.len() == 1 || seed % 2 == 0 && template != BARE, "{choice}");
                names.extend(calls.iter().map(checked));
                let ids: Vec<&str> = calls.iter().map(|call| call["id"].as_str().unwrap()).collect();
                assert!(ids.iter().enumerate().all(|(i, id)| !ids[..i].contains(id)), "{ids:?}");
            }
        }
    }
    assert!(names.contains(&"now".into()) && names.contains(&"weather".into()), "{names:?}");
}

#[test]
fn a_named_tool_is_the_one_that_is_called() {
    for template in TEMPLATES {
        let server = random(template, Script::default());
        let named = json!({"type": "function", "function": {"name": "weather"}});
        let some = json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools":
            [{"type": "function", "function": {"name": "weather"}}]}});
        for (seed, choice) in [named, some].into_iter().enumerate() {
            let answer = server.post(CHAT, &ask(json!({"tool_choice": choice, "seed": seed}))).ok();
            let calls = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap();
            assert!(!calls.is_empty() && calls.iter().all(|call| checked(call) == "weather"), "{answer}");
        }
    }
}

#[test]
fn the_real_demo_calls_too_and_alone_as_in_a_crowd() {
    let server = demo_server();
    let body = |seed: u64| {
        let mut body = ask(json!({"tool_choice": "required", "seed": seed, "max_tokens": 120}));
        body["tools"].as_array_mut().unwrap().remove(0);
        body
    };
    let choices = |body: &Value| {
        let mut answer = server.post(CHAT, body).ok()["choices"].clone();
        for choice in answer.as_array_mut().unwrap() {
            for call in choice["message"]["tool_calls"].as_array_mut().unwrap() {
                assert_eq!(checked(call), "now");
                call["id"].take();
            }
        }
        answer
    };
    let alone: Vec<Value> = (0..4).map(|seed| choices(&body(seed))).collect();
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..4).map(|seed| scope.spawn(move || choices(&body(seed)))).collect();
        for (asked, alone) in asked.into_iter().zip(&alone) {
            assert_eq!(asked.join().unwrap(), *alone);
        }
    });
}

/// The deltas of a stream put together as clients do.
fn together(events: &[String]) -> (String, Vec<Value>, String) {
    let (mut content, mut calls, mut finish) = (String::new(), Vec::<Value>::new(), String::new());
    for event in events.iter().filter(|event| id_of(event).is_some()) {
        let choice = &data_of(event)["choices"][0];
        content += choice["delta"]["content"].as_str().unwrap_or_default();
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            let part = call["function"]["arguments"].as_str().unwrap();
            match calls.get_mut(index) {
                None => {
                    assert_eq!(index, calls.len());
                    let mut first = call.clone();
                    first.as_object_mut().unwrap().remove("index");
                    calls.push(first);
                }
                Some(whole) => {
                    assert!(call.get("id").is_none() && call["function"].get("name").is_none(), "{call}");
                    let arguments = whole["function"]["arguments"].as_str().unwrap().to_owned() + part;
                    whole["function"]["arguments"] = arguments.into();
                }
            }
        }
        finish += choice["finish_reason"].as_str().unwrap_or_default();
    }
    (content, calls, finish)
}

#[test]
fn a_stream_sends_the_same_calls_piece_by_piece_and_can_be_resumed() {
    for template in TEMPLATES {
        let server = random(template, Script::default());
        let named = json!({"type": "function", "function": {"name": "weather"}});
        let body = |stream: bool| ask(json!({"tool_choice": named, "seed": 5, "stream": stream}));
        let whole = server.post(CHAT, &body(false)).ok();
        let events: Vec<String> = server.stream(CHAT, &[], &body(true)).collect();
        let (content, calls, finish) = together(&events);
        assert_eq!((content.as_str(), finish.as_str()), ("", "tool_calls"));
        let unnamed = |calls: &[Value]| calls.iter().map(|call| call["function"].clone()).collect::<Vec<_>>();
        assert_eq!(
            unnamed(&calls),
            unnamed(whole["choices"][0]["message"]["tool_calls"].as_array().unwrap())
        );
        calls.iter().for_each(|call| drop(checked(call)));
        assert!(
            events.iter().filter(|event| event.contains("tool_calls\":[")).count() > 3,
            "a piece at a time"
        );
        assert_eq!(data_of(&events[0])["choices"][0]["delta"]["role"], "assistant");
        let at = events.len() / 2;
        let headers = [("last-event-id", id_of(&events[at]).unwrap())];
        let rest: Vec<String> = server.stream(CHAT, &headers, &body(true)).collect();
        assert_eq!(rest, events[at + 1..], "the rest of a stream, byte for byte");
    }
}

#[test]
fn a_free_answer_becomes_a_valid_call_once_one_has_begun() {
    for (template, begun, said) in [
        (TAGGED, "Let me see. <tool_call>", "Let me see."),
        (TAGGED, "<tool_call>", ""),
        (PLAIN, "I call.\n\n<tool_call>\n", "I call."),
        (BARE, "{\"name\": \"", ""),
        (BARE, " {\"name\":", ""),
    ] {
        let prompt = {
            let server = random(template, Script::default());
            let body = ask(json!({}));
            let prompt = json!({"messages": body["messages"], "tools": body["tools"]});
            server.post("/tokenize", &prompt).ok()["count"].as_u64().unwrap() as usize
        };
        let server = random(template, Script::new(begun, prompt));
        for seed in 0..4 {
            let answer = server.post(CHAT, &ask(json!({"seed": seed, "parallel_tool_calls": false}))).ok();
            let choice = &answer["choices"][0];
            assert_eq!(choice["finish_reason"], "tool_calls", "{begun:?} {choice}");
            let calls = choice["message"]["tool_calls"].as_array().unwrap();
            assert_eq!(calls.len(), 1, "{choice}");
            checked(&calls[0]);
            assert_eq!(choice["message"]["content"].as_str().unwrap_or_default(), said, "{choice}");
        }
        // With several calls the answer goes on freely after each.
        let answer = server.post(CHAT, &ask(json!({"seed": 1}))).ok();
        checked(&answer["choices"][0]["message"]["tool_calls"][0]);
    }
}

#[test]
fn an_answer_that_calls_nothing_is_the_same_text_as_without_tools() {
    let server = random(PLAIN, Script::default());
    let plain = json!({"messages": [{"role": "user", "content": "O"}], "max_tokens": 40, "seed": 3, "temperature": 1});
    let mut none = plain.clone();
    (none["tools"], none["tool_choice"]) = (tools(), json!("none"));
    assert_eq!(server.post(CHAT, &plain).ok()["choices"], server.post(CHAT, &none).ok()["choices"]);
    // A template that is told of tools by its own text: only the prompt differs, not what follows it.
    let text = "[system]{}[user]O[assistant]";
    let ids = |body: &Value| server.post("/tokenize", body).ok()["tokens"].clone();
    let told = json!({"messages": [{"role": "user", "content": "O"}], "tools": tools()});
    let prompt = ids(&told);
    assert_ne!(prompt, ids(&json!({"prompt": text})));
    let mut auto = plain.clone();
    (auto["tools"], auto["tool_choice"]) = (tools(), json!("auto"));
    let raw = json!({"prompt": prompt, "max_tokens": 40, "seed": 3, "temperature": 1});
    let answered = server.post(CHAT, &auto).ok()["choices"][0]["message"]["content"].clone();
    assert_eq!(answered, server.post("/v1/completions", &raw).ok()["choices"][0]["text"]);
}

#[test]
fn a_call_that_is_cut_off_returns_what_there_is_and_why() {
    let server = random(TAGGED, Script::default());
    let named = json!({"type": "function", "function": {"name": "weather"}});
    let whole = server.post(CHAT, &ask(json!({"tool_choice": named, "seed": 2}))).ok();
    let tokens = whole["usage"]["completion_tokens"].as_u64().unwrap();
    let all =
        whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap().to_owned();
    for max_tokens in 1..tokens {
        let answer =
            server.post(CHAT, &ask(json!({"tool_choice": named, "seed": 2, "max_tokens": max_tokens}))).ok();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "length", "{choice}");
        match choice["message"].get("tool_calls") {
            Some(calls) => {
                // The last token may end within a character.
                let begun = calls[0]["function"]["arguments"].as_str().unwrap().trim_end_matches('\u{fffd}');
                assert!(all.starts_with(begun), "{choice}")
            }
            None => assert_eq!(choice["message"]["content"], "", "{choice}"),
        }
    }
}

#[test]
fn a_conversation_with_calls_is_written_by_the_template_or_as_text() {
    let messages = json!([
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{\"z\": 1, \"city\": \"Bath\"}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "yes"},
    ]);
    let written = |template: &str, more: Value| {
        let server = random(template, Script::default());
        let mut body = json!({"messages": messages});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let tokens = server.post("/tokenize", &body).ok()["tokens"].clone();
        server.post("/detokenize", &json!({"tokens": tokens})).ok()["prompt"].as_str().unwrap().to_owned()
    };
    let called =
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"z\": 1, \"city\": \"Bath\"}}\n</tool_call>";
    assert_eq!(written(TAGGED, json!({})), format!("[user]Rain?[assistant]{called}[tool]yes[assistant]"));
    let tool = json!({"type": "function", "function": {"name": "now", "description": "The time."}});
    let told = written(TAGGED, json!({"tools": [tool]}));
    let first =
        "[tools]{\"type\": \"function\", \"function\": {\"name\": \"now\", \"description\": \"The time.\"}} ";
    assert!(told.starts_with(first), "fields stay in their order: {told}");
    let called =
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"z\": 1, \"city\": \"Bath\"}}\n</tool_call>";
    let answered = "<tool_response>\nyes\n</tool_response>";
    assert_eq!(
        written(PLAIN, json!({})),
        format!("[user]Rain?[assistant]{called}[user]{answered}[assistant]")
    );
    let told = written(PLAIN, json!({"tools": [tool]}));
    assert!(told.starts_with("[system]You may call") && told.contains("\"name\":\"now\""), "{told}");
}

#[test]
fn a_format_and_tools_together_give_one_or_the_other() {
    let server = random(TAGGED, Script::default());
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema":
        {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false}}});
    let mut seen = [0, 0];
    for seed in 0..12 {
        let messages = json!([{"role": "user", "content": format!("Number {seed}?")}]);
        let body = ask(json!({"response_format": format, "seed": seed, "messages": messages}));
        let answer = server.post(CHAT, &body).ok();
        let message = &answer["choices"][0]["message"];
        match message["content"].as_str() {
            Some(text) => {
                assert!(["{\"ok\":true}", "{\"ok\":false}"].contains(&text), "{text}");
                seen[0] += 1;
            }
            None => {
                message["tool_calls"].as_array().unwrap().iter().for_each(|call| drop(checked(call)));
                seen[1] += 1;
            }
        }
    }
    assert!(seen.iter().all(|&n| n > 0), "{seen:?}");
}

#[test]
fn what_is_wrong_with_tools_is_refused_by_name() {
    let server = random(TAGGED, Script::default());
    let function = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    for (more, param) in [
        (json!({"tools": [{"type": "custom", "custom": {"name": "x"}}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (json!({"tools": {"type": "function"}}), "tools"),
        (function(json!({})), "tools[0].function.name"),
        (function(json!({"name": "two words"})), "tools[0].function.name"),
        (function(json!({"name": "f", "parameters": []})), "tools[0].function.parameters"),
        (function(json!({"name": "f", "parameters": {"type": "string"}})), "tools[0].function.parameters"),
        (
            json!({"tool_choice": "required", "tools": [{"type": "function", "function":
                {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "strng"}}}}}]}),
            "tools",
        ),
        (function(json!({"name": "f", "paramters": {}})), "tools[0].function.paramters"),
        (json!({"tools": [tools()[1], tools()[1]]}), "tools[1].function.name"),
        (json!({"tools": vec![tools()[1].clone(); 129]}), "tools"),
        (json!({"tools": [], "tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": "sometimes"}), "tool_choice"),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "other"}}}),
            "tool_choice.function.name",
        ),
        (json!({"tool_choice": {"type": "custom"}}), "tool_choice.type"),
        (json!({"ignore_eos": true}), "ignore_eos"),
        (json!({"min_tokens": 5}), "min_tokens"),
        (json!({"chat_template_kwargs": {"messages": []}}), "chat_template_kwargs.messages"),
        (json!({"functions": [{"name": "f"}]}), "functions"),
    ] {
        let reply = server.post(CHAT, &ask(more.clone()));
        assert_eq!(reply.refusal(), (400, Some(param.to_owned())), "{more}: {}", reply.text());
    }
}

#[test]
fn a_templates_own_variables_are_passed_on() {
    let template = "{% if enable_thinking is defined %}[{{ enable_thinking }}]{% endif %}{% if style %}{{ style.tone }}{% endif %}{{ reasoning_effort }}\
        {% for m in messages %}{{ m.content }}{% endfor %}";
    let server = random(template, Script::default());
    let written = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let tokens = server.post("/tokenize", &body).ok()["tokens"].clone();
        server.post("/detokenize", &json!({"tokens": tokens})).ok()["prompt"].as_str().unwrap().to_owned()
    };
    assert_eq!(written(json!({})), "x");
    assert_eq!(
        written(json!({"chat_template_kwargs": {"enable_thinking": false, "style": {"tone": "dry"}}})),
        "[False]dryx"
    );
    assert_eq!(written(json!({"reasoning_effort": "low"})), "lowx");
}
