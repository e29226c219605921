//! The GPU backend: kernels in PTX (`ptx/`), and the launch code that every driver shares.
//!
//! Layouts, the list of kernels and the points where values are rounded to bf16 are in `docs/dev/kernels.md`.

mod backend;
mod cache;
mod cuda;
mod driver;
mod error;
mod layout;
mod memory;
mod ops;
mod quants;
mod rows;
pub mod table;
mod ternary;
mod upload;

use std::collections::HashMap;

pub use cache::{Kv, Rope};
pub use cuda::Cuda;
pub use driver::{Arg, DeviceInfo, Driver, Grid};
pub use error::GpuError;
pub use layout::{Gain, Table};
pub use memory::Buffer;
use memory::Returned;
pub use ops::{Ask, Drawn, Penalty, Steps};
pub use quants::Quants;
pub use rows::Rows;
use table::Kernel;
pub use ternary::Linear;
use upload::Uploads;

/// Oldest version of CUDA whose drivers read the kernels: `.version 7.4`.
const OLDEST_DRIVER: i32 = 11_040;
/// Oldest compute capability with the instructions of the kernels.
const OLDEST_CAPABILITY: (u32, u32) = (8, 0);

/// The GPU backend, on any driver.
pub struct Gpu<D: Driver> {
    driver: D,
    /// Kernels loaded so far, by name.
    functions: HashMap<&'static str, D::Function>,
    returned: Returned,
    uploads: Uploads,
    /// Sums of blocks that share their rows and tokens, and how many have left theirs.
    parts: Buffer,
    tickets: Buffer,
    /// Logits of the last step.
    logits: Option<Rows>,
    launches: u64,
}

impl<D: Driver> Gpu<D> {
    /// A backend on the driver's GPU.
    ///
    /// # Errors
    /// If driver or GPU are too old for the kernels.
    pub fn new(mut driver: D) -> Result<Self, GpuError> {
        let info = driver.info();
        if info.driver < OLDEST_DRIVER {
            return Err(GpuError::DriverTooOld { version: info.driver });
        }
        if info.capability < OLDEST_CAPABILITY {
            let (major, minor) = info.capability;
            return Err(GpuError::TooOld { name: info.name.clone(), major, minor });
        }
        let returned = Returned::default();
        let [parts, tickets] = ops::split_bytes(driver.info().processors);
        let parts = Buffer::new(&mut driver, &returned, parts, "parts of sums")?;
        let tickets = Buffer::new(&mut driver, &returned, tickets, "tickets of sums")?;
        Ok(Gpu {
            driver,
            functions: HashMap::new(),
            returned,
            uploads: Uploads::default(),
            parts,
            tickets,
            logits: None,
            launches: 0,
        })
    }

    /// The driver.
    pub fn driver(&mut self) -> &mut D {
        &mut self.driver
    }

    /// Kernels launched so far: shows that a step's work does not grow with its requests.
    pub fn launches(&self) -> u64 {
        self.launches
    }

    /// Runs a kernel with `shared` bytes of dynamic shared memory; it is loaded when first used. No blocks are no work,
    /// which a driver would refuse.
    pub fn launch(
        &mut self,
        kernel: &'static Kernel,
        blocks: [usize; 3],
        shared: usize,
        args: &[Arg],
    ) -> Result<(), GpuError> {
        if blocks.contains(&0) {
            return Ok(());
        }
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let info = self.driver.info();
        let bytes = narrow(shared).saturating_add(kernel.shared);
        if bytes > info.shared {
            let (name, limit) = (info.name.clone(), info.shared);
            return Err(GpuError::RowTooWide { kernel: kernel.name, bytes, name, limit });
        }
        if !self.functions.contains_key(kernel.name) {
            let function = self.driver.load(kernel)?;
            self.functions.insert(kernel.name, function);
        }
        self.launches += 1;
        let grid = Grid { blocks: blocks.map(narrow), shared: narrow(shared) };
        self.driver.launch(kernel, &self.functions[kernel.name], grid, args)
    }
}
