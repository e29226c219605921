//! Positions in a stream: the ids of events, and the header with which a client resumes after one of them.

use std::fmt;

use axum::http::{HeaderMap, StatusCode};
use bitnet::inference::GenerationConfig;
use sha2::{Digest, Sha256};

use crate::{http::error::ApiError, identity::Identity, random::fresh, service::Service};

/// For each choice, the index of its last event that was sent, or `None` before the first.
///
/// The events of a choice are its tokens, then its end, then the token counts. In the id of an event, a position is
/// these indices separated by commas, with `-` for `None`; with a single choice it is just the index of the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Position(Vec<Option<usize>>);

impl Position {
    /// The position before the first event.
    pub fn start(choices: usize) -> Self {
        Position(vec![None; choices])
    }

    fn parse(text: &str, choices: usize) -> Option<Position> {
        let index = |text: &str| match text {
            "-" => Some(None),
            number => number.parse().ok().map(Some),
        };
        let indices: Vec<_> = text.split(',').take(choices + 1).map(index).collect::<Option<_>>()?;
        (indices.len() == choices).then_some(Position(indices))
    }

    /// Moves to an event of a choice; the position then identifies that event.
    pub fn advance(&mut self, choice: usize, index: usize) {
        self.0[choice] = Some(index);
    }

    /// The position of the token counts: one event further for every choice.
    pub fn after_all(&self) -> Position {
        Position(self.0.iter().map(|index| Some(index.map_or(0, |i| i + 1))).collect())
    }

    /// Whether an event of a choice comes after this position.
    pub fn is_before(&self, choice: usize, index: usize) -> bool {
        self.0[choice].is_none_or(|last| last < index)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, index) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match index {
                Some(index) => write!(f, "{comma}{index}")?,
                None => write!(f, "{comma}-")?,
            }
        }
        Ok(())
    }
}

/// Names an answer: a random number, and a digest of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Name {
    drawn: u64,
    digest: u32,
}

impl Name {
    /// A name for a new answer to a request with this digest.
    pub fn fresh(digest: u32) -> Self {
        Name { drawn: fresh(), digest }
    }

    fn parse(text: &str) -> Option<Name> {
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let sound = text.len() == 24 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        sound.then(|| Some(Name { drawn: hex(&text[..16])?, digest: hex(&text[16..])? as u32 }))?
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:08x}", self.drawn, self.digest)
    }
}

/// A stream to resume, and the position after which it continues.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Continued {
    pub after: Position,
    pub name: Name,
}

impl Continued {
    /// Parses and checks the header `Last-Event-ID`, if it is present: `POSITION;NAME;IDENTITY`.
    pub fn requested(
        headers: &HeaderMap,
        choices: usize,
        digest: u32,
        identity: &Identity,
    ) -> Result<Option<Continued>, ApiError> {
        let Some(value) = headers.get("last-event-id") else { return Ok(None) };
        let mut parts = value.to_str().unwrap_or_default().trim().splitn(3, ';');
        let read = (|| {
            let after = Position::parse(parts.next()?, choices)?;
            Some((after, Name::parse(parts.next()?)?, Identity::parse(parts.next()?)?))
        })();
        let Some((after, name, theirs)) = read else {
            let problem = format!("it must be the id of an event of a stream with {choices} choices");
            return Err(ApiError::field("Last-Event-ID", problem));
        };
        let differs = |what: String| {
            let message = format!("Last-Event-ID: the stream cannot continue here: it had {what}");
            ApiError::new(StatusCode::PRECONDITION_FAILED, "other_stream", message).about("Last-Event-ID")
        };
        if let Some(difference) = identity.difference(&theirs) {
            return Err(differs(difference));
        }
        if name.digest != digest {
            return Err(differs("another body or seed".into()));
        }
        Ok(Some(Continued { after, name }))
    }
}

/// The parts of a request that decide whether it resumes a stream.
pub(super) struct Resume<'h> {
    pub headers: &'h HeaderMap,
    pub choices: usize,
    pub stream: bool,
    /// Whether the client has sent the seed.
    pub seeded: bool,
}

