//! What submitters, handles and the engine's thread share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bitnet_kernels::DeviceStatus;
use bitnet_model::ForwardError;
use parking_lot::{Mutex, RwLock};

use crate::metrics::{Counter, Measure, Metrics, Recorder};
use crate::queue::Waiting;
use crate::watch::Watch;
use crate::{Draws, RequestError, SchedulerCounts, StepFaults};

/// State that submitters and the engine's thread share.
#[derive(Default)]
pub(crate) struct Shared {
    pub waiting: Waiting,
    pub metrics: Metrics,
    pub recorders: RwLock<Vec<Arc<dyn Recorder>>>,
    pub status: Mutex<EngineStatus>,
    pub watch: Watch,
    /// The error of the device, if it failed.
    pub lost: Mutex<Option<ForwardError>>,
}

impl Shared {
    /// Refuses further requests because the device has failed.
    pub fn lose(&self, error: &ForwardError) {
        *self.lost.lock() = Some(error.clone());
        self.waiting.close();
    }

    /// The error of requests that are unfinished when the engine's thread ends.
    pub fn end(&self) -> RequestError {
        self.lost.lock().clone().map_or(RequestError::Stopped, RequestError::Forward)
    }

    /// Records values of `measure`.
    pub fn observe_all(&self, measure: Measure, values: &[f64]) {
        if !values.is_empty() {
            self.metrics.observe_all(measure, values);
            let recorders = self.recorders.read();
            recorders.iter().for_each(|r| values.iter().for_each(|&value| r.observe(measure, value)));
        }
    }
}

impl Recorder for Shared {
    fn add(&self, counter: Counter, by: u64) {
        self.metrics.add(counter, by);
        self.recorders.read().iter().for_each(|r| r.add(counter, by));
    }

    fn observe(&self, measure: Measure, value: f64) {
        self.observe_all(measure, &[value]);
    }

    fn stalled(&self, age: Duration, plans: &str) {
        self.recorders.read().iter().for_each(|r| r.stalled(age, plans));
    }
}

/// The state of an engine after its last step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStatus {
    /// Number of sequences with a place in the batch.
    pub running: usize,
    /// Number of sequences that wait for a place, including paused ones, without those not yet at the engine's thread.
    pub waiting: usize,
    /// Number of sequences paused because they are not read.
    pub paused: usize,
    /// Current limit on running sequences.
    pub batch_size: usize,
    /// Age of the running step; `None` between steps.
    pub step_age: Option<Duration>,
    /// Total number of blocks in the key-value cache.
    pub kv_blocks: usize,
    /// Number of blocks in use.
    pub kv_used: usize,
    /// Number of free blocks in the prefix cache.
    pub kv_cached: usize,
    /// Total number of state slots; 0 for a model without recurrent layers.
    pub state_slots: usize,
    /// Number of state slots that sequences own.
    pub states_used: usize,
    /// Number of snapshots of states, from which later texts can continue.
    pub states_saved: usize,
    /// The scheduler's counts.
    pub scheduler: SchedulerCounts,
    /// Counts of failures.
    pub faults: StepFaults,
    /// Where tokens were drawn.
    pub draws: Draws,
    /// Device status, or `None` on the CPU.
    pub device: Option<DeviceStatus>,
}

/// Commands to the engine's thread, which executes them before it accepts requests.
pub(crate) enum Command {
    Cancel(u64),
    Resume(u64),
    /// Finish all requests, at the latest by this time.
    Drain(Option<Instant>),
}
