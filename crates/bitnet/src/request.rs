use std::{sync::Arc, time::Duration};

use bitnet_inference::{Constraint, GenerationConfig, Priority};
use bitnet_model::{GenerationDefaults, Message};

/// Temperature where neither the request nor the model says.
const TEMPERATURE: f32 = 0.7;

/// What to continue, and how. What is not set is the model's own choice: its temperature, its end tokens, and so on.
#[derive(Debug, Clone)]
pub struct Request {
    pub(crate) prompt: Prompt,
    pub(crate) schema: Option<String>,
    pub(crate) constraint: Option<Arc<dyn Constraint>>,
    pub(crate) priority: Priority,
    pub(crate) timeout: Option<Duration>,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    config: GenerationConfig,
}

#[derive(Debug, Clone)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Chat(Vec<Message>),
}

impl Request {
    /// Continues a text.
    pub fn new(text: impl Into<String>) -> Request {
        Request::of(Prompt::Text(text.into()))
    }

    /// Answers a conversation, written as the model's chat template says; without one, its contents are joined by blank
    /// lines.
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
            schema: None,
            constraint: None,
            priority: Priority::default(),
            timeout: None,
            temperature: None,
            top_k: None,
            top_p: None,
            config: GenerationConfig::default(),
        }
    }

    /// Maximum number of new tokens; 256 if not set.
    pub fn max_tokens(mut self, tokens: usize) -> Self {
        self.config.max_new_tokens = tokens;
        self
    }

    /// Divides the logits; 0 always takes the most likely token.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// Draws from this many most likely tokens; 0 draws from all.
    pub fn top_k(mut self, tokens: usize) -> Self {
        self.top_k = Some(tokens);
        self
    }

    /// Draws from the fewest tokens that together have this probability.
    pub fn top_p(mut self, probability: f32) -> Self {
        self.top_p = Some(probability);
        self
    }

    /// The seed of the random numbers: the same seed gives the same text. [`Answer::seed`](crate::Answer::seed) has the
    /// one that was drawn if none is set.
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.seed = Some(seed);
        self
    }

    /// Ends the text before this string. May be called several times.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.config.stop_strings.push(text.into());
        self
    }

    /// Makes the text JSON that follows a schema, given as text or as anything that displays as JSON, such as a
    /// `serde_json::Value`.
    #[cfg(feature = "json")]
    pub fn json_schema(mut self, schema: impl std::fmt::Display) -> Self {
        self.schema = Some(schema.to_string());
        self
    }

    /// Lets a rule of your own say which tokens may follow.
    pub fn constraint(mut self, constraint: impl Constraint + 'static) -> Self {
        self.constraint = Some(Arc::new(constraint));
        self
    }

    /// How urgent it is beside the other requests of the model.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Fails the request when it takes longer, its time in the queue included.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Changes whatever else there is to set: penalties, biases, stop tokens. Temperature, `top_k` and `top_p` are the
    /// request's own.
    pub fn configure(mut self, change: impl FnOnce(&mut GenerationConfig)) -> Self {
        change(&mut self.config);
        self
    }

    /// The configuration for a model with these defaults.
    pub(crate) fn config(&self, model: &GenerationDefaults) -> GenerationConfig {
        let own = sampling(model);
        GenerationConfig {
            temperature: self.temperature.unwrap_or(own.temperature),
            top_k: self.top_k.unwrap_or(own.top_k),
            top_p: self.top_p.unwrap_or(own.top_p),
            n: 1,
            echo: false,
            ..self.config.clone()
        }
    }
}

/// How a model asks to be sampled, where nobody says otherwise: temperature, `top_k` and `top_p`.
pub fn sampling(model: &GenerationDefaults) -> GenerationConfig {
    let own = if model.do_sample == Some(false) { Some(0.0) } else { model.temperature };
    GenerationConfig {
        temperature: own.unwrap_or(TEMPERATURE),
        top_k: model.top_k.unwrap_or(0),
        top_p: model.top_p.unwrap_or(1.0),
        ..GenerationConfig::default()
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
