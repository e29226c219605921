//! What is answered, and what is refused by name.

use bitnet::inference::{EngineConfig, GenerationConfig, Request, generate};
use bitnet::kernels::{Cpu, Isa};
use bitnet::model::{ChatTemplate, Checkpoint, Limits, Transformer};
use bitnet_server::{App, ConnectionLimits, ServerConfig};
use serde_json::{Value, json};

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// What the library gives alone.
fn alone(prompt: &str, config: GenerationConfig) -> Vec<u32> {
    let checkpoint = Checkpoint::demo().unwrap();
    let cpu = Cpu::new(Isa::named("auto").unwrap(), 1).unwrap();
    let limits = Limits { max_tokens: 64, max_logit_rows: 1, kv_blocks: 8, state_slots: 0 };
    let mut model =
        Transformer::load(&checkpoint.spec, &*checkpoint.tensors, cpu, limits, &mut |_, _| {}).unwrap();
    let ids = checkpoint.tokenizer.as_ref().unwrap().encode(prompt, true).unwrap();
    let each = |_| std::ops::ControlFlow::Continue(());
    let engine = EngineConfig::default();
    generate(&mut model, Request::new(ids, config), &engine, each).unwrap().tokens
}

fn token_ids(choice: &Value) -> Vec<u32> {
    serde_json::from_value(choice["token_ids"].clone()).unwrap()
}

#[test]
fn a_completion_is_what_the_library_gives_for_prompt_and_seed() {
    let server = demo_server();
    let body = json!({
        "model": "demo", "prompt": "First Citizen:", "max_tokens": 24, "temperature": 0.9, "top_k": 40,
        "top_p": 0.9, "seed": 7, "return_token_ids": true,
    });
    let reply = server.post(COMPLETIONS, &body);
    let answer = reply.ok();
    let config = GenerationConfig {
        max_new_tokens: 24,
        temperature: 0.9,
        top_k: 40,
        top_p: 0.9,
        seed: Some(7),
        ..GenerationConfig::default()
    };
    let tokens = alone("First Citizen:", config);
    let choice = &answer["choices"][0];
    assert_eq!(token_ids(choice), tokens);
    let text = Checkpoint::demo().unwrap().tokenizer.unwrap().decode(&tokens, true).unwrap();
    assert_eq!(choice["text"], text);
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["usage"]["completion_tokens"], tokens.len());
    assert_eq!(answer["usage"]["prompt_tokens"], 4);
    assert_eq!(reply.header("x-seed"), Some("7"));
}

#[test]
fn the_curl_lines_of_the_readme_are_answered() {
    let server = demo_server();
    let readme = include_str!("../../../../README.md");
    let mut asked = 0;
    for line in readme.split("localhost:8080").skip(1) {
        let (path, rest) = line.split_once(char::is_whitespace).unwrap();
        let Some((_, body)) = rest.split_once("-d '") else { continue };
        let (body, _) = body.split_once('\'').unwrap();
        let reply = server.post(path, &serde_json::from_str(body).unwrap());
        assert_eq!(reply.status, 200, "{path} {body}: {}", reply.text());
        asked += 1;
    }
    assert!(asked >= 2, "{asked}");
}

#[test]
fn a_chosen_seed_is_reported_and_gives_the_same_answer_again() {
    let server = demo_server();
    let body = json!({"prompt": "O", "max_tokens": 20, "temperature": 1});
    let first = server.post(COMPLETIONS, &body);
    let seed = first.header("x-seed").unwrap().to_owned();
    assert!(seed.parse::<u64>().unwrap() < 1 << 53, "{seed}");
    let by_header = server.post_with(COMPLETIONS, &[("x-seed", &seed)], &body);
    let mut with_seed = body.clone();
    with_seed["seed"] = seed.parse().unwrap();
    let by_body = server.post(COMPLETIONS, &with_seed);
    for again in [by_header, by_body] {
        assert_eq!(again.ok()["choices"], first.ok()["choices"]);
    }
    let other = server.post(COMPLETIONS, &body);
    assert_ne!(other.header("x-seed"), Some(seed.as_str()));
}

