//! Limits and rules for requests, which the program that serves sets.

use std::time::Duration;

/// Limits and rules for requests. Begin with `..ServerConfig::default()`: fields may be added.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The name that clients use for the model, instead of its own.
    pub name: Option<String>,
    /// The key that clients must send as `Authorization: Bearer KEY` or `X-API-Key: KEY`, on all paths except the chat page, `/live`,
    /// `/ready` and `/health`.
    pub api_key: Option<String>,
    /// Maximum size of a body in bytes.
    pub body_limit: usize,
    /// Maximum size in bytes of all bodies together that arrive or wait to be parsed, not counting the first 16 KiB of
    /// each; further bodies are refused.
    pub bodies_limit: usize,
    /// Maximum time that a body may take to arrive.
    pub body_timeout: Duration,
    /// Maximum time that a request may take once its body has arrived, including parsing and the time in the queue.
    pub request_timeout: Duration,
    /// Host names to answer in addition to localhost. A server on a loopback address refuses all other names; a server
    /// on another address does so only if this list is not empty.
    pub allow_hosts: Vec<String>,
    /// Origins whose pages may use the server from a browser, such as `https://app.example`; `*` allows all.
    pub allow_origins: Vec<String>,
    /// Requests that would probably wait longer than this for their first token are refused.
    pub ttft_goal: Option<Duration>,
    /// Maximum number of tokens of a thought, for requests that do not set one.
    pub thinking_budget: Option<usize>,
    /// Text that ends a thought whose budget is used up, before the end marker. By default it is the sentence with which
    /// Qwen's models were trained, where thoughts are written as they write them, and nothing elsewhere.
    pub thinking_last_words: Option<String>,
    /// Whether prompts may appear in the log.
    pub log_prompts: bool,
    /// Whether fields that change no token are refused, as unknown ones are.
    pub strict: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            name: None,
            api_key: None,
            body_limit: 8 << 20,
            bodies_limit: 64 << 20,
            body_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(600),
            allow_hosts: Vec::new(),
            allow_origins: Vec::new(),
            ttft_goal: None,
            thinking_budget: None,
            thinking_last_words: None,
            log_prompts: false,
            strict: false,
        }
    }
}
