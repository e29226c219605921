//! The queue that submitters and the engine's thread share: how much may wait, and who waits for room.
//! Submitters wait on a thread or in a future, by the same code.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use parking_lot::Mutex;

use super::park;
use crate::request::SubmitError;

/// Requests that have been submitted but have not had a place in a batch yet.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Queue {
    /// Number of sequences, one for each choice of a request.
    pub sequences: usize,
    /// Number of prompt tokens; each prompt counts once, however many choices it has.
    pub tokens: usize,
}

/// The queue that submitters and the engine's thread share. A submitter that finds no room waits here, on a thread or
/// in a future.
#[derive(Default)]
pub(crate) struct Waiting {
    queue: Mutex<Queue>,
    /// Submitters to wake when the queue has become shorter or is closed.
    wakers: Mutex<Vec<Waker>>,
    closed: AtomicBool,
}

impl Waiting {
    /// What is in the queue now.
    pub fn now(&self) -> Queue {
        *self.queue.lock()
    }

    /// Whether the queue is closed to new requests.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// Closes the queue: every later attempt to enter is refused, and submitters that wait are woken to see that.
    pub fn close(&self) {
        let queue = self.queue.lock();
        self.closed.store(true, Relaxed);
        drop(queue);
        self.wake();
    }

    /// Removes sequences and tokens from the queue.
    pub fn leave(&self, left: Queue) {
        let mut queue = self.queue.lock();
        let Queue { sequences, tokens } = *queue;
        *queue = Queue { sequences: sequences - left.sequences, tokens: tokens - left.tokens };
        drop(queue);
        self.wake();
    }

    /// Wakes all submitters that wait. The caller must not hold the queue's lock.
    fn wake(&self) {
        let wakers = std::mem::take(&mut *self.wakers.lock());
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Enters without waiting.
    pub fn try_enter<T>(
        &self,
        enter: impl Fn(&mut Queue) -> Result<T, SubmitError>,
    ) -> Result<T, SubmitError> {
        enter(&mut self.queue.lock())
    }

    /// Enters the queue as soon as `enter` finds room; waits until `deadline`, or without limit if it is `None`.
    pub fn enter<T>(
        &self,
        deadline: Option<Instant>,
        enter: impl Fn(&mut Queue) -> Result<T, SubmitError>,
    ) -> Result<T, SubmitError> {
        park::block_until(deadline, |cx| self.poll_enter(cx, &enter)).unwrap_or_else(|| self.try_enter(enter))
    }

    /// Like [`Waiting::enter`], for futures.
    pub fn poll_enter<T>(
        &self,
        cx: &Context<'_>,
        enter: impl Fn(&mut Queue) -> Result<T, SubmitError>,
    ) -> Poll<Result<T, SubmitError>> {
        let mut queue = self.queue.lock();
        match enter(&mut queue) {
            Err(refusal) if refusal.is_full() => {
                // The waker is registered while the queue is locked, so that no change is missed.
                let mut wakers = self.wakers.lock();
                if !wakers.iter().any(|known| known.will_wake(cx.waker())) {
                    wakers.push(cx.waker().clone());
                }
                Poll::Pending
            }
            result => Poll::Ready(result),
        }
    }
}
