//! Batches of single tokens: requests wait until a batch is full or its first one has waited long enough.
//! [`Batcher`] is what submitters hold; [`Gathering`] is the same at the engine's thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::queue::{Queue, Waiting};
use crate::request::SubmitError;

/// One request, in a queue that counts only requests.
const ONE: Queue = Queue { sequences: 1, tokens: 0 };

/// A part of the engine's queue, whose requests start in batches.
pub(crate) struct Batcher {
    /// Maximum number of its requests that are computed at a time.
    pub max_batch: usize,
    /// Maximum time that the first request of a batch waits for others.
    pub max_wait: Duration,
    /// Maximum number of its requests that wait for a place.
    capacity: usize,
    /// Requests without a place in a batch yet. Closed when no further request is accepted.
    waiting: Waiting,
    /// Requests that have not ended.
    open: Waiting,
}

impl Batcher {
    pub fn new(max_batch: usize, max_wait: Duration, capacity: usize) -> Self {
        Batcher { max_batch, max_wait, capacity, waiting: Waiting::default(), open: Waiting::default() }
    }

    /// Counts a request, as soon as there is room or until `deadline`.
    pub fn enter(&self, deadline: Option<Instant>) -> Result<(), SubmitError> {
        let limit = self.capacity;
        self.waiting.enter(deadline, |queue| match queue.sequences {
            _ if self.waiting.is_closed() => Err(SubmitError::Draining),
            waiting if waiting >= limit => Err(SubmitError::QueueFull { limit }),
            _ => {
                queue.sequences += 1;
                Ok(())
            }
        })?;
        self.open.try_enter(|queue| {
            queue.sequences += 1;
            Ok(())
        })
    }

    /// A request has got a place, or ended without one.
    pub fn leave_queue(&self) {
        self.waiting.leave(ONE);
    }

    /// A request has ended.
    pub fn ended(&self) {
        self.open.leave(ONE);
    }

    /// Number of requests that wait for a place.
    pub fn queued(&self) -> usize {
        self.waiting.now().sequences
    }

    /// Refuses further requests; those that wait need not wait for others any more.
    pub fn close(&self) {
        self.waiting.close();
    }

    pub fn is_closed(&self) -> bool {
        self.waiting.is_closed()
    }

    /// Waits until every request has ended.
    pub fn finish(&self) {
        let empty = |queue: &mut Queue| match queue.sequences {
            0 => Ok(()),
            limit => Err(SubmitError::QueueFull { limit }),
        };
        self.open.enter(None, empty).expect("without a deadline, only the last end ends the wait");
    }
}

/// A request that wants its next token.
struct Ask {
    id: u64,
    since: Instant,
    /// Whether it will want more tokens.
    text: bool,
}

/// The requests of a batcher, at the engine's thread. A machine without a clock: time is an argument.
pub(crate) struct Gathering {
    pub batcher: Arc<Batcher>,
    /// Requests that want a token, longest waiting first.
    asks: VecDeque<Ask>,
    /// Requests whose token is being computed.
    computed: Vec<u64>,
    /// Number of open requests that are read token by token.
    texts: usize,
}

impl Gathering {
    pub fn new(batcher: Arc<Batcher>) -> Self {
        Gathering { batcher, asks: VecDeque::new(), computed: Vec::new(), texts: 0 }
    }

    /// Adds a new request, which wants its first token.
    pub fn open(&mut self, id: u64, since: Instant, text: bool) {
        self.texts += usize::from(text);
        self.asks.push_back(Ask { id, since, text });
    }

    /// A text's reader wants the next token.
    pub fn ask(&mut self, id: u64, since: Instant) {
        if !self.computed.contains(&id) && self.asks.iter().all(|ask| ask.id != id) {
            self.asks.push_back(Ask { id, since, text: true });
        }
    }

    /// A request has got its token.
    pub fn answered(&mut self, id: u64) {
        self.computed.retain(|&other| other != id);
    }

    /// A request has ended.
    pub fn close(&mut self, id: u64, text: bool) {
        self.answered(id);
        self.asks.retain(|ask| ask.id != id);
        self.texts -= usize::from(text);
    }

    /// Whether nothing is left and nothing can come.
    pub fn is_over(&self) -> bool {
        self.batcher.is_closed() && self.asks.is_empty() && self.computed.is_empty() && self.texts == 0
    }

    /// Removes the requests of the next batch, if it starts now, and passes their ids to `start`. With `hurry`, it does
    /// not wait for others.
    pub fn start(&mut self, now: Instant, hurry: bool, mut start: impl FnMut(u64)) {
        let Batcher { max_batch, .. } = *self.batcher;
        let due = hurry || self.batcher.is_closed() || self.due().is_some_and(|at| at <= now);
        let together = self.computed.is_empty() && (self.asks.len() >= max_batch || self.all_ask());
        if due || together {
            let free = max_batch.saturating_sub(self.computed.len());
            for ask in self.asks.drain(..free.min(self.asks.len())) {
                self.computed.push(ask.id);
                start(ask.id);
            }
        }
    }

