//! A persistent team of threads. A job is handed out by bumping an epoch; workers spin briefly for the next one
//! and then park, so that an idle engine costs no CPU.

use std::{
    cell::UnsafeCell,
    hint,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

use crate::KernelError;

/// Spins before a waiting thread gives its core away: some tens of microseconds.
const SPINS: u32 = 20_000;

type Job = *const (dyn Fn(usize) + Sync);

struct Worker {
    parked: AtomicBool,
}

struct Shared {
    epoch: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    running: AtomicUsize,
    failed: AtomicBool,
    stop: AtomicBool,
    workers: Vec<Worker>,
}

// SAFETY: `job` is written only by the owner of the pool while no worker runs (`running == 0`), and read by
// workers only after they saw the epoch that was bumped after the write.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is only followed while the caller of `Pool::run` is blocked in it.
unsafe impl Send for Shared {}

/// The team; the thread that calls [`Pool::run`] is its first member.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A team of `threads`, at least one.
    pub(crate) fn new(threads: usize) -> Result<Self, KernelError> {
        let workers = (1..threads).map(|_| Worker { parked: AtomicBool::new(false) }).collect();
        let mut pool = Pool {
            shared: Arc::new(Shared {
                epoch: AtomicUsize::new(0),
                job: UnsafeCell::new(None),
                running: AtomicUsize::new(0),
                failed: AtomicBool::new(false),
                stop: AtomicBool::new(false),
                workers,
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

    /// Calls `job(i)` once for every `i` in `0..threads`, each on its own thread, and returns when all are done.
    ///
    /// # Panics
    /// If a call panicked, after all have ended.
    pub(crate) fn run(&mut self, job: &(dyn Fn(usize) + Sync)) {
        if self.handles.is_empty() {
            return job(0);
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased. `Finish` below keeps this call from returning or unwinding
        // before every worker has ended its part, so the pointer is never followed after `job` is gone.
        let erased: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        // SAFETY: `running` is 0, so no worker reads the cell; `&mut self` excludes another caller.
        unsafe { *shared.job.get() = Some(erased) };
        shared.running.store(self.handles.len(), Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        for (worker, handle) in shared.workers.iter().zip(&self.handles) {
            // Either the worker sees the new epoch after it announced that it parks, or we see the announcement.
            if worker.parked.swap(false, Ordering::SeqCst) {
                handle.thread().unpark();
            }
        }
        let finish = Finish(shared);
        job(0);
        drop(finish);
        assert!(!shared.failed.swap(false, Ordering::Relaxed), "a worker thread panicked");
    }
}

/// Waits for the workers, also when the caller's own part unwinds.
struct Finish<'a>(&'a Shared);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let mut spins = 0;
        while self.0.running.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins < SPINS { hint::spin_loop() } else { thread::yield_now() }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for handle in self.handles.drain(..) {
            handle.thread().unpark();
            // A worker catches the panics of its jobs, so there is nothing to report here.
            let _ = handle.join();
        }
    }
}

fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.epoch.load(Ordering::SeqCst) == seen {
            spins += 1;
            if spins < SPINS {
                hint::spin_loop();
                continue;
            }
            let parked = &shared.workers[index - 1].parked;
            parked.store(true, Ordering::SeqCst);
            if shared.epoch.load(Ordering::SeqCst) == seen && !shared.stop.load(Ordering::SeqCst) {
                thread::park();
            }
            parked.store(false, Ordering::SeqCst);
        }
        seen += 1;
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the epoch was bumped after the job was written, and the next write waits for `running == 0`.
        let job = unsafe { (*shared.job.get()).expect("an epoch comes with a job") };
        let call = AssertUnwindSafe(|| {
            // SAFETY: `Pool::run` does not return before `running` is 0, so what `job` points at still lives.
            (unsafe { &*job })(index);
        });
        if panic::catch_unwind(call).is_err() {
            shared.failed.store(true, Ordering::Relaxed);
        }
        shared.running.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_runs_its_part_of_every_job() {
        let mut pool = Pool::new(4).unwrap();
        let counts: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
        for round in 0..500 {
            if round % 100 == 0 {
                // Long enough that the workers park.
                thread::sleep(std::time::Duration::from_millis(5));
            }
            pool.run(&|i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 500));
    }

    #[test]
    fn a_panic_in_a_worker_reaches_the_caller_and_the_pool_survives() {
        let mut pool = Pool::new(2).unwrap();
        for culprit in [0, 1] {
            let run = AssertUnwindSafe(|| pool.run(&|i| assert!(i != culprit, "planted")));
            assert!(panic::catch_unwind(run).is_err());
        }
        let done = AtomicUsize::new(0);
        pool.run(&|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 2);
    }
}
