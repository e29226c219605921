//! Checks the rules of the sequences' order around every plan, compared to the state before it.

use super::*;
use crate::schedule::plan::MAX_BYPASS;
use crate::schedule::windows::Blocks;

/// The state of a sequence before a plan.
struct Stood {
    slot: u32,
    id: SeqId,
    rank: u64,
    key: (bool, Priority, u64),
    running: bool,
    parked: bool,
    paused: bool,
    computed: usize,
    blocks: usize,
    /// Number of cached blocks of its text that it could use, if it waited.
    usable: usize,
}

impl Stood {
    /// Whether a waiting sequence finds as much of its text in the cache as before. With less it may fit where it did not: from
    /// its beginning, a text needs no window.
    fn finds_the_same(&self, world: &World) -> bool {
        let scheduler = &world.scheduler;
        self.running || scheduler.usable(seq(&scheduler.slots, self.slot)).0 == self.usable
    }
}

impl World {
    /// Plans a step, returns whether there is one, and checks these rules:
    ///
    /// - While any sequence is not paused, there is something to compute.
    /// - The oldest running sequence is in every plan, and keeps what it has computed.
    /// - A preempted sequence is younger than all that stay, except for paused ones and those that returned at once.
    /// - Others go before a waiting sequence only if it has no room, has not waited for long, and only a few times.
    /// - The first in the queue is admitted in the first step that has a place, blocks and capacity for it. Drafts and
    ///   parked sequences do not count against it, and decoding sequences come before drafts too.
    /// - The oldest prompt gets a real chunk in every step.
    pub(super) fn plan_fairly(&mut self, plan: &mut Plan) -> Result<bool, String> {
        let (stood, preemptions) = (self.standing(), self.scheduler.counts.preemptions);
        let planned = self.scheduler.plan(self.now, plan) && !self.strikes(Planted::IdleStep);
        self.sabotage_order(plan);
        if !planned {
            let waits = |s: &&Sequence| s.paused.is_none() && self.scheduler.has_fetched(s);
            let idle = self.scheduler.slots.iter().flatten().find(waits);
            return idle.map_or(Ok(false), |s| Err(format!("nothing is planned for {:?}", s.id)));
        }
        self.check_running(plan, &stood, self.scheduler.counts.preemptions - preemptions)?;
        self.check_waiting(&stood)?;
        self.check_decodes(plan, &stood)?;
        if self.scheduler.counts.preemptions == preemptions {
            self.check_prefill(plan, &stood)?;
        }
        self.check_admission(plan, &stood)?;
        Ok(true)
    }

