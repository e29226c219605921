//! What is known about a GPU when it is opened.

use std::borrow::Cow;

use super::{
    table::{overlapped, waits},
    tilings::Tiling,
};

/// Properties of a GPU, as its driver reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The vendor's name for it.
    pub name: String,
    /// Major and minor compute capability.
    pub capability: (u32, u32),
    /// Version of CUDA that the driver supports, `1000 * major + 10 * minor`.
    pub driver: i32,
    /// Bytes of device memory.
    pub memory: usize,
    /// Maximum shared memory of a block in bytes.
    pub shared: u32,
    /// Number of multiprocessors.
    pub processors: u32,
    /// Bytes of shared memory of a multiprocessor.
    pub processor_shared: u32,
    /// Whether a launch may begin before the launches before it have ended. Kernels then wait for these themselves.
    pub overlap: bool,
    /// Whether launches that come again are recorded.
    pub recordings: bool,
    /// Whether a product takes the tile of its number of tokens and not the one that is estimated to take the least
    /// time, so that tests reach every kernel. Results have the same bits.
    pub tiles_by_size: bool,
    /// Whether the highest logits are found by bounds. Tokens are the same.
    pub shortlists: bool,
    /// Whether kernels that a driver compiles compute cases with known answers first.
    pub known_answers: bool,
    /// How products are launched that a tuning run has measured on this GPU; other launches are estimated.
    pub tilings: Vec<Tiling>,
    /// Where the machine code of the kernels that are loaded came from.
    pub code: LoadedCode,
}

/// Where the machine code of loaded kernels came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadedCode {
    /// Number of kernels from the file beside the program ([`super::cubins`]).
    pub shipped: usize,
    /// Number of kernels that the driver has compiled.
    pub compiled: usize,
    /// Why the driver has compiled the first of them.
    pub reason: Option<String>,
}

/// Bytes of shared memory that a driver keeps for each block.
const KEPT: u32 = 1 << 10;

impl DeviceInfo {
    /// Blocks with `bytes` of shared memory that a multiprocessor holds, at most `most`, and at least one.
    pub(super) fn resident(&self, bytes: u32, most: usize) -> usize {
        ((self.processor_shared / (bytes + KEPT)) as usize).clamp(1, most)
    }

    /// Shared memory with which no multiprocessor holds more than its share of `blocks`. Blocks that wait for an earlier launch
    /// would otherwise gather where that has left room first, and leave other multiprocessors idle.
    pub(super) fn spread(&self, blocks: usize) -> usize {
        let share = blocks.div_ceil(self.processors as usize);
        let bytes = self.processor_shared as usize / (share + 1);
        if self.overlap { bytes.min(self.shared as usize) } else { 0 }
    }

    /// Whether a multiprocessor adds only two f64 in a cycle, and not 32 or 64: all but the large GPUs of data centres, by
    /// NVIDIA's table of throughputs.
    pub(super) fn slow_f64(&self) -> bool {
        ![(8, 0), (9, 0), (10, 0)].contains(&self.capability)
    }

    /// The name of the set of texts that the GPU loads.
    pub fn texts(&self) -> &'static str {
        if self.overlap { "sm90" } else { "sm80" }
    }

    /// Whether launches of the kernel with this text overlap with those before.
    pub fn overlaps(&self, text: &str) -> bool {
        self.overlap && waits(text)
    }

    /// What the GPU loads of the kernel with this text.
    pub fn text_for<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.overlaps(text) { overlapped(text).into() } else { text.into() }
    }

    /// The sizes of an H100, for drivers that stand in for a GPU.
    pub fn h100() -> Self {
        DeviceInfo {
            name: "H100".to_owned(),
            capability: (9, 0),
            driver: 12_040,
            memory: 80 << 30,
            shared: 227 << 10,
            processors: 132,
            processor_shared: 228 << 10,
            overlap: true,
            recordings: true,
            tiles_by_size: false,
            shortlists: true,
            known_answers: true,
            tilings: Vec::new(),
            code: LoadedCode::default(),
        }
    }
}
