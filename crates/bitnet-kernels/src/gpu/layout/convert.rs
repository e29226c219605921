//! Weights are converted by CPU threads, a piece at a time, so that the host never holds a second copy of a matrix.

use std::{
    num::NonZero,
    ops::Range,
    sync::{Mutex, PoisonError},
    thread,
};

use crate::gpu::{Driver, Gpu, GpuError};
use crate::{KernelError, cpu::Pool};

/// Bytes of a piece: small enough to be in the cache when it is copied on, large enough to be worth waking threads.
const PIECE: usize = 4 << 20;
/// Maximum number of parts of a piece per thread.
const PARTS: usize = 4;

/// Writes a unit of a matrix, such as a row: gets its number, and must write all of its bytes.
pub(in crate::gpu) type WriteUnit<'a> = &'a (dyn Fn(usize, &mut [u8]) + Sync);

/// The threads that convert weights. Nothing here depends on the driver's type: generic code would be compiled in the
/// crates that name a driver, which are not optimised for work on each weight.
#[derive(Default)]
pub(in crate::gpu) struct Converter {
    /// Number of threads to use; `None` for all that may run at once.
    limit: Option<usize>,
    /// Until they are started, the caller works alone.
    pool: Option<Pool>,
    piece: Vec<u8>,
}

impl Converter {
    /// Number of threads to use, including the caller.
    pub(in crate::gpu) fn threads(&self) -> usize {
        let all = || thread::available_parallelism().map_or(1, NonZero::get);
        self.limit.unwrap_or_else(all)
    }

    /// Starts the threads, if a matrix of `bytes` bytes is worth it.
    pub(in crate::gpu) fn start(&mut self, bytes: usize) -> Result<(), KernelError> {
        if self.pool.is_none() && bytes > PIECE {
            self.pool = Some(Pool::new(self.threads())?);
        }
        Ok(())
    }

    /// Returns some units of a matrix, of `bytes` bytes each.
    fn piece(&mut self, units: Range<usize>, bytes: usize, write: WriteUnit<'_>) -> &[u8] {
        self.piece.resize(units.len() * bytes, 0);
        let threads = self.pool.as_ref().map_or(1, Pool::threads);
        let count = units.len().div_ceil(PARTS * threads);
        let parts = Mutex::new(units.clone().step_by(count).zip(self.piece.chunks_mut(count * bytes)));
        let job = |_, _| {
            let part = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            let (first, part) = part.expect("there are as many parts as calls");
            (first..).zip(part.chunks_exact_mut(bytes)).for_each(|(unit, out)| write(unit, out));
        };
        let calls = units.len().div_ceil(count);
        match &mut self.pool {
            Some(pool) => pool.run(calls, &job),
            None => (0..calls).for_each(|call| job(0, call)),
        }
        &self.piece
    }
}

impl<D: Driver> Gpu<D> {
    /// Converts weights on this many CPU threads, and not on all that may run at once.
    ///
    /// # Panics
    /// If `threads` is 0.
    #[must_use]
    pub fn converting_on(mut self, threads: usize) -> Self {
        assert!(threads > 0, "the caller is a thread");
        self.converter = Converter { limit: Some(threads), ..Converter::default() };
        self
    }

    /// Stores a matrix of `units` units of `bytes` bytes each at `address`.
    pub(in crate::gpu) fn convert(
        &mut self,
        address: u64,
        units: usize,
        bytes: usize,
        write: WriteUnit<'_>,
    ) -> Result<(), GpuError> {
        let mut converter = std::mem::take(&mut self.converter);
        let count = (PIECE / bytes).max(1);
        let mut pieces = (0..units).step_by(count);
        let stored = pieces.try_for_each(|first| {
            let piece = converter.piece(first..units.min(first + count), bytes, write);
            self.send(address + (first * bytes) as u64, piece)
        });
        self.converter = converter;
        stored
    }

    /// Ends the threads that convert weights.
    pub(in crate::gpu) fn end_conversion(&mut self) {
        self.converter = Converter { limit: self.converter.limit, ..Converter::default() };
    }
}
