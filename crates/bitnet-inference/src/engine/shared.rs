//! What submitters, handles and the engine's thread share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bitnet_model::ForwardError;
use parking_lot::{Mutex, RwLock};

use super::metrics::{Counter, Measure, Metrics, Recorder};
use super::queue::Waiting;
use super::status::EngineStatus;
use super::watchdog::Watchdog;
use crate::request::RequestError;

/// State that submitters and the engine's thread share.
#[derive(Default)]
pub(crate) struct Shared {
    pub waiting: Waiting,
    pub metrics: Metrics,
    pub recorders: RwLock<Vec<Arc<dyn Recorder>>>,
    pub status: Mutex<EngineStatus>,
    pub watchdog: Mutex<Watchdog>,
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

/// Commands to the engine's thread, which executes them before it accepts requests.
pub(crate) enum Command {
    Cancel(u64),
    Resume(u64),
    /// A batcher was closed: what it holds may start.
    StartBatches,
    /// The tier has an answer.
    Look,
    /// Finish all requests, at the latest by this time.
    Drain(Option<Instant>),
}
