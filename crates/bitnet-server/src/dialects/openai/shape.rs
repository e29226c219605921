//! The JSON objects of answers, as OpenAI's API defines them.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::generate::{
    answer::About,
    pieces::Finish,
    turn::{Tokens, Turn},
};

/// Lowest log-probability in an answer, because JSON has no infinity.
const LOWEST: f32 = -9999.0;

/// The form of the objects of one answer.
pub(super) struct Shape<'a> {
    pub about: &'a About,
    /// Whether the answer is that of a chat.
    pub chat: bool,
    pub id: String,
    /// Whether objects of a stream have a field for the token counts.
    pub include_usage: bool,
}

/// What an event of a stream adds to its choice.
#[derive(Default)]
pub(super) struct Added {
    pub thought: String,
    pub text: String,
    /// The calls that begin or grow.
    pub calls: Vec<AddedCall>,
}

/// What an event adds to a call.
pub(super) struct AddedCall {
    /// Index among the calls of its message.
    pub index: usize,
    /// The name of a call that begins.
    pub name: Option<String>,
    pub arguments: String,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: CompletionDetails,
}

#[derive(Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

#[derive(Serialize)]
struct CompletionDetails {
    reasoning_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_prediction_tokens: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rejected_prediction_tokens: Option<usize>,
}

#[derive(Serialize)]
struct Object<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: Vec<Choice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Delta>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message>,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
    /// A reason for which `finish_reason` has no value: `deadline`.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    content: Option<String>,
    refusal: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
}

/// A tool call, or a part of one in a stream.
#[derive(Serialize)]
struct Call {
    /// In a stream, the index of the call in its message.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: Function,
}

#[derive(Default, Serialize)]
struct Function {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

impl Shape<'_> {
    /// One event of a stream: what a piece adds to its choice. The `first` event of a choice in a chat carries the role,
    /// the last has the reason for which it is `over`.
    pub fn chunk(&self, turn: &Turn, tokens: &Tokens, added: Added, first: bool, over: bool) -> String {
        let choice = self.choice(turn, tokens, over);
        let choice = if self.chat {
            // Content is absent while the model thinks.
            let silent = added.calls.is_empty() && added.thought.is_empty() && (over || !turn.thinks());
            let content = Some(added.text).filter(|text| !text.is_empty() || silent);
            let reasoning_content = Some(added.thought).filter(|thought| !thought.is_empty());
            let calls = added.calls.into_iter().map(|call| {
                // A call that began in an earlier event is identified by its index alone.
                let begun = call.name.as_ref().map(|_| (self.call_id(turn, call.index), "function"));
                let (id, kind) = begun.unzip();
                let function = Function { name: call.name, arguments: call.arguments };
                Call { index: Some(call.index), id, kind, function }
            });
            let role = first.then_some("assistant");
            let delta = Delta { role, reasoning_content, content, tool_calls: calls.collect() };
            Choice { delta: Some(delta), ..choice }
        } else {
            Choice { text: Some(added.text), ..choice }
        };
        self.object(self.kind_of_chunk(), vec![choice], self.include_usage.then_some(None))
    }

    /// The event with the token counts.
    pub fn counts(&self) -> String {
        self.object(self.kind_of_chunk(), Vec::new(), Some(Some(self.usage())))
    }

