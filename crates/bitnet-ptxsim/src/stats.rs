//! What a launch cost, as far as that can be counted without a clock.

use std::collections::BTreeMap;

/// Counts over all blocks of a launch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Instructions executed, counted once a warp.
    pub warp_instructions: u64,
    /// Instructions executed, counted once a thread.
    pub thread_instructions: u64,
    /// Executed instructions by opcode as written, counted once a warp.
    pub opcodes: BTreeMap<String, u64>,
    /// Passes over shared memory that accesses need at least: a warp's 32-bit access is one, its 64-bit access
    /// two, its 128-bit access four, each matrix of `ldmatrix` one.
    pub shared_passes: u64,
    /// Passes beyond that, because lanes want different words of one bank.
    pub bank_conflicts: u64,
    /// The same by line, only lines that have some.
    pub bank_conflict_lines: BTreeMap<u32, u64>,
    /// Warp accesses to global memory.
    pub global_requests: u64,
    /// 32-byte sectors they touch.
    pub global_sectors: u64,
}

/// Counts of one instruction.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Count {
    pub(crate) warps: u64,
    pub(crate) threads: u64,
    pub(crate) conflicts: u64,
}

/// Passes that `words` of one phase need: the most different words in a bank.
pub(crate) fn passes(words: impl Iterator<Item = u64> + Clone) -> u64 {
    let mut first = [u64::MAX; 32];
    let alone = |word: u64| {
        let slot = &mut first[(word % 32) as usize];
        let free = *slot == u64::MAX;
        if free {
            *slot = word;
        }
        free || *slot == word
    };
    if words.clone().all(alone) { 1 } else { conflicting_passes(words) }
}

#[cold]
fn conflicting_passes(words: impl Iterator<Item = u64>) -> u64 {
    let mut different: Vec<u64> = words.collect();
    different.sort_unstable();
    different.dedup();
    let mut in_bank = [0; 32];
    different.iter().for_each(|word| in_bank[(word % 32) as usize] += 1);
    in_bank.into_iter().max().unwrap_or(0)
}
