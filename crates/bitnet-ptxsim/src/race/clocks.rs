//! What each thread of a block knows to have happened.
//!
//! A block has one clock, advanced by every synchronisation in it. Because barriers are aligned, what one warp
//! knows of another is one number for all lanes; inside a warp, lanes differ only after a `bar.warp.sync` of part
//! of it, and only then is a matrix of lanes kept. What atomics tell of other blocks is in `knowledge`.

use std::sync::Arc;

use super::knowledge::{Knowledge, Snapshot, merge};
use super::stamp::{ANY_LANE, Kind, MAX_CLOCK, Stamp};
use crate::inst::WARP;

#[derive(Default, Clone)]
struct Thread {
    /// What acquires have told.
    acquired: Knowledge,
    /// What relaxed atomics have read, of effect only after a fence.
    observed: Knowledge,
    /// What the last fence lets later relaxed atomics publish.
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
    /// `[warp][lane][other lane]`, once a part of the warp has synchronised.
    lanes: Vec<Option<Box<[[u32; WARP]; WARP]>>>,
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
            lanes: vec![None; warps],
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
        if time <= self.full[warp] || (earlier.lane() == lane && lane != ANY_LANE) {
            return true;
        }
        let Some(lanes) = &self.lanes[warp] else { return false };
        let knows = |me: usize, it: usize| me == it || lanes[me][it] >= time;
        let mine = if lane == ANY_LANE { 0..WARP } else { lane..lane + 1 };
        let its = if earlier.lane() == ANY_LANE { 0..WARP } else { earlier.lane()..earlier.lane() + 1 };
        mine.into_iter().all(|me| its.clone().all(|it| knows(me, it)))
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

    /// `bar.warp.sync` of `mask`, in a warp that has the lanes `exist`.
    pub(crate) fn sync_lanes(&mut self, warp: usize, mask: u32, exist: u32) {
        let members = || (0..WARP).filter(move |lane| mask >> lane & 1 == 1);
        if mask & exist == exist {
            self.full[warp] = self.clock;
        } else {
            let base = self.full[warp];
            let lanes = self.lanes[warp].get_or_insert_with(|| Box::new([[base; WARP]; WARP]));
            let joined: [u32; WARP] = std::array::from_fn(|other| {
                let known = members().map(|lane| lanes[lane][other]).max().unwrap_or(0);
                if mask >> other & 1 == 1 { self.clock } else { known }
            });
            members().for_each(|lane| lanes[lane] = joined);
        }
        self.share_acquired(members().map(|lane| warp * WARP + lane).collect());
        self.advance();
    }

    /// `warp` arrives at a barrier whose participants so far have brought `known`, a time for every warp.
    pub(crate) fn arrive(&mut self, warp: usize, known: &mut [u32]) {
        for (other, time) in known.iter_mut().enumerate() {
            *time = (*time).max(if other == warp { self.clock } else { self.seen(warp, other) });
        }
        self.advance();
    }

    /// The barrier opens for these warps, after those in `arrived` brought what is `known`.
    pub(crate) fn open(&mut self, waiting: &[usize], arrived: &[usize], known: &[u32]) {
        for &warp in waiting {
            for (other, &time) in known.iter().enumerate() {
                let seen = &mut self.seen[warp * self.warps + other];
                *seen = (*seen).max(time);
            }
            self.full[warp] = self.full[warp].max(known[warp]);
        }
        self.share_acquired(arrived.iter().flat_map(|warp| warp * WARP..(warp + 1) * WARP).collect());
        self.advance();
    }

    fn share_acquired(&mut self, threads: Vec<usize>) {
        if self.any_acquired {
            let mut all = Knowledge::new();
            threads.iter().for_each(|&t| merge(&mut all, &self.threads[t].acquired));
            threads.iter().for_each(|&t| self.threads[t].acquired.clone_from(&all));
        }
    }

    /// What this thread knows now, for whoever acquires it.
    pub(super) fn publish(&mut self, warp: usize, lane: usize, gpu: bool) -> Knowledge {
        let mut lanes = self.lanes[warp].as_ref().map_or([0; WARP], |lanes| lanes[lane]);
        lanes.iter_mut().for_each(|time| *time = (*time).max(self.full[warp]));
        lanes[lane] = self.clock;
        let seen = self.seen[warp * self.warps..(warp + 1) * self.warps].into();
        let mut out = vec![Arc::new(Snapshot { serial: self.serial, warp, lane, gpu, seen, lanes })];
        // What was acquired at a narrower scope is passed on at this one: order is transitive.
        let pass = |s: &Arc<Snapshot>| if s.gpu || !gpu { s.clone() } else { Arc::new(s.widened()) };
        let passed: Knowledge = self.threads[warp * WARP + lane].acquired.iter().map(pass).collect();
        merge(&mut out, &passed);
        self.advance();
        out
    }

    pub(super) fn acquire(&mut self, warp: usize, lane: usize, gpu: bool, from: &Knowledge) {
        let own = self.serial;
        let visible = from.iter().filter(|s| s.serial == own || (s.gpu && gpu)).cloned().collect();
        merge(&mut self.threads[warp * WARP + lane].acquired, &visible);
        self.any_acquired = true;
        self.advance();
    }

    pub(super) fn observe(&mut self, warp: usize, lane: usize, from: &Knowledge) {
        merge(&mut self.threads[warp * WARP + lane].observed, from);
    }

    pub(super) fn fenced(&self, warp: usize, lane: usize) -> Option<&Knowledge> {
        self.threads[warp * WARP + lane].fenced.as_ref()
    }

    /// `fence` or `membar`: acquires what relaxed reads saw, and readies what relaxed writes will publish.
    pub(crate) fn fence(&mut self, warp: usize, lane: usize, gpu: bool) {
        let observed = std::mem::take(&mut self.threads[warp * WARP + lane].observed);
        if !observed.is_empty() {
            self.acquire(warp, lane, gpu, &observed);
        }
        self.threads[warp * WARP + lane].fenced = Some(self.publish(warp, lane, gpu));
    }
}
