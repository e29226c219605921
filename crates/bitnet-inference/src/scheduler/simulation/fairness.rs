//! What the order of the sequences promises, judged around every plan by what was so before it.

use super::*;
use crate::scheduler::plan::MAX_BYPASS;

/// How a sequence stood before a plan.
struct Stood {
    slot: u32,
    id: SeqId,
    rank: u64,
    place: (bool, Priority, u64),
    running: bool,
    paused: bool,
    computed: usize,
}

impl World {
    /// Plans a step: true if there is one.
    ///
    /// - While a sequence is not paused there is something to compute.
    /// - The oldest running sequence is in every plan, and keeps what it has computed.
    /// - Who gives way is younger than everyone who stays, the paused aside, and those who came back at once.
    /// - A waiting sequence that others go before has no room, has not waited for long, and sees that a few times only.
    pub(super) fn plan_fairly(&mut self, plan: &mut Plan) -> Result<bool, String> {
        let (stood, preemptions) = (self.standing(), self.scheduler.counts.preemptions);
        let planned = self.scheduler.plan(self.now, plan) && !self.strikes(Planted::IdleStep);
        self.sabotage_order(plan);
        if !planned {
            let idle = self.scheduler.slots.iter().flatten().find(|s| s.paused.is_none());
            return idle.map_or(Ok(false), |s| Err(format!("nothing is planned for {:?}", s.id)));
        }
        self.check_running(plan, &stood, self.scheduler.counts.preemptions - preemptions)?;
        self.check_waiting(&stood)?;
        Ok(true)
    }

    fn standing(&self) -> Vec<Stood> {
        let stood = |(slot, s): (u32, &Sequence)| Stood {
            slot,
            id: s.id,
            rank: s.rank,
            place: s.place(),
            running: s.running,
            paused: s.paused.is_some(),
            computed: s.computed,
        };
        let slots = (0..).zip(&self.scheduler.slots).filter_map(|(slot, s)| Some((slot, s.as_ref()?)));
        slots.map(stood).collect()
    }

    fn check_running(&self, plan: &Plan, stood: &[Stood], gave_way: u64) -> Result<(), String> {
        let stays = |s: &&Stood| {
            let now = seq(&self.scheduler.slots, s.slot);
            now.running && now.computed >= s.computed
        };
        let (stay, leave): (Vec<_>, Vec<_>) = stood.iter().filter(|s| s.running).partition(stays);
        let came_back = gave_way > leave.len() as u64;
        let youngest = stay.iter().filter(|s| !s.paused).map(|s| s.rank).max();
        let eldest = leave.iter().filter(|s| !s.paused).map(|s| s.rank).min();
        if !came_back && eldest.is_some_and(|rank| youngest > Some(rank)) {
            return Err("a sequence gave way and a younger one stayed".into());
        }
        match stood.iter().filter(|s| s.running && !s.paused).min_by_key(|s| s.rank) {
            Some(s) if !stays(&s) => Err(format!("{:?} was the oldest and gave way", s.id)),
            Some(s) if !plan.runs.iter().any(|run| run.slot == s.slot) => {
                Err(format!("{:?} is the oldest and not planned", s.id))
            }
            _ => Ok(()),
        }
    }

    fn check_waiting(&mut self, stood: &[Stood]) -> Result<(), String> {
        let Scheduler { slots, .. } = &self.scheduler;
        let went = stood.iter().filter(|s| !s.running && seq(slots, s.slot).running);
        let Some(last) = went.clone().map(|s| s.place).max() else { return Ok(()) };
        for s in stood.iter().filter(|s| !s.running && !s.paused && s.place < last) {
            let waits = seq(slots, s.slot);
            let leader = if waits.follows { self.scheduler.leader(s.id) } else { None };
            if waits.running || leader.is_some_and(|l| l.computed < l.request.prompt.len()) {
                continue;
            }
            // The other choices of a request wait for its first one, whose prompt they share.
            let first = SeqId { choice: 0, ..s.id };
            let ahead =
                went.clone().filter(|other| other.place > s.place && other.id != first).count() as u32;
            let times = self.overtaken.entry(s.id).or_default();
            *times += ahead;
            let (aged, fits) = (waits.aged, self.scheduler.fits(waits, leader.is_some()));
            if ahead > 0 && (aged || fits || *times > MAX_BYPASS) {
                return Err(format!("{:?} was overtaken {times} times; aged: {aged}, fits: {fits}", s.id));
            }
        }
        Ok(())
    }

    /// Whoever has waited for as long as its priority bears is said to be aged.
    pub(super) fn check_aging(&mut self) -> Result<(), String> {
        for &slot in &self.scheduler.waiting {
            let s = seq(&self.scheduler.slots, slot);
            if self.now - s.arrived >= s.request.priority.patience() && !s.aged {
                return Err(format!("{:?} has waited since {} and is not aged", s.id, s.arrived));
            }
            self.aged |= s.aged;
        }
        Ok(())
    }
}
