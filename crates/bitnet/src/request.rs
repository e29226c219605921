//! What a program asks of a model: a prompt, and how to continue it. `prompted.rs` makes its tokens.

use std::{sync::Arc, time::Duration};

use bitnet_inference::{Constraint, GenerationConfig, Priority};
use bitnet_model::{Effort, GenerationDefaults, Message, TemplateInput, cache_salt};

use crate::thought::Thinking;

/// Temperature if neither the request nor the model sets one.
const TEMPERATURE: f32 = 0.7;

/// What to continue, and how. Options that are not set follow the model's defaults, such as its temperature.
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until a model runs it"]
pub struct Request {
    pub(crate) prompt: Prompt,
    pub(crate) format: Option<Format>,
    pub(crate) template_input: TemplateInput,
    pub(crate) thinking: Thinking,
    pub(crate) constraint: Option<Arc<dyn Constraint>>,
    pub(crate) priority: Priority,
    pub(crate) salt: u64,
    pub(crate) timeout: Option<Duration>,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    config: GenerationConfig,
}

#[derive(Debug, Clone)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Chat(Vec<Message>),
}

/// The format that the whole answer must have.
#[derive(Debug, Clone)]
pub(crate) enum Format {
    #[cfg(feature = "json")]
    Json(String),
    #[cfg(feature = "json")]
    Regex(String),
    #[cfg(feature = "json")]
    Choice(Vec<String>),
}

impl Request {
    /// Continues a text.
    pub fn new(text: impl Into<String>) -> Request {
        Request::of(Prompt::Text(text.into()))
    }

    /// Answers a conversation, formatted by the model's chat template; without a template, the messages' contents are
    /// joined by blank lines.
    pub fn chat(messages: impl IntoIterator<Item = Message>) -> Request {
        Request::of(Prompt::Chat(messages.into_iter().collect()))
    }

    /// Continues token ids.
    pub fn tokens(ids: impl Into<Vec<u32>>) -> Request {
        Request::of(Prompt::Tokens(ids.into()))
    }

    fn of(prompt: Prompt) -> Request {
        Request {
            prompt,
            format: None,
            template_input: TemplateInput::default(),
            thinking: Thinking::default(),
            constraint: None,
            priority: Priority::default(),
            salt: 0,
            timeout: None,
            temperature: None,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: None,
            config: GenerationConfig::default(),
        }
    }

    /// Sets the maximum number of new tokens; 256 by default.
    pub fn max_tokens(mut self, tokens: usize) -> Self {
        self.config.max_new_tokens = tokens;
        self
    }

    /// Sets the temperature, which divides the logits; 0 always takes the most likely token.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// Draws only from this many of the most likely tokens; 0 draws from all.
    pub fn top_k(mut self, tokens: usize) -> Self {
        self.top_k = Some(tokens);
        self
    }

    /// Draws only from the smallest set of most likely tokens whose total probability reaches this.
    pub fn top_p(mut self, probability: f32) -> Self {
        self.top_p = Some(probability);
        self
    }

    /// Draws only tokens with at least this fraction of the most likely token's probability; 0 draws from all.
    pub fn min_p(mut self, fraction: f32) -> Self {
        self.min_p = Some(fraction);
        self
    }

    /// Divides the positive logits of tokens in the prompt or text so far, and multiplies their other logits; 1 is
    /// neutral.
    pub fn repetition_penalty(mut self, factor: f32) -> Self {
        self.repetition_penalty = Some(factor);
        self
    }

    /// Subtracts this from the logits of tokens generated so far.
    pub fn presence_penalty(mut self, penalty: f32) -> Self {
        self.config.presence_penalty = penalty;
        self
    }

    /// Subtracts this from the logits of tokens generated so far, once for each occurrence.
    pub fn frequency_penalty(mut self, penalty: f32) -> Self {
        self.config.frequency_penalty = penalty;
        self
    }

    /// Adds to the logits of tokens, given by id. Replaces earlier biases.
    pub fn logit_bias(mut self, biases: impl IntoIterator<Item = (u32, f32)>) -> Self {
        self.config.logit_bias = biases.into_iter().collect();
        self
    }

    /// Generates at least this many tokens: before that, no end or stop token is drawn and no stop string is looked for.
    pub fn min_tokens(mut self, tokens: usize) -> Self {
        self.config.min_new_tokens = tokens;
        self
    }

    /// Ends the text before any of these tokens, in addition to the model's own end tokens. Replaces earlier ones.
    pub fn stop_tokens(mut self, tokens: impl Into<Vec<u32>>) -> Self {
        self.config.stop_tokens = tokens.into();
        self
    }

    /// Sets whether the model's own end tokens are ordinary tokens, so that only limits and stops end the text.
    pub fn ignore_eos(mut self, ignore: bool) -> Self {
        self.config.ignore_eos = ignore;
        self
    }

