//! Damaged and hostile files: each gives a model or one error, quickly and within limits.

mod mutations;
mod templates;

use std::sync::{Mutex, MutexGuard, PoisonError};

#[global_allocator]
static MEMORY: peak_alloc::PeakAlloc = bitnet_fuzz::MEMORY;

/// Memory is counted for the whole process, so only one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
