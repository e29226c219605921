//! Where a stream is: the id of an event, and how a client says how far it has come.

use std::fmt;

use axum::http::HeaderMap;

use crate::http::error::ApiError;

/// For each choice, the index of the last event of it that was sent; none if none was.
///
/// A choice's events are its tokens, then its end, then the token counts. As the id of an event this is the indices
/// with commas between, `-` for none: of one choice simply the token's index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Position(Vec<Option<usize>>);

impl Position {
    /// Before the first event.
    pub fn start(choices: usize) -> Self {
        Position(vec![None; choices])
    }

    /// What the header `Last-Event-ID` says, if it is there.
    pub fn requested(headers: &HeaderMap, choices: usize) -> Result<Option<Position>, ApiError> {
        let Some(value) = headers.get("last-event-id") else { return Ok(None) };
        let index = |text: &str| match text.trim() {
            "-" => Some(None),
            number => number.parse().ok().map(Some),
        };
        let text = value.to_str().unwrap_or_default();
        let indices: Option<Vec<_>> = text.split(',').map(index).collect();
        match indices {
            Some(indices) if indices.len() == choices => Ok(Some(Position(indices))),
            _ => {
                let problem = format!("it must be the id of an event of a stream with {choices} choices");
                Err(ApiError::field("Last-Event-ID", problem))
            }
        }
    }

    /// Moves on to an event of a choice; the position is then its id.
    pub fn advance(&mut self, choice: usize, index: usize) {
        self.0[choice] = Some(index);
    }

    /// One further for every choice: where the token counts are.
    pub fn after_all(&self) -> Position {
        Position(self.0.iter().map(|index| Some(index.map_or(0, |i| i + 1))).collect())
    }

    /// Whether an event of a choice comes after this.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(text: &str, choices: usize) -> Result<Option<Position>, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert("last-event-id", text.parse().unwrap());
        Position::requested(&headers, choices)
    }

    #[test]
    fn an_id_that_was_sent_is_understood_again() {
        let mut position = Position::start(3);
        position.advance(2, 0);
        position.advance(0, 41);
        assert_eq!(position.to_string(), "41,-,0");
        let again = requested("41,-,0", 3).unwrap().unwrap();
        assert_eq!(again, position);
        assert!(again.is_before(0, 42) && again.is_before(1, 0) && again.is_before(2, 1));
        assert!(!again.is_before(0, 41) && !again.is_before(2, 0));
        assert_eq!(requested("7", 1).unwrap().unwrap().to_string(), "7");
    }

    #[test]
    fn an_id_of_another_stream_is_refused() {
        for (text, choices) in [("", 1), ("x", 1), ("-1", 1), ("1,2", 1), ("1", 2), ("1,,2", 3), ("1e3", 1)] {
            assert_eq!(requested(text, choices).unwrap_err().status, 400, "{text}");
        }
        assert_eq!(Position::requested(&HeaderMap::new(), 1), Ok(None));
    }
}