    /// Reports the log-probability of each new token, and of this many most likely tokens, in
    /// [`Answer::logprobs`](crate::Answer::logprobs).
    pub fn logprobs(mut self, most_likely: usize) -> Self {
        self.config.logprobs = Some(most_likely);
        self
    }

    /// Sets the seed of the random numbers: the same seed gives the same text. If not set, one is chosen; it is in
    /// [`Answer::seed`](crate::Answer::seed).
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.seed = Some(seed);
        self
    }

    /// Ends the text before this string. Can be called several times.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.config.stop_strings.push(text.into());
        self
    }

    /// Restricts the text to JSON that follows a schema, given as text or anything whose `Display` is JSON, such as a
    /// `serde_json::Value`. Replaces an earlier schema, regular expression or choice.
    #[cfg(feature = "json")]
    pub fn json_schema(mut self, schema: impl std::fmt::Display) -> Self {
        self.format = Some(Format::Json(schema.to_string()));
        self
    }

    /// Restricts the whole text to what a regular expression matches, in the syntax of Rust's `regex`. Replaces an
    /// earlier schema, regular expression or choice.
    #[cfg(feature = "json")]
    pub fn regex(mut self, pattern: impl Into<String>) -> Self {
        self.format = Some(Format::Regex(pattern.into()));
        self
    }

    /// Restricts the whole text to one of these. Replaces an earlier schema, regular expression or choice.
    #[cfg(feature = "json")]
    pub fn choice<T: Into<String>>(mut self, texts: impl IntoIterator<Item = T>) -> Self {
        self.format = Some(Format::Choice(texts.into_iter().map(Into::into).collect()));
        self
    }

    /// Sets the tools and variables for the model's chat template. Tools are described in the system message if the
    /// template does not know them; without a template, variables have no effect.
    pub fn template_input(mut self, input: TemplateInput) -> Self {
        self.template_input = input;
        self
    }

    /// Sets whether and how much to think before the answer to a conversation: `false`, an [`Effort`], or any
    /// [`Thinking`]. It has no effect with a chat template that knows no thoughts.
    pub fn thinking(mut self, thinking: impl Into<Thinking>) -> Self {
        self.thinking = thinking.into();
        self
    }

    /// Restricts which tokens may follow, by your own rule; it also applies to thoughts.
    pub fn constraint(mut self, constraint: impl Constraint + 'static) -> Self {
        self.constraint = Some(Arc::new(constraint));
        self
    }

    /// Sets how urgent the request is compared to other requests to the model.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Shares the cache only with requests that have the same salt, such as those of one tenant, in memory and in a folder
    /// ([`CacheDir`](crate::CacheDir)).
    pub fn cache_salt(mut self, text: &str) -> Self {
        self.salt = cache_salt(text);
        self
    }

    /// Sets the maximum time that the request may take, including the time in the queue; after that, it fails.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The configuration, with a model's defaults for what the request does not set.
    pub(crate) fn config(&self, model: &GenerationDefaults) -> GenerationConfig {
        let own = sampling(model);
        GenerationConfig {
            temperature: self.temperature.unwrap_or(own.temperature),
            top_k: self.top_k.unwrap_or(own.top_k),
            top_p: self.top_p.unwrap_or(own.top_p),
            min_p: self.min_p.unwrap_or(own.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(own.repetition_penalty),
            ..self.config.clone()
        }
    }
}

/// A model's own defaults for sampling: temperature, `top_k`, `top_p`, `min_p` and the repetition penalty.
pub fn sampling(model: &GenerationDefaults) -> GenerationConfig {
    let own = if model.do_sample == Some(false) { Some(0.0) } else { model.temperature };
    GenerationConfig {
        temperature: own.unwrap_or(TEMPERATURE),
        top_k: model.top_k.unwrap_or(0),
        top_p: model.top_p.unwrap_or(1.0),
        min_p: model.min_p.unwrap_or(0.0),
        repetition_penalty: model.repetition_penalty.unwrap_or(1.0),
        ..GenerationConfig::default()
    }
}

impl From<bool> for Thinking {
    fn from(on: bool) -> Thinking {
        Thinking { on: Some(on), ..Thinking::default() }
    }
}

impl From<Effort> for Thinking {
    fn from(effort: Effort) -> Thinking {
        Thinking { effort: Some(effort), ..Thinking::default() }
    }
}

impl From<&Request> for Request {
    fn from(request: &Request) -> Request {
        request.clone()
    }
}

impl From<&str> for Request {
    fn from(text: &str) -> Request {
        Request::new(text)
    }
}

impl From<String> for Request {
    fn from(text: String) -> Request {
        Request::new(text)
    }
}
