//! Lets a tier read and write the model's cache.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bitnet_kernels::Fill;
use bitnet_model::{CachePlace, ForwardError};

use super::Stepper;
use crate::tier::CacheAccess;

impl Stepper<'_> {
    /// Whether an access succeeded; notes that the device is lost.
    fn succeeded(&mut self, access: impl FnOnce(&mut Self) -> Result<(), ForwardError>) -> bool {
        if self.lost.is_some() {
            return false;
        }
        // A part that cannot be copied is a part that is not there.
        match catch_unwind(AssertUnwindSafe(|| access(self))) {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                self.lost = error.is_lost().then_some(error);
                false
            }
            Err(_) => false,
        }
    }
}

impl CacheAccess for Stepper<'_> {
    fn read(&mut self, place: CachePlace, to: &mut [u8]) -> bool {
        self.succeeded(|stepper| stepper.model.read_cache(place, to))
    }

    fn write(&mut self, place: CachePlace, from: &[u8]) -> bool {
        self.succeeded(|stepper| stepper.model.write_cache(place, from))
    }

    fn fill(&mut self, block: u32, fill: &Fill<'_>) -> bool {
        self.succeeded(|stepper| stepper.model.fill_block(block, fill))
    }

    fn copy_state(&mut self, from: u32, to: u32) -> bool {
        self.succeeded(|stepper| stepper.model.copy_state(from, to))
    }
}
