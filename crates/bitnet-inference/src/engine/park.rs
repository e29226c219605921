//! Blocks a thread until a future is ready, so that blocking calls and async ones are the same code.
//! The thread sleeps while it waits.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

/// Runs a future on the calling thread, which sleeps while the future waits.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    block_until(None, |cx| future.as_mut().poll(cx))
        .expect("without a deadline, only the result ends the wait")
}

/// Calls `poll` on the calling thread, which sleeps in between, until it is ready; returns `None` at the deadline.
pub fn block_until<T>(
    deadline: Option<Instant>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    // What is ready at once needs no waker, and neither does a caller who does not want to wait.
    if let Poll::Ready(value) = poll(&mut Context::from_waker(Waker::noop())) {
        return Some(value);
    }
    if deadline.is_some_and(|at| at <= Instant::now()) {
        return None;
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = poll(&mut context) {
            return Some(value);
        }
        match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
            None => thread::park(),
            Some(left) if left.is_zero() => return None,
            Some(left) => thread::park_timeout(left),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
