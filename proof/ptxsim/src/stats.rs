//! Counts of a launch's work, without timing.

use std::collections::BTreeMap;

/// Counts over all blocks of a launch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Executed instructions, counted once for each warp.
    pub warp_instructions: u64,
    /// Executed instructions, counted once for each thread.
    pub thread_instructions: u64,
    /// Executed instructions by opcode as written, counted once for each warp.
    pub opcodes: BTreeMap<String, u64>,
    /// Minimum passes over shared memory: one for a warp's 32-bit access, two for 64-bit, four for 128-bit, one for
    /// each matrix of `ldmatrix`, and for an atomic as many as lanes that update the same bank.
    pub shared_passes: u64,
    /// Additional passes, because lanes access different words of the same bank.
    pub bank_conflicts: u64,
    /// Additional passes by line, for lines that have any.
    pub bank_conflict_lines: BTreeMap<u32, u64>,
    /// Accesses to global memory, counted once for each warp.
    pub global_requests: u64,
    /// 32-byte sectors touched by these accesses.
    pub global_sectors: u64,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Count {
    pub(crate) warps: u64,
    pub(crate) threads: u64,
    pub(crate) conflicts: u64,
}

/// Number of passes for the `words` of one phase: the maximum number of different words in a bank.
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
