//! Recordings of launches, and how far they are trusted: a driver that fails at one is asked for simpler ones, then for
//! none. Results are the same either way.

use std::{collections::VecDeque, fmt};

use super::{DeviceInfo, GpuError, Launch};

/// Minimum number of launches to record.
const WORTH: usize = 8;
/// Maximum number of recordings; the least recently used one is dropped for a new one.
const KEPT: usize = 128;
/// Number of earlier hand-overs that are remembered, to record those that come again.
const REMEMBERED: usize = 256;
/// Bytes of device memory that a driver is assumed to need for a recorded launch.
const LAUNCH_BYTES: usize = 1 << 10;

/// Bytes of device memory that `launches` recorded launches are assumed to need.
pub(super) const fn recorded_bytes(launches: usize) -> usize {
    launches * LAUNCH_BYTES
}

/// Bytes of device memory that the recordings of steps of `launches` launches need at most.
pub(super) const fn recordings_bytes(launches: usize) -> usize {
    KEPT * recorded_bytes(launches)
}

/// How launches that come again are handed to the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// As a recording in which a kernel may begin before the one before it has ended.
    Overlapping,
    /// As a recording in which each kernel begins when the one before it has ended.
    InTurn,
    /// One by one, like launches that come once.
    Never,
}

impl Recorded {
    /// The next simpler way.
    pub(super) fn simpler(self) -> Self {
        match self {
            Recorded::Overlapping => Recorded::InTurn,
            Recorded::InTurn | Recorded::Never => Recorded::Never,
        }
    }

    /// `overlapping`, `in turn` or `never`.
    pub fn name(self) -> &'static str {
        match self {
            Recorded::Overlapping => "overlapping",
            Recorded::InTurn => "in turn",
            Recorded::Never => "never",
        }
    }
}

/// How a GPU's launches are recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordingState {
    /// How launches that come again are handed to the driver.
    pub how: Recorded,
    /// Why not in a faster way: what the driver failed at.
    pub why: Option<String>,
    /// Number of recordings that failed when they were made or replayed.
    pub failures: u64,
}

impl RecordingState {
    /// The best that a GPU offers.
    pub(super) fn of(info: &DeviceInfo) -> Self {
        let how = match (info.recordings, info.overlap) {
            (false, _) => Recorded::Never,
            (true, true) => Recorded::Overlapping,
            (true, false) => Recorded::InTurn,
        };
        RecordingState { how, why: None, failures: 0 }
    }

    /// Counts a failure and remembers its reason.
    pub(super) fn failed(&mut self, failure: GpuError) {
        self.failures += 1;
        // The GPU goes on, so the cure of a lost one is left out.
        let reason = match failure {
            GpuError::Failed { during, reason } => format!("{during}: {reason}"),
            other => other.to_string(),
        };
        let why = self.why.get_or_insert_default();
        if !why.contains(&reason) {
            let between = if why.is_empty() { "" } else { "; " };
            why.push_str(between);
            why.push_str(&reason);
        }
    }
}

impl fmt::Display for RecordingState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.how {
            Recorded::Overlapping => "launches are recorded with overlap",
            Recorded::InTurn => "launches are recorded without overlap",
            Recorded::Never => "launches are not recorded",
        })?;
        match &self.why {
            Some(why) => write!(f, ", because the driver failed ({why}); results are the same"),
            None => Ok(()),
        }
    }
}

/// Recorded launches. The launches themselves are the key: a recording replaces only launches that are equal in every
/// kernel, grid, address and number.
pub(super) struct Recording<G> {
    pub(super) launches: Vec<Launch>,
    pub(super) hash: u64,
    pub(super) graph: G,
    /// Number of the hand-over that last used it.
    pub(super) used: u64,
}

/// All recordings.
pub(super) struct Recordings<G> {
    pub(super) state: RecordingState,
    kept: Vec<Recording<G>>,
    /// Hashes of the last hand-overs that are worth a recording but ran without one.
    seen: VecDeque<u64>,
}

impl<G> Recordings<G> {
    pub(super) fn new(state: RecordingState) -> Self {
        Recordings { state, kept: Vec::new(), seen: VecDeque::new() }
    }

    pub(super) fn get(&self, at: usize) -> &Recording<G> {
        &self.kept[at]
    }

    pub(super) fn get_mut(&mut self, at: usize) -> &mut Recording<G> {
        &mut self.kept[at]
    }

    /// The index of the recording of these launches.
    pub(super) fn position(&self, launches: &[Launch], hash: u64) -> Option<usize> {
        self.kept.iter().position(|known| known.hash == hash && known.launches == launches)
    }

    /// Whether launches with this hash should be recorded, because they ran before.
    pub(super) fn wanted(&self, hash: u64) -> bool {
        self.state.how != Recorded::Never && self.seen.contains(&hash)
    }

    /// Remembers launches that ran without a recording, and returns whether they get one when they come again.
    pub(super) fn saw(&mut self, launches: &[Launch], hash: u64) -> bool {
        let worth = launches.len() >= WORTH;
        if worth {
            if self.seen.len() == REMEMBERED {
                self.seen.pop_front();
            }
            self.seen.push_back(hash);
        }
        worth && self.state.how != Recorded::Never
    }

    /// Keeps a recording, and returns its index.
    pub(super) fn keep(&mut self, launches: Vec<Launch>, hash: u64, graph: G) -> usize {
        self.kept.push(Recording { launches, hash, graph, used: 0 });
        self.kept.len() - 1
    }

    /// Removes a recording.
    pub(super) fn take(&mut self, at: usize) -> Recording<G> {
        self.kept.swap_remove(at)
    }

    /// Removes the least recently used recording.
    pub(super) fn take_oldest(&mut self) -> Option<G> {
        let oldest = self.kept.iter().enumerate().min_by_key(|(_, recording)| recording.used)?.0;
        Some(self.take(oldest).graph)
    }

    /// Makes room for another recording. Returns the one to discard, if there are too many.
    pub(super) fn make_room(&mut self) -> Option<G> {
        if self.kept.len() < KEPT { None } else { self.take_oldest() }
    }

    /// Removes all recordings.
    pub(super) fn clear(&mut self) -> Vec<G> {
        self.kept.drain(..).map(|recording| recording.graph).collect()
    }
}
