//! Deliberate faults in the scheduler, which the simulation must detect.

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Planted {
    DoubleFree,
    LostBlock,
    UncopiedWrite,
    PositionOffByOne,
    SwallowedCancel,
    EventAfterEnd,
    TwoEnds,
    DoubledToken,
    LostToken,
    SwappedTable,
    WrongPrefix,
    LostSequence,
    SwappedTokens,
    ForgottenStep,
    SwallowedAbort,
    PreemptedOldest,
    StarvedOldest,
    QueueJumper,
    ForgottenAge,
    IdleStep,
    OverfullBatch,
    PausedInPlace,
    DraftsBeforeAdmission,
    ForgottenAdmission,
    ForgottenDecode,
    ThinChunk,
    CopiedPrompt,
    UncopiedState,
    StaleState,
    SwappedStates,
    SharedState,
    StateFreedTwice,
    LostState,
    MisplacedSnapshot,
    ForgottenLog,
    RepeatedLog,
    RejectedDraft,
    SwappedLogs,
    TrustedState,
    DamagedPart,
    TrustedBlock,
    OtherPart,
    ShiftedPart,
    SilentShelf,
    NeighbourRead,
    UnwrittenPart,
    UnsettledState,
    LateCopyOut,
    PreparedPart,
    LostAdoption,
    ForgottenFetch,
    NarrowWindow,
    EarlyWindow,
    StaleWindow,
    FreedWindow,
    WrongWindow,
    UncopiedWindow,
}

impl Planted {
    pub(super) const ALL: [Planted; 57] = [
        Planted::DoubleFree,
        Planted::LostBlock,
        Planted::UncopiedWrite,
        Planted::PositionOffByOne,
        Planted::SwallowedCancel,
        Planted::EventAfterEnd,
        Planted::TwoEnds,
        Planted::DoubledToken,
        Planted::LostToken,
        Planted::SwappedTable,
        Planted::WrongPrefix,
        Planted::LostSequence,
        Planted::SwappedTokens,
        Planted::ForgottenStep,
        Planted::SwallowedAbort,
        Planted::PreemptedOldest,
        Planted::StarvedOldest,
        Planted::QueueJumper,
        Planted::ForgottenAge,
        Planted::IdleStep,
        Planted::OverfullBatch,
        Planted::PausedInPlace,
        Planted::DraftsBeforeAdmission,
        Planted::ForgottenAdmission,
        Planted::ForgottenDecode,
        Planted::ThinChunk,
        Planted::CopiedPrompt,
        Planted::UncopiedState,
        Planted::StaleState,
        Planted::SwappedStates,
        Planted::SharedState,
        Planted::StateFreedTwice,
        Planted::LostState,
        Planted::MisplacedSnapshot,
        Planted::ForgottenLog,
        Planted::RepeatedLog,
        Planted::RejectedDraft,
        Planted::SwappedLogs,
        Planted::TrustedState,
        Planted::DamagedPart,
        Planted::TrustedBlock,
        Planted::OtherPart,
        Planted::ShiftedPart,
        Planted::SilentShelf,
        Planted::NeighbourRead,
        Planted::UnwrittenPart,
        Planted::UnsettledState,
        Planted::LateCopyOut,
        Planted::PreparedPart,
        Planted::LostAdoption,
        Planted::ForgottenFetch,
        Planted::NarrowWindow,
        Planted::EarlyWindow,
        Planted::StaleWindow,
        Planted::FreedWindow,
        Planted::WrongWindow,
        Planted::UncopiedWindow,
    ];
}

impl World {
    pub(super) fn strikes(&mut self, planted: Planted) -> bool {
        self.planted == Some(planted) && self.rng.one_in(10)
    }

    pub(super) fn sabotage_plan(&mut self, plan: &mut Plan) {
        if self.strikes(Planted::UncopiedWrite) {
            plan.copies.clear();
        }
        if self.planted == Some(Planted::UncopiedWindow) {
            plan.window_copies.clear();
        }
        if self.strikes(Planted::UncopiedState) {
            plan.states.clear();
        }
        if self.strikes(Planted::PositionOffByOne)
            && let Some(run) = plan.runs.iter_mut().find(|r| r.start > 0)
        {
            run.start -= 1;
        }
        self.sabotage_logs(plan);
    }

    /// Changes what runs take up of the logs of their states.
    fn sabotage_logs(&mut self, plan: &Plan) {
        let Some(planted) = self.planted else { return };
        let slots = &mut self.scheduler.slots;
        match planted {
            Planted::ForgottenLog => plan.runs.iter().for_each(|run| seq_mut(slots, run.slot).logged = 0),
            Planted::RejectedDraft => {
                let some = plan.runs.iter().find(|run| seq(slots, run.slot).logged > 0);
                some.into_iter().for_each(|run| seq_mut(slots, run.slot).logged += 1);
            }
            Planted::SwappedLogs => {
                for pair in plan.runs.windows(2) {
                    let [a, b] = [pair[0].slot, pair[1].slot].map(|slot| seq(slots, slot).logged);
                    (seq_mut(slots, pair[0].slot).logged, seq_mut(slots, pair[1].slot).logged) = (b, a);
                }
            }
            _ => {}
        }
    }

