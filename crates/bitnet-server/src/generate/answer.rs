//! What is known about an answer as a whole: its name, the model, its position as a stream, and the counts of its
//! tokens.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bitnet::model::Tokenizer;

use super::{job::Job, pieces::Piece, position::Position, turn::Turn, usage::Usage};
use crate::service::Service;

/// Everything that the choices of an answer share.
pub(crate) struct About {
    /// The name of the answer, which is part of all its ids.
    pub name: String,
    /// When the answer was begun, in seconds since 1970.
    pub created: u64,
    pub model: String,
    /// The identity of the server, as `system_fingerprint`.
    pub fingerprint: String,
    pub tokenizer: Option<Tokenizer>,
    /// Whether log-probabilities are returned.
    pub logprobs: bool,
    /// Whether choices carry their token ids.
    pub token_ids: bool,
    pub stop_strings: Vec<String>,
    /// The counts of tokens; complete at the end.
    pub usage: Usage,
    /// The position of the last event.
    position: Position,
    /// The client already has the events up to this position.
    after: Position,
    begun: Instant,
    first: Option<Instant>,
}

impl About {
    /// The answer to a job, and its choices; nothing is generated yet.
    pub fn new(service: &Service, job: &Job, created: u64) -> (About, Vec<Turn>) {
        let config = job.requests.first().map(|request| &request.config);
        let about = About {
            name: job.name.clone(),
            created,
            model: service.model.name.clone(),
            fingerprint: service.identity.to_string(),
            tokenizer: service.model.tokenizer.clone(),
            logprobs: job.logprobs,
            token_ids: job.token_ids,
            stop_strings: config.map_or_else(Vec::new, |config| config.stop_strings.clone()),
            usage: Usage { prompt: job.prompt_tokens(), ..Usage::default() },
            position: Position::start(job.choices()),
            after: job.after.clone().unwrap_or_else(|| Position::start(job.choices())),
            begun: job.caller.begun,
            first: None,
        };
        let turn = |choice: usize| {
            let thought = job.requests[choice / job.n].thought.as_ref();
            Turn::new(choice, thought, job.calls.clone())
        };
        let turns = (0..job.choices()).map(turn).collect();
        (about, turns)
    }

    /// Takes the engine's counts of tokens, and counts the tokens of the choices' thoughts.
    pub fn count(&mut self, usage: Usage, turns: &[Turn]) {
        self.usage = Usage { thought: turns.iter().map(Turn::thought_tokens).sum(), ..usage };
    }

    /// Notes that a piece has come; returns whether the client of a resumed stream lacks its event.
    pub fn arrived(&mut self, piece: &Piece) -> bool {
        if piece.token.is_some() {
            self.first.get_or_insert_with(Instant::now);
        }
        self.position.advance(piece.choice, piece.index);
        self.after.is_before(piece.choice, piece.index)
    }

    /// The id of the last event. It contains all that a server needs to continue after that event, or to refuse to.
    pub fn event_id(&self) -> String {
        self.id_at(&self.position)
    }

    /// The id of the event with the token counts, one position after the end of every choice; `None` if the client
    /// already has it.
    pub fn counts_id(&self) -> Option<String> {
        let position = self.position.after_all();
        (self.after != position).then(|| self.id_at(&position))
    }

    fn id_at(&self, position: &Position) -> String {
        format!("{position};{};{}", self.name, self.fingerprint)
    }

    /// The times from the arrival of the request to the first token, and from the first token to now.
    pub fn times(&self) -> (Duration, Duration) {
        let first = self.first.unwrap_or_else(Instant::now);
        (first - self.begun, first.elapsed())
    }
}

/// The time in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
