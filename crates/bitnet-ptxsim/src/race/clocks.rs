//! What each thread of a block knows to have happened.
//!
//! A block has one clock, advanced by every synchronisation in it. Because barriers are aligned and warps synchronise
//! whole, what a warp knows of another, or its lanes of each other, is one number. What atomics tell of other blocks is
//! in `knowledge`.

use std::sync::Arc;

use super::knowledge::{Knowledge, Snapshot, merge};
use super::stamp::{ANY_LANE, Kind, MAX_CLOCK, Stamp};
use crate::inst::WARP;

#[derive(Default, Clone)]
struct Thread {
    /// What fences after atomics have told.
    acquired: Knowledge,
    /// What atomics have read, of effect only after a fence.
    observed: Knowledge,
    /// What the last fence lets later atomics publish.
    fenced: Option<Knowledge>,
}

pub(crate) struct Clocks {
    serial: u32,
    /// Blocks before this one belong to earlier launches, which are over.
    first_serial: u32,
    clock: u32,
    warps: usize,
    /// `[warp][other]`: the warp's lanes know all of the other's accesses up to this time.
    seen: Vec<u32>,
    /// `[warp]`: all its lanes know each other's accesses up to this time.
    full: Vec<u32>,
    threads: Vec<Thread>,
    any_acquired: bool,
}

impl Clocks {
    pub(crate) fn new(serial: u32, first_serial: u32, warps: usize) -> Clocks {
        Clocks {
            serial,
            first_serial,
            clock: 1,
            warps,
            seen: vec![0; warps * warps],
            full: vec![0; warps],
            threads: vec![Thread::default(); warps * WARP],
            any_acquired: false,
        }
    }

    pub(crate) fn serial(&self) -> u32 {
        self.serial
    }

    pub(crate) fn stamp(&self, warp: usize, lane: usize, kind: Kind) -> Stamp {
        Stamp::new(self.serial, self.clock, warp, lane, kind)
    }

    /// Whether `stamp` belongs to a launch that is over.
    pub(crate) fn is_past(&self, stamp: Stamp) -> bool {
        stamp.serial() < self.first_serial
    }

    /// Whether `earlier` happened before what this thread does now.
    pub(crate) fn ordered(&self, earlier: Stamp, warp: usize, lane: usize) -> bool {
        if self.is_past(earlier) {
            return true;
        }
        (earlier.serial() == self.serial && self.ordered_here(earlier, warp, lane))
            || (self.any_acquired && self.ordered_by_acquire(earlier, warp, lane))
    }

    fn ordered_here(&self, earlier: Stamp, warp: usize, lane: usize) -> bool {
        let (time, other) = (earlier.clock(), earlier.warp());
        if other != warp {
            return self.seen(warp, other) >= time;
        }
        time <= self.full[warp] || (earlier.lane() == lane && lane != ANY_LANE)
    }

    fn ordered_by_acquire(&self, earlier: Stamp, warp: usize, lane: usize) -> bool {
        let knows = |lane: usize| self.threads[warp * WARP + lane].acquired.iter().any(|s| s.covers(earlier));
        if lane == ANY_LANE { (0..WARP).all(knows) } else { knows(lane) }
    }

    fn seen(&self, warp: usize, other: usize) -> u32 {
        self.seen[warp * self.warps + other]
    }

    /// Later accesses get a later time. Every change of what a thread knows comes with one, so that a stamp
    /// stands for one state of knowledge.
    fn advance(&mut self) {
        self.clock += 1;
        assert!(self.clock < MAX_CLOCK, "a block synchronised more than {MAX_CLOCK} times");
    }

    /// `bar.warp.sync` of all lanes.
    pub(crate) fn sync_warp(&mut self, warp: usize) {
        self.full[warp] = self.clock;
        self.share_acquired(&[warp]);
        self.advance();
    }

    /// `warp` arrives at a barrier whose participants so far have brought `known`, a time for every warp.
    pub(crate) fn arrive(&mut self, warp: usize, known: &mut [u32]) {
        for (other, time) in known.iter_mut().enumerate() {
            *time = (*time).max(if other == warp { self.clock } else { self.seen(warp, other) });
        }
        self.advance();
    }

    /// The barrier opens for these warps, which brought what is `known`.
    pub(crate) fn open(&mut self, waiting: &[usize], known: &[u32]) {
        for &warp in waiting {
            for (other, &time) in known.iter().enumerate() {
                let seen = &mut self.seen[warp * self.warps + other];
                *seen = (*seen).max(time);
            }
            self.full[warp] = self.full[warp].max(known[warp]);
        }
        self.share_acquired(waiting);
        self.advance();
    }

    /// Threads of these warps know what each of them has acquired.
    fn share_acquired(&mut self, warps: &[usize]) {
        if self.any_acquired {
            let threads = || warps.iter().flat_map(|warp| warp * WARP..(warp + 1) * WARP);
            let mut all = Knowledge::new();
            threads().for_each(|t| merge(&mut all, &self.threads[t].acquired));
            threads().for_each(|t| self.threads[t].acquired.clone_from(&all));
        }
    }

    pub(super) fn observe(&mut self, warp: usize, lane: usize, from: &Knowledge) {
        merge(&mut self.threads[warp * WARP + lane].observed, from);
    }

    pub(super) fn fenced(&self, warp: usize, lane: usize) -> Option<&Knowledge> {
        self.threads[warp * WARP + lane].fenced.as_ref()
    }

    /// `membar.gl`: acquires what atomics have read, and readies what later ones will publish.
    pub(crate) fn fence(&mut self, warp: usize, lane: usize) {
        let thread = &mut self.threads[warp * WARP + lane];
        let observed = std::mem::take(&mut thread.observed);
        if !observed.is_empty() {
            merge(&mut thread.acquired, &observed);
            self.any_acquired = true;
        }
        let seen = self.seen[warp * self.warps..(warp + 1) * self.warps].into();
        let snapshot =
            Snapshot { serial: self.serial, warp, lane, time: self.clock, full: self.full[warp], seen };
        let mut known = vec![Arc::new(snapshot)];
        merge(&mut known, &thread.acquired);
        thread.fenced = Some(known);
        self.advance();
    }
}
