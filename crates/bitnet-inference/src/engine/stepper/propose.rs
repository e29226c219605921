//! Calls the drafter: before a step, to draft for it, and after a pass, to read what was computed.
//! Whatever it does, the step goes on; one that fails too often is not asked again.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bitnet_model::{ForwardError, Model};

use super::super::drafter::{Drafter, Drafting};
use super::Stepper;
use crate::sample::Sampler;
use crate::schedule::{Plan, PlannedRun, Scheduler};

/// Number of failures after which a drafter is dropped.
const MAX_FAILURES: u64 = 16;

impl<'m> Stepper<'m> {
    /// The same stepper, with a drafter.
    #[must_use]
    pub fn with_drafter(self, drafter: Box<dyn Drafter + 'm>) -> Self {
        Stepper { drafter: Some(drafter), ..self }
    }

    /// Lets the drafter draft for a plan that has reserved room for it. Without a drafter, the plan is left without
    /// these drafts.
    pub fn draft(&mut self, scheduler: &mut Scheduler, plan: &mut Plan) {
        if plan.load.passes == 0 {
            return;
        }
        let vocab = self.model.spec().vocab;
        let Stepper { model, drafter, sampler, allowed, faults, .. } = self;
        let mut asked = Drafting::new(scheduler, plan, vocab, sampler, allowed);
        let Some(working) = drafter else {
            asked.finish();
            return scheduler.drop_drafter();
        };
        let drafted = catch_unwind(AssertUnwindSafe(|| working.draft(&mut ***model, &mut asked)));
        asked.finish();
        if drafted.is_err() {
            // The sampler's scratch memory may be inconsistent.
            self.sampler = Sampler::new(vocab);
        }
        if !matches!(drafted, Ok(Ok(()))) {
            faults.drafter += 1;
            self.drop_failing();
        }
    }

    /// Lets the drafter read runs that the model has just computed.
    pub(super) fn read_drafted(&mut self, scheduler: &Scheduler, runs: &[PlannedRun]) {
        self.call_drafter(|drafter, model| drafter.read(model, scheduler, runs));
    }

    /// Lets the drafter copy what it keeps for a block.
    pub(super) fn copy_drafted_block(&mut self, from: u32, to: u32) {
        self.call_drafter(|drafter, _| drafter.copy_block(from, to));
    }

    fn call_drafter(
        &mut self,
        call: impl FnOnce(&mut dyn Drafter, &mut dyn Model) -> Result<(), ForwardError>,
    ) {
        let Stepper { model, drafter: Some(drafter), faults, .. } = self else { return };
        let called = catch_unwind(AssertUnwindSafe(|| call(&mut **drafter, &mut ***model)));
        if !matches!(called, Ok(Ok(()))) {
            faults.drafter += 1;
            self.drop_failing();
        }
    }

    fn drop_failing(&mut self) {
        if self.faults.drafter >= MAX_FAILURES {
            self.drafter = None;
        }
    }
}
