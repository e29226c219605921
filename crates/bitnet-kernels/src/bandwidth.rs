//! Measures memory bandwidth, the upper bound on decode speed: decoding reads all weights for every token.

use std::{
    hint::black_box,
    sync::{Barrier, OnceLock},
    thread::{self, ScopedJoinHandle},
    time::Instant,
};

use crate::cpu::memory::Buffer;

/// Passes over the buffer. The fastest counts, because the others were disturbed.
const PASSES: usize = 5;
const MIB: usize = 1 << 20;
/// Minimum size of the buffer; a smaller one would measure caches.
const MIN_BYTES: usize = 64 * MIB;

/// Measures the gigabytes (10^9 bytes) per second that `threads` threads read together. Returns `None` if a quarter of
/// the `available` bytes is too little to measure with.
///
/// The buffer has four times the size of the last-level cache, but at least 256 MiB and at most 1 GiB, and never more
/// than a quarter of the `available` bytes.
pub fn memory_bandwidth(threads: usize, available: Option<u64>) -> Option<f64> {
    let wanted = (4 * last_level_cache()).clamp(256 * MIB, 1024 * MIB);
    let room = available.map_or(wanted, |bytes| bytes as usize / 4);
    measure_over(wanted.min(room), threads.max(1))
}

fn measure_over(bytes: usize, threads: usize) -> Option<f64> {
    if bytes < MIN_BYTES {
        return None;
    }
    let share = bytes / 8 / threads;
    // On huge pages, like weights: one thread reads a sixth more per second from them than from small pages.
    let mut buffer = Buffer::zeroed(share * threads, "memory to be read").ok()?;
    // Whether all threads were started. Those that were must not wait for those that were not.
    let (complete, barrier) = (OnceLock::new(), Barrier::new(threads));
    let parts: Vec<Vec<[Instant; 2]>> = thread::scope(|scope| {
        let (complete, barrier) = (&complete, &barrier);
        let work = |part: &mut [u64]| {
            // Each thread writes the part that it reads, so that its pages are mapped, and close to it.
            part.iter_mut().zip(0..).for_each(|(word, i)| *word = i);
            let passes = if *complete.wait() { PASSES } else { 0 };
            (0..passes).map(|_| pass(part, barrier)).collect()
        };
        let parts = buffer.chunks_exact_mut(share);
        let started: Vec<ScopedJoinHandle<_>> = parts
            .map_while(|part| thread::Builder::new().spawn_scoped(scope, move || work(part)).ok())
            .collect();
        complete.get_or_init(|| started.len() == threads);
        started.into_iter().map(|thread| thread.join().ok()).collect::<Option<_>>()
    })?;
    let seconds = |pass: usize| {
        let start = parts.iter().map(|times| times.get(pass).map(|t| t[0])).min()??;
        let end = parts.iter().map(|times| times.get(pass).map(|t| t[1])).max()??;
        Some((end - start).as_secs_f64())
    };
    let best =
        (0..PASSES).map(seconds).collect::<Option<Vec<_>>>()?.into_iter().fold(f64::INFINITY, f64::min);
    Some((8 * share * threads) as f64 / best / 1e9)
}

/// Runs one pass of a thread over its part, and returns when it began and ended.
fn pass(part: &[u64], barrier: &Barrier) -> [Instant; 2] {
    barrier.wait();
    let start = Instant::now();
    black_box(sum(black_box(part)));
    [start, Instant::now()]
}

/// Keeps independent sums, so that the compiler can use vectors and no addition waits for the previous one.
fn sum(part: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    for chunk in part.chunks_exact(32) {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// Bytes of the largest cache, or 0 if the system does not report it.
fn last_level_cache() -> usize {
    let read = |index: usize| {
        let file = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(file).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok().map(|kib| kib * 1024)
    };
    (0..6).filter_map(read).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_gives_no_number_and_enough_gives_one() {
        assert_eq!(measure_over(MIN_BYTES - 1, 2), None);
        assert_eq!(memory_bandwidth(1, Some(0)), None);
        assert!(measure_over(MIN_BYTES, 3).is_some());
    }
}
