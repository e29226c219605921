//! The small inputs of a step: positions, block tables and work items. They go to the device only if they have changed.

use super::{DeviceBuffer, Driver, Gpu, GpuError, layout::u32_bytes, work_items::WorkItems};
use crate::{BLOCK_TOKENS, Step};

/// Small arrays that describe a step to the kernels. Each has one place on the device, and is sent only if it differs
/// from what is there: all layers of a step share what the first one sent. Those of [`Gpu::upload_once`] have a second
/// place for layers with windows, whose tokens may be in other blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upload {
    /// u32 `[n]`: token ids.
    Tokens,
    /// `[n]` of [`super::SamplingParams`].
    Sampling,
    /// u32 `[n][12]`: how each row of logits races.
    Races,
    /// u32 `[n][4]`: the changes of each row of logits, and where its mask begins.
    Edits,
    /// `[changes]` of [`Change`](crate::Change).
    Changes,
    /// As in [`Edits::masks`](crate::Edits::masks).
    Masks,
    /// u32 `[n]`: indices of the rows whose logits are needed.
    Rows,
    /// u32 `[n]`: indices of the hidden states that a draft head reads.
    Hidden,
    /// u32 `[n]`: how many of the highest logits of each of these rows are needed.
    Highest,
    /// u32 `[n]`: positions of the tokens in their sequences.
    Positions,
    /// u32 `[n]`: `64 * block + slot` of the tokens' keys and values.
    Slots,
    /// u32: the block lists of all runs.
    Blocks,
    /// u32 `[8]` for each thread block of attention with few rows: its work item of a run.
    FewRows,
    /// The same for many rows.
    ManyRows,
    /// u32 `[n][6]`: what gated-delta layers need to know of each token.
    DeltaTokens,
    /// u32 `[runs][6]`: what they need to know of each run.
    DeltaRuns,
}

/// Bytes of the memory for an input of `bytes` bytes.
pub(super) fn room(bytes: usize) -> usize {
    bytes.next_power_of_two()
}

const KINDS: usize = Upload::DeltaRuns as usize + 1;

/// The arrays on the device, or to be sent with the next hand-over.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    /// For layers without windows, or all, and for those with windows.
    places: [[Option<Place>; KINDS]; 2],
    /// Memory for the words of an upload, and for the bytes of what is sent, kept from step to step.
    words: Vec<u32>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Place {
    host: Vec<u32>,
    device: DeviceBuffer,
    /// Whether `host` has yet to be sent.
    stale: bool,
    /// Whether a waiting launch reads it.
    awaited: bool,
    /// Number of the description that it follows from, if it follows from one.
    of: Option<u64>,
}

/// What follows from the runs of a step, kept so that the first layer computes it and not each. Layers with windows have
/// their own.
#[derive(Debug, Default)]
pub(super) struct Described {
    step: u64,
    window: Option<usize>,
    /// Number of what the words on the device follow from: the step and its work items.
    number: u64,
    /// Number of positions that the runs reach, and of blocks that their keys reach.
    pub(super) positions: usize,
    pub(super) reached: usize,
    /// Whether every run lists the blocks of its keys.
    pub(super) listed: bool,
    /// The work items of the runs for attention.
    work_items: Option<WorkItems>,
}

impl Uploads {
    /// Sends the arrays that have changed.
    pub(super) fn send(&mut self, driver: &mut impl Driver) -> Result<(), GpuError> {
        for place in self.places.iter_mut().flatten().flatten().filter(|place| place.stale) {
            u32_bytes(&place.host, &mut self.bytes);
            driver.write(place.device.address(), &self.bytes)?;
            place.stale = false;
        }
        Ok(())
    }

    /// Records that no launch waits any more. After a failure, the contents on the device are unknown.
    pub(super) fn handed_over(&mut self, done: bool) {
        for place in self.places.iter_mut().flatten().flatten() {
            place.awaited = false;
            place.stale |= !done;
        }
    }
}

