//! Which fields are honoured, accepted and refused: `docs/http.md` has the table, and the server keeps to it.

use std::collections::BTreeSet;

use bitnet::inference::EngineConfig;
use bitnet_server::{ConnectionLimits, ServerConfig};
use serde_json::{Value, json};

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const OLLAMA: &str = "/api/chat";
const GENERATE: &str = "/api/generate";
const ANTHROPIC: &str = "/v1/messages";

/// A field of OpenAI's API or of its clients, with a value that asks for something.
#[derive(Clone)]
struct Case {
    path: &'static str,
    /// As the table writes it.
    field: &'static str,
    /// The body, merged into a minimal one.
    body: Value,
    rule: &'static str,
}

fn case(path: &'static str, field: &'static str, body: Value, rule: &'static str) -> Case {
    Case { path, field, body, rule }
}

fn function() -> Value {
    json!({"type": "function", "function": {"name": "f", "description": "d", "strict": true, "parameters":
        {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}}})
}

fn call() -> Value {
    json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}})
}

/// Every field of the request bodies that OpenAI publishes, and what other servers and clients added.
fn cases() -> Vec<Case> {
    [messages(), chats(), completions(), extensions()].concat()
}

fn messages() -> Vec<Case> {
    let user = json!({"role": "user", "content": "x"});
    let after = |message: Value| json!({"messages": [user, message]});
    vec![
        case(
            CHAT,
            "messages",
            json!({"messages": [{"role": "developer", "content": [{"type": "text", "text": "x"}]}]}),
            "honoured",
        ),
        case(
            CHAT,
            "messages[].name",
            json!({"messages": [{"role": "user", "name": "ann", "content": "x"}]}),
            "honoured",
        ),
        case(
            CHAT,
            "messages[].tool_calls",
            after(json!({"role": "assistant", "content": null, "tool_calls": [call()]})),
            "honoured",
        ),
        case(
            CHAT,
            "messages[].tool_calls",
            after(json!({"role": "assistant", "content": "x", "tool_calls": []})),
            "honoured",
        ),
        case(
            CHAT,
            "messages[].tool_call_id",
            after(json!({"role": "tool", "content": "1", "tool_call_id": "c"})),
            "honoured",
        ),
        case(
            CHAT,
            "messages[].annotations",
            after(json!({"role": "assistant", "content": "x", "annotations": []})),
            "accepted",
        ),
        case(
            CHAT,
            "messages[].refusal",
            after(json!({"role": "assistant", "content": "x", "refusal": "no"})),
            "refused",
        ),
        case(
            CHAT,
            "messages[].audio",
            after(json!({"role": "assistant", "content": "x", "audio": {"id": "a"}})),
            "refused",
        ),
        case(
            CHAT,
            "messages[].function_call",
            after(json!({"role": "assistant", "content": "x", "function_call": {}})),
            "refused",
        ),
    ]
}

