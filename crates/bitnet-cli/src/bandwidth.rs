//! How fast this machine reads memory: the ceiling of decode, which reads all weights for every token.

use std::{hint::black_box, thread, time::Instant};

use crate::memory::SystemMemory;

/// Passes over the buffer; the best one counts, for the others were disturbed.
const PASSES: usize = 5;
const MIB: usize = 1 << 20;

/// Gigabytes (10^9 bytes) per second that `threads` threads read together.
///
/// The buffer is at least 256 MiB and four times the last-level cache, as far as memory and a gibibyte allow.
pub fn measure(threads: usize) -> f64 {
    let wanted = (4 * last_level_cache()).clamp(256 * MIB, 1024 * MIB);
    let room = SystemMemory::now().available_bytes.map_or(wanted, |b| b as usize / 4);
    let words = wanted.min(room.max(MIB)) / 8;
    // Written, so that every page is there.
    let buffer: Vec<u64> = (0..words as u64).collect();
    let share = words.div_ceil(threads);
    let best = (0..PASSES).map(|_| pass(&buffer, share)).fold(f64::INFINITY, f64::min);
    (8 * words) as f64 / best / 1e9
}

/// Seconds of one pass.
fn pass(buffer: &[u64], share: usize) -> f64 {
    let start = Instant::now();
    thread::scope(|scope| {
        for part in buffer.chunks(share) {
            scope.spawn(move || black_box(sum(part)));
        }
    });
    start.elapsed().as_secs_f64()
}

/// Many sums side by side, so that the compiler can use vectors and no addition waits for the one before.
fn sum(part: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    for chunk in part.chunks_exact(32) {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// Bytes of the largest cache, 0 if the system does not tell.
fn last_level_cache() -> usize {
    let read = |index: usize| {
        let file = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(file).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok().map(|kib| kib * 1024)
    };
    (0..6).filter_map(read).max().unwrap_or(0)
}
