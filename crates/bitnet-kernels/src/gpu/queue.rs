//! Queues the work of a step until the caller waits for it, then hands everything to the driver at once: the inputs
//! that changed, and all launches.

use std::time::Instant;

use super::{
    Arg, Driver, Entry, Gpu, GpuError, Grid, Launch, Recorded,
    recordings::{RecordingState, Recordings},
    table::{Kernel, NORM_QUANTIZE},
};

/// Mark in the driver's queue: before the inputs of a step.
const BEGIN: usize = 0;
/// Mark between inputs and kernels.
const SENT: usize = 1;
/// Mark between kernels and results.
const COMPUTED: usize = 2;
/// Mark after the results.
const READ: usize = 3;

/// Waiting launches, and recordings of previous ones.
pub(super) struct Queue<G> {
    waiting: Vec<Launch>,
    /// Index of the recording whose first `followed` launches wait instead, because what was launched equals them. Most
    /// steps equal the one before, and comparing launches costs less than keeping them.
    following: Option<usize>,
    followed: usize,
    /// Launches that ran, whose memory the next ones take.
    spare: Vec<Launch>,
    pub(super) recordings: Recordings<G>,
    handed_over: u64,
    /// Whether a hand-over has marks that are not read yet.
    marked: bool,
    /// Whether results have been read since.
    read: bool,
}

impl<G> Queue<G> {
    /// An empty queue.
    pub(super) fn new(state: RecordingState) -> Self {
        Queue {
            waiting: Vec::new(),
            following: None,
            followed: 0,
            spare: Vec::new(),
            recordings: Recordings::new(state),
            handed_over: 0,
            marked: false,
            read: false,
        }
    }

    /// Forgets all recordings, and returns them. Nothing may wait.
    pub(super) fn forget(&mut self) -> Vec<G> {
        (self.following, self.followed) = (None, 0);
        self.recordings.clear()
    }

    /// Whether a launch is the next one of the recording that was followed so far; if so, nothing is left to do for it.
    pub(super) fn follow(&mut self, kernel: &'static Kernel, grid: Grid, args: &[Arg]) -> bool {
        let Some(at) = self.following else { return false };
        let next = self.recordings.get(at).launches.get(self.followed);
        let follows = next.is_some_and(|next| next.is(kernel, grid, args));
        if follows {
            self.followed += 1
        } else {
            self.leave()
        }
        follows
    }

    /// Adds a launch that [`Queue::follow`] did not find in a recording.
    pub(super) fn push(&mut self, entry: &Entry, grid: Grid, args: &[Arg]) {
        let memory = self.spare.pop().map(Launch::into_memory).unwrap_or_default();
        self.waiting.push(entry.launch_in(memory, grid, args));
    }

    /// Names of the kernels that were handed over last, each once. Nothing may wait.
    pub(super) fn last(&self) -> Vec<&'static str> {
        let launches = self.following.map_or(&self.spare, |at| &self.recordings.get(at).launches);
        let mut names = Vec::new();
        for name in launches.iter().map(|launch| launch.kernel().name) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.followed == 0
    }

    /// Stops following a recording: the launches that equal its first ones are kept as launches of their own.
    fn leave(&mut self) {
        if let Some(at) = self.following.take() {
            let followed = std::mem::take(&mut self.followed);
            self.waiting.extend_from_slice(&self.recordings.get(at).launches[..followed]);
        }
    }

    /// The index of the recording that equals what waits, or what waits, with its hash. Nothing waits any more.
    fn take(&mut self) -> Result<usize, (Vec<Launch>, u64)> {
        if let Some(at) = self.following.filter(|&at| self.followed == self.recordings.get(at).launches.len())
        {
            self.followed = 0;
            return Ok(at);
        }
        self.leave();
        let launches = std::mem::take(&mut self.waiting);
        let hash = launches.iter().fold(0, |hash, launch| launch.hash(hash));
        match self.recordings.position(&launches, hash) {
            Some(at) => {
                self.spare = launches;
                Ok(at)
            }
            None => Err((launches, hash)),
        }
    }
}

/// A norm of one row, quantised for a product. If this product comes next, its kernel includes the norm; otherwise the norm
/// is launched before whatever comes next. Memory and results are the same.
pub(super) struct WaitingNorm {
    /// Address of the row.
    pub(super) row: u64,
    /// Address of the int8 values.
    pub(super) out: u64,
    /// The first arguments of a product that includes it.
    pub(super) args: [Arg; 6],
    pub(super) shared: usize,
    pub(super) alone: [Arg; 20],
}