fn chats() -> Vec<Case> {
    let mut cases = vec![
        case(CHAT, "audio", json!({"audio": {"voice": "ash", "format": "wav"}}), "refused"),
        case(CHAT, "frequency_penalty", json!({"frequency_penalty": 0.5}), "honoured"),
        case(CHAT, "function_call", json!({"function_call": {"name": "f"}}), "refused"),
        case(CHAT, "functions", json!({"functions": [{"name": "f"}]}), "refused"),
        case(CHAT, "logit_bias", json!({"logit_bias": {"7": 1}}), "honoured"),
        case(CHAT, "logprobs", json!({"logprobs": true}), "honoured"),
        case(
            CHAT,
            "max_completion_tokens",
            json!({"max_tokens": null, "max_completion_tokens": 2}),
            "honoured",
        ),
        case(CHAT, "max_tokens", json!({"max_tokens": 2.0}), "honoured"),
        case(CHAT, "metadata", json!({"metadata": {"a": "b"}}), "accepted"),
        case(CHAT, "modalities", json!({"modalities": ["text", "audio"]}), "refused"),
        case(CHAT, "model", json!({"model": "demo"}), "honoured"),
        case(CHAT, "moderation", json!({"moderation": {"model": "m"}}), "refused"),
        case(CHAT, "n", json!({"n": 2.0}), "honoured"),
        case(CHAT, "parallel_tool_calls", json!({"parallel_tool_calls": false}), "honoured"),
        case(CHAT, "prediction", json!({"prediction": {"type": "content", "content": "x"}}), "honoured"),
        case(CHAT, "presence_penalty", json!({"presence_penalty": 0.5}), "honoured"),
        case(CHAT, "prompt_cache_key", json!({"prompt_cache_key": "k"}), "accepted"),
        case(CHAT, "prompt_cache_options", json!({"prompt_cache_options": {"mode": "explicit"}}), "accepted"),
        case(CHAT, "prompt_cache_retention", json!({"prompt_cache_retention": "24h"}), "accepted"),
        case(CHAT, "reasoning_effort", json!({"reasoning_effort": "low"}), "accepted"),
        case(CHAT, "response_format", json!({"response_format": {"type": "json_object"}}), "honoured"),
        case(CHAT, "safety_identifier", json!({"safety_identifier": "s"}), "accepted"),
    ];
    cases.extend([
        case(CHAT, "seed", json!({"seed": 7.0}), "honoured"),
        case(CHAT, "service_tier", json!({"service_tier": "flex"}), "accepted"),
        case(CHAT, "stop", json!({"stop": ["x"]}), "honoured"),
        case(CHAT, "store", json!({"store": true}), "accepted"),
        case(CHAT, "stream", json!({"stream": true}), "honoured"),
        case(
            CHAT,
            "stream_options.include_usage",
            json!({"stream": true, "stream_options": {"include_usage": true}}),
            "honoured",
        ),
        case(
            CHAT,
            "stream_options.include_obfuscation",
            json!({"stream": true, "stream_options": {"include_obfuscation": true}}),
            "accepted",
        ),
        case(CHAT, "temperature", json!({"temperature": 0.5}), "honoured"),
        case(CHAT, "tool_choice", json!({"tools": [function()], "tool_choice": "required"}), "honoured"),
        case(CHAT, "tools", json!({"tools": [function()]}), "honoured"),
        case(CHAT, "top_logprobs", json!({"logprobs": true, "top_logprobs": 2}), "honoured"),
        case(CHAT, "top_p", json!({"top_p": 0.5}), "honoured"),
        case(CHAT, "user", json!({"user": "u"}), "honoured"),
        case(CHAT, "cache_salt", json!({"cache_salt": "t"}), "honoured"),
        case(CHAT, "verbosity", json!({"verbosity": "low"}), "accepted"),
        case(CHAT, "web_search_options", json!({"web_search_options": {}}), "refused"),
    ]);
    cases
}

fn completions() -> Vec<Case> {
    vec![
        case(COMPLETIONS, "model", json!({"model": "demo"}), "honoured"),
        case(COMPLETIONS, "prompt", json!({"prompt": ["x", "y"]}), "honoured"),
        case(COMPLETIONS, "best_of", json!({"best_of": 3}), "honoured"),
        case(COMPLETIONS, "echo", json!({"echo": true}), "honoured"),
        case(COMPLETIONS, "frequency_penalty", json!({"frequency_penalty": 0.5}), "honoured"),
        case(COMPLETIONS, "logit_bias", json!({"logit_bias": {"7": 1}}), "honoured"),
        case(COMPLETIONS, "logprobs", json!({"logprobs": 2}), "honoured"),
        case(COMPLETIONS, "max_tokens", json!({"max_tokens": 2}), "honoured"),
        case(COMPLETIONS, "n", json!({"n": 2}), "honoured"),
        case(COMPLETIONS, "presence_penalty", json!({"presence_penalty": 0.5}), "honoured"),
        case(COMPLETIONS, "seed", json!({"seed": -7}), "honoured"),
        case(COMPLETIONS, "stop", json!({"stop": "x"}), "honoured"),
        case(COMPLETIONS, "stream", json!({"stream": true}), "honoured"),
        case(
            COMPLETIONS,
            "stream_options.include_usage",
            json!({"stream": true, "stream_options": {"include_usage": true}}),
            "honoured",
        ),
        case(COMPLETIONS, "suffix", json!({"suffix": ""}), "honoured"),
        case(COMPLETIONS, "temperature", json!({"temperature": 0.5}), "honoured"),
        case(COMPLETIONS, "top_p", json!({"top_p": 0.5}), "honoured"),
        case(COMPLETIONS, "user", json!({"user": "u"}), "honoured"),
        case(COMPLETIONS, "cache_salt", json!({"cache_salt": "t"}), "honoured"),
    ]
}

