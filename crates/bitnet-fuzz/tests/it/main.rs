//! Damaged and hostile files: always a model or one error, soon and within bounds.

mod mutations;
mod templates;

use std::sync::{Mutex, MutexGuard, PoisonError};

#[global_allocator]
static MEMORY: peak_alloc::PeakAlloc = bitnet_fuzz::MEMORY;

/// Memory is counted for the whole process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
