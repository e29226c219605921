//! Times steps of several sizes before the first request, so that their times can be predicted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use bitnet_kernels::{Wanted, gpu::Recorded};

use super::Stepper;
use crate::schedule::StepLoad;

/// Context length of a calibration step; short enough for one block.
const CALIBRATED: usize = 32;
/// Maximum time for calibration; its last step may exceed it.
const CALIBRATION_TIME: Duration = Duration::from_secs(1);

impl Stepper<'_> {
    /// Times steps of several sizes, with up to `rows` rows of logits, on an idle model. The cache's contents do not
    /// matter, and results are dropped. A slow model runs fewer steps.
    pub fn calibrate(&mut self, rows: usize, mut observe: impl FnMut(StepLoad, u64)) {
        let limits = self.model.limits();
        let rows = rows.min(limits.max_logit_rows);
        let room = self.model.spec().context;
        let decodes = [1, 2, 4, 8, 16].into_iter().filter(|&n| n <= rows && CALIBRATED + n <= room);
        let nothing = StepLoad::default();
        let own = |n: usize| n * (n - 1) / 2;
        let loads = (decodes.map(|decodes| StepLoad { decodes, context: decodes * CALIBRATED, ..nothing }))
            .chain([16, 48].map(|prefill| StepLoad { prefill, attended: own(prefill), ..nothing }))
            .filter(|load| load.prefill <= room && load.decodes + load.prefill <= limits.max_tokens);
        let loads: Vec<StepLoad> = loads.collect();
        let start = Instant::now();
        // The first step runs with cold caches and is not counted; nor are the first two of each size on a device that
        // records its work, because it does so when a step comes again.
        let records = self.model.device().is_some_and(|device| device.recorded != Recorded::Never);
        let cold = if records { 2 * loads.len() } else { 1 };
        let shown = loads.iter().cycle().take(cold).chain(loads.iter().cycle().take(2 * loads.len()));
        for (step, &load) in shown.enumerate() {
            if start.elapsed() > CALIBRATION_TIME {
                return;
            }
            self.batch.clear();
            // Rows of one sequence take as long as rows of as many sequences, but need only one block.
            match load.decodes {
                0 => self.batch.push(&[0; 48][..load.prefill], 0, &[0], load.prefill - 1..load.prefill),
                rows => self.batch.push(&[0; 16][..rows], CALIBRATED, &[0], 0..rows),
            }
            self.batch.set_windows(&[0]);
            // Look only at the highest logits. The cost of all logits, and of drawing on a device, is learned when
            // requests arrive.
            self.batch.want(|_| Wanted::Top(1));
            let begun = Instant::now();
            let forward = || self.model.forward(&self.batch, &mut self.logits);
            // A model that fails here will also fail on requests, each of which then gets its own error.
            let Ok(Ok(())) = catch_unwind(AssertUnwindSafe(forward)) else { return };
            if step >= cold {
                observe(load, begun.elapsed().as_micros() as u64);
            }
        }
    }
}