fn extensions() -> Vec<Case> {
    vec![
        case(
            CHAT,
            "stream_options.continuous_usage_stats",
            json!({"stream": true, "stream_options": {"continuous_usage_stats": true}}),
            "accepted",
        ),
        case(
            CHAT,
            "chat_template_kwargs",
            json!({"chat_template_kwargs": {"enable_thinking": false}}),
            "honoured",
        ),
        case(CHAT, "min_p", json!({"min_p": 0.1}), "honoured"),
        case(CHAT, "min_tokens", json!({"min_tokens": 1.0}), "honoured"),
        case(CHAT, "ignore_eos", json!({"ignore_eos": true}), "honoured"),
        case(CHAT, "priority", json!({"priority": "batch"}), "honoured"),
        case(CHAT, "repetition_penalty", json!({"repetition_penalty": 1.1}), "honoured"),
        case(CHAT, "return_token_ids", json!({"return_token_ids": true}), "honoured"),
        case(CHAT, "stop_token_ids", json!({"stop_token_ids": [3]}), "honoured"),
        case(CHAT, "top_k", json!({"top_k": 5.0}), "honoured"),
        case(COMPLETIONS, "guided_regex", json!({"guided_regex": "[a-z]{3}"}), "honoured"),
        case(COMPLETIONS, "guided_choice", json!({"guided_choice": ["yes", "no"]}), "honoured"),
        case(
            COMPLETIONS,
            "generated_tokens",
            json!({"prompt": [5, 6, 7], "generated_tokens": 1, "seed": 1}),
            "honoured",
        ),
        case(COMPLETIONS, "cache_prompt", json!({"cache_prompt": true}), "accepted"),
    ]
}

