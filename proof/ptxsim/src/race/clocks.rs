//! Which accesses each thread of a block knows to have happened.
//!
//! A block has one clock, advanced by every synchronisation in it. Because barriers are aligned and whole warps
//! synchronise, a single number says what a warp knows of another warp, or its lanes of each other. What atomics
//! reveal of other blocks is in `knowledge`.

use std::sync::Arc;

use super::knowledge::{Knowledge, Snapshot, merge};
use super::stamp::{ANY_LANE, Kind, MAX_CLOCK, Stamp};
use crate::inst::WARP;

#[derive(Default, Clone)]
struct Thread {
    /// Knowledge gained by fences after atomics.
    acquired: Knowledge,
    /// Knowledge read by atomics, which takes effect only after a fence.
    observed: Knowledge,
    /// Knowledge that later atomics publish, as of the last fence.
    fenced: Option<Knowledge>,
}

pub(crate) struct Clocks {
    serial: u32,
    /// Blocks with a lower number belong to earlier launches, which have ended.
    first_serial: u32,
    clock: u32,
    warps: usize,
    /// `[warp][other]`: time up to which the warp's lanes know all accesses of the other warp.
    seen: Vec<u32>,
    /// `[warp]`: time up to which all its lanes know each other's accesses.
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

    /// Whether `stamp` belongs to a launch that has ended.
    pub(crate) fn is_past(&self, stamp: Stamp) -> bool {
        stamp.serial() < self.first_serial
    }

    /// Whether `earlier` happened before this thread's current access.
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

    /// Advances the clock, so that later accesses get a later time. This happens at every change of a thread's
    /// knowledge, so a stamp implies one state of knowledge.
    fn advance(&mut self) {
        self.clock += 1;
        assert!(self.clock < MAX_CLOCK, "a block synchronised more than {MAX_CLOCK} times");
    }

    /// Applies a `bar.warp.sync` of all lanes.
    pub(crate) fn sync_warp(&mut self, warp: usize) {
        self.full[warp] = self.clock;
        self.share_acquired(&[warp]);
        self.advance();
    }

    /// Adds what `warp` knows to `known`, the times for every warp that a barrier's participants know so far.
    pub(crate) fn arrive(&mut self, warp: usize, known: &mut [u32]) {
        for (other, time) in known.iter_mut().enumerate() {
            *time = (*time).max(if other == warp { self.clock } else { self.seen(warp, other) });
        }
        self.advance();
    }

    /// Opens a barrier for these warps, which then all know `known`.
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

    /// Shares what the threads of these warps have acquired among all of them.
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

    /// Applies a `membar.gl`: acquires what atomics have read, and sets what later atomics publish.
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
