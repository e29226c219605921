//! A persistent team of threads that take the parts of a job one by one.
//!
//! The caller works too and never waits for a worker that has not begun: on a busy machine, a worker that the
//! system keeps off its core costs nothing but its help. Idle workers spin briefly and then park, so that an idle
//! engine costs no CPU.

use std::{
    cell::UnsafeCell,
    hint,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
};

use crate::KernelError;

/// Spins before a waiting thread gives its core away: longer than the gap between two jobs of a step.
const SPINS: u32 = 10_000;

/// A job: called with the thread's index and the part's.
type Job = *const (dyn Fn(usize, usize) + Sync);

struct Shared {
    /// Bumped once a job, for workers to notice.
    epoch: AtomicUsize,
    /// Whether `job` may be joined.
    open: AtomicBool,
    job: UnsafeCell<Option<(Job, usize)>>,
    /// The next part to be taken.
    next: AtomicUsize,
    /// Workers that may be looking at `job`.
    joined: AtomicUsize,
    failed: AtomicBool,
    stop: AtomicBool,
    /// One a worker: whether it is about to park.
    parked: Vec<AtomicBool>,
}

// SAFETY: `job` is written only while it is not `open` and no worker that saw it open is left (`joined == 0` after
// closing); workers read it only after they joined and then saw it open. A worker that joins late either sees it
// closed and leaves, or sees it opened again after the next write.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is only followed while the caller of `Pool::run` is inside it.
unsafe impl Send for Shared {}

/// The team; the thread that calls [`Pool::run`] is its first member.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A team of `threads`, at least one.
    pub(crate) fn new(threads: usize) -> Result<Self, KernelError> {
        let mut pool = Pool {
            shared: Arc::new(Shared {
                epoch: AtomicUsize::new(0),
                open: AtomicBool::new(false),
                job: UnsafeCell::new(None),
                next: AtomicUsize::new(0),
                joined: AtomicUsize::new(0),
                failed: AtomicBool::new(false),
                stop: AtomicBool::new(false),
                parked: (1..threads).map(|_| AtomicBool::new(false)).collect(),
            }),
            handles: Vec::new(),
        };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let handle = thread::Builder::new()
                .name(format!("bitnet-{index}"))
                .spawn(move || work(&shared, index))
                .map_err(|e| KernelError::Thread { index, reason: e.to_string() })?;
            pool.handles.push(handle);
        }
        Ok(pool)
    }

    /// Members of the team, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Calls `job(thread, part)` once for every part in `0..parts`, on whichever threads come first, and returns
    /// when all are done.
    ///
    /// # Panics
    /// If a call panicked, after all have ended.
    pub(crate) fn run(&mut self, parts: usize, job: &(dyn Fn(usize, usize) + Sync)) {
        if self.handles.is_empty() || parts <= 1 {
            return (0..parts).for_each(|part| job(0, part));
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased. `Close` below keeps this call from returning or unwinding before
        // every worker that joined has left, so the pointer is never followed after `job` is gone.
        let erased: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize, usize) + Sync), Job>(job) };
        // SAFETY: the job is closed and nobody is left in it; `&mut self` excludes another caller.
        unsafe { *shared.job.get() = Some((erased, parts)) };
        shared.next.store(0, SeqCst);
        // Of a job whose caller unwound before it could ask.
        shared.failed.store(false, SeqCst);
        shared.open.store(true, SeqCst);
        shared.epoch.fetch_add(1, SeqCst);
        for (parked, handle) in shared.parked.iter().zip(&self.handles) {
            // Either the worker sees the new epoch after it announced that it parks, or we see the announcement.
            if parked.swap(false, SeqCst) {
                handle.thread().unpark();
            }
        }
        let close = Close(shared);
        take_parts(shared, parts, |part| job(0, part));
        drop(close);
        assert!(!shared.failed.swap(false, SeqCst), "a worker thread panicked");
    }
}