    /// Whether a pass that takes up a log is made twice.
    pub(super) fn repeats_pass(&self, plan: &Plan) -> bool {
        let takes_up = |run: &PlannedRun| self.scheduler.sequence(run).logged > 0;
        self.planted == Some(Planted::RepeatedLog) && plan.runs.iter().any(takes_up)
    }

    /// Applied between a plan and the check of its order.
    pub(super) fn sabotage_order(&mut self, plan: &mut Plan) {
        let scheduler = &mut self.scheduler;
        let oldest = scheduler.running.first().copied();
        match (self.planted, oldest) {
            (Some(Planted::PreemptedOldest), Some(slot)) if scheduler.running.len() > 1 => {
                scheduler.preempt(slot);
            }
            (Some(Planted::StarvedOldest), Some(slot)) => plan.runs.retain(|run| run.slot != slot),
            (Some(Planted::QueueJumper), _) if scheduler.waiting.len() > 1 => {
                let slot = scheduler.waiting[scheduler.waiting.len() - 1];
                let available = scheduler.available();
                if scheduler.fits(seq(&scheduler.slots, slot), false, available) {
                    scheduler.waiting.pop();
                    scheduler.start(slot, None, self.now);
                }
            }
            (Some(Planted::DraftsBeforeAdmission), _) if plan.load.drafts > 0 => self.send_back(plan),
            (Some(Planted::ForgottenAdmission), _) if plan.load.drafts == 0 => self.send_back(plan),
            (Some(Planted::ForgottenDecode), _) if plan.runs.len() > 1 => {
                let decodes = |run: &PlannedRun| run.start > 0 && run.rows > 0 && run.len == 1 + run.drafts;
                let last = plan.runs.iter().rposition(decodes).filter(|&at| at > 0);
                last.map(|at| plan.runs.remove(at));
            }
            (Some(Planted::ThinChunk), _) => {
                let prompt = plan.runs.iter_mut().find(|run| run.len > 1 && run.drafts == 0);
                prompt.into_iter().for_each(|run| (run.len, run.rows) = (1, 0));
            }
            _ => {}
        }
    }

    /// Puts a sequence that was just admitted and has computed nothing back into the queue.
    fn send_back(&mut self, plan: &mut Plan) {
        let begins = |run: &PlannedRun| run.start == 0 && run.rows > 0 && run.drafts == 0;
        if let Some(at) = plan.runs.iter().rposition(begins).filter(|&at| at > 0) {
            self.scheduler.preempt(plan.runs.remove(at).slot);
        }
    }

    /// Applied after a reader has paused.
    pub(super) fn sabotage_pause(&mut self) {
        let Scheduler { waiting, slots, .. } = &self.scheduler;
        let paused = |slot: &&u32| seq(slots, **slot).parked() && seq(slots, **slot).paused.is_some();
        if let (Some(Planted::PausedInPlace), Some(&slot)) = (self.planted, waiting.iter().find(paused)) {
            self.run_at_once(slot);
        }
    }

    /// Applied after all readers have resumed.
    pub(super) fn sabotage_resume(&mut self) {
        let Scheduler { waiting, slots, .. } = &self.scheduler;
        if self.planted == Some(Planted::OverfullBatch) {
            let parked: Vec<u32> =
                waiting.iter().copied().filter(|&slot| seq(slots, slot).parked()).collect();
            parked.into_iter().for_each(|slot| self.run_at_once(slot));
        }
    }

    /// Gives a waiting sequence a place even if none is free.
    fn run_at_once(&mut self, slot: u32) {
        self.scheduler.waiting.retain(|&other| other != slot);
        self.scheduler.start(slot, None, self.now);
    }

    /// Applied after the clock has moved.
    pub(super) fn sabotage_queue(&mut self) {
        if self.planted == Some(Planted::ForgottenAge) {
            let Scheduler { waiting, slots, .. } = &mut self.scheduler;
            waiting.iter().for_each(|&slot| seq_mut(slots, slot).aged = false);
        }
        if self.planted == Some(Planted::CopiedPrompt) {
            let Scheduler { waiting, slots, .. } = &mut self.scheduler;
            waiting.iter().for_each(|&slot| seq_mut(slots, slot).own_text(0, false));
        }
    }

    pub(super) fn sabotage_outcome(&mut self, plan: &Plan) {
        let drawn = &mut self.outcome.drawn;
        if drawn.len() >= 2 && self.planted == Some(Planted::SwappedTokens) {
            drawn.swap(0, 1);
        }
        for (run, outcome) in plan.runs.iter().zip(&mut self.outcome.runs) {
            let trusted = self.planted == Some(Planted::TrustedState) && run.rows == 0;
            if trusted && *outcome == RunOutcome::RolledBack {
                *outcome = RunOutcome::Done(0..0);
            }
        }
    }