impl<D: Driver> Gpu<D> {
    /// Takes a step as the one that later calls of [`Gpu::upload_once`] describe.
    pub(super) fn describe(&mut self, step: Step<'_>) -> &Described {
        let known = &mut self.steps[slides(step)];
        if (known.step, known.window) != (step.number, step.window) {
            (known.step, known.window) = (step.number, step.window);
            known.number += 1;
            known.work_items = None;
            (known.positions, known.reached, known.listed) = (0, 0, true);
            for run in step.runs.iter().filter(|run| !run.tokens.is_empty()) {
                let end = run.start + run.tokens.len();
                known.positions = known.positions.max(end);
                // Of a list in layers with a window, the first entries may be of no block.
                let used = step.first_key(run.start) / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS);
                match step.blocks.get(run.blocks.clone()).and_then(|list| list.get(used)) {
                    Some(used) => {
                        let reached = used.iter().max().map_or(0, |&block| block as usize + 1);
                        known.reached = known.reached.max(reached);
                    }
                    None => known.listed = false,
                }
            }
        }
        known
    }

    /// The described step's work items for attention with `group` query heads per key head, in thread blocks of at most
    /// `rows` rows.
    pub(super) fn work_items(&mut self, step: Step<'_>, group: usize, rows: usize) -> WorkItems {
        let known = &mut self.steps[slides(step)];
        match known.work_items.take() {
            Some(items) if items.fit(group, rows) => items,
            // The words on the device, if any, are of other work items.
            _ => {
                known.number += 1;
                WorkItems::of(step, group, rows)
            }
        }
    }

    /// Keeps the work items for the next layer.
    pub(super) fn keep(&mut self, step: Step<'_>, items: WorkItems) {
        self.steps[slides(step)].work_items = Some(items);
    }

    /// As [`Gpu::upload`], for words that follow from the described step and nothing else: they are made only if those on
    /// the device follow from another one.
    pub(super) fn upload_once<I: IntoIterator<Item = u32>>(
        &mut self,
        step: Step<'_>,
        what: Upload,
        make: impl FnOnce() -> I,
    ) -> Result<u64, GpuError> {
        let set = slides(step);
        let of = Some(self.steps[set].number);
        if let Some(place) = self.uploads.places[set][what as usize].as_mut().filter(|place| place.of == of) {
            place.awaited = true;
            return Ok(place.device.address());
        }
        let address = self.upload_to(set, what, make())?;
        let place = self.uploads.places[set][what as usize].as_mut();
        place.expect("it was uploaded").of = of;
        Ok(address)
    }

    /// Ensures that `words` are on the device before the next launch, and returns their address. Words that are there
    /// already are not sent again.
    pub(super) fn upload(
        &mut self,
        what: Upload,
        words: impl IntoIterator<Item = u32>,
    ) -> Result<u64, GpuError> {
        self.upload_to(0, what, words)
    }

    fn upload_to(
        &mut self,
        set: usize,
        what: Upload,
        words: impl IntoIterator<Item = u32>,
    ) -> Result<u64, GpuError> {
        let mut uploaded = std::mem::take(&mut self.uploads.words);
        uploaded.clear();
        uploaded.extend(words);
        let known = self.uploads.places[set][what as usize].as_ref();
        if known.is_some_and(|place| place.awaited && place.host != uploaded) {
            self.hand_over()?;
        }
        self.make_room(set, what, 4 * uploaded.len())?;
        let place = self.uploads.places[set][what as usize].as_mut().expect("room was made");
        place.stale |= place.host != uploaded;
        (place.awaited, place.of) = (true, None);
        std::mem::swap(&mut place.host, &mut uploaded);
        let address = place.device.address();
        self.uploads.words = uploaded;
        Ok(address)
    }

    /// Ensures that there is device memory for an input of `bytes` bytes, of all layers (0) or those with windows (1).
    pub(super) fn make_room(&mut self, set: usize, what: Upload, bytes: usize) -> Result<(), GpuError> {
        if self.uploads.places[set][what as usize].as_ref().is_none_or(|place| place.device.bytes() < bytes) {
            // Waiting launches may use the old memory.
            self.hand_over()?;
            let device = self.alloc(room(bytes), "the inputs of a step")?;
            let place = Place { host: Vec::new(), device, stale: false, awaited: false, of: None };
            self.uploads.places[set][what as usize] = Some(place);
        }
        Ok(())
    }
}

/// The set of places, and the description, of a step: 1 for layers with windows.
fn slides(step: Step<'_>) -> usize {
    usize::from(step.window.is_some())
}
