//! A persistent pool of threads that take the parts of a job one by one.
//!
//! Each thread has a contiguous share of the parts, so that it reads memory in one stream. A thread that runs out
//! of parts steals half of another thread's remaining parts, first on its own memory node. The caller works too and
//! never waits for a worker that has not begun; on a busy machine, a worker that the system does not schedule gives
//! no help but causes no delay. Idle workers spin briefly and then park, so that an idle engine uses no CPU.

use std::{
    cell::UnsafeCell,
    hint,
    ops::Range,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
};

use crate::KernelError;

/// Returns part `part` of `0..total`, split into `parts` parts of nearly equal length.
pub(crate) fn share(total: usize, parts: usize, part: usize) -> Range<usize> {
    total * part / parts..total * (part + 1) / parts
}

/// Spins before a waiting thread yields its core: 50 to 100 microseconds, longer than most gaps between two jobs of a step,
/// and too short for many threads to burn their cores between two steps.
const SPINS: u32 = 2_000;

/// A job, called with the index of the thread and of the part.
type Job = *const (dyn Fn(usize, usize) + Sync);

struct Shared {
    /// Incremented for every job, so that workers notice it.
    epoch: AtomicUsize,
    /// Whether `job` may be joined.
    open: AtomicBool,
    job: UnsafeCell<Option<Job>>,
    /// One per member, with the memory node that the member is near.
    left: Vec<Left>,
    nodes: Vec<usize>,
    /// Number of workers that may read `job`.
    joined: AtomicUsize,
    failed: AtomicBool,
    stop: AtomicBool,
    /// One per worker: whether it is about to park.
    parked: Vec<AtomicBool>,
}

// SAFETY: `job` is written only while it is not `open` and after every worker that saw it open has left (`joined == 0`
// after closing); workers read it only after they have joined and then seen it open. A worker that joins late either
// sees it closed and leaves, or sees it opened again after the next write.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is only dereferenced while the caller is inside `Pool::run`.
unsafe impl Send for Shared {}

/// A member's remaining parts, on a separate cache line: the first in the upper half, the end in the lower half.
#[derive(Default)]
#[repr(align(128))]
struct Left(AtomicU64);

impl Left {
    fn set(&self, parts: Range<usize>) {
        self.0.store((parts.start as u64) << 32 | parts.end as u64, SeqCst);
    }

    fn first(&self) -> Option<usize> {
        self.keep(|left| left.start + 1..left.end).map(|left| left.start)
    }

    /// Takes the later half, rounded up.
    fn half(&self) -> Option<Range<usize>> {
        let middle = |left: &Range<usize>| left.start + left.len() / 2;
        self.keep(|left| left.start..middle(left)).map(|left| middle(&left)..left.end)
    }

    /// Replaces the remaining parts and returns the old ones, or returns `None` if there are none.
    fn keep(&self, kept: impl Fn(&Range<usize>) -> Range<usize>) -> Option<Range<usize>> {
        let parts = |left: u64| (left >> 32) as usize..(left & 0xFFFF_FFFF) as usize;
        let changed = self.0.fetch_update(SeqCst, SeqCst, |left| {
            let left = parts(left);
            let kept = kept(&left);
            (!left.is_empty()).then_some((kept.start as u64) << 32 | kept.end as u64)
        });
        changed.ok().map(parts)
    }
}

/// A thread pool; the thread that calls [`Pool::run`] is its first member.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Makes a pool of `threads` members, at least one.
    pub(crate) fn new(threads: usize) -> Result<Self, KernelError> {
        Self::on_nodes(vec![0; threads], |_| {})
    }

    /// Makes a pool with a member near each of these memory nodes, at least one. A worker first calls `begin` with its
    /// node.
    pub(crate) fn on_nodes(
        nodes: Vec<usize>,
        begin: impl Fn(usize) + Clone + Send + 'static,
    ) -> Result<Self, KernelError> {
        let threads = nodes.len();
        let mut pool = Pool {
            shared: Arc::new(Shared {
                epoch: AtomicUsize::new(0),
                open: AtomicBool::new(false),
                job: UnsafeCell::new(None),
                left: (0..threads).map(|_| Left::default()).collect(),
                nodes,
                joined: AtomicUsize::new(0),
                failed: AtomicBool::new(false),
                stop: AtomicBool::new(false),
                parked: (1..threads).map(|_| AtomicBool::new(false)).collect(),
            }),
            handles: Vec::new(),
        };
        for index in 1..threads {
            let (shared, begin) = (Arc::clone(&pool.shared), begin.clone());
            let handle = thread::Builder::new()
                .name(format!("bitnet-{index}"))
                .spawn(move || {
                    begin(shared.nodes[index]);
                    work(&shared, index);
                })
                .map_err(|e| KernelError::Thread { index, reason: e.to_string() })?;
            pool.handles.push(handle);
        }
        Ok(pool)
    }

    /// Number of members, including the caller.
    pub(crate) fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Calls `job(thread, part)` once for every part in `0..parts`, on any of the threads, and returns when all calls
    /// have ended.
    ///
    /// # Panics
    /// If a call panicked, after all others have ended, or if `parts` does not fit in a `u32`.
    pub(crate) fn run(&mut self, parts: usize, job: &(dyn Fn(usize, usize) + Sync)) {
        if self.handles.is_empty() || parts <= 1 {
            return (0..parts).for_each(|part| job(0, part));
        }
        assert!(u32::try_from(parts).is_ok(), "parts are counted in 32 bits");
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased. `Close` below keeps this call from returning or unwinding before
        // every worker that joined has left, so the pointer is never dereferenced after `job` is gone.
        let erased: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize, usize) + Sync), Job>(job) };
        // SAFETY: the job is closed and no worker is left in it; `&mut self` excludes another caller.
        unsafe { *shared.job.get() = Some(erased) };
        for (member, left) in shared.left.iter().enumerate() {
            left.set(share(parts, shared.left.len(), member));
        }
        // May be set by a previous job whose caller unwound before reading it.
        shared.failed.store(false, SeqCst);
        shared.open.store(true, SeqCst);
        shared.epoch.fetch_add(1, SeqCst);
        for (parked, handle) in shared.parked.iter().zip(&self.handles) {
            // Either the worker sees the new epoch after announcing that it will park, or we see the announcement.
            if parked.swap(false, SeqCst) {
                handle.thread().unpark();
            }
        }
        let close = Close(shared);
        take_parts(shared, 0, |part| job(0, part));
        drop(close);
        assert!(!shared.failed.swap(false, SeqCst), "a worker thread panicked");
    }
}