/// The fields of the other APIs: those that their clients send.
fn cases_of_other_apis() -> Vec<Case> {
    let honoured = [
        (
            RESPONSES,
            "input",
            json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]}),
        ),
        (RESPONSES, "instructions", json!({"instructions": "Be brief."})),
        (RESPONSES, "model", json!({"model": "demo"})),
        (RESPONSES, "max_output_tokens", json!({"max_output_tokens": 3})),
        (RESPONSES, "temperature", json!({"temperature": 0.5})),
        (RESPONSES, "top_p", json!({"top_p": 0.5})),
        (RESPONSES, "tools", json!({"tools": [{"type": "function", "name": "f"}]})),
        (RESPONSES, "parallel_tool_calls", json!({"parallel_tool_calls": false})),
        (RESPONSES, "text.format", json!({"text": {"format": {"type": "json_object"}}})),
        (RESPONSES, "stream", json!({"stream": true})),
        (RESPONSES, "user", json!({"user": "u"})),
        (OLLAMA, "model", json!({"model": "demo"})),
        (OLLAMA, "messages", json!({"messages": [{"role": "system", "content": "x"}]})),
        (OLLAMA, "tools", json!({"tools": [function()]})),
        (OLLAMA, "stream", json!({"stream": false})),
        (OLLAMA, "format", json!({"format": "json"})),
        (OLLAMA, "options.seed", json!({"options": {"seed": 1, "num_predict": 2}})),
        (OLLAMA, "options.stop", json!({"options": {"stop": ["x"], "num_predict": 2}})),
        (OLLAMA, "options.num_ctx", json!({"options": {"num_ctx": 64, "num_predict": 2}})),
        (OLLAMA, "options.repeat_penalty", json!({"options": {"repeat_penalty": 1.1, "num_predict": 2}})),
        (GENERATE, "prompt", json!({"prompt": "x"})),
        (GENERATE, "system", json!({"system": "x"})),
        (GENERATE, "raw", json!({"raw": true})),
        (ANTHROPIC, "model", json!({"model": "demo"})),
        (ANTHROPIC, "max_tokens", json!({"max_tokens": 3})),
        (
            ANTHROPIC,
            "messages",
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}),
        ),
        (
            ANTHROPIC,
            "system",
            json!({"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}),
        ),
        (ANTHROPIC, "top_k", json!({"top_k": 5})),
        (ANTHROPIC, "stop_sequences", json!({"stop_sequences": ["x"]})),
        (
            ANTHROPIC,
            "tools",
            json!({"tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]}),
        ),
        (ANTHROPIC, "metadata.user_id", json!({"metadata": {"user_id": "u"}})),
    ];
    let accepted = [
        (RESPONSES, "text.verbosity", json!({"text": {"verbosity": "low"}})),
        (RESPONSES, "reasoning.effort", json!({"reasoning": {"effort": "low"}})),
        (RESPONSES, "reasoning.summary", json!({"reasoning": {"summary": "auto"}})),
        (RESPONSES, "store", json!({"store": true})),
        (RESPONSES, "include", json!({"include": ["reasoning.encrypted_content"]})),
        (RESPONSES, "max_tool_calls", json!({"max_tool_calls": 3})),
        (RESPONSES, "metadata", json!({"metadata": {"a": "b"}})),
        (RESPONSES, "service_tier", json!({"service_tier": "flex"})),
        (RESPONSES, "safety_identifier", json!({"safety_identifier": "s"})),
        (RESPONSES, "prompt_cache_key", json!({"prompt_cache_key": "k"})),
        (OLLAMA, "keep_alive", json!({"keep_alive": "5m"})),
        (OLLAMA, "think", json!({"think": true})),
        (OLLAMA, "options.num_thread", json!({"options": {"num_thread": 4, "num_predict": 2}})),
        (OLLAMA, "options.repeat_last_n", json!({"options": {"repeat_last_n": 64, "num_predict": 2}})),
        (ANTHROPIC, "thinking", json!({"thinking": {"type": "enabled", "budget_tokens": 1024}})),
        (ANTHROPIC, "output_config.effort", json!({"output_config": {"effort": "low"}})),
        (ANTHROPIC, "cache_control", json!({"cache_control": {"type": "ephemeral"}})),
        (ANTHROPIC, "service_tier", json!({"service_tier": "standard_only"})),
        (ANTHROPIC, "inference_geo", json!({"inference_geo": "eu"})),
    ];
    let refused = [
        (RESPONSES, "previous_response_id", json!({"previous_response_id": "resp_1"})),
        (RESPONSES, "conversation", json!({"conversation": "conv_1"})),
        (RESPONSES, "prompt", json!({"prompt": {"id": "p"}})),
        (RESPONSES, "background", json!({"background": true})),
        (RESPONSES, "truncation", json!({"truncation": "auto"})),
        (RESPONSES, "context_management", json!({"context_management": [{"type": "compaction"}]})),
        (RESPONSES, "top_logprobs", json!({"top_logprobs": 2})),
        (
            OLLAMA,
            "messages[].images",
            json!({"messages": [{"role": "user", "content": "x", "images": ["a"]}]}),
        ),
        (OLLAMA, "logprobs", json!({"logprobs": true})),
        (OLLAMA, "options.mirostat", json!({"options": {"mirostat": 1}})),
        (OLLAMA, "options.typical_p", json!({"options": {"typical_p": 0.5}})),
        (GENERATE, "suffix", json!({"suffix": "x"})),
        (GENERATE, "context", json!({"context": [1]})),
        (ANTHROPIC, "prefill", json!({"prefill": "x"})),
    ];
    let ruled = |rule: &'static str| move |(path, field, body)| case(path, field, body, rule);
    let all = honoured.map(ruled("honoured")).into_iter();
    all.chain(accepted.map(ruled("accepted"))).chain(refused.map(ruled("refused"))).collect()
}

fn body(case: &Case) -> Value {
    let mut body = match case.path {
        CHAT | ANTHROPIC => json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
        OLLAMA => json!({"messages": [{"role": "user", "content": "x"}], "options": {"num_predict": 2}}),
        GENERATE => json!({"prompt": "x", "options": {"num_predict": 2}}),
        RESPONSES => json!({"input": "x", "max_output_tokens": 2}),
        _ => json!({"prompt": "x", "max_tokens": 2}),
    };
    body.as_object_mut().unwrap().extend(case.body.as_object().unwrap().clone());
    body
}

/// Whether a row of the page for these endpoints is about a path.
fn applies(of: &str, path: &str) -> bool {
    match path {
        CHAT => ["chat", "both"].contains(&of),
        COMPLETIONS => ["completions", "both"].contains(&of),
        RESPONSES => of == "responses",
        OLLAMA => ["ollama", "ollama chat"].contains(&of),
        GENERATE => ["ollama", "ollama generate"].contains(&of),
        _ => of == "anthropic",
    }
}

/// Field, endpoints and rule of each row, as the page says them.
fn table() -> Vec<(String, String, String)> {
    let page = include_str!("../../../../docs/http.md");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let each = rows.flat_map(|row| {
        let columns: Vec<&str> = row.split('|').map(str::trim).collect();
        let fields: Vec<String> = columns[1].split('`').skip(1).step_by(2).map(str::to_owned).collect();
        fields.into_iter().map(move |field| (field, columns[2].to_owned(), columns[3].to_owned()))
    });
    each.collect()
}

#[test]
fn every_field_of_openais_requests_is_treated_as_the_page_says() {
    let server = demo_server();
    let table = table();
    for case in cases().into_iter().chain(cases_of_other_apis()) {
        let told = table.iter().find(|(field, of, _)| field == case.field && applies(of, case.path));
        assert_eq!(told.map(|(_, _, rule)| rule.as_str()), Some(case.rule), "docs/http.md: {}", case.field);
        let reply = server.post(case.path, &body(&case));
        match case.rule {
            "refused" => {
                // The messages of all forms of errors begin with the field.
                let error = &reply.json()["error"];
                let message = error["message"].as_str().or(error.as_str()).unwrap().to_owned();
                let named = case.field.rsplit('.').next().unwrap();
                assert_eq!(reply.status, 400, "{}", case.field);
                assert!(message.split(": ").next().unwrap().ends_with(named), "{}: {message}", case.field);
            }
            _ => assert_eq!(reply.status, 200, "{} {}: {}", case.path, case.field, reply.text()),
        }
    }
}

#[test]
fn what_is_accepted_changes_no_token() {
    let server = demo_server();
    for case in cases().into_iter().filter(|case| case.rule == "accepted" && !case.field.contains('.')) {
        let with = body(&case);
        let mut without = with.clone();
        case.body
            .as_object()
            .unwrap()
            .keys()
            .for_each(|field| drop(without.as_object_mut().unwrap().remove(field)));
        let choices = |body: &Value| {
            let mut body = body.clone();
            (body["seed"], body["max_tokens"], body["temperature"]) = (json!(3), json!(12), json!(1));
            server.post(case.path, &body).ok()["choices"].clone()
        };
        assert_eq!(choices(&with), choices(&without), "{}", case.field);
    }
}

#[test]
fn the_strict_rule_refuses_what_changes_nothing_unless_it_asks_for_nothing() {
    let config = ServerConfig { strict: true, ..ServerConfig::default() };
    let server = Server::start(demo(EngineConfig::default(), config), ConnectionLimits::default(), SOON);
    for case in cases() {
        // Empty lists ask for nothing.
        let neutral = case.field.ends_with("annotations");
        let refused = case.rule != "honoured" && !neutral || case.field == "messages[].name";
        let reply = server.post(case.path, &body(&case));
        assert_eq!(reply.status, if refused { 400 } else { 200 }, "{}: {}", case.field, reply.text());
    }
    let neutral = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "store": false,
        "metadata": {}, "service_tier": "auto", "tools": [], "tool_choice": "auto", "modalities": ["text"]});
    server.post(CHAT, &neutral).ok();
}

