//! The host's description of a launch.

use crate::error::LaunchError;
use crate::inst::Entry;
use crate::matrix_unit::MatrixUnit;

/// A kernel parameter, as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    bytes: [u8; 8],
    len: usize,
}

impl Param {
    /// Creates a parameter from its bytes.
    ///
    /// # Panics
    /// If there are more than eight.
    pub fn from_bytes(from: &[u8]) -> Param {
        let mut bytes = [0; 8];
        bytes[..from.len()].copy_from_slice(from);
        Param { bytes, len: from.len() }
    }
}

macro_rules! param_from {
    ($($t:ty),*) => {$(
        impl From<$t> for Param {
            fn from(value: $t) -> Param {
                let mut bytes = [0; 8];
                bytes[..size_of::<$t>()].copy_from_slice(&value.to_le_bytes());
                Param { bytes, len: size_of::<$t>() }
            }
        }
    )*};
}
param_from!(u8, u16, u32, i32, f32, u64, i64);

/// Limits of a launch, which turn an endless kernel into a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of instructions that a warp executes.
    pub steps_per_warp: u64,
    /// Number of blocks that run at the same time. Hardware guarantees only one; blocks that wait for each other need
    /// as many as wait.
    pub resident_blocks: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { steps_per_warp: 1_000_000, resident_blocks: 4 }
    }
}

/// Shape, parameters and order of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Number of blocks in x, y, z.
    pub grid: [u32; 3],
    /// Number of threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Size of the `.extern .shared` array in bytes.
    pub dynamic_shared: usize,
    /// The parameters, in the declared order and sizes.
    pub params: Vec<Param>,
    /// Whether the launch may begin before earlier launches have ended; each thread must then wait for them
    /// (`griddepcontrol.wait`) before it writes to global memory or reads what kernels write.
    pub overlapped: bool,
    /// How sums of bf16 products are rounded.
    pub matrix_unit: MatrixUnit,
    /// Seed for the order of blocks and warps.
    pub seed: u64,
    /// Limits on instructions and resident blocks.
    pub limits: Limits,
}

/// Maximum bytes of shared memory for a block on sm_80.
const MAX_SHARED: usize = 163 * 1024;
/// Maximum number of blocks in a launch, limited by the bits for block numbers in a stamp.
const MAX_BLOCKS: u64 = 1 << 22;

impl Launch {
    /// A launch of `blocks` blocks of `threads` threads in x, with defaults otherwise.
    pub fn new(blocks: u32, threads: u32) -> Launch {
        Launch {
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            dynamic_shared: 0,
            params: Vec::new(),
            overlapped: false,
            matrix_unit: MatrixUnit::Hopper,
            seed: 0,
            limits: Limits::default(),
        }
    }

    /// Sets the parameters.
    #[must_use]
    pub fn params(mut self, params: &[Param]) -> Launch {
        self.params = params.to_vec();
        self
    }

    /// Checks that `entry` can be launched this way.
    pub(crate) fn check(&self, entry: &Entry) -> Result<(), LaunchError> {
        let product = |dims: [u32; 3]| dims.into_iter().fold(1u64, |n, d| n.saturating_mul(u64::from(d)));
        let shared = entry.static_bytes() + self.dynamic_shared;
        let bounds = [
            ("threads of a block", product(self.block), entry.max_threads.min(1024)),
            ("blocks of the grid", product(self.grid), MAX_BLOCKS),
            ("z of the block", u64::from(self.block[2]), 64),
            ("shared memory plus one", shared as u64 + 1, MAX_SHARED as u64 + 1),
            ("resident blocks", self.limits.resident_blocks as u64, u64::MAX),
        ];
        for (what, given, limit) in bounds {
            if !(1..=limit).contains(&given) {
                return Err(LaunchError::Shape { entry: entry.name.clone(), what, given, limit });
            }
        }
        for position in 0..entry.params.len().max(self.params.len()) {
            let expected = entry.params.get(position).map_or(0, |&(_, bytes)| bytes);
            let given = self.params.get(position).map_or(0, |param| param.len);
            if expected != given {
                return Err(LaunchError::Parameter { entry: entry.name.clone(), position, expected, given });
            }
        }
        Ok(())
    }

    pub(crate) fn param_block(&self, entry: &Entry) -> Vec<u8> {
        let mut block = Vec::new();
        for (param, &(offset, bytes)) in self.params.iter().zip(&entry.params) {
            block.resize(offset, 0);
            block.extend_from_slice(&param.bytes[..bytes]);
        }
        block
    }
}