#[test]
fn prompts_come_as_text_or_as_ids_one_or_several() {
    let server = demo_server();
    let ids = server.post("/tokenize", &json!({"prompt": "To be"})).ok()["tokens"].clone();
    let ask = |prompt: Value| {
        server.post(COMPLETIONS, &json!({"prompt": prompt, "max_tokens": 6, "seed": 3, "n": 2})).ok()
    };
    let one = ask(json!("To be"));
    assert_eq!(one["choices"], ask(ids.clone())["choices"]);
    let both = ask(json!([ids, ids]));
    let choices = both["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|c| c["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(choices[0]["text"], one["choices"][0]["text"]);
    assert_eq!(choices[3]["text"], one["choices"][1]["text"]);
    assert_ne!(choices[0]["text"], choices[1]["text"], "choices differ");
}

#[test]
fn stop_strings_end_a_text_before_them() {
    let server = demo_server();
    let body =
        |stop: Value| json!({"prompt": "First Citizen:", "max_tokens": 60, "temperature": 0, "stop": stop});
    let free = server.post(COMPLETIONS, &body(Value::Null)).ok();
    let text = free["choices"][0]["text"].as_str().unwrap();
    let stop: String = text.chars().skip(20).take(3).collect();
    let cut = server.post(COMPLETIONS, &body(json!([stop, "\u{1F980}"]))).ok();
    assert_eq!(cut["choices"][0]["text"], text[..text.find(&stop).unwrap()]);
    assert_eq!(cut["choices"][0]["finish_reason"], "stop");
}

#[test]
fn log_probabilities_have_the_form_of_each_endpoint() {
    let server = demo_server();
    let body = json!({"prompt": "O", "max_tokens": 5, "temperature": 0, "logprobs": 3});
    let answer = server.post(COMPLETIONS, &body).ok();
    let choice = &answer["choices"][0];
    let logprobs = &choice["logprobs"];
    let tokens: Vec<&str> =
        logprobs["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(tokens.concat(), choice["text"].as_str().unwrap());
    for i in 0..5 {
        let top = logprobs["top_logprobs"][i].as_object().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(top[tokens[i]], logprobs["token_logprobs"][i], "greedy takes the most likely");
        let offset: usize = tokens[..i].iter().map(|t| t.chars().count()).sum();
        assert_eq!(logprobs["text_offset"][i], offset);
    }

    let body = json!({
        "messages": [{"role": "user", "content": "O"}], "max_tokens": 4, "temperature": 0,
        "logprobs": true, "top_logprobs": 2,
    });
    let answer = server.post(CHAT, &body).ok();
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 4);
    for entry in content {
        assert_eq!(entry["token"], entry["top_logprobs"][0]["token"]);
        let bytes: Vec<u8> = serde_json::from_value(entry["bytes"].clone()).unwrap();
        assert_eq!(entry["token"], String::from_utf8(bytes).unwrap());
    }
}

#[test]
fn an_echoed_prompt_has_the_log_probabilities_that_generation_gives() {
    let server = demo_server();
    let ask = |prompt: Value, max_tokens: usize, more: Value| {
        let mut body = json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "logprobs": 2, "echo": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post(COMPLETIONS, &body).ok()
    };
    let generated = server
        .post(
            COMPLETIONS,
            &json!({"prompt": "First Citizen:", "max_tokens": 20, "temperature": 0,
        "logprobs": 2, "return_token_ids": true}),
        )
        .ok()["choices"][0]
        .clone();
    let start = server.post("/tokenize", &json!({"prompt": "First Citizen:"})).ok()["tokens"].clone();
    let start: Vec<u32> = serde_json::from_value(start).unwrap();
    let all = [start.clone(), token_ids(&generated)].concat();
    let told = ask(json!(all), 0, json!({"return_token_ids": true}))["choices"][0].clone();
    assert_eq!(token_ids(&told), all);
    assert_eq!(told["text"], format!("First Citizen:{}", generated["text"].as_str().unwrap()));
    let text = told["text"].as_str().unwrap().to_owned();
    let (told, new) = (&told["logprobs"], &generated["logprobs"]);
    assert_eq!((&told["token_logprobs"][0], &told["top_logprobs"][0]), (&Value::Null, &Value::Null));
    for field in ["tokens", "token_logprobs", "top_logprobs"] {
        let told = &told[field].as_array().unwrap()[start.len()..];
        assert_eq!(told, new[field].as_array().unwrap(), "{field}, bit for bit");
    }
    let offsets: Vec<usize> = serde_json::from_value(told["text_offset"].clone()).unwrap();
    let tokens: Vec<String> = serde_json::from_value(told["tokens"].clone()).unwrap();
    let whole: Vec<char> = text.chars().collect();
    // The first token is a control token, which the text does not show.
    for (offset, token) in offsets.iter().zip(&tokens).skip(1) {
        assert!(
            whole[*offset..].iter().collect::<String>().starts_with(token.as_str()),
            "{offset} {token:?}"
        );
    }

    // Several prompts and choices, with what continues them, alone as together, and after they were cached.
    let prompts = ["First Citizen:", "O", "To be, or not to be: that is the question"];
    let alone: Vec<Value> =
        prompts.iter().map(|p| ask(json!(p), 4, json!({}))["choices"][0].clone()).collect();
    let together = ask(json!(prompts), 4, json!({"n": 2}))["choices"].clone();
    for (i, choice) in together.as_array().unwrap().iter().enumerate() {
        assert_eq!(
            (&choice["text"], &choice["logprobs"]),
            (&alone[i / 2]["text"], &alone[i / 2]["logprobs"])
        );
    }
    assert!(alone[2]["text"].as_str().unwrap().starts_with(prompts[2]));

    // A stream tells the prompt with its first event.
    let body = json!({"prompt": prompts[2], "max_tokens": 4, "temperature": 0, "logprobs": 2, "echo": true, "stream": true});
    let events: Vec<String> = server.stream(COMPLETIONS, &[], &body).collect();
    let texts = events
        .iter()
        .filter(|event| id_of(event).is_some())
        .map(|event| data_of(event)["choices"][0]["text"].as_str().unwrap().to_owned());
    assert_eq!(texts.collect::<String>(), alone[2]["text"].as_str().unwrap());
    let first = &data_of(&events[0])["choices"][0]["logprobs"];
    assert_eq!(
        first["tokens"].as_array().unwrap().len(),
        alone[2]["logprobs"]["tokens"].as_array().unwrap().len() - 3
    );
    // Without log-probabilities it is only the text.
    let plain = server.post(COMPLETIONS, &json!({"prompt": "O", "max_tokens": 0, "echo": true})).ok();
    assert_eq!((&plain["choices"][0]["text"], &plain["choices"][0]["logprobs"]), (&json!("O"), &Value::Null));
}

/// An evaluation asks for one token and drops the last entry, so an end token must have one.
#[test]
fn the_token_that_ends_a_text_has_log_probabilities_and_no_text() {
    let server = demo_server();
    let body = |more: Value| {
        let mut body = json!({"prompt": "First Citizen:", "max_tokens": 3, "temperature": 0, "logprobs": 2});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let whole = server.post(COMPLETIONS, &body(json!({"return_token_ids": true}))).ok()["choices"][0].clone();
    let last = token_ids(&whole)[2];
    for echo in [false, true] {
        let open = server.post(COMPLETIONS, &body(json!({"echo": echo}))).ok()["choices"][0].clone();
        let asked = body(json!({"echo": echo, "stop_token_ids": [last], "return_token_ids": true}));
        let ended = server.post(COMPLETIONS, &asked).ok();
        assert_eq!(ended["usage"]["completion_tokens"], 2);
        let ended = &ended["choices"][0];
        assert_eq!(ended["finish_reason"], "stop");
        assert_eq!(ended["logprobs"], open["logprobs"], "echo: {echo}");
        assert!(open["text"].as_str().unwrap().len() > ended["text"].as_str().unwrap().len());
        assert_eq!(token_ids(ended).last(), Some(&token_ids(&whole)[1]));
    }
    let streamed = body(json!({"stop_token_ids": [last], "stream": true}));
    let mut tokens = Vec::new();
    for event in server.stream(COMPLETIONS, &[], &streamed).filter(|event| id_of(event).is_some()) {
        tokens.extend(data_of(&event)["choices"][0]["logprobs"]["tokens"].as_array().unwrap().clone());
    }
    assert_eq!(json!(tokens), whole["logprobs"]["tokens"]);
}

#[test]
fn the_tokenizer_reports_what_it_adds() {
    let server = demo_server();
    let told = server.get("/tokenizer_info").ok();
    let checkpoint = Checkpoint::demo().unwrap();
    assert_eq!(told["vocab_size"], checkpoint.tokenizer.as_ref().unwrap().vocab_size());
    assert_eq!(told["model_max_length"], 2048);
    assert!(told["eos_token"].is_string() && told["chat_template"].is_string(), "{told}");
    server.post("/tokenize", &json!({"prompt": "x", "model": "demo"})).ok();
    assert_eq!(
        server.post("/tokenize", &json!({"prompt": "x", "model": "gpt"})).refusal(),
        (404, Some("model".into()))
    );
}

#[test]
fn a_bias_forbids_a_token() {
    let server = demo_server();
    let body = json!({"prompt": "O", "max_tokens": 1, "temperature": 0, "return_token_ids": true});
    let first = token_ids(&server.post(COMPLETIONS, &body).ok()["choices"][0])[0];
    let mut biased = body.clone();
    biased["logit_bias"] = json!({first.to_string(): -100});
    assert_ne!(token_ids(&server.post(COMPLETIONS, &biased).ok()["choices"][0]), [first]);
}

#[test]
fn a_chat_without_a_template_joins_its_messages_and_reports_it() {
    let checkpoint = Checkpoint { chat: None, ..Checkpoint::demo().unwrap() };
    let service = demo_of(checkpoint, EngineConfig::default(), ServerConfig::default());
    let server = Server::start(App::ready(service), ConnectionLimits::default(), SOON);
    let body = json!({
        "messages": [{"role": "system", "content": "Speak."}, {"role": "user", "content": "O"}],
        "max_tokens": 10, "seed": 5,
    });
    let reply = server.post(CHAT, &body);
    assert!(reply.header("x-chat-template").is_some());
    let joined = json!({"prompt": "Speak.\n\nO", "max_tokens": 10, "seed": 5});
    let same = server.post(COMPLETIONS, &joined);
    assert!(same.header("x-chat-template").is_none());
    assert_eq!(reply.ok()["choices"][0]["message"]["content"], same.ok()["choices"][0]["text"]);
    assert_eq!(reply.ok()["choices"][0]["message"]["role"], "assistant");
}

#[test]
fn a_chat_with_a_template_is_written_by_it() {
    let mut checkpoint = Checkpoint::demo().unwrap();
    let template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]";
    checkpoint.chat = Some(ChatTemplate::new(template, "", "").unwrap());
    let service = demo_of(checkpoint, EngineConfig::default(), ServerConfig::default());
    let server = Server::start(App::ready(service), ConnectionLimits::default(), SOON);
    let messages = json!([{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}]);
    let ids = server.post("/tokenize", &json!({"messages": messages})).ok()["tokens"].clone();
    let text = server.post("/detokenize", &json!({"tokens": ids})).ok()["prompt"].clone();
    assert_eq!(text, "[system]a[user]b[assistant]");
    let reply = server.post(CHAT, &json!({"messages": messages, "max_tokens": 8, "seed": 2}));
    assert!(reply.header("x-chat-template").is_none());
    let same = server.post(COMPLETIONS, &json!({"prompt": ids, "max_tokens": 8, "seed": 2}));
    assert_eq!(reply.ok()["choices"][0]["message"]["content"], same.ok()["choices"][0]["text"]);
}

#[test]
fn limits_default_as_with_openai() {
    let server = demo_server();
    let answer = server.post(COMPLETIONS, &json!({"prompt": "O", "ignore_eos": true})).ok();
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let messages = json!([{"role": "user", "content": "O"}]);
    let answer = server.post(CHAT, &json!({"messages": messages, "ignore_eos": true})).ok();
    assert_eq!(answer["usage"]["total_tokens"], 2048, "the rest of the context");
    let body = json!({"messages": messages, "max_completion_tokens": 3, "ignore_eos": true});
    assert_eq!(server.post(CHAT, &body).ok()["usage"]["completion_tokens"], 3);
}

#[test]
fn json_is_what_its_schema_says_streamed_and_in_a_crowd() {
    let server = demo_server();
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "kind": {"$ref": "#/$defs/kind"},
        },
        "required": ["name", "age", "kind"],
        "additionalProperties": false,
        "$defs": {"kind": {"enum": ["king", "fool"]}},
    });
    let body = |seed: u64| {
        json!({
            "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 200, "seed": seed, "n": 2,
            "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}},
        })
    };
    let contents = |answer: &Value| -> Vec<String> {
        let choices = answer["choices"].as_array().unwrap().iter();
        choices.map(|c| c["message"]["content"].as_str().unwrap().to_owned()).collect()
    };
    let alone: Vec<Vec<String>> = (0..8).map(|seed| contents(&server.post(CHAT, &body(seed)).ok())).collect();
    for text in alone.iter().flatten() {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let object = value.as_object().unwrap();
        let mut keys: Vec<_> = object.keys().collect();
        keys.sort();
        assert_eq!(keys, ["age", "kind", "name"]);
        assert!(
            value["age"].as_u64().unwrap() <= 120 && value["name"].as_str().unwrap().chars().count() <= 12
        );
        assert!(["king", "fool"].contains(&value["kind"].as_str().unwrap()));
    }
    let bodies: Vec<Value> = (0..8).map(body).collect();
    std::thread::scope(|scope| {
        let server = &server;
        let replies: Vec<_> =
            bodies.iter().map(|body| scope.spawn(move || server.post(CHAT, body).ok())).collect();
        for (reply, alone) in replies.into_iter().zip(&alone) {
            assert_eq!(contents(&reply.join().unwrap()), *alone);
        }
    });
    let any = json!({
        "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 60, "seed": 1,
        "response_format": {"type": "json_object"},
    });
    let text = contents(&server.post(CHAT, &any).ok()).remove(0);
    assert!(text.starts_with('{'), "{text}");
}

