//! The state of an engine after its last step, for callers to look at.

use std::time::Duration;

use bitnet_kernels::{DeviceStatus, HeadCounts};

use super::step::StepLoop;
use super::stepper::{Draws, StepFaults};
use crate::schedule::SchedulerCounts;
use crate::tier::{Tier, TierCounts};

/// The state of an engine after its last step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStatus {
    /// Number of sequences with a place in the batch.
    pub running: usize,
    /// Number of sequences that wait for a place, including paused ones, without those not yet at the engine's thread.
    pub waiting: usize,
    /// Number of sequences paused because they are not read, or held until their batch starts.
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
    /// Total number of blocks that sliding layers have for themselves; 0 in a model in which they have none.
    pub window_blocks: usize,
    /// Number of these blocks in use.
    pub windows_used: usize,
    /// Number of these blocks that are free and in the prefix cache.
    pub windows_cached: usize,
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
    /// Work of the output head, or `None` if the backend does not count it.
    pub head: Option<HeadCounts>,
    /// Counts of the tier below memory; `None` without one.
    pub tier: Option<TierCounts>,
    /// Device status, or `None` on the CPU.
    pub device: Option<DeviceStatus>,
}

impl EngineStatus {
    /// The state of these parts of an engine, without the age of a step.
    pub(super) fn of(StepLoop { scheduler, stepper, tier, .. }: &StepLoop<'_>) -> Self {
        let (pool, windows) = (scheduler.pool(), scheduler.windows());
        EngineStatus {
            running: scheduler.running(),
            waiting: scheduler.waiting(),
            paused: scheduler.paused(),
            batch_size: scheduler.pace().batch_size(),
            step_age: None,
            kv_blocks: pool.total(),
            kv_used: pool.total() - pool.available(),
            kv_cached: pool.cached(),
            window_blocks: windows.total(),
            windows_used: windows.total() - windows.available(),
            windows_cached: windows.cached(),
            state_slots: scheduler.config().state_slots,
            states_used: scheduler.states_used(),
            states_saved: scheduler.states_saved(),
            scheduler: scheduler.counts(),
            faults: stepper.faults(),
            draws: stepper.draws(),
            head: stepper.model().head_work(),
            tier: tier.as_ref().map(Tier::counts),
            device: stepper.device(),
        }
    }
}
