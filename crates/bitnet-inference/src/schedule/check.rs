//! Checks the scheduler's invariants: every block, state and sequence is in exactly one place.
//! The simulation calls this after every step, the engine now and then.

use super::plan::{BLOCK, Plan};
use super::{Scheduler, seq};

impl Scheduler {
    /// Checks the scheduler's rules, which hold between any two calls.
    pub fn check(&self) -> Result<(), String> {
        let mut uses = vec![0; self.pool.total()];
        let mut windows = vec![0; self.windows.total()];
        let mut states = vec![0; self.states.total()];
        let live = self.slots.iter().flatten().count();
        if live != self.waiting.len() + self.running.len() || live + self.vacant.len() != self.slots.len() {
            return Err(format!(
                "{live} sequences, {} waiting, {} running",
                self.waiting.len(),
                self.running.len()
            ));
        }
        for s in self.slots.iter().flatten() {
            s.table.iter().for_each(|&block| uses[block as usize] += 1);
            s.windows[s.passed..].iter().for_each(|&block| windows[block as usize] += 1);
            let tables = if self.window.is_some() { s.table.len() } else { 0 };
            let first = |at: usize| self.window.map_or(0, |window| window.first(at)).min(tables);
            let reads = first(s.computed / BLOCK * BLOCK)..=first(s.computed);
            if !reads.contains(&s.passed) || s.windows.len() != tables {
                let held = s.passed..s.windows.len();
                return Err(format!(
                    "{:?} holds windows {held:?} of {tables}, and reads from {reads:?}",
                    s.id
                ));
            }
            s.state.iter().for_each(|&state| states[state as usize] += 1);
            let computes = self.states.total() > 0 && (s.running || s.parked());
            if s.state.is_some() != computes {
                return Err(format!("{:?}: state {:?}", s.id, s.state));
            }
            if s.logged > self.log_room.min(s.computed) || s.logged > 0 && s.state.is_none() {
                return Err(format!("{:?}: {} drafts in the log of {:?}", s.id, s.logged, s.state));
            }
            if s.computed >= s.text().len() || s.computed > s.table.len() * BLOCK || s.drafted > 0 {
                return Err(format!("{:?}: {} of {} tokens computed", s.id, s.computed, s.text().len()));
            }
            if s.chains.len() != s.computed / BLOCK {
                return Err(format!("{:?}: {} chains for {} tokens", s.id, s.chains.len(), s.computed));
            }
            if s.running && s.paused.is_some() {
                return Err(format!("{:?} is paused but has a place", s.id));
            }
            if !(s.admitted || s.table.is_empty() && s.tokens.capacity() == 0) {
                return Err(format!("{:?} has had no place, but holds blocks or a copy of its prompt", s.id));
            }
        }
        if self.running.iter().any(|&slot| !seq(&self.slots, slot).running)
            || self.waiting.iter().any(|&slot| seq(&self.slots, slot).running)
        {
            return Err("a sequence is in the wrong list".into());
        }
        if self.running.len() > self.config.max_running {
            let places = self.config.max_running;
            return Err(format!("{} sequences run in {places} places", self.running.len()));
        }
        if !self.running.is_sorted_by_key(|&slot| seq(&self.slots, slot).rank) {
            return Err("running sequences are out of order".into());
        }
        if !self.waiting.is_sorted_by_key(|&slot| seq(&self.slots, slot).admission_key()) {
            return Err("waiting sequences are out of order".into());
        }
        if self.next_deadline().is_some_and(|at| at < self.due) {
            return Err("a deadline is earlier than the next look at deadlines".into());
        }
        self.states.check(&states)?;
        self.windows.check(&windows).map_err(|e| format!("sliding layers: {e}"))?;
        self.pool.check(&uses)
    }

    /// Checks the rules of a plan, which hold between plan and commit.
    pub fn check_plan(&self, plan: &Plan) -> Result<(), String> {
        let (tokens, rows) = plan.runs.iter().fold((0, 0), |(t, r), run| (t + run.len, r + run.rows));
        if tokens > self.config.max_tokens || rows > self.config.max_rows {
            return Err(format!("{tokens} tokens and {rows} rows exceed the limits of a step"));
        }
        let mut written = [&self.pool, &self.windows].map(|pool| vec![false; pool.total()]);
        let mut states = vec![false; self.states.total()];
        for run in &plan.runs {
            let s = seq(&self.slots, run.slot);
            let end = run.start + run.len;
            let rows =
                if s.scores() { run.rows == run.len } else { (run.rows > 0) == (end == s.tokens.len()) };
            if run.len == 0 || run.start != s.computed || end > s.tokens.len() || !rows {
                return Err(format!(
                    "{:?}: run {run:?} of {} tokens, {} computed",
                    s.id,
                    s.tokens.len(),
                    s.computed
                ));
            }
            if let Some(state) = s.state
                && std::mem::replace(&mut states[state as usize], true)
            {
                return Err(format!("{:?} changes state {state}, which another run changes too", s.id));
            }
            if !states.is_empty() && s.state.is_none() || self.log(run).drafts > self.log_room {
                return Err(format!("{:?}: {} drafts, state {:?}", s.id, run.drafts, s.state));
            }
            let places = run.start / BLOCK..end.div_ceil(BLOCK);
            for ((pool, written), table) in
                [&self.pool, &self.windows].into_iter().zip(&mut written).zip([&s.table, &s.windows])
            {
                for &block in table.get(places.clone()).unwrap_or_default() {
                    if pool.refs(block) != 1 || std::mem::replace(&mut written[block as usize], true) {
                        return Err(format!("{:?} writes block {block}, which others read", s.id));
                    }
                }
            }
        }
        Ok(())
    }
}