    /// Applied after a step to the states of sequences.
    fn sabotage_slots(&mut self) {
        let Scheduler { states, slots, running, .. } = &mut self.scheduler;
        let [first, rest @ ..] = running.as_slice() else { return };
        let of = |slot: u32| seq(slots, slot).state;
        let (Some(own), other) = (of(*first), rest.first().and_then(|&slot| of(slot))) else { return };
        let s = seq_mut(slots, *first);
        match (self.planted, other) {
            (Some(Planted::StaleState), _) => {
                if let Some(stale) = states.take(None) {
                    states.release(own);
                    s.state = Some(stale);
                }
            }
            (Some(Planted::SwappedStates), Some(other)) => {
                s.state = Some(other);
                seq_mut(slots, rest[0]).state = Some(own);
            }
            (Some(Planted::SharedState), Some(other)) => s.state = Some(other),
            (Some(Planted::StateFreedTwice), _) => states.release(own),
            (Some(Planted::LostState), _) => drop(states.take(None)),
            (Some(Planted::MisplacedSnapshot), _) => {
                s.chains.windows(2).rev().for_each(|pair| states.misplace(pair[1], pair[0]));
            }
            _ => {}
        }
    }

    /// Applied after a step to the blocks of sliding layers.
    fn sabotage_windows(&mut self) {
        let Scheduler { windows, slots, running, .. } = &mut self.scheduler;
        let Some(s) = running.first().map(|&slot| seq_mut(slots, slot)) else { return };
        let held = &mut s.windows[s.passed..];
        let Some(&first) = held.first() else { return };
        match self.planted {
            Some(Planted::EarlyWindow) => {
                windows.release(first);
                s.passed += 1;
            }
            Some(Planted::StaleWindow) => held.reverse(),
            Some(Planted::FreedWindow) => {
                let shared = held.iter().find(|&&block| windows.refs(block) > 1);
                shared.into_iter().for_each(|&block| windows.release(block));
            }
            Some(Planted::WrongWindow) => {
                let other = self.prompts.iter().rev().find(|p| p.len() >= BLOCK);
                if let Some(other) = other {
                    windows.publish(held[held.len() - 1], Chain::Root(s.request.salt), &other[..BLOCK]);
                }
            }
            _ => {}
        }
    }

    pub(super) fn sabotage_state(&mut self) {
        if self.planted.is_none() || !self.rng.one_in(10) {
            return;
        }
        self.sabotage_slots();
        self.sabotage_windows();
        let Scheduler { pool, slots, running, waiting, .. } = &mut self.scheduler;
        let some = running.first().map(|&slot| seq_mut(slots, slot));
        match (self.planted, some) {
            (Some(Planted::DoubleFree), Some(s)) if !s.table.is_empty() => pool.release(s.table[0]),
            (Some(Planted::LostBlock), _) => drop(pool.allocate()),
            (Some(Planted::SwappedTable), Some(s)) if s.computed > BLOCK => s.table.swap(0, 1),
            (Some(Planted::WrongPrefix), Some(s)) if !s.chains.is_empty() => {
                let other =
                    self.prompts.iter().rev().find(|p| p.len() >= BLOCK && p[..BLOCK] != s.tokens[..BLOCK]);
                if let Some(other) = other {
                    pool.publish(s.table[0], Chain::Root(s.request.salt), &other[..BLOCK]);
                }
            }
            (Some(Planted::LostSequence), _) => drop(waiting.pop()),
            (Some(Planted::ForgottenStep), Some(s))
                if s.computed + 1 < s.tokens.len() && s.table.len() * BLOCK > s.computed + 1 =>
            {
                s.computed += 1;
                s.chains.resize(s.computed / BLOCK, Chain::Root(1 << 40));
            }
            _ => {}
        }
    }

    pub(super) fn sabotage_events(&mut self) {
        if self.planted.is_none() || !self.rng.one_in(10) {
            return;
        }
        let events = &mut self.scheduler.events;
        let token = events.iter().position(|e| matches!(e, Event::Token(..)));
        let end = events.iter().position(|e| matches!(e, Event::Ended(..)));
        match (self.planted, token, end) {
            (Some(Planted::EventAfterEnd), _, Some(at)) => {
                let Event::Ended(id, _) = events[at] else { unreachable!("it is an end") };
                events.insert(at + 1, Event::Token(id, 0, None));
            }
            (Some(Planted::TwoEnds), _, Some(at)) => events.insert(at, events[at].clone()),
            (Some(Planted::DoubledToken), Some(at), _) => events.insert(at, events[at].clone()),
            (Some(Planted::LostToken), Some(at), _) => drop(events.remove(at)),
            _ => {}
        }
    }
}

const BLOCK: usize = Batch::BLOCK_TOKENS;