    /// The time at which a batch starts although it is not full.
    pub fn deadline(&self) -> Option<Instant> {
        self.due().filter(|_| self.computed.len() < self.batcher.max_batch)
    }

    fn due(&self) -> Option<Instant> {
        self.asks.front().and_then(|first| first.since.checked_add(self.batcher.max_wait))
    }

    /// Whether every text that could join the batch already has. Where other requests wait too, more may come.
    fn all_ask(&self) -> bool {
        self.texts > 0 && self.asks.len() == self.texts && self.asks.iter().all(|ask| ask.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_millis(20);
    const NONE: [u64; 0] = [];

    /// A gathering of batches of up to three, and the start of time.
    fn gathering() -> (Gathering, Instant) {
        (Gathering::new(Arc::new(Batcher::new(3, WAIT, 9))), Instant::now())
    }

    fn started(gathering: &mut Gathering, now: Instant) -> Vec<u64> {
        let mut ids = Vec::new();
        gathering.start(now, false, |id| ids.push(id));
        ids
    }

    #[test]
    fn a_full_batch_starts_at_once_and_the_next_one_after_it() {
        let (mut gathering, now) = gathering();
        (0..7).for_each(|id| gathering.open(id, now, false));
        assert_eq!(started(&mut gathering, now), [0, 1, 2]);
        assert_eq!(started(&mut gathering, now + WAIT), NONE, "no place is free");
        (0..3).for_each(|id| gathering.close(id, false));
        assert_eq!(started(&mut gathering, now), [3, 4, 5]);
        (3..6).for_each(|id| gathering.close(id, false));
        assert_eq!(started(&mut gathering, now), NONE);
        assert_eq!(started(&mut gathering, now + WAIT), [6]);
    }

    #[test]
    fn a_partial_batch_starts_when_its_first_request_has_waited_long_enough() {
        let (mut gathering, now) = gathering();
        gathering.open(0, now, false);
        gathering.open(1, now + WAIT / 2, false);
        assert_eq!(gathering.deadline(), Some(now + WAIT));
        assert_eq!(started(&mut gathering, now + WAIT - Duration::from_nanos(1)), NONE);
        assert_eq!(started(&mut gathering, now + WAIT), [0, 1]);
        assert_eq!(gathering.deadline(), None);
    }

    #[test]
    fn texts_that_all_want_a_token_wait_for_nobody_and_stay_together() {
        let (mut gathering, now) = gathering();
        gathering.open(0, now, true);
        assert_eq!(started(&mut gathering, now), [0], "nobody else is there");
        gathering.open(1, now, true);
        assert_eq!(started(&mut gathering, now), NONE, "the other one is soon ready");
        gathering.answered(0);
        assert_eq!(started(&mut gathering, now), NONE);
        gathering.ask(0, now);
        assert_eq!(started(&mut gathering, now), [1, 0]);
    }

    #[test]
    fn a_slow_text_delays_the_others_by_the_wait_at_most() {
        let (mut gathering, now) = gathering();
        gathering.open(0, now, true);
        gathering.open(1, now, true);
        assert_eq!(started(&mut gathering, now), [0, 1]);
        gathering.answered(0);
        gathering.ask(0, now);
        // Request 1 computes a long prompt.
        assert_eq!(started(&mut gathering, now + WAIT / 2), NONE);
        assert_eq!(started(&mut gathering, now + WAIT), [0]);
        // Then its reader takes long.
        gathering.answered(0);
        gathering.answered(1);
        gathering.ask(0, now + WAIT);
        assert_eq!(started(&mut gathering, now + WAIT), NONE);
        assert_eq!(started(&mut gathering, now + 2 * WAIT), [0]);
    }

    #[test]
    fn a_request_that_ends_while_it_waits_is_not_started() {
        let (mut gathering, now) = gathering();
        (0..3).for_each(|id| gathering.open(id, now, false));
        gathering.close(1, false);
        assert_eq!(started(&mut gathering, now), NONE);
        assert_eq!(started(&mut gathering, now + WAIT), [0, 2]);
    }

    #[test]
    fn a_closed_batcher_starts_what_waits_and_is_over_when_all_have_ended() {
        let (mut gathering, now) = gathering();
        gathering.open(0, now, false);
        gathering.batcher.close();
        assert_eq!(started(&mut gathering, now), [0]);
        assert!(!gathering.is_over());
        gathering.close(0, false);
        assert!(gathering.is_over());
    }
}