#[test]
fn an_unknown_field_is_refused_with_the_name_that_was_meant() {
    let server = demo_server();
    let message = json!([{"role": "user", "content": "x"}]);
    for (path, body, meant) in [
        (COMPLETIONS, json!({"prompt": "x", "temprature": 1}), "`temperature`"),
        (CHAT, json!({"messages": message, "max_token": 1}), "`max_tokens`"),
        (CHAT, json!({"messages": message, "tool_choise": "auto"}), "`tool_choice`"),
        (
            CHAT,
            json!({"messages": [{"role": "user", "contents": "x", "content": "x"}]}),
            "`messages[0].content`",
        ),
        (
            CHAT,
            json!({"messages": message, "stream": true, "stream_options": {"include_usages": true}}),
            "`stream_options.include_usage`",
        ),
    ] {
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 400);
        let said = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(said.contains("did you mean") && said.contains(meant), "{said}");
    }
    let far = server.post(COMPLETIONS, &json!({"prompt": "x", "grammar_of_sentences": 1})).json();
    assert!(!far["error"]["message"].as_str().unwrap().contains("did you mean"), "{far}");
}

#[test]
fn the_described_fields_are_those_of_the_page() {
    let server = demo_server();
    let description = server.get("/openapi.json").ok();
    let known: BTreeSet<String> = table().into_iter().map(|(field, _, _)| field).collect();
    for schema in [
        "CompletionRequest",
        "ChatRequest",
        "ResponseRequest",
        "OllamaChatRequest",
        "OllamaGenerateRequest",
        "MessageRequest",
    ] {
        for name in description["components"]["schemas"][schema]["properties"].as_object().unwrap().keys() {
            let listed = known.iter().any(|field| field == name || field.starts_with(&format!("{name}.")));
            assert!(listed, "docs/http.md lacks {name}");
        }
    }
    let described = description["components"]["schemas"].to_string();
    for field in known {
        let last = field.rsplit('.').next().unwrap();
        assert!(described.contains(&format!("\"{last}\"")), "openapi.json lacks {field}");
    }
}