impl Resume<'_> {
    /// The name of the answer, and the position after which it resumes, if requested. A stream cannot be resumed
    /// without its seed, because another seed gives another text.
    pub fn name(
        &self,
        service: &Service,
        digest: Sha256,
        config: &GenerationConfig,
        seed: u64,
    ) -> Result<(String, Option<Position>), ApiError> {
        // A greedy text does not depend on its seed.
        let seed = if config.is_greedy() { 0 } else { seed };
        let digest = digest.chain_update(seed.to_le_bytes()).finalize();
        let digest = u32::from_le_bytes(digest[..4].try_into().expect("4 bytes"));
        if !self.headers.contains_key("last-event-id") {
            return Ok((Name::fresh(digest).to_string(), None));
        }
        if !self.stream {
            return Err(ApiError::field("Last-Event-ID", "it needs stream to be true"));
        }
        if !self.seeded && !config.is_greedy() {
            let problem = "it needs the seed of the stream, in `seed` or X-Seed, unless temperature is 0";
            return Err(ApiError::field("Last-Event-ID", problem));
        }
        match Continued::requested(self.headers, self.choices, digest, &service.identity)? {
            Some(Continued { after, name }) => Ok((name.to_string(), Some(after))),
            None => Ok((Name::fresh(digest).to_string(), None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: Name = Name { drawn: 7, digest: 0xABCD };

    fn here() -> Identity {
        Identity::new("demo", "f32", "cpu")
    }

    fn requested(text: &str, choices: usize) -> Result<Option<Continued>, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert("last-event-id", text.parse().unwrap());
        Continued::requested(&headers, choices, NAME.digest, &here())
    }

    fn id(position: &str) -> String {
        format!("{position};{NAME};{}", here())
    }

    #[test]
    fn an_id_that_was_sent_is_understood_again() {
        let mut position = Position::start(3);
        position.advance(2, 0);
        position.advance(0, 41);
        assert_eq!(position.to_string(), "41,-,0");
        let again = requested(&id("41,-,0"), 3).unwrap().unwrap();
        assert_eq!(again, Continued { after: position, name: NAME });
        let again = again.after;
        assert_eq!(again.after_all().to_string(), "42,0,1");
        assert!(again.is_before(0, 42) && again.is_before(1, 0) && again.is_before(2, 1));
        assert!(!again.is_before(0, 41) && !again.is_before(2, 0));
        assert_eq!(requested(&id("7"), 1).unwrap().unwrap().after.to_string(), "7");
        assert_eq!(Continued::requested(&HeaderMap::new(), 1, 0, &here()), Ok(None));
    }

    #[test]
    fn an_id_of_no_stream_of_so_many_choices_is_refused() {
        for (at, choices) in [("", 1), ("x", 1), ("-1", 1), ("1,2", 1), ("1", 2), ("1,,2", 3), ("1e3", 1)] {
            assert_eq!(requested(&id(at), choices).unwrap_err().status, 400, "{at}");
        }
        let name = NAME.to_string();
        for wrong in
            ["x", &name[1..], &format!("0{name}"), &name.replacen('0', "+", 1), &name.replace("70", "é")]
        {
            let text = format!("7;{wrong};{}", here());
            assert_eq!(requested(&text, 1).unwrap_err().status, 400, "{text}");
        }
        for text in ["7".to_owned(), format!("7;{NAME}"), id("7").replace(";f32", "")] {
            assert_eq!(requested(&text, 1).unwrap_err().status, 400, "{text}");
        }
    }

    #[test]
    fn a_stream_of_another_model_cache_device_or_body_is_refused_with_what_differs() {
        for (ours, theirs, difference) in [
            (";demo;", ";other;", "model other instead of demo"),
            (";f32;", ";i8;", "kv i8 instead of f32"),
            (";cpu", ";cuda:0", "device cuda:0 instead of cpu"),
            ("bitnet-", "bitnet-9.", "version bitnet-9."),
            ("abcd;", "abce;", "another body or seed"),
        ] {
            let error = requested(&id("7").replace(ours, theirs), 1).unwrap_err();
            assert_eq!(error.status, 412);
            assert!(error.body.message.contains(difference), "{:?}", error.body);
        }
    }
}
