//! The updates of a request on their way from the engine's thread to its reader.
//! A reader that is too far behind makes the engine pause the request.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::task::{Poll, Waker};
use std::time::Instant;

use parking_lot::Mutex;

use crate::request::{End, RequestError, TokenLogprobs};

/// An update of a request; `choice` is the index of a choice.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "`choice` is described above; `token` speaks for itself")]
pub enum Update {
    /// A choice has a new token.
    Token {
        choice: u32,
        /// Index of the token in its choice, without gaps.
        index: usize,
        token: u32,
        /// Its log-probabilities, if requested.
        logprobs: Option<TokenLogprobs>,
    },
    /// A choice has ended; this is its last update.
    Ended {
        choice: u32,
        /// How it ended, or why it failed.
        end: Result<End, RequestError>,
        /// The logits that follow the prompt, or its hidden state, as requested.
        logits: Option<Vec<f32>>,
    },
}

/// The updates of a request, on their way from the engine's thread to the reader.
pub(crate) struct Mailbox {
    state: Mutex<State>,
    /// Time of cancellation.
    cancelled: OnceLock<Instant>,
}

/// An update on its way, without the index of a token. Most are tokens without log-probabilities, which take 16 bytes
/// here instead of more than 100.
enum Posted {
    Token { choice: u32, token: u32 },
    Other(Box<Update>),
}

struct State {
    updates: VecDeque<Posted>,
    /// The choices that have not ended, a bit for each.
    open: u128,
    /// Number of tokens that the reader has taken, for each choice.
    taken: Vec<usize>,
    paused: bool,
    /// Number of unread updates at which the request pauses, until half are read.
    capacity: usize,
    /// Log-probabilities of the prompt's tokens, from the second on.
    scored: Vec<TokenLogprobs>,
    /// Wakes the reader, if one is waiting.
    waker: Option<Waker>,
}

impl Mailbox {
    /// Maximum number of choices.
    pub const MAX_CHOICES: usize = u128::BITS as usize;

    /// Creates a mailbox for this many choices, at least one, of up to `tokens` tokens each.
    pub fn new(choices: usize, tokens: usize, capacity: usize) -> Self {
        // Extra room for what a step can add after the pause.
        let room = capacity.min(4096) + 64;
        let updates = VecDeque::with_capacity(tokens.saturating_add(1).saturating_mul(choices).min(room));
        let open = u128::MAX >> (Self::MAX_CHOICES - choices);
        let taken = vec![0; choices];
        let state = State { updates, open, taken, paused: false, capacity, scored: Vec::new(), waker: None };
        Mailbox { state: Mutex::new(state), cancelled: OnceLock::new() }
    }

    /// Sets the number of unread updates at which the request pauses.
    pub fn limit(&self, capacity: usize) {
        self.state.lock().capacity = capacity;
    }

    /// Adds an update; returns true if the reader is so far behind that the request should pause.
    pub fn push(&self, update: Update) -> bool {
        let mut state = self.state.lock();
        let State { updates, open, paused, capacity, .. } = &mut *state;
        let (Update::Token { choice, .. } | Update::Ended { choice, .. }) = update;
        assert!(*open >> choice & 1 == 1, "nothing follows the end of a choice");
        updates.push_back(match update {
            Update::Token { choice, token, logprobs: None, .. } => Posted::Token { choice, token },
            Update::Token { .. } => Posted::Other(Box::new(update)),
            Update::Ended { .. } => {
                *open ^= 1 << choice;
                Posted::Other(Box::new(update))
            }
        });
        let behind = updates.len() >= *capacity;
        let full = behind && !*paused;
        *paused |= full;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        full
    }

    /// Adds the log-probabilities of the prompt's token after `position`, unless they are already there because the
    /// prompt is being recomputed.
    pub fn score(&self, position: usize, logprobs: TokenLogprobs) {
        let scored = &mut self.state.lock().scored;
        if scored.len() == position {
            scored.push(logprobs);
        }
    }

    /// Takes the log-probabilities of the prompt's tokens.
    pub fn take_scored(&self) -> Vec<TokenLogprobs> {
        std::mem::take(&mut self.state.lock().scored)
    }

    /// Ends all open choices with `error`.
    pub fn close(&self, error: &RequestError) {
        let open =
            |m: &Mailbox| Some(m.state.lock().open).filter(|&open| open != 0).map(u128::trailing_zeros);
        while let Some(choice) = open(self) {
            self.push(Update::Ended { choice, end: Err(error.clone()), logits: None });
        }
    }

    /// Number of choices that have not ended.
    pub fn open_choices(&self) -> u32 {
        self.state.lock().open.count_ones()
    }

    /// Whether the request is paused because the reader is behind.
    pub fn is_paused(&self) -> bool {
        self.state.lock().paused
    }

    /// Records that the request is cancelled.
    pub fn cancel(&self) {
        self.cancelled.get_or_init(Instant::now);
    }

    /// The time of cancellation, if the request is cancelled.
    pub fn cancelled(&self) -> Option<Instant> {
        self.cancelled.get().copied()
    }

    /// Takes the next update, and whether a paused request may now go on; `None` when every choice has ended. If there is
    /// no update yet, `waker` is woken when there is one.
    pub fn poll(&self, waker: &Waker) -> Poll<Option<(Update, bool)>> {
        let mut state = self.state.lock();
        let Some(posted) = state.updates.pop_front() else {
            if state.open == 0 {
                return Poll::Ready(None);
            }
            state.waker = Some(waker.clone());
            return Poll::Pending;
        };
        let update = match posted {
            Posted::Token { choice, token } => state.numbered(choice, token, None),
            Posted::Other(update) => match *update {
                Update::Token { choice, token, logprobs, .. } => state.numbered(choice, token, logprobs),
                ended => ended,
            },
        };
        let resume = state.paused && state.updates.len() <= state.capacity / 2;
        state.paused &= !resume;
        Poll::Ready(Some((update, resume)))
    }
}

impl State {
    /// A token with its index in its choice.
    fn numbered(&mut self, choice: u32, token: u32, logprobs: Option<TokenLogprobs>) -> Update {
        let taken = &mut self.taken[choice as usize];
        *taken += 1;
        Update::Token { choice, index: *taken - 1, token, logprobs }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::Wake;

    use super::*;

    struct Calls(AtomicUsize);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn a_reader_that_found_nothing_is_woken_by_the_next_update() {
        let mailbox = Mailbox::new(1, 4, 4);
        let calls = Arc::new(Calls(AtomicUsize::new(0)));
        let push = || mailbox.push(Update::Token { choice: 0, index: 0, token: 7, logprobs: None });
        let waker = Waker::from(Arc::clone(&calls));
        push();
        assert!(matches!(mailbox.poll(&waker), Poll::Ready(Some(_))));
        push();
        assert_eq!(calls.0.load(Relaxed), 0, "it did not wait");
        assert!(matches!(mailbox.poll(&waker), Poll::Ready(Some(_))));
        assert!(matches!(mailbox.poll(&waker), Poll::Pending));
        push();
        assert_eq!(calls.0.load(Relaxed), 1);
    }
}
