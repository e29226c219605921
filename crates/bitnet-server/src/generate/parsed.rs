//! What a body of any API asks for, before it becomes a job: prompts, settings, tools, a format, and how thoughts are
//! written.

use std::sync::Arc;

use bitnet::{
    inference::{GenerationConfig, Priority},
    model::CallForm,
    thought::ThoughtRule,
};

use super::{conversation::Conversation, grammar::Format, tools::Offer};
use crate::http::error::Names;

/// What a body asks for, in any API.
pub(crate) struct Parsed {
    /// Whether the prompt is a conversation.
    pub chat: bool,
    /// A conversation is one prompt.
    pub prompts: Vec<Vec<u32>>,
    /// The settings, with the seed of the body if it has one.
    pub config: GenerationConfig,
    /// How many of the choices for each prompt are returned, the best first; `None` returns all.
    pub best: Option<usize>,
    /// Number of tokens at the end of the prompt that another server has generated and that belong to the answer.
    pub generated: usize,
    /// The tools that may be called, and how calls are written.
    pub offer: Option<(Offer, Arc<CallForm>)>,
    /// How a thought before the answer is written, if one may follow the prompt.
    pub thought: Option<Arc<ThoughtRule>>,
    /// The format of the text, after the name of the field that asks for it.
    pub format: Option<(&'static str, Format)>,
    pub priority: Priority,
    /// Requests share cached prefixes only if this is equal.
    pub salt: u64,
    pub stream: bool,
    /// Whether choices carry their token ids.
    pub token_ids: bool,
    /// Tokens of a text that the answer will probably resemble.
    pub prediction: Vec<u32>,
    /// What the client calls the fields.
    pub names: Names,
}

impl Parsed {
    /// A request for the next turn of a conversation.
    pub fn turn(conversation: Conversation, config: GenerationConfig) -> Parsed {
        Parsed {
            chat: true,
            prompts: vec![conversation.tokens],
            config,
            best: None,
            generated: 0,
            offer: conversation.offer,
            thought: conversation.thought,
            format: None,
            priority: Priority::Normal,
            salt: 0,
            stream: false,
            token_ids: false,
            prediction: Vec::new(),
            names: Names::default(),
        }
    }
}
