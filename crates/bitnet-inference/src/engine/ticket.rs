//! A request on its way to the engine's thread, with the engine's end of its mailbox.

use std::sync::Arc;
use std::time::Instant;

use super::mailbox::Mailbox;
use super::metrics::{Counter, Recorder};
use super::queue::Queue;
use super::shared::Shared;
use crate::request::{Request, RequestError};

/// A request on its way to the engine's thread.
pub(super) struct Submission {
    pub id: u64,
    pub seed: u64,
    pub request: Arc<Request>,
    pub ticket: Ticket,
    pub at: Instant,
}

/// The engine's end of a request's mailbox. Wherever it is dropped (in a channel, by a panic or at the end), the
/// reader is told that the request has ended, and its choices leave the queue.
pub(super) struct Ticket {
    pub mailbox: Arc<Mailbox>,
    shared: Arc<Shared>,
    /// Its share of the queue: choices that have not been admitted yet, and the prompt until the first of them is.
    queued: Queue,
}

impl Ticket {
    pub fn new(mailbox: Arc<Mailbox>, shared: Arc<Shared>, queued: Queue) -> Self {
        Ticket { mailbox, shared, queued }
    }

    pub fn leave_queue(&mut self, choices: usize) {
        let left = Queue { sequences: choices.min(self.queued.sequences), ..self.queued };
        if left != Queue::default() {
            self.queued = Queue { sequences: self.queued.sequences - left.sequences, tokens: 0 };
            self.shared.waiting.leave(left);
        }
    }

    /// Ends all open choices with `error`.
    pub fn fail(&mut self, error: &RequestError) {
        self.leave_queue(usize::MAX);
        let failed = self.mailbox.close(error);
        // While this thread panics, a second panic, in a recorder, would abort the process.
        if failed > 0 && !std::thread::panicking() {
            self.shared.add(Counter::Failed, failed as u64);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let end = self.shared.end();
        self.fail(&end);
    }
}