fn take_parts(shared: &Shared, parts: usize, mut job: impl FnMut(usize)) {
    loop {
        let part = shared.next.fetch_add(1, SeqCst);
        if part >= parts {
            return;
        }
        job(part);
    }
}

/// Closes the job and waits until every worker has left it, also when the caller's own part unwinds.
struct Close<'a>(&'a Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.open.store(false, SeqCst);
        let mut spins = 0;
        while self.0.joined.load(SeqCst) != 0 {
            spins = SPINS.min(spins + 1);
            if spins < SPINS { hint::spin_loop() } else { thread::yield_now() }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.epoch.fetch_add(1, SeqCst);
        for handle in self.handles.drain(..) {
            handle.thread().unpark();
            // A worker catches the panics of its jobs, so there is nothing to report here.
            let _ = handle.join();
        }
    }
}

fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    while !shared.stop.load(SeqCst) {
        let mut spins = 0;
        while shared.epoch.load(SeqCst) == seen {
            spins += 1;
            if spins < SPINS {
                hint::spin_loop();
                continue;
            }
            let parked = &shared.parked[index - 1];
            parked.store(true, SeqCst);
            if shared.epoch.load(SeqCst) == seen {
                thread::park();
            }
            parked.store(false, SeqCst);
        }
        seen = shared.epoch.load(SeqCst);
        shared.joined.fetch_add(1, SeqCst);
        if shared.open.load(SeqCst) {
            // SAFETY: joined, then seen open: see `Shared`.
            let (job, parts) = unsafe { (*shared.job.get()).expect("an open job is there") };
            let call = AssertUnwindSafe(|| {
                // SAFETY: `Pool::run` does not return while this worker is joined, so what `job` points at lives.
                take_parts(shared, parts, |part| (unsafe { &*job })(index, part));
            });
            if panic::catch_unwind(call).is_err() {
                shared.failed.store(true, SeqCst);
            }
        }
        shared.joined.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_every_job_runs_once() {
        let mut pool = Pool::new(4).unwrap();
        let counts: Vec<AtomicUsize> = (0..13).map(|_| AtomicUsize::new(0)).collect();
        for round in 0..2000 {
            if round % 400 == 0 {
                // Long enough that the workers park.
                thread::sleep(std::time::Duration::from_millis(5));
            }
            pool.run(13, &|thread, part| {
                assert!(thread < 4);
                counts[part].fetch_add(1, SeqCst);
            });
            assert!(counts.iter().all(|c| c.load(SeqCst) == round + 1));
        }
    }

    #[test]
    fn the_caller_does_not_wait_for_a_worker_that_never_came() {
        let mut pool = Pool::new(2).unwrap();
        let caller = thread::current().id();
        // The worker is held in one part; all others are done by the caller.
        let (held, others) = (AtomicBool::new(false), AtomicUsize::new(0));
        pool.run(100, &|_, _| {
            if thread::current().id() != caller && !held.swap(true, SeqCst) {
                while others.load(SeqCst) < 99 {
                    thread::yield_now();
                }
            } else {
                others.fetch_add(1, SeqCst);
                // Gives the worker time to come.
                thread::sleep(std::time::Duration::from_micros(50));
            }
        });
        assert_eq!(others.load(SeqCst) + usize::from(held.load(SeqCst)), 100);
    }

    #[test]
    fn a_panic_in_any_member_reaches_the_caller_and_the_pool_survives() {
        let mut pool = Pool::new(2).unwrap();
        for culprits in [0..1, 63..64, 0..64] {
            let run = AssertUnwindSafe(|| {
                pool.run(64, &|_, part| assert!(!culprits.contains(&part), "planted"));
            });
            assert!(panic::catch_unwind(run).is_err());
        }
        let done = AtomicUsize::new(0);
        pool.run(8, &|_, _| {
            done.fetch_add(1, SeqCst);
        });
        assert_eq!(done.load(SeqCst), 8);
    }
}
