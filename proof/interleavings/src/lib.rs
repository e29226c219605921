//! Tests the product's own sources for threads: pool, mailbox and queue are included here unchanged, but `std` and
//! `parking_lot` are replaced by versions that shuttle schedules. If a schedule leads to a deadlock, a lost wake-up or
//! a failed assertion, the test fails and prints the schedule, so that it can be repeated.

// The sources below find this under the name `std`.
extern crate stand_in as std;

#[allow(dead_code, reason = "the models use a part")]
#[path = "../../../crates/bitnet-inference/src/engine/mailbox.rs"]
mod mailbox;
#[allow(dead_code, reason = "the models use a part")]
#[path = "../../../crates/bitnet-inference/src/engine/park.rs"]
mod park;
#[allow(dead_code, reason = "the models use a part")]
#[path = "../../../crates/bitnet-kernels/src/cpu/pool.rs"]
mod pool;
#[allow(dead_code, reason = "the models use a part")]
#[path = "../../../crates/bitnet-inference/src/engine/queue.rs"]
mod queue;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};
use std::{future::poll_fn, thread};

use mailbox::{Mailbox, Update};
use pool::Pool;
use queue::{Queue, Waiting};
use request::{End, RequestError, SubmitError};

/// Stands for the kernels' error.
#[derive(Debug)]
pub enum KernelError {
    Thread { index: usize, reason: String },
}

/// Stands for the engine's requests.
mod request {
    #[derive(Debug, Clone, PartialEq)]
    pub struct End;

    #[derive(Debug, Clone, PartialEq)]
    pub struct RequestError;

    #[derive(Debug, Clone, PartialEq)]
    pub struct TokenLogprobs;

    #[derive(Debug, Clone, Copy, PartialEq)]
    pub enum SubmitError {
        Full,
        Closed,
    }

    impl SubmitError {
        pub fn is_full(&self) -> bool {
            *self == SubmitError::Full
        }
    }
}

/// Every part of every job runs exactly once, with a thread near each of these memory nodes, and the pool's threads end
/// when it is dropped.
pub fn jobs(nodes: &[usize], jobs: usize, parts: usize) {
    let threads = nodes.len();
    let mut pool = Pool::on_nodes(nodes.into(), |_| {}).expect("threads");
    for _ in 0..jobs {
        let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
        pool.run(parts, &|thread, part| {
            assert!(thread < threads);
            counts[part].fetch_add(1, SeqCst);
        });
        assert!(counts.iter().all(|count| count.load(SeqCst) == 1));
    }
}

/// A reader gets every token in order and then the end, and a paused request is resumed.
pub fn reading(tokens: usize, capacity: usize, polls: bool) {
    let mailbox = Arc::new(Mailbox::new(1, tokens, capacity));
    // As in the engine, a paused request gets no place until its reader's order to resume arrives.
    let (orders, resumed) = shuttle::sync::mpsc::channel();
    let writer = {
        let mailbox = Arc::clone(&mailbox);
        thread::spawn(move || {
            for token in 0..tokens as u32 {
                if mailbox.push(Update::Token { choice: 0, index: 0, token, logprobs: None }) {
                    resumed.recv().expect("an order to resume");
                }
            }
            mailbox.push(Update::Ended { choice: 0, end: Ok(End), logits: None });
        })
    };
    let mut next = 0;
    let read = || {
        if polls {
            park::block_until(Some(std::time::Instant::now()), |cx| mailbox.poll(cx.waker()))
        } else {
            park::block_until(None, |cx| mailbox.poll(cx.waker()))
        }
    };
    loop {
        match read() {
            Some(Some((Update::Token { index, token, .. }, resume))) => {
                assert_eq!((index, token as usize), (next, next));
                next += 1;
                if resume {
                    // The writer may have ended meanwhile.
                    let _ = orders.send(());
                }
            }
            Some(Some((Update::Ended { .. }, _))) => {}
            Some(None) => break,
            None => thread::yield_now(),
        }
    }
    assert_eq!(next, tokens);
    writer.join().expect("the writer");
    assert!(mailbox.is_closed() && !mailbox.is_paused());
}

/// An engine that dies while its reader waits ends the request.
pub fn dying(tokens: usize) {
    let mailbox = Arc::new(Mailbox::new(2, tokens, usize::MAX));
    let writer = {
        let mailbox = Arc::clone(&mailbox);
        thread::spawn(move || {
            for token in 0..tokens as u32 {
                mailbox.push(Update::Token { choice: token % 2, index: 0, token, logprobs: None });
            }
            mailbox.push(Update::Ended { choice: 1, end: Ok(End), logits: None });
            assert_eq!(mailbox.close(&RequestError), 1);
        })
    };
    let (mut seen, mut ends) = (0, 0);
    while let Some((update, _)) = park::block_until(None, |cx| mailbox.poll(cx.waker())).expect("it waits") {
        match update {
            Update::Token { .. } => seen += 1,
            Update::Ended { .. } => ends += 1,
        }
    }
    assert_eq!((seen, ends), (tokens, 2));
    writer.join().expect("the writer");
}

/// Waits for room for one more sequence of at most `limit`, on this thread or in a future.
fn enter(waiting: &Waiting, limit: usize, asynchronous: bool) -> Result<(), SubmitError> {
    let enter = |queue: &mut Queue| {
        if waiting.is_closed() {
            return Err(SubmitError::Closed);
        }
        if queue.sequences == limit {
            return Err(SubmitError::Full);
        }
        queue.sequences += 1;
        Ok(())
    };
    if asynchronous { shuttle::future::block_on(poll_fn(|cx| waiting.poll_enter(cx, enter))) } else { waiting.enter(None, enter) }
}

/// Submitters, on threads and in futures by turns, that wait for room and make some: all get in, as often as they want.
pub fn queueing(submitters: usize, rounds: usize, limit: usize) {
    let waiting = Arc::new(Waiting::default());
    let submit = |index: usize| {
        let waiting = Arc::clone(&waiting);
        thread::spawn(move || {
            for _ in 0..rounds {
                enter(&waiting, limit, index.is_multiple_of(2)).expect("it is open");
                assert!((1..=limit).contains(&waiting.now().sequences));
                waiting.leave(Queue { sequences: 1, tokens: 0 });
            }
        })
    };
    let threads: Vec<_> = (0..submitters).map(submit).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a submitter"));
    assert_eq!(waiting.now(), Queue::default());
}

/// A shutdown refuses those that wait for room, those that come later, and no one else.
pub fn closing(submitters: usize) {
    let waiting = Arc::new(Waiting::default());
    let submit = |index: usize| {
        let waiting = Arc::clone(&waiting);
        thread::spawn(move || enter(&waiting, 1, index.is_multiple_of(2)))
    };
    let threads: Vec<_> = (0..submitters).map(submit).collect();
    waiting.close();
    let ends = threads.into_iter().map(|thread| thread.join().expect("a submitter"));
    let entered = ends
        .filter(|end| end.inspect_err(|refusal| assert_eq!(*refusal, SubmitError::Closed)).is_ok())
        .count();
    assert_eq!(entered, waiting.now().sequences);
    assert_eq!(enter(&waiting, 9, false), Err(SubmitError::Closed));
}
