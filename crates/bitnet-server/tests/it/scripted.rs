//! A model that writes given tokens, with a vocabulary that has the markers of thoughts and calls as tokens.

use std::sync::Arc;

use bitnet::inference::EngineConfig;
use bitnet::kernels::BackendInfo;
use bitnet::model::{
    Batch, ChatTemplate, Checkpoint, ForwardError, Limits, Logits, Model, ModelSpec, Tokenizer,
};
use bitnet_hash_model::HashModel;
use bitnet_server::{App, ConnectionLimits, ServerConfig};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::support::*;

/// A template that opens the thought in the prompt, has a switch and efforts, and can keep or drop earlier thoughts.
pub const OPEN: &str = r"{%- set users = messages | selectattr('role', 'equalto', 'user') | list -%}
{%- if tools -%}{{ '[tools]' + tools | tojson }}{%- endif -%}
{%- set seen = namespace(users=0) -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{%- set seen.users = seen.users + 1 -%}{%- endif -%}
{%- if m.role == 'system' and not loop.first -%}{{ raise_exception('The system message must be the first.') }}{%- endif -%}
{{ '[' + m.role + ']' }}
{%- set current = seen.users == users | length -%}
{%- if m.role == 'assistant' and m.reasoning_content and (current or preserve_thinking is defined and preserve_thinking) -%}
{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}
{%- endif -%}
{{ m.content or '' }}
{%- for c in m.tool_calls or [] -%}
{{ '\n<tool_call>\n' + {'name': c.function.name, 'arguments': c.function.arguments} | tojson + '\n</tool_call>' }}
{%- endfor -%}
{{ '[end]\n' }}
{%- endfor -%}
{%- if reasoning_effort is defined and reasoning_effort not in ['low', 'high'] -%}
{{ raise_exception('Only low and high.') }}
{%- endif -%}
{%- if add_generation_prompt -%}
{{ '[assistant]' }}
{%- if reasoning_effort is defined and reasoning_effort == 'low' -%}{{ '[low]' }}{%- endif -%}
{%- if enable_thinking is defined and not enable_thinking -%}{{ '<think>\n\n</think>\n\n' }}{%- else -%}{{ '<think>\n' }}{%- endif -%}
{%- endif -%}
";

/// A template of a model that opens its thought itself.
pub fn absent() -> String {
    OPEN.replace(r"{{ '<think>\n' }}{%- endif -%}", "{%- endif -%}")
}

/// What the model writes next.
#[derive(Default)]
struct Script {
    ids: Vec<u32>,
    next: usize,
    /// The token that was written last.
    written: Option<u32>,
}

/// A model whose logits are those of a script.
struct Writer {
    inner: Box<dyn Model>,
    script: Arc<Mutex<Script>>,
    /// The token after the script.
    end: u32,
}

impl Model for Writer {
    fn spec(&self) -> &ModelSpec {
        self.inner.spec()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn backend(&self) -> BackendInfo {
        self.inner.backend()
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), ForwardError> {
        self.inner.forward(batch, logits)?;
        let mut script = self.script.lock();
        let mut rows = batch.logit_rows().iter().enumerate().peekable();
        for run in batch.runs() {
            let Some(&(_, first)) = rows.peek().filter(|(_, index)| run.tokens.contains(index)) else {
                continue;
            };
            // Once it writes, it follows tokens that are computed without logits too.
            let from = if script.written.is_some() { run.tokens.start } else { *first };
            for index in from..run.tokens.end {
                // What the engine wrote instead does not count.
                if script.written == Some(batch.tokens()[index]) {
                    script.next += 1;
                }
                let token = script.ids.get(script.next).copied().unwrap_or(self.end);
                script.written = Some(token);
                if let Some((row, _)) = rows.next_if(|(_, wanted)| **wanted == index) {
                    logits.row_mut(row)[token as usize] = 1e4;
                }
            }
        }
        Ok(())
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        self.inner.copy_block(from, to)
    }

    fn copy_state(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        self.inner.copy_state(from, to)
    }
}

/// A server whose model writes given tokens, to one request at a time.
pub struct Scripted {
    pub server: Server,
    script: Arc<Mutex<Script>>,
    tokenizer: Tokenizer,
}

impl Scripted {
    pub fn new(template: &str) -> Scripted {
        Scripted::with(template, ServerConfig::default())
    }

    pub fn with(template: &str, config: ServerConfig) -> Scripted {
        let mut checkpoint = Checkpoint::demo().unwrap();
        let tokenizer = tokenizer();
        checkpoint.chat = Some(ChatTemplate::new(template, "", "").unwrap());
        checkpoint.defaults.eos = vec![tokenizer.token_id("<end>").unwrap()];
        let limits = Limits { max_tokens: 64, max_logit_rows: 16, kv_blocks: 512, state_slots: 0 };
        let model = HashModel::new(tokenizer.vocab_size(), 4096, limits);
        checkpoint.tokenizer = Some(tokenizer);
        Scripted::over(checkpoint, Box::new(model), config)
    }

    /// A server of a model that computes everything except for what it writes.
    pub fn over(checkpoint: Checkpoint, inner: Box<dyn Model>, config: ServerConfig) -> Scripted {
        let tokenizer = checkpoint.tokenizer.clone().unwrap();
        let (script, end) = (Arc::new(Mutex::new(Script::default())), checkpoint.defaults.eos[0]);
        let model = Writer { inner, script: Arc::clone(&script), end };
        let service = serve_weights(checkpoint, Box::new(model), EngineConfig::default(), config);
        let server = Server::start(App::ready(service), ConnectionLimits::default(), SOON);
        Scripted { server, script, tokenizer }
    }

    /// Tokens of texts, each text encoded by itself: a marker in one text is one token.
    pub fn ids(&self, texts: &[&str]) -> Vec<u32> {
        texts.iter().flat_map(|text| self.tokenizer.encode(text, false).unwrap()).collect()
    }

    /// Sends a body, to which the model writes these texts.
    pub fn post(&self, path: &str, body: &Value, texts: &[&str]) -> Reply {
        *self.script.lock() = Script { ids: self.ids(texts), ..Script::default() };
        self.server.post(path, body)
    }

    /// The prompt of a chat, as text.
    pub fn prompt(&self, body: &Value) -> String {
        let tokens = &self.server.post("/tokenize", body).ok()["tokens"];
        let text = self.server.post("/detokenize", &json!({"tokens": tokens})).ok();
        text["prompt"].as_str().unwrap().to_owned()
    }
}

/// The demo's vocabulary, with markers.
fn tokenizer() -> Tokenizer {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/bitnet-master/tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let next = Tokenizer::from_json(json.to_string().as_bytes()).unwrap().vocab_size();
    let added = json["added_tokens"].as_array_mut().unwrap();
    for (i, token) in ["<think>", "</think>", "<tool_call>", "</tool_call>", "<end>"].into_iter().enumerate()
    {
        added.push(json!({"id": next + i, "content": token, "special": false, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false}));
    }
    Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
}
