//! Queues the work of a step until the caller waits for it, then hands everything to the driver at once: the inputs
//! that changed, and all launches.

use std::time::Instant;

use super::{Arg, Driver, Entry, Gpu, GpuError, Grid, Launch};

/// Minimum number of launches to record.
const WORTH: usize = 8;
/// Maximum number of recordings; the least recently used one is dropped for a new one.
const KEPT: usize = 64;

/// Mark in the driver's queue: before the inputs of a step.
const BEGIN: usize = 0;
/// Mark between inputs and kernels.
const SENT: usize = 1;
/// Mark between kernels and results.
const COMPUTED: usize = 2;
/// Mark after the results.
const READ: usize = 3;

/// Recorded launches. The launches themselves are the key: a recording replaces only launches that are equal in every
/// kernel, grid, address and number.
struct Recording<G> {
    launches: Vec<Launch>,
    graph: G,
    /// Number of the hand-over that last used it.
    used: u64,
}

/// Waiting launches, and recordings of previous ones.
pub(super) struct Queue<G> {
    waiting: Vec<Launch>,
    /// Launches that ran, whose memory the next ones take.
    spare: Vec<Launch>,
    /// The launches that were last handed over without a recording.
    last: Vec<Launch>,
    recordings: Vec<Recording<G>>,
    handed_over: u64,
    /// Whether a hand-over has marks that are not read yet.
    marked: bool,
    /// Whether results have been read since.
    read: bool,
    /// Whether the driver failed to record; if so, it is not asked to record again.
    unrecorded: bool,
}

impl<G> Default for Queue<G> {
    fn default() -> Self {
        Queue {
            waiting: Vec::new(),
            spare: Vec::new(),
            last: Vec::new(),
            recordings: Vec::new(),
            handed_over: 0,
            marked: false,
            read: false,
            unrecorded: false,
        }
    }
}

impl<G> Queue<G> {
    pub(super) fn push(&mut self, entry: &Entry, grid: Grid, args: &[Arg]) {
        let memory = self.spare.pop().map(Launch::into_memory).unwrap_or_default();
        self.waiting.push(entry.launch_in(memory, grid, args));
    }
}

impl<D: Driver> Gpu<D> {
    /// Hands all waiting work to the driver, and returns without waiting for it.
    pub(super) fn hand_over(&mut self) -> Result<(), GpuError> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        if self.queue.waiting.is_empty() {
            return Ok(());
        }
        let launches = std::mem::take(&mut self.queue.waiting);
        let done = self.run(launches);
        self.uploads.handed_over(done.is_ok());
        self.remember(done)
    }

    fn run(&mut self, launches: Vec<Launch>) -> Result<(), GpuError> {
        self.driver.mark(BEGIN)?;
        self.uploads.send(&mut self.driver)?;
        self.driver.mark(SENT)?;
        let begun = Instant::now();
        self.queue.handed_over += 1;
        let now = self.queue.handed_over;
        if let Some(known) = self.queue.recordings.iter_mut().find(|known| known.launches == launches) {
            known.used = now;
            self.driver.replay(&known.graph)?;
            self.counts.replays += 1;
            self.queue.spare = launches;
        } else if let Some(graph) = self.record(&launches) {
            let replayed = self.driver.replay(&graph);
            self.queue.recordings.push(Recording { launches, graph, used: now });
            replayed?;
            self.counts.replays += 1;
        } else {
            for launch in &launches {
                self.driver.launch(launch, &self.kernels.get(launch.kernel()).function)?;
            }
            self.queue.last = launches;
        }
        self.counts.times.launch += begun.elapsed();
        self.driver.mark(COMPUTED)?;
        (self.queue.marked, self.queue.read) = (true, false);
        Ok(())
    }

    /// Records launches that equal those of the previous hand-over. If the driver cannot record them, they are launched
    /// one by one, which reports any other error.
    fn record(&mut self, launches: &[Launch]) -> Option<D::Graph> {
        let again = launches.len() >= WORTH && launches == self.queue.last;
        if !again || self.queue.unrecorded {
            return None;
        }
        let recordings = &mut self.queue.recordings;
        if recordings.len() == KEPT {
            let oldest = recordings.iter().enumerate().min_by_key(|(_, r)| r.used).map_or(0, |(i, _)| i);
            self.driver.discard(recordings.swap_remove(oldest).graph);
        }
        let loaded: Vec<_> =
            launches.iter().map(|launch| (launch, &self.kernels.get(launch.kernel()).function)).collect();
        let graph = self.driver.record(&loaded);
        match graph {
            Ok(_) => self.counts.recordings += 1,
            Err(_) => {
                self.counts.unrecorded += 1;
                self.queue.unrecorded = true;
            }
        }
        graph.ok()
    }

    /// Copies to the device, after all waiting work.
    pub(super) fn send(&mut self, address: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.hand_over()?;
        let written = self.driver.write(address, bytes);
        self.remember(written)
    }

    /// Copies from the device, after all waiting work is done.
    pub(super) fn receive(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), GpuError> {
        self.hand_over()?;
        let read = self.driver.read(address, bytes).and_then(|()| self.driver.mark(READ));
        self.queue.read = true;
        self.remember(read)
    }

    /// Ends a step: waits until all its work is done, and records the times.
    pub fn finish(&mut self) -> Result<(), GpuError> {
        self.hand_over()?;
        if !std::mem::take(&mut self.queue.marked) {
            return Ok(());
        }
        let timed = self.time();
        self.remember(timed)
    }

    fn time(&mut self) -> Result<(), GpuError> {
        if !self.queue.read {
            self.driver.mark(READ)?;
        }
        self.driver.synchronize()?;
        let sent = self.driver.between(BEGIN, SENT)?;
        let computed = self.driver.between(SENT, COMPUTED)?;
        let read = self.driver.between(COMPUTED, READ)?;
        self.counts.times.transfer += sent + read;
        self.counts.times.compute += computed;
        Ok(())
    }

    /// Remembers a failure of the GPU: it is not used again, because its memory is lost.
    pub(super) fn remember<T>(&mut self, result: Result<T, GpuError>) -> Result<T, GpuError> {
        if let Err(error @ GpuError::Failed { .. }) = &result {
            self.lost = Some(error.clone());
        }
        result
    }
}
