//! The JSON objects of answers, as OpenAI's API defines them.

use bitnet::inference::TokenLogprobs;
use bitnet::model::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::openai::{
    answers::{EndToken, Finish, Piece},
    job::Endpoint,
    tools::reader::{AnswerPart, Calls, Reader},
};

/// Lowest log-probability in an answer, because JSON has no infinity.
const LOWEST: f32 = -9999.0;

/// Everything that the objects of one answer share.
pub(crate) struct Shape {
    pub endpoint: Endpoint,
    pub id: String,
    pub created: u64,
    pub model: String,
    /// The identity of the server, as `system_fingerprint`.
    pub fingerprint: String,
    pub tokenizer: Option<Tokenizer>,
    pub logprobs: bool,
    /// How tool calls are written in the text, if it may contain any.
    pub calls: Option<Calls>,
    pub token_ids: bool,
    /// Whether objects of a stream have a field for the token counts.
    pub include_usage: bool,
}

/// The token counts of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
}

impl Usage {
    pub fn new(prompt_tokens: usize, completion_tokens: usize) -> Self {
        Usage { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens }
    }
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
    content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
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

/// The pieces of a choice, put together.
#[derive(Default)]
struct Whole {
    text: String,
    ids: Vec<u32>,
    offsets: Vec<usize>,
    /// One for each token of the answer, if requested; the first token of a prompt has none.
    logprobs: Vec<Option<TokenLogprobs>>,
    /// Sum and number of the generated tokens' log-probabilities.
    sum: (f64, usize),
    finish: Option<Finish>,
    end_token: Option<EndToken>,
}

impl Whole {
    fn add(&mut self, piece: Piece) {
        self.text.push_str(&piece.text);
        if let Some(echo) = piece.echo {
            self.ids.extend(&echo.ids);
            self.offsets.extend(&echo.offsets);
            self.logprobs.extend(echo.logprobs.iter().cloned());
        }
        if let Some((id, logprobs)) = piece.token {
            if let Some(at) = &logprobs {
                self.sum = (self.sum.0 + f64::from(at.logprob), self.sum.1 + 1);
            }
            self.ids.push(id);
            self.offsets.push(piece.offset);
            self.logprobs.extend(logprobs.map(Some));
        }
        self.finish = self.finish.or(piece.finish);
        self.end_token = piece.end_token;
    }

    /// The mean log-probability of the generated tokens; the lowest of all without any.
    fn mean(&self) -> f64 {
        match self.sum {
            (_, 0) => f64::NEG_INFINITY,
            (sum, count) => sum / count as f64,
        }
    }

    /// Reads the text with a reader that has read the earlier pieces.
    fn parts(&self, reader: &mut Reader) -> Vec<AnswerPart> {
        let mut parts = reader.push(&self.text);
        if self.finish.is_some() {
            parts.extend(reader.finish());
        }
        parts
    }
}

/// All choices of an answer that is not streamed.
pub(crate) struct Wholes(Vec<Whole>);

impl Wholes {
    pub fn new(choices: usize) -> Self {
        Wholes((0..choices).map(|_| Whole::default()).collect())
    }

    /// Adds a piece to its choice.
    pub fn add(&mut self, piece: Piece) {
        self.0[piece.choice].add(piece);
    }

    /// Keeps the `best` of every `of` choices, by their mean log-probability and the best first; of equals, the first.
    pub fn keep_best(&mut self, of: usize, best: usize) {
        let mut kept = Vec::new();
        for choices in self.0.chunks_mut(of) {
            choices.sort_by(|a, b| b.mean().total_cmp(&a.mean()));
            kept.extend(choices.iter_mut().take(best).map(std::mem::take));
        }
        self.0 = kept;
    }
}

impl Shape {
    /// One event of a stream. The first event of a choice in a chat carries the role. `reader` has read the choice's
    /// earlier events.
    pub fn chunk(&self, piece: Piece, reader: &mut Reader) -> String {
        let (index, role) = (piece.choice, (piece.index == 0).then_some("assistant"));
        let mut whole = Whole::default();
        whole.add(piece);
        let parts = whole.parts(reader);
        let mut choice = self.choice(index, &mut whole, reader.has_called());
        match self.endpoint {
            Endpoint::Completions => choice.text = Some(whole.text),
            Endpoint::Chat => {
                let (content, mut tool_calls) = self.content_and_calls(index, parts);
                for call in &mut tool_calls {
                    // A call that began in an earlier event is identified by its index alone.
                    let begins = call.function.name.is_some();
                    (call.id, call.kind) = (call.id.take().filter(|_| begins), call.kind.filter(|_| begins));
                }
                let content = Some(content).filter(|content| !content.is_empty() || tool_calls.is_empty());
                choice.delta = Some(Delta { role, content, tool_calls });
            }
        }
        self.object(self.kind_of_chunk(), vec![choice], self.include_usage.then_some(None))
    }

    /// The event with the token counts.
    pub fn counts(&self, usage: Usage) -> String {
        self.object(self.kind_of_chunk(), Vec::new(), Some(Some(usage)))
    }

    fn kind_of_chunk(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Completions => "text_completion",
            Endpoint::Chat => "chat.completion.chunk",
        }
    }