/// Paths, bodies, and the status and field of their refusal.
fn refused_bodies() -> Vec<(&'static str, Value, u16, Option<&'static str>)> {
    let messages = json!([{"role": "user", "content": "O"}]);
    vec![
        (COMPLETIONS, json!({}), 400, Some("prompt")),
        (COMPLETIONS, json!({"prompt": ""}), 200, None),
        (COMPLETIONS, json!({"prompt": []}), 400, Some("prompt")),
        (COMPLETIONS, json!({"prompt": [999_999]}), 400, Some("prompt")),
        (COMPLETIONS, json!({"prompt": vec![1; 2100]}), 400, Some("prompt")),
        (COMPLETIONS, json!({"prompt": "x", "model": "gpt-4"}), 404, Some("model")),
        (COMPLETIONS, json!({"prompt": "x", "echo": 1}), 400, Some("echo")),
        (COMPLETIONS, json!({"prompt": "x", "suffix": "y"}), 400, Some("suffix")),
        (COMPLETIONS, json!({"prompt": "x", "best_of": 2, "n": 3}), 400, Some("best_of")),
        (COMPLETIONS, json!({"prompt": "x", "best_of": 2, "stream": true}), 400, Some("best_of")),
        (COMPLETIONS, json!({"prompt": "x", "best_of": 129}), 400, Some("best_of")),
        ("/v1/embeddings", json!({"input": "x"}), 400, Some("model")),
        (COMPLETIONS, json!({"prompt": "x", "temprature": 1}), 400, Some("temprature")),
        (COMPLETIONS, json!({"prompt": "x", "temperature": -1}), 400, Some("temperature")),
        (COMPLETIONS, json!({"prompt": "x", "temperature": "hot"}), 400, Some("temperature")),
        (COMPLETIONS, json!({"prompt": "x", "top_p": -0.5}), 400, Some("top_p")),
        (COMPLETIONS, json!({"prompt": "x", "n": 0}), 400, Some("n")),
        (COMPLETIONS, json!({"prompt": ["x", "y"], "n": 65}), 400, Some("n")),
        (COMPLETIONS, json!({"prompt": "x", "max_tokens": -2}), 400, Some("max_tokens")),
        (COMPLETIONS, json!({"prompt": "x", "max_tokens": 1e30}), 400, Some("max_tokens")),
        (COMPLETIONS, json!({"prompt": "x", "logprobs": 21}), 400, Some("logprobs")),
        (COMPLETIONS, json!({"prompt": "x", "stop": vec!["a"; 17]}), 400, Some("stop")),
        (COMPLETIONS, json!({"prompt": "x", "logit_bias": {"5000": 1}}), 400, Some("logit_bias")),
        (
            COMPLETIONS,
            json!({"prompt": "x", "stream_options": {"include_usage": true}}),
            400,
            Some("stream_options"),
        ),
        (COMPLETIONS, json!({"prompt": "x", "priority": "high"}), 400, Some("priority")),
        (CHAT, json!({"messages": []}), 400, Some("messages")),
        (
            CHAT,
            json!({"messages": messages, "tools": [{"type": "function"}]}),
            400,
            Some("tools[0].function"),
        ),
        (CHAT, json!({"messages": messages, "top_logprobs": 2}), 400, Some("top_logprobs")),
        (CHAT, json!({"messages": messages, "audio": {"voice": "ash"}}), 400, Some("audio")),
        (
            CHAT,
            json!({"messages": [{"role": "tool", "content": "x"}]}),
            400,
            Some("messages[0].tool_call_id"),
        ),
        (
            CHAT,
            json!({"messages": messages, "response_format": {"type": "grammar"}}),
            400,
            Some("response_format.type"),
        ),
        (
            CHAT,
            json!({"messages": messages, "response_format": {"type": "json_schema", "json_schema":
                {"schema": {"type": "strng"}}}}),
            400,
            Some("response_format"),
        ),
        (
            CHAT,
            json!({"messages": messages, "stream": true, "stream_options": {"verbose": 1}}),
            400,
            Some("stream_options.verbose"),
        ),
        ("/tokenize", json!({"prompt": "x", "y": 1}), 400, Some("y")),
        ("/detokenize", json!({"tokens": [99_999]}), 400, Some("tokens")),
    ]
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let server = demo_server();
    for (path, body, status, param) in refused_bodies() {
        let reply = server.post(path, &body);
        if status == 200 {
            reply.ok();
        } else {
            assert_eq!(reply.refusal(), (status, param.map(str::to_owned)), "{path} {body}");
        }
    }
    let long = server.post(COMPLETIONS, &json!({"prompt": vec![1; 2100]})).json();
    assert_eq!(long["error"]["code"], "context_length_exceeded");
    let contradiction = server.post_with(COMPLETIONS, &[("x-seed", "2")], &json!({"prompt": "x", "seed": 1}));
    assert_eq!(contradiction.refusal(), (400, Some("seed".into())));
}