    fn standing(&self) -> Vec<Stood> {
        let stood = |(slot, s): (u32, &Sequence)| Stood {
            slot,
            id: s.id,
            rank: s.rank,
            key: s.admission_key(),
            running: s.running,
            parked: s.parked(),
            paused: s.paused.is_some(),
            computed: s.computed,
            blocks: s.table.len(),
            usable: if s.running { 0 } else { self.scheduler.usable(s).0 },
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
        let reclaimed = |s: &&Stood| s.parked && seq(&self.scheduler.slots, s.slot).computed < s.computed;
        let reclaimed = stood.iter().filter(reclaimed).count();
        let came_back = gave_way > (leave.len() + reclaimed) as u64;
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
        let Some(last) = went.clone().map(|s| s.key).max() else { return Ok(()) };
        for s in stood.iter().filter(|s| !s.running && !s.paused && s.key < last) {
            let waits = seq(slots, s.slot);
            if waits.running || !self.could_go(s.slot, stood) {
                continue;
            }
            // The other choices of a request wait for the first one, whose prompt they share.
            let first = SeqId { choice: 0, ..s.id };
            let ahead = went.clone().filter(|other| other.key > s.key && other.id != first).count() as u32;
            let available = self.scheduler.available();
            let shares = self.scheduler.shared(s.slot).is_some();
            let aged = waits.aged;
            let fits = s.finds_the_same(self) && self.scheduler.fits(waits, shares, available);
            let times = self.overtaken.entry(s.id).or_default();
            *times += ahead;
            if ahead > 0 && (aged || fits || *times > MAX_BYPASS) {
                return Err(format!("{:?} was overtaken {times} times; aged: {aged}, fits: {fits}", s.id));
            }
        }
        Ok(())
    }

    /// Whether a waiting sequence could have been admitted when the plan was made. The first choice of its request must not have been admitted by the same plan.
    fn could_go(&self, slot: u32, stood: &[Stood]) -> bool {
        let ran = |leader: &Sequence| stood.iter().any(|s| s.id == leader.id && s.running);
        self.scheduler.eligible(slot) && self.scheduler.prompt_leader(slot).is_none_or(ran)
    }

    /// Number of blocks that would be free if the plan had no drafts.
    fn available_without_drafts(&self, plan: &Plan, stood: &[Stood]) -> Blocks {
        let taken = |run: &PlannedRun| {
            let before = stood.iter().find(|s| s.slot == run.slot).map_or(0, |s| s.blocks);
            let without = (run.start + run.len - run.drafts).div_ceil(Batch::BLOCK_TOKENS);
            seq(&self.scheduler.slots, run.slot).table.len().saturating_sub(before.max(without))
        };
        let drafting = plan.runs.iter().filter(|run| run.drafts > 0);
        let more = drafting.map(taken).sum();
        // Both tables of a sequence end with the same block.
        let windows = if self.scheduler.window.is_some() { more } else { 0 };
        self.scheduler.available() + Blocks { full: more, windows }
    }

    /// Number of tokens that a running sequence has to compute, without drafts.
    fn pending(s: &Sequence) -> usize {
        s.pending() - s.drafted
    }

    /// A decoding sequence is left out of a plan only if it has no block.
    fn check_decodes(&self, plan: &Plan, stood: &[Stood]) -> Result<(), String> {
        let available = self.available_without_drafts(plan, stood);
        for &slot in &self.scheduler.running {
            let s = seq(&self.scheduler.slots, slot);
            let planned = plan.runs.iter().any(|run| run.slot == slot);
            if !planned && Self::pending(s) == 1 && self.scheduler.missing(s, 1).fit(available) {
                return Err(format!("{:?} decodes and is not planned", s.id));
            }
        }
        Ok(())
    }

    /// The oldest prompt that had a place before the plan gets a chunk, or all the tokens that decoding sequences
    /// leave in the step. It may end earlier where a snapshot is taken.
    fn check_prefill(&self, plan: &Plan, stood: &[Stood]) -> Result<(), String> {
        let Scheduler { slots, running, config, .. } = &self.scheduler;
        let ran = |slot| stood.iter().any(|s| s.slot == slot && s.running);
        let prompt = |slot: &&u32| Self::pending(seq(slots, **slot)) > 1 && ran(**slot);
        let Some(&slot) = running.iter().find(prompt) else { return Ok(()) };
        let s = seq(slots, slot);
        let real = Pacer::MIN_CHUNK.min(Self::pending(s)).min(config.max_tokens - plan.load.decodes);
        let real = real.min(self.scheduler.until_snapshot(s)).min(self.scheduler.longest_run());
        match plan.runs.iter().find(|run| run.slot == slot) {
            Some(run) if run.len < real => Err(format!("{:?} gets {} tokens of {real}", s.id, run.len)),
            None if self
                .scheduler
                .missing(s, Self::pending(s).min(config.max_tokens))
                .fit(self.available_without_drafts(plan, stood)) =>
            {
                Err(format!("{:?} gets no tokens of its prompt", s.id))
            }
            _ => Ok(()),
        }
    }

    /// The first in the queue stays there only if there is no place, no blocks or no capacity.
    fn check_admission(&mut self, plan: &Plan, stood: &[Stood]) -> Result<(), String> {
        let Scheduler { slots, waiting, running, config, pace, .. } = &self.scheduler;
        let drafts = plan.load.drafts;
        let began = |run: &PlannedRun| stood.iter().any(|s| s.slot == run.slot && !s.running);
        self.drafted_beside_admission |= drafts > 0 && plan.runs.iter().any(began);
        let first = waiting.iter().copied().find(|&slot| self.scheduler.eligible(slot));
        let Some(slot) = first.filter(|&slot| self.could_go(slot, stood)) else { return Ok(()) };
        let s = seq(slots, slot);
        let shared = self.scheduler.shared(slot).is_some();
        let rows: usize = plan.runs.iter().map(|run| run.rows).sum();
        let capacity = plan.tokens() - drafts < config.max_tokens && rows - drafts < config.max_rows;
        // Other prompts may use up the prompt tokens that the goal between tokens allows.
        let paced = !matches!(config.sizing, BatchSizing::Fixed(_));
        let prompts = paced && plan.load.prefill > 0 && s.pending() > 1;
        if running.len() >= pace.batch_size() {
            self.waited_to_go_on |= s.parked();
            return Ok(());
        }
        let available = self.available_without_drafts(plan, stood);
        let found = stood.iter().all(|s| s.slot != slot || s.finds_the_same(self));
        if capacity && !prompts && found && self.scheduler.fits(s, shared, available) {
            return Err(format!(
                "{:?} is first in the queue, has room and is not admitted: {available:?}, {} of {} places, {:?}",
                s.id,
                running.len(),
                pace.batch_size(),
                plan.load
            ));
        }
        match self.scheduler.parked_behind(slot) {
            Some(parked) if capacity && !prompts => {
                Err(format!("{:?} has no blocks, and slot {parked} keeps its own", s.id))
            }
            _ => Ok(()),
        }
    }

    /// A sequence that has waited as long as its priority allows is marked as aged.
    pub(super) fn check_aging(&mut self) -> Result<(), String> {
        for &slot in &self.scheduler.waiting {
            let s = seq(&self.scheduler.slots, slot);
            let patient =
                s.paused.is_some() || self.now - s.since < self.scheduler.pace.patience(s.request.priority);
            if !patient && !s.aged {
                return Err(format!("{:?} has waited since {} and is not aged", s.id, s.since));
            }
            self.aged |= s.aged;
        }
        Ok(())
    }
}