    /// The answer that is not streamed.
    pub fn whole(&self, wholes: Wholes, usage: Usage) -> String {
        let choice = |(index, mut whole): (usize, Whole)| {
            let mut reader = self.reader();
            let parts = whole.parts(&mut reader);
            let choice = self.choice(index, &mut whole, reader.has_called());
            match self.endpoint {
                Endpoint::Completions => Choice { text: Some(whole.text), ..choice },
                Endpoint::Chat => {
                    let (content, mut tool_calls) = self.content_and_calls(index, parts);
                    tool_calls.iter_mut().for_each(|call| call.index = None);
                    let content =
                        Some(content).filter(|content| !content.is_empty() || tool_calls.is_empty());
                    let message = Message { role: "assistant", content, refusal: None, tool_calls };
                    Choice { message: Some(message), ..choice }
                }
            }
        };
        let kind = match self.endpoint {
            Endpoint::Completions => "text_completion",
            Endpoint::Chat => "chat.completion",
        };
        let choices = wholes.0.into_iter().enumerate().map(choice).collect();
        self.object(kind, choices, Some(Some(usage)))
    }

    fn object(&self, kind: &'static str, choices: Vec<Choice>, usage: Option<Option<Usage>>) -> String {
        let object = Object {
            id: &self.id,
            object: kind,
            created: self.created,
            model: &self.model,
            system_fingerprint: &self.fingerprint,
            choices,
            usage,
        };
        serde_json::to_string(&object).expect("text and numbers make JSON")
    }

    /// A reader for the text of a choice.
    pub fn reader(&self) -> Reader {
        Reader::new(self.calls.clone())
    }

    /// Separates text from calls. The ids of calls are the same whenever the same answer is computed.
    fn content_and_calls(&self, choice: usize, parts: Vec<AnswerPart>) -> (String, Vec<Call>) {
        let (mut content, mut calls) = (String::new(), Vec::<Call>::new());
        let answer = self.id.rsplit('-').next().unwrap_or_default();
        for part in parts {
            let (index, name, arguments) = match part {
                AnswerPart::Text(text) => {
                    content += &text;
                    continue;
                }
                AnswerPart::Call(index, name) => (index, Some(name), String::new()),
                AnswerPart::Arguments(index, arguments) => (index, None, arguments),
            };
            match calls.iter_mut().find(|call| call.index == Some(index)) {
                Some(call) => call.function.arguments += &arguments,
                None => calls.push(Call {
                    index: Some(index),
                    id: Some(format!("call_{answer}_{choice}_{index}")),
                    kind: Some("function"),
                    function: Function { name, arguments },
                }),
            }
        }
        (content, calls)
    }

    /// A choice without its text.
    fn choice(&self, index: usize, whole: &mut Whole, called: bool) -> Choice {
        let completes = matches!(self.endpoint, Endpoint::Completions);
        let wanted = !whole.logprobs.is_empty() || completes && whole.end_token.is_some();
        Choice {
            index,
            text: None,
            delta: None,
            message: None,
            logprobs: (self.logprobs && wanted).then(|| match self.endpoint {
                Endpoint::Completions => self.by_column(whole),
                Endpoint::Chat => self.by_token(whole),
            }),
            finish_reason: whole.finish.map(|finish| match finish {
                Finish::Stop | Finish::StopString(_) if called => "tool_calls",
                Finish::Stop | Finish::StopString(_) => "stop",
                Finish::Length | Finish::Deadline => "length",
            }),
            stop_reason: (whole.finish == Some(Finish::Deadline)).then_some("deadline"),
            token_ids: self.token_ids.then(|| std::mem::take(&mut whole.ids)),
        }
    }

    /// Log-probabilities in the form of completions, with the token that ended the choice: an evaluation that scores a
    /// prompt takes the last entry for a generated token.
    fn by_column(&self, whole: &Whole) -> Value {
        let end = whole.end_token.as_ref();
        let ids = whole.ids.iter().copied().chain(end.map(|end| end.id));
        let offsets = whole.offsets.iter().copied().chain(end.map(|end| end.offset));
        let logprobs = whole.logprobs.iter().map(Option::as_ref).chain(end.map(|end| Some(&end.logprobs)));
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
    fn by_token(&self, whole: &Whole) -> Value {
        let one = |id: u32, logprob: f32| json!({"token": self.spelled(id), "logprob": finite(logprob), "bytes": self.bytes(id)});
        let content = whole.ids.iter().zip(whole.logprobs.iter().flatten()).map(|(&id, at)| {
            let mut entry = one(id, at.logprob);
            entry["top_logprobs"] = at.top.iter().map(|&(id, logprob)| one(id, logprob)).collect();
            entry
        });
        json!({"content": content.collect::<Vec<_>>(), "refusal": null})
    }

    fn bytes(&self, id: u32) -> &[u8] {
        self.tokenizer.as_ref().and_then(|t| t.token_bytes(id)).unwrap_or_default()
    }

    /// The text of a token, or its id if the model has no tokenizer.
    fn spelled(&self, id: u32) -> String {
        match self.tokenizer {
            Some(_) => String::from_utf8_lossy(self.bytes(id)).into_owned(),
            None => format!("token_id:{id}"),
        }
    }
}

fn finite(logprob: f32) -> f32 {
    logprob.max(LOWEST)
}