    fn kind_of_chunk(&self) -> &'static str {
        if self.chat { "chat.completion.chunk" } else { "text_completion" }
    }

    /// The answer that is not streamed. `contents` returns the thought and the content of a turn.
    pub fn whole(&self, turns: &[Turn], contents: impl Fn(&Turn) -> (String, String)) -> String {
        let choice = |turn: &Turn| {
            let choice = self.choice(turn, &turn.tokens, true);
            if self.chat {
                Choice { message: Some(self.message(turn, contents(turn))), ..choice }
            } else {
                Choice { text: Some(turn.text()), ..choice }
            }
        };
        let kind = if self.chat { "chat.completion" } else { "text_completion" };
        self.object(kind, turns.iter().map(choice).collect(), Some(Some(self.usage())))
    }

    fn message(&self, turn: &Turn, (thought, content): (String, String)) -> Message {
        let calls = turn.calls().enumerate().map(|(index, (name, arguments))| Call {
            index: None,
            id: Some(self.call_id(turn, index)),
            kind: Some("function"),
            function: Function { name: Some(name.to_owned()), arguments: arguments.to_owned() },
        });
        let tool_calls: Vec<Call> = calls.collect();
        let content = Some(content).filter(|text| !text.is_empty() || tool_calls.is_empty());
        let reasoning_content = Some(thought).filter(|thought| !thought.is_empty());
        Message { role: "assistant", reasoning_content, content, refusal: None, tool_calls }
    }

    /// The id of a call, which is the same whenever the same answer is computed.
    fn call_id(&self, turn: &Turn, index: usize) -> String {
        format!("call_{}_{}_{index}", self.about.name, turn.choice)
    }

    fn usage(&self) -> Usage {
        let usage = self.about.usage;
        Usage {
            prompt_tokens: usage.prompt,
            completion_tokens: usage.generated,
            total_tokens: usage.total(),
            prompt_tokens_details: usage.cached.map(|cached_tokens| PromptDetails { cached_tokens }),
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: usage.thought,
                accepted_prediction_tokens: usage.predicted.map(|counts| counts.accepted),
                rejected_prediction_tokens: usage.predicted.map(|counts| counts.rejected),
            },
        }
    }

    fn object(&self, kind: &'static str, choices: Vec<Choice>, usage: Option<Option<Usage>>) -> String {
        let About { created, model, fingerprint, .. } = self.about;
        let object = Object {
            id: &self.id,
            object: kind,
            created: *created,
            model,
            system_fingerprint: fingerprint,
            choices,
            usage,
        };
        serde_json::to_string(&object).expect("text and numbers make JSON")
    }

    /// A choice without its text.
    fn choice(&self, turn: &Turn, tokens: &Tokens, over: bool) -> Choice {
        let finish = turn.finish.filter(|_| over);
        Choice {
            index: turn.choice,
            text: None,
            delta: None,
            message: None,
            // An empty answer has an empty list: `null` says that none were asked for.
            logprobs: self
                .about
                .logprobs
                .then(|| if self.chat { self.by_token(tokens) } else { self.by_column(tokens) }),
            finish_reason: finish.map(|finish| match finish {
                Finish::Stop | Finish::StopString(_) if turn.has_called() => "tool_calls",
                Finish::Stop | Finish::StopString(_) => "stop",
                Finish::Length | Finish::Deadline => "length",
            }),
            stop_reason: (finish == Some(Finish::Deadline)).then_some("deadline"),
            token_ids: self.about.token_ids.then(|| tokens.ids.clone()),
        }
    }

    /// Log-probabilities in the form of completions, with the token that ended the choice: an evaluation that scores a
    /// prompt takes the last entry for a generated token.
    fn by_column(&self, tokens: &Tokens) -> Value {
        let end = tokens.end_token.as_ref();
        let ids = tokens.ids.iter().copied().chain(end.map(|end| end.id));
        let offsets = tokens.offsets.iter().copied().chain(end.map(|end| end.offset));
        let logprobs = tokens.logprobs.iter().map(Option::as_ref).chain(end.map(|end| Some(&end.logprobs)));
        let tops = logprobs.clone().map(|at| {
            let Some(at) = at else { return Value::Null };
            let top = at.top.iter().map(|&(id, logprob)| (self.spelled(id), json!(finite(logprob))));
            Value::Object(top.collect::<Map<_, _>>())
        });
        json!({
            "tokens": ids.map(|id| self.spelled(id)).collect::<Vec<_>>(),
            "token_logprobs": logprobs.map(|at| at.map(|at| finite(at.logprob))).collect::<Vec<_>>(),
            "top_logprobs": tops.collect::<Vec<_>>(),
            "text_offset": offsets.collect::<Vec<_>>(),
        })
    }

    /// Log-probabilities in the form of chats.
    fn by_token(&self, tokens: &Tokens) -> Value {
        let one = |id: u32, logprob: f32| json!({"token": self.spelled(id), "logprob": finite(logprob), "bytes": self.bytes(id)});
        let content = tokens.ids.iter().zip(tokens.logprobs.iter().flatten()).map(|(&id, at)| {
            let mut entry = one(id, at.logprob);
            entry["top_logprobs"] = at.top.iter().map(|&(id, logprob)| one(id, logprob)).collect();
            entry
        });
        json!({"content": content.collect::<Vec<_>>(), "refusal": null})
    }

    fn bytes(&self, id: u32) -> &[u8] {
        self.about.tokenizer.as_ref().and_then(|t| t.token_bytes(id)).unwrap_or_default()
    }

    /// The text of a token, or its id if the model has no tokenizer.
    fn spelled(&self, id: u32) -> String {
        match self.about.tokenizer {
            Some(_) => String::from_utf8_lossy(self.bytes(id)).into_owned(),
            None => format!("token_id:{id}"),
        }
    }
}

fn finite(logprob: f32) -> f32 {
    logprob.max(LOWEST)
}
