//! Detects a step that does not end.
//! Keeps the last plans, to say in which one it hangs.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::schedule::{Plan, PlannedRun, SeqId, StepLoad};

/// Number of plans to keep.
const KEPT: usize = 8;

/// The engine's running step and the plans of the last steps.
#[derive(Default)]
pub(crate) struct Watchdog {
    begun: Option<Instant>,
    /// Whether the running step has been reported.
    reported: bool,
    /// Newest last.
    plans: VecDeque<Record>,
}

#[derive(Default)]
struct Record {
    step: u64,
    load: StepLoad,
    copies: usize,
    state_copies: usize,
    /// The sequence and positions of each run.
    runs: Vec<(SeqId, Range<u32>)>,
    micros: Option<u128>,
}

impl Watchdog {
    /// Records the start of a step.
    pub fn begin(&mut self, step: u64, plan: &Plan) {
        // Reuse the oldest record's memory.
        let old = if self.plans.len() == KEPT { self.plans.pop_front() } else { None };
        let mut runs = old.map(|old| old.runs).unwrap_or_default();
        runs.clear();
        let positions = |run: &PlannedRun| run.start as u32..(run.start + run.len) as u32;
        runs.extend(plan.runs.iter().map(|run| (run.id, positions(run))));
        let (copies, state_copies) = (plan.copies.len(), plan.states.len());
        let record = Record { step, load: plan.load, copies, state_copies, runs, micros: None };
        self.plans.push_back(record);
        (self.begun, self.reported) = (Some(Instant::now()), false);
    }

    /// Records the end of the step, however it ended.
    pub fn end(&mut self) {
        let micros = self.begun.take().map(|begun| begun.elapsed().as_micros());
        self.plans.back_mut().into_iter().for_each(|plan| plan.micros = micros);
    }

    /// Age of the running step; `None` between steps.
    pub fn age(&self) -> Option<Duration> {
        self.begun.map(|begun| begun.elapsed())
    }

    /// The age of the running step and the last plans, once for each step that runs longer than `limit`.
    pub fn report(&mut self, limit: Duration) -> Option<(Duration, String)> {
        let age = self.begun?.elapsed();
        if age <= limit || std::mem::replace(&mut self.reported, true) {
            return None;
        }
        let mut plans = String::new();
        for plan in &self.plans {
            let _ = write!(plans, "{}{plan}", if plans.is_empty() { "" } else { "; " });
        }
        Some((age, plans))
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StepLoad { decodes, drafts, prefill, .. } = self.load;
        write!(f, "step {}: {decodes} decodes, {drafts} drafts, {prefill} prompt tokens", self.step)?;
        write!(f, ", {} copied blocks, ", self.copies)?;
        if self.state_copies > 0 {
            write!(f, "{} copied states, ", self.state_copies)?;
        }
        match self.micros {
            Some(micros) => write!(f, "took {micros} us")?,
            None => f.write_str("running")?,
        }
        for (SeqId { request, choice }, positions) in &self.runs {
            write!(f, ", request {request}.{choice} tokens {positions:?}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_names_copied_states_if_there_are_any() {
        let plan = |state_copies| Record { state_copies, ..Record::default() }.to_string();
        assert!(plan(2).contains(", 2 copied states, "), "{}", plan(2));
        assert!(!plan(0).contains("states"), "{}", plan(0));
    }
}