#[test]
fn a_text_matches_its_expression_or_is_one_of_the_choices() {
    let server = demo_server();
    let ask = |more: Value| {
        let mut body = json!({"prompt": "O", "max_tokens": 60, "temperature": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post(COMPLETIONS, &body)
    };
    let text = |more: Value| {
        let answer = ask(more).ok();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let choices = ["to be", "not to be", "a \"quote\"\n/"];
    for seed in 0..6 {
        let chosen = text(json!({"guided_choice": choices, "seed": seed}));
        assert!(choices.contains(&chosen.as_str()), "{chosen:?}");
        let date = text(json!({"guided_regex": "[0-9]{2}/[0-9]{2}\\/[12][0-9]{3}", "seed": seed}));
        let parts: Vec<usize> = date.split('/').map(str::len).collect();
        assert!(parts == [2, 2, 4] && date.chars().all(|c| c.is_ascii_digit() || c == '/'), "{date}");
    }
    for (more, param) in [
        (json!({"guided_regex": "(a"}), "guided_regex"),
        (json!({"guided_regex": ""}), "guided_regex"),
        (json!({"guided_regex": "a\\"}), "guided_regex"),
        (json!({"guided_choice": "yes"}), "guided_choice"),
        (json!({"guided_choice": ["a"], "guided_regex": "a"}), "guided_choice"),
        (json!({"guided_choice": ["a"], "min_tokens": 3}), "min_tokens"),
    ] {
        assert_eq!(ask(more.clone()).refusal(), (400, Some(param.into())), "{more}");
    }
}

#[test]
fn a_format_that_no_text_can_have_is_refused_with_the_reason() {
    let server = demo_server();
    let ask = |schema: Value| {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let messages = json!([{"role": "user", "content": "O"}]);
        server.post(CHAT, &json!({"messages": messages, "max_tokens": 5, "response_format": format}))
    };
    for (schema, why) in [
        (json!({"$ref": "#"}), "no text begins"),
        (json!({"enum": []}), "Unsatisfiable"),
        (json!({"type": "string", "pattern": "[a"}), "unclosed character class"),
        (json!({"type": "object", "not": {}}), "no text follows"),
        (json!({"type": "string", "not": {"pattern": "a"}}), "not: "),
    ] {
        let reply = ask(schema.clone());
        assert_eq!(reply.refusal(), (400, Some("response_format".into())), "{schema}");
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(why) && !message.contains('\n'), "{message}");
    }
    ask(json!({"type": "string"})).ok();
    assert_eq!(server.metric("bitnet_row_faults_total"), 0.0);
}

#[test]
fn a_model_without_a_tokenizer_takes_and_gives_ids() {
    let app = hashes(Box::new(|_, _| Ok(())), EngineConfig::default(), ServerConfig::default());
    let server = Server::start(app, ConnectionLimits::default(), SOON);
    let answer = server.post(COMPLETIONS, &json!({"prompt": [1, 2, 3], "max_tokens": 5, "logprobs": 1})).ok();
    let choice = &answer["choices"][0];
    assert_eq!((token_ids(choice).len(), choice["text"].as_str()), (5, Some("")));
    assert_eq!(choice["logprobs"]["tokens"][0], format!("token_id:{}", token_ids(choice)[0]));
    assert_eq!(server.post(COMPLETIONS, &json!({"prompt": "x"})).refusal(), (400, Some("prompt".into())));
    let messages = json!({"messages": [{"role": "user", "content": "x"}]});
    assert_eq!(server.post(CHAT, &messages).refusal(), (400, Some("messages".into())));
    let format = json!({"prompt": [1], "response_format": {"type": "json_object"}});
    assert_eq!(server.post(COMPLETIONS, &format).refusal(), (400, Some("response_format".into())));
}

#[test]
fn the_model_is_listed_and_found_by_its_name() {
    let server = demo_server();
    let list = server.get("/v1/models").ok();
    assert_eq!(list["data"][0]["id"], "demo");
    assert_eq!(server.get("/v1/models/demo").ok(), list["data"][0]);
    assert_eq!(server.get("/v1/models/org/other").refusal(), (404, Some("model".into())));
}

#[test]
fn paths_and_methods_that_do_not_exist_are_errors() {
    let server = demo_server();
    assert_eq!(server.get("/v1/nothing").refusal().0, 404);
    assert_eq!(server.get(COMPLETIONS).refusal().0, 405);
    assert_eq!(server.call("DELETE", "/v1/models", &[], b"").refusal().0, 405);
    assert!(server.get("/").text().contains("<html"));
}

#[test]
fn a_server_continues_the_text_of_another_exactly() {
    let server = demo_server();
    let prompt = json!([73, 300, 41]);
    let asked = |prompt: Value, more: &Value, fields: Value| {
        let mut body = json!({"prompt": prompt, "max_tokens": 24, "seed": 11, "temperature": 1.2,
            "return_token_ids": true});
        for fields in [more, &fields] {
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        }
        server.post(COMPLETIONS, &body).ok()["choices"][0].clone()
    };
    let penalties = json!({"frequency_penalty": 1.5, "presence_penalty": 1.5});
    let mut forgotten = 0;
    for more in [
        json!({}),
        penalties.clone(),
        json!({"guided_regex": "[a-z]{3}( [a-z]{3}){2}, [A-Z]{5}"}),
        json!({"min_tokens": 20, "logit_bias": {"2047": 60}}),
        json!({"ignore_eos": true, "logprobs": 0}),
    ] {
        let whole = asked(prompt.clone(), &more, json!({}));
        let ids = token_ids(&whole);
        assert!(ids.len() > 4, "{more}: {whole}");
        for cut in [1, ids.len() / 2, ids.len() - 1] {
            let begun: Vec<u32> = serde_json::from_value::<Vec<u32>>(prompt.clone())
                .unwrap()
                .into_iter()
                .chain(ids[..cut].to_vec())
                .collect();
            let rest = asked(json!(begun), &more, json!({"generated_tokens": cut}));
            assert_eq!(token_ids(&rest), ids[cut..], "{more} after {cut}");
            assert_eq!(rest["finish_reason"], whole["finish_reason"], "{more} after {cut}");
            assert!(
                whole["text"].as_str().unwrap().ends_with(rest["text"].as_str().unwrap()),
                "{whole} {rest}"
            );
            if more == penalties {
                forgotten += usize::from(token_ids(&asked(json!(begun), &more, json!({}))) != ids[cut..]);
            }
        }
    }
    assert!(forgotten > 0, "the penalties must depend on what has been generated");
}

#[test]
fn a_beginning_that_cannot_be_continued_is_refused_by_name() {
    let server = demo_server();
    for (body, told) in [
        (
            json!({"prompt": [5, 6], "generated_tokens": 2, "seed": 1}),
            "at least one must belong to the prompt",
        ),
        (json!({"prompt": [[5, 6], [7, 8]], "generated_tokens": 1}), "a single prompt"),
        (json!({"prompt": [5, 6], "generated_tokens": 1, "stop": "x"}), "cannot be combined with stop"),
        (json!({"prompt": [5, 6], "generated_tokens": 1, "seed": 1, "n": 2}), "a single choice"),
        (json!({"prompt": [5, 6], "generated_tokens": 1, "seed": 1, "best_of": 2}), "a single choice"),
        (json!({"prompt": [5, 6], "generated_tokens": 1}), "needs the seed"),
        (json!({"prompt": [5, 6], "generated_tokens": -1}), "generated_tokens"),
    ] {
        let reply = server.post(COMPLETIONS, &body);
        assert_eq!(reply.refusal(), (400, Some("generated_tokens".into())), "{body}");
        assert!(reply.text().contains(told), "{body}: {}", reply.text());
    }
}

#[test]
fn a_prediction_changes_no_text_and_its_tokens_are_counted_in_every_form() {
    let server = demo_server();
    let messages = json!([{"role": "user", "content": "Who goes there?"}]);
    let body = json!({"messages": messages, "max_tokens": 40, "seed": 3, "return_token_ids": true});
    let plain = server.post(CHAT, &body).ok();
    let text = plain["choices"][0]["message"]["content"].clone();
    assert_eq!(plain["usage"]["completion_tokens_details"].get("accepted_prediction_tokens"), None);
    let parts = json!([{"type": "text", "text": text}]);
    for content in [text.clone(), parts, json!("Something else.")] {
        let more = json!({"prediction": {"type": "content", "content": content}});
        let predicted = server.post(CHAT, &merged(&body, more)).ok();
        assert_eq!(predicted["choices"], plain["choices"], "{content}");
        let details = &predicted["usage"]["completion_tokens_details"];
        let count = |name: &str| details[name].as_u64().unwrap();
        let accepted = count("accepted_prediction_tokens");
        if content == "Something else." {
            assert!(accepted < 5 && count("rejected_prediction_tokens") > 0, "{details}");
        } else {
            // The text may be the tokens of another way to spell it.
            assert!(accepted > 20, "{details}");
        }
    }
    for (prediction, field) in [
        (json!({"type": "image", "content": "x"}), "prediction.type"),
        (json!({"type": "content"}), "prediction.content"),
        (json!({"type": "content", "content": 1}), "prediction.content"),
        (json!({"type": "content", "content": "x", "more": 1}), "prediction.more"),
    ] {
        let refused = server.post(CHAT, &merged(&body, json!({"prediction": prediction}))).refusal();
        assert_eq!(refused, (400, Some(field.into())));
    }
}