impl WaitingNorm {
    /// Whether it is a norm, and not only a quantisation.
    pub(super) fn adds_squares(&self) -> bool {
        let [_, gain, ..] = &self.args;
        gain.bits() != 0
    }
}

impl<D: Driver> Gpu<D> {
    /// Launches the norm that waits, if there is one.
    pub(super) fn launch_norm(&mut self) -> Result<(), GpuError> {
        match self.norm.take() {
            Some(WaitingNorm { shared, alone, .. }) => self.launch(&NORM_QUANTIZE, [1, 1, 1], shared, &alone),
            None => Ok(()),
        }
    }

    /// Hands all waiting work to the driver, and returns without waiting for it.
    pub(super) fn hand_over(&mut self) -> Result<(), GpuError> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        self.launch_norm()?;
        if self.queue.is_empty() {
            return Ok(());
        }
        let done = self.run();
        self.uploads.handed_over(done.is_ok());
        self.remember(done)
    }

    fn run(&mut self) -> Result<(), GpuError> {
        self.driver.mark(BEGIN)?;
        self.uploads.send(&mut self.driver)?;
        self.driver.mark(SENT)?;
        let begun = Instant::now();
        self.queue.handed_over += 1;
        match self.queue.take() {
            Ok(at) => self.replay(at)?,
            Err((launches, hash)) => self.record_or_launch(launches, hash)?,
        }
        self.counts.times.launch += begun.elapsed();
        self.driver.mark(COMPUTED)?;
        (self.queue.marked, self.queue.read) = (true, false);
        Ok(())
    }

    /// Replays a recording. If the driver fails at once, nothing of it has run: its launches are then handed over in the
    /// next simpler way. Should the GPU itself have failed, that fails too.
    fn replay(&mut self, at: usize) -> Result<(), GpuError> {
        let recording = self.queue.recordings.get_mut(at);
        recording.used = self.queue.handed_over;
        match self.driver.replay(&recording.graph) {
            Ok(()) => {
                self.counts.replays += 1;
                self.queue.following = Some(at);
                Ok(())
            }
            Err(failure) => {
                let recording = self.queue.recordings.take(at);
                self.driver.discard(recording.graph);
                self.simplify(failure);
                self.record_or_launch(recording.launches, recording.hash)
            }
        }
    }

    /// Records launches that were handed over before, and replays them. Others run one by one.
    fn record_or_launch(&mut self, launches: Vec<Launch>, hash: u64) -> Result<(), GpuError> {
        while self.queue.recordings.wanted(hash) {
            match self.record(&launches) {
                Ok(graph) => {
                    let at = self.queue.recordings.keep(launches, hash, graph);
                    return self.replay(at);
                }
                Err(failure) => {
                    let recordings = &mut self.queue.recordings;
                    let full = matches!(failure, GpuError::OutOfMemory { .. });
                    match full.then(|| recordings.take_oldest()).flatten() {
                        Some(unused) => self.driver.discard(unused),
                        None => self.simplify(failure),
                    }
                }
            }
        }
        for launch in &launches {
            self.driver.launch(launch, &self.kernels.get(launch.kernel()).function)?;
        }
        self.counts.first += u64::from(self.queue.recordings.saw(&launches, hash));
        self.queue.spare = launches;
        Ok(())
    }

    fn record(&mut self, launches: &[Launch]) -> Result<D::Graph, GpuError> {
        if let Some(unused) = self.queue.recordings.make_room() {
            self.driver.discard(unused);
        }
        let loaded: Vec<_> =
            launches.iter().map(|launch| (launch, &self.kernels.get(launch.kernel()).function)).collect();
        let graph = self.driver.record(&loaded, self.queue.recordings.state.how == Recorded::Overlapping)?;
        self.counts.recordings += 1;
        Ok(graph)
    }

    /// Goes on without the recordings at whose kind the driver failed.
    fn simplify(&mut self, failure: GpuError) {
        let state = &mut self.queue.recordings.state;
        state.failed(failure);
        state.how = state.how.simpler();
        for unused in self.queue.forget() {
            self.driver.discard(unused);
        }
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
