//! A request in the hands of the engine's thread.
//! Wherever it is dropped, its reader is told that it has ended and its choices leave the queue.

use std::sync::Arc;
use std::time::Instant;

use super::batcher::Batcher;
use super::mailbox::Mailbox;
use super::metrics::{Counter, Recorder};
use super::queue::Queue;
use super::shared::Shared;
use crate::request::{Request, RequestError};

/// A request on its way to the engine's thread, and then in the scheduler.
pub(crate) struct Live {
    pub id: u64,
    pub seed: u64,
    pub request: Arc<Request>,
    pub mailbox: Arc<Mailbox>,
    /// Time of submission.
    pub at: Instant,
    /// The batcher that decides when it starts, if there is one.
    pub batcher: Option<Arc<Batcher>>,
    /// The logits or the hidden state, if requested instead of tokens.
    pub logits: Option<Vec<f32>>,
    /// The sum of the hidden states whose mean is requested, and their number.
    pooled: (Vec<f64>, usize),
    /// Number of choices that have not ended.
    pub open: usize,
    /// Time of the last token of each choice.
    last: Vec<Option<Instant>>,
    /// What this request still adds to the queue: one per choice not yet admitted, plus its prompt until the first is.
    queued: Queue,
    /// The choices that have left the queue, a bit for each.
    admitted: u128,
    shared: Arc<Shared>,
}

impl Live {
    /// A request that has been counted into the queue as `queued`.
    pub fn new(
        id: u64,
        seed: u64,
        request: Arc<Request>,
        mailbox: Arc<Mailbox>,
        queued: Queue,
        shared: Arc<Shared>,
    ) -> Self {
        let choices = request.config.n;
        Live {
            id,
            seed,
            request,
            mailbox,
            at: Instant::now(),
            batcher: None,
            logits: None,
            pooled: (Vec::new(), 0),
            open: choices,
            last: vec![None; choices],
            queued,
            admitted: 0,
            shared,
        }
    }

    /// Whether it is read token by token, and wants the next one only when its reader does.
    pub fn is_text(&self) -> bool {
        self.batcher.is_some() && self.request.config.max_new_tokens > self.request.generated + 1
    }

    /// Adds the hidden state of a token of the prompt to the mean, unless it is already there because the prompt is being
    /// recomputed.
    pub fn pool(&mut self, position: usize, state: &[f32]) {
        let (sum, count) = &mut self.pooled;
        if *count != position {
            return;
        }
        sum.resize(state.len(), 0.0);
        sum.iter_mut().zip(state).for_each(|(sum, &value)| *sum += f64::from(value));
        *count += 1;
        if *count == self.request.prompt.len() {
            let tokens = *count as f64;
            self.logits = Some(sum.iter().map(|sum| (sum / tokens) as f32).collect());
        }
    }

    /// Records a token of a choice, and returns the time of the one before.
    pub fn replace_last(&mut self, choice: u32, now: Instant) -> Option<Instant> {
        self.last[choice as usize].replace(now)
    }

    /// Removes a choice from the queue, when it gets a place or ends without one.
    pub fn leave_queue(&mut self, choice: u32) {
        let bit = 1 << choice;
        if self.admitted & bit == 0 {
            self.admitted |= bit;
            self.leave(1);
        }
    }

    fn leave(&mut self, choices: usize) {
        let left = Queue { sequences: choices.min(self.queued.sequences), ..self.queued };
        if left != Queue::default() {
            self.queued = Queue { sequences: self.queued.sequences - left.sequences, tokens: 0 };
            self.shared.waiting.leave(left);
            self.batcher.iter().for_each(|batcher| batcher.leave_queue());
        }
    }

    /// Ends all open choices with `error`.
    pub fn fail(&mut self, error: &RequestError) {
        self.leave(usize::MAX);
        let failed = self.mailbox.open_choices();
        // While this thread panics, a second panic, in a recorder, would abort the process.
        if failed > 0 && !std::thread::panicking() {
            self.shared.add(Counter::Failed, failed as u64);
        }
        self.mailbox.close(error);
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let end = self.shared.end();
        self.fail(&end);
        self.batcher.iter().for_each(|batcher| batcher.ended());
    }
}
