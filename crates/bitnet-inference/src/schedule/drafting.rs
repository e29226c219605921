//! The drafts of a step: which runs get some, from where, and how they are added to the plan.

use bitnet_model::DraftLog;

use super::draft::{self, Candidate, Source};
use super::plan::{BLOCK, Budget, Plan, PlannedRun};
use super::sequence::Sequence;
use super::{Scheduler, seq, seq_mut};

/// Number of tokens at the end of a text that must have occurred before for drafts to follow what came after them: if
/// nothing else drafts, and beside a drafter.
const PATTERN: usize = 3;
const LONG_PATTERN: usize = 8;

impl Scheduler {
    /// Plans drafts for decoding sequences, within the step's tokens and rows, the goal for the time between tokens,
    /// and the free blocks. A draft takes nothing from another sequence. Tokens that a constraint forces come first.
    pub(super) fn plan_drafts(&mut self, budget: &mut Budget, plan: &mut Plan) {
        self.candidates.clear();
        for at in 0..plan.runs.len() {
            let PlannedRun { slot, len: 1, rows: 1, .. } = plan.runs[at] else { continue };
            let s = seq(&self.slots, slot);
            if s.pending() > 1 || !s.draws {
                continue;
            }
            let room =
                s.end.saturating_sub(s.tokens.len() + 1).min(self.longest_run() - 1).min(budget.tokens);
            if !s.forced.is_empty() {
                let room = room.min(Self::until_block(s));
                // Where log-probabilities are wanted, each forced token needs the row before it.
                let rows = if s.request.config.logprobs.is_some() { budget.rows } else { room };
                let given = s.forced.len().min(room).min(rows);
                let forced = Candidate { given, ..self.candidate(at, Source::Forced, 0, given) };
                self.place_drafts(forced, budget, plan);
            } else if self.config.max_draft > 0 {
                let most = self.config.max_draft.min(self.rejectable(s));
                let candidate = self.candidate_of(at, s, room.min(most));
                self.candidates.extend(candidate);
            }
        }
        let room = budget.tokens.min(budget.rows).min(self.pace.draft_budget(plan.load));
        let mut candidates = std::mem::take(&mut self.candidates);
        if self.at_any_cost {
            draft::allot_all(&mut candidates, room);
        } else {
            draft::allot(&mut candidates, plan.load, room, &self.pace.model);
        }
        candidates.iter().for_each(|candidate| self.place_drafts(*candidate, budget, plan));
        self.candidates = candidates;
    }

    /// What a run can get drafts from, at most `most`: the request's prediction, then the text itself, then the drafter.
    /// With a drafter, the text must repeat itself for longer.
    fn candidate_of(&self, run: usize, s: &Sequence, most: usize) -> Option<Candidate> {
        let predicted = || s.prediction.as_ref()?.next(&s.request.prediction);
        let pattern = if self.drafter { LONG_PATTERN } else { PATTERN };
        let (source, from, length) = if let Some(from) = predicted() {
            (Source::Prediction, from, s.request.prediction.len() - from)
        } else if let Some(from) = draft::find(&s.tokens, pattern).filter(|_| !self.without_text) {
            (Source::Text, from, s.tokens.len() - from)
        } else if self.drafter {
            (Source::Drafter, 0, most)
        } else {
            return None;
        };
        // Draft a token now and then anyway, to notice when the text begins to be predictable.
        let each = if source == Source::Drafter { 64 } else { 32 };
        let rates = s.rates[source as usize].of_sequence(&self.rates[source as usize]);
        let probe = s.tokens.len().is_multiple_of(each);
        Some(Candidate { rates, probe, ..self.candidate(run, source, from, most.min(length)) })
    }

    fn candidate(&self, run: usize, source: Source, from: usize, most: usize) -> Candidate {
        Candidate { run, source, most, from, rates: Default::default(), probe: false, given: 0 }
    }

    /// Appends the drafts given to a candidate after its pending token, if there are blocks. Drafts of a drafter are
    /// placeholders at first.
    fn place_drafts(&mut self, candidate: Candidate, budget: &mut Budget, plan: &mut Plan) {
        let Candidate { run, source, from, given: drafts, .. } = candidate;
        let slot = plan.runs[run].slot;
        let s = seq(&self.slots, slot);
        let rejectable = source != Source::Forced;
        // Rejected drafts leave their blocks in the table, so it may be longer than necessary.
        if drafts == 0 || !self.missing(s, 1 + drafts).fit(self.available()) {
            return;
        }
        self.make_room(slot, 1 + drafts, budget, plan);
        let s = seq_mut(&mut self.slots, slot);
        match source {
            Source::Forced => s.tokens.extend_from_slice(&s.forced[..drafts]),
            Source::Prediction => s.tokens.extend_from_slice(&s.request.prediction[from..][..drafts]),
            Source::Text => s.tokens.extend_from_within(from..from + drafts),
            Source::Drafter => s.tokens.resize(s.tokens.len() + drafts, 0),
        }
        s.drafted = drafts;
        let rows = if rejectable || s.request.config.logprobs.is_some() { 1 + drafts } else { 1 };
        let planned = &mut plan.runs[run];
        (planned.len, planned.drafts, planned.rows, planned.source) = (1 + drafts, drafts, rows, source);
        budget.tokens -= drafts;
        budget.rows -= rows - 1;
        plan.load.drafts += drafts;
        if source == Source::Drafter {
            plan.load.passes = plan.load.passes.max(drafts);
            plan.load.drafted += drafts;
        } else {
            self.counts.sources[source as usize][0] += drafts as u64;
            self.counts.drafted += if rejectable { drafts as u64 } else { 0 };
        }
    }

    /// Replaces the placeholders of a run by what the drafter found: as many tokens as were planned, or fewer.
    ///
    /// # Panics
    /// If the run has no placeholders, or `drafts` are more.
    pub fn set_drafts(&mut self, run: &mut PlannedRun, drafts: &[u32]) {
        let s = seq_mut(&mut self.slots, run.slot);
        assert!(run.source == Source::Drafter && drafts.len() <= s.drafted, "drafts fit into the plan");
        let confirmed = s.confirmed();
        s.tokens.truncate(confirmed + drafts.len());
        s.tokens[confirmed..].copy_from_slice(drafts);
        s.drafted = drafts.len();
        (run.len, run.drafts, run.rows) = (1 + drafts.len(), drafts.len(), 1 + drafts.len());
        self.counts.sources[Source::Drafter as usize][0] += drafts.len() as u64;
        self.counts.drafted += drafts.len() as u64;
    }

    /// Maximum number of drafts of a sequence that may be rejected. A recurrent state takes as many as its log has room
    /// for. It stops before the drafts of its run, so that one run must begin with the last token of each block: a
    /// snapshot must be possible there.
    fn rejectable(&self, s: &Sequence) -> usize {
        s.state.map_or(usize::MAX, |_| self.log_room.min(BLOCK - 1 - (s.computed + 1) % BLOCK))
    }

    /// Number of tokens between the next one of a sequence and the end of its block, where a snapshot can be taken;
    /// without a recurrent state, there is no limit.
    fn until_block(s: &Sequence) -> usize {
        s.state.map_or(usize::MAX, |_| BLOCK - 1 - s.computed % BLOCK)
    }

    /// What a planned run means to the log of its sequence's state.
    pub(crate) fn log(&self, run: &PlannedRun) -> DraftLog {
        let s = seq(&self.slots, run.slot);
        DraftLog { accepted: s.logged, drafts: s.state.map_or(0, |_| run.rejectable()) }
    }
}