fn take_parts(shared: &Shared, member: usize, mut job: impl FnMut(usize)) {
    let own = &shared.left[member];
    loop {
        while let Some(part) = own.first() {
            job(part);
        }
        let Some(parts) = others(member, &shared.nodes).find_map(|other| shared.left[other].half()) else {
            return;
        };
        // No other thread changes an empty share.
        own.set(parts);
    }
}

/// The members from which this one steals, those of its own node first.
fn others(member: usize, nodes: &[usize]) -> impl Iterator<Item = usize> {
    let others = move |near| {
        let others = (1..nodes.len()).map(move |i| (member + i) % nodes.len());
        others.filter(move |&other| (nodes[other] == nodes[member]) == near)
    };
    others(true).chain(others(false))
}

/// Closes the job and waits until every worker has left it, even if the caller's own part unwinds.
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
            let job = unsafe { (*shared.job.get()).expect("an open job is set") };
            let call = AssertUnwindSafe(|| {
                // SAFETY: `Pool::run` does not return while this worker is joined, so `job` points at a live value.
                take_parts(shared, index, |part| (unsafe { &*job })(index, part));
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
    fn a_member_steals_from_all_others_and_first_on_its_own_node() {
        for nodes in [&[0; 5][..], &[0], &[0, 1], &[0, 0, 1, 1, 1, 2], &[0, 1, 1, 3]] {
            for member in 0..nodes.len() {
                let order: Vec<usize> = others(member, nodes).collect();
                let mut all = order.clone();
                all.sort_unstable();
                assert!(all.into_iter().eq((0..nodes.len()).filter(|&other| other != member)));
                assert!(order.iter().map(|&other| nodes[other] != nodes[member]).is_sorted());
                let next = order.iter().map(|other| (other + nodes.len() - member) % nodes.len());
                let several = nodes.iter().any(|node| *node != nodes[0]);
                assert!(several || next.is_sorted(), "with one node, the next member is first");
            }
        }
    }

    #[test]
    fn every_worker_begins_with_its_node() {
        let begun = Arc::new(AtomicUsize::new(0));
        let begin = Arc::clone(&begun);
        let pool = Pool::on_nodes(vec![5000, 1, 10, 100], move |node| {
            begin.fetch_add(node, SeqCst);
        });
        drop(pool.unwrap());
        assert_eq!(begun.load(SeqCst), 111);
    }

    #[test]
    fn workers_without_a_job_park() {
        let mut pool = Pool::new(4).unwrap();
        for _ in 0..3 {
            pool.run(8, &|_, _| {});
            let mut waits = 0;
            while !pool.shared.parked.iter().all(|parked| parked.load(SeqCst)) {
                waits += 1;
                assert!(waits < 2000, "a worker still spins");
                thread::sleep(std::time::Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn no_parts_wait_for_a_member_that_is_held() {
        let caller = thread::current().id();
        for (hold_caller, nodes) in [(false, [0, 0]), (true, [0, 0]), (false, [0, 1]), (true, [0, 1])] {
            let mut pool = Pool::on_nodes(nodes.into(), |_| {}).unwrap();
            // One member is held in one part until all others are done.
            let (held, others) = (AtomicBool::new(false), AtomicUsize::new(0));
            pool.run(100, &|_, _| {
                if (thread::current().id() == caller) == hold_caller && !held.swap(true, SeqCst) {
                    while others.load(SeqCst) < 99 {
                        thread::yield_now();
                    }
                } else {
                    others.fetch_add(1, SeqCst);
                    // Gives the other member time to begin.
                    thread::sleep(std::time::Duration::from_micros(50));
                }
            });
            assert_eq!(others.load(SeqCst) + usize::from(held.load(SeqCst)), 100);
        }
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
