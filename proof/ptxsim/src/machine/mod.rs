//! The machine: a grid of blocks, run a warp at a time.

mod access;
mod barrier;
mod block;
mod collective;
mod copies;
mod matrix;
mod rng;
mod step;
mod warp;

use crate::error::LaunchError;
use crate::inst::Entry;
use crate::launch::Launch;
use crate::memory::Memory;
use crate::parser::Module;
use crate::race::Releases;
use crate::stats::{Count, Stats};
use block::Block;
use rng::Rng;

/// Warp instructions that a block executes before another block runs.
const TURN: u64 = 4096;

/// The state that all blocks of a launch share.
struct Machine<'m> {
    file: &'m str,
    entry: &'m Entry,
    launch: &'m Launch,
    memory: &'m mut Memory,
    params: Vec<u8>,
    first_serial: u32,
    counts: Vec<Count>,
    stats: Stats,
    releases: Releases,
    rng: Rng,
}

impl Module {
    /// Runs `entry` over the grid of `launch` to its end or to the first fault.
    pub fn launch(&self, entry: &str, memory: &mut Memory, launch: &Launch) -> Result<Stats, LaunchError> {
        let missing = || LaunchError::NoEntry { file: self.file.clone(), entry: entry.into() };
        let entry = self.entry(entry).ok_or_else(missing)?;
        launch.check(entry)?;
        let blocks = launch.grid.iter().product();
        let mut machine = Machine {
            file: &self.file,
            entry,
            launch,
            first_serial: memory.begin_launch(blocks),
            memory,
            params: launch.param_block(entry),
            counts: vec![Count::default(); entry.insts.len()],
            stats: Stats::default(),
            releases: Releases::default(),
            rng: Rng::new(launch.seed),
        };
        machine.run(blocks)?;
        Ok(machine.stats())
    }
}

impl Machine<'_> {
    fn run(&mut self, blocks: u32) -> Result<(), LaunchError> {
        let mut waiting: Vec<u32> = (0..blocks).collect();
        self.rng.shuffle(&mut waiting);
        let mut resident: Vec<Block> = Vec::new();
        loop {
            while resident.len() < self.launch.limits.resident_blocks {
                let Some(block) = waiting.pop() else { break };
                resident.push(Block::new(self, block));
            }
            if resident.is_empty() {
                return Ok(());
            }
            let turn = self.rng.below(resident.len());
            if resident[turn].run(self, TURN)? {
                resident.swap_remove(turn);
            }
        }
    }

    /// Coordinates of a block by its number in the grid.
    fn coordinates(&self, block: u32) -> [u32; 3] {
        split(block, self.launch.grid)
    }

    fn stats(mut self) -> Stats {
        for (inst, count) in self.entry.insts.iter().zip(&self.counts) {
            let words = inst.text.split_whitespace();
            let opcode = words.clone().nth(usize::from(inst.guard.is_some())).unwrap_or_default();
            self.stats.warp_instructions += count.warps;
            self.stats.thread_instructions += count.threads;
            if count.warps > 0 {
                *self.stats.opcodes.entry(opcode.into()).or_default() += count.warps;
            }
            if count.conflicts > 0 {
                *self.stats.bank_conflict_lines.entry(inst.line).or_default() += count.conflicts;
            }
            self.stats.bank_conflicts += count.conflicts;
        }
        self.stats
    }
}

/// A linear index, x fastest, as coordinates.
fn split(index: u32, dims: [u32; 3]) -> [u32; 3] {
    [index % dims[0], index / dims[0] % dims[1], index / dims[0] / dims[1]]
}
