//! A block: its warps, its shared memory, and which warps can run.

use super::barrier::Barriers;
use super::step::{Env, Flow, Step, lane_of};
use super::warp::{Strand, Wait, Warp};
use super::{Machine, split};
use crate::error::{Fault, FaultKind, Space};
use crate::inst::{Inst, Op, WARP};
use crate::race::{ANY_LANE, Clocks, Stamp};
use crate::region::{Region, Trap};

/// Maximum number of instructions that a warp executes before another warp of its block runs.
const SLICE: usize = 64;

pub(super) struct Block {
    env: Env,
    warps: Vec<Warp>,
    /// The warps that are neither done nor at a barrier.
    runnable: Vec<usize>,
}

impl Block {
    pub(super) fn new(machine: &Machine<'_>, block: u32) -> Block {
        let launch = machine.launch;
        let threads = launch.block.iter().product::<u32>() as usize;
        let warps = threads.div_ceil(WARP);
        let shared = machine.entry.dynamic_base() + launch.dynamic_shared;
        Block {
            env: Env {
                coordinates: machine.coordinates(block),
                shared: Region::new(Space::Shared, 0, shared).without(&machine.entry.arrays.gaps),
                clocks: Clocks::new(machine.first_serial + block, machine.first_serial, warps),
                barriers: Barriers::default(),
            },
            warps: (0..warps).map(|w| Warp::new(w, machine.entry, threads)).collect(),
            runnable: (0..warps).collect(),
        }
    }

    /// Runs for about `budget` warp instructions; returns true when the block is done.
    pub(super) fn run(&mut self, machine: &mut Machine<'_>, budget: u64) -> Result<bool, Box<Fault>> {
        let mut spent = 0;
        while spent < budget {
            if self.runnable.is_empty() {
                return self.all_done(machine);
            }
            let turn = machine.rng.below(self.runnable.len());
            let w = self.runnable[turn];
            let slice = 1 + machine.rng.below(SLICE);
            spent += slice as u64;
            if !self.run_warp(machine, w, slice)? {
                self.runnable.swap_remove(turn);
            }
            self.open_barriers();
        }
        Ok(false)
    }

    /// Called when no warp can run: either the block is done, or all wait for threads that will not arrive.
    fn all_done(&self, machine: &Machine<'_>) -> Result<bool, Box<Fault>> {
        let Some(warp) = self.warps.iter().find(|warp| warp.live != 0) else { return Ok(true) };
        // A strand at a barrier already points to the instruction after it.
        let strand = warp.strands[0];
        let trap = (FaultKind::Deadlock.into(), lane_of(strand.mask));
        Err(self.fault(machine, warp, strand.pc - 1, trap))
    }

    fn open_barriers(&mut self) {
        let warps = &self.warps;
        let alive = |w: usize| warps[w].live != 0;
        for w in self.env.barriers.open_full(&mut self.env.clocks, warps.len(), alive) {
            self.warps[w].strands[0].wait = Wait::Ready;
            self.runnable.push(w);
        }
    }

    /// Runs at most `slice` instructions; returns whether the warp can continue.
    fn run_warp(&mut self, machine: &mut Machine<'_>, w: usize, slice: usize) -> Result<bool, Box<Fault>> {
        for _ in 0..slice {
            let Some(s) = self.warps[w].pick() else { return self.blocked(machine, w) };
            let warp = &mut self.warps[w];
            let pc = warp.strands[s].pc;
            let mask = warp.strands[s].mask;
            warp.steps += 1;
            let mut step = Step { machine, env: &mut self.env, warp, active: mask };
            let mut result = step.execute(pc);
            let limit = machine.launch.limits.steps_per_warp;
            if self.warps[w].steps >= limit && !matches!(result, Ok(Flow::Exit { .. })) {
                result = result.and(Err((FaultKind::StepLimit { limit }.into(), lane_of(mask))));
            }
            let flow = result.map_err(|trap| self.fault(machine, &self.warps[w], pc, trap))?;
            let warp = &mut self.warps[w];
            follow(warp, s, &flow);
            if warp.strands.len() > 1 {
                warp.merge();
            }
        }
        Ok(true)
    }

    /// Called when no strand of the warp is ready: it is done or at a barrier, or lanes wait for others that will not
    /// arrive.
    fn blocked(&self, machine: &Machine<'_>, w: usize) -> Result<bool, Box<Fault>> {
        let warp = &self.warps[w];
        let Some(strand) = warp.strands.iter().find(|strand| strand.wait == Wait::Converge) else {
            return Ok(false);
        };
        let kind = stuck(&machine.entry.insts[strand.pc], strand.mask);
        Err(self.fault(machine, warp, strand.pc, (kind.into(), lane_of(strand.mask))))
    }

    #[cold]
    fn fault(
        &self,
        machine: &Machine<'_>,
        warp: &Warp,
        pc: usize,
        (trap, lane): (Trap, usize),
    ) -> Box<Fault> {
        let inst = &machine.entry.insts[pc];
        let shape = machine.launch.block;
        let thread = |warp: usize, lane: usize| split((warp * WARP + lane) as u32, shape);
        let early = machine.launch.overlapped && warp.waited >> lane & 1 == 0;
        let kind = match trap {
            Trap::Kind(kind) => kind,
            Trap::Race { address, with, .. } if with.serial() < machine.first_serial && early => {
                FaultKind::EarlyRead { address }
            }
            Trap::Race { address, with, .. } if with.serial() < machine.first_serial => {
                FaultKind::ReadOnly { address }
            }
            Trap::Race { space, address, with } => FaultKind::Race {
                space,
                address,
                other: with.describe(),
                other_block: machine.coordinates(with.serial() - machine.first_serial),
                other_threads: threads(with, thread),
            },
        };
        Box::new(Fault {
            file: machine.file.into(),
            line: inst.line,
            instruction: inst.text.clone(),
            block: self.env.coordinates,
            thread: thread(warp.index, lane),
            kind,
        })
    }
}

fn threads(stamp: Stamp, thread: impl Fn(usize, usize) -> [u32; 3]) -> String {
    match stamp.lane() {
        ANY_LANE => format!("several threads of warp {}", stamp.warp()),
        lane => format!("thread {:?}", thread(stamp.warp(), lane)),
    }
}

/// The fault of lanes that wait in vain.
fn stuck(inst: &Inst, lanes: u32) -> FaultKind {
    match inst.op {
        Op::Mma { .. } | Op::LoadMatrix { .. } | Op::Barrier { .. } => FaultKind::Divergent { lanes },
        _ => FaultKind::Deadlock,
    }
}

/// Advances strand `s`.
#[inline]
fn follow(warp: &mut Warp, s: usize, flow: &Flow) {
    let strand = &mut warp.strands[s];
    match *flow {
        Flow::Next => strand.pc += 1,
        Flow::Branch { taken: 0, .. } => strand.pc += 1,
        Flow::Branch { taken, target } => {
            let rest = strand.mask & !taken;
            let behind = Strand { pc: strand.pc + 1, mask: rest, wait: Wait::Ready };
            (strand.pc, strand.mask) = (target, taken);
            if rest != 0 {
                warp.strands.push(behind);
            }
        }
        Flow::Exit { lanes } => warp.exit(s, lanes),
        Flow::Gather { here } => {
            let rest = strand.mask & !here;
            let on = Strand { pc: strand.pc + 1, mask: rest, wait: Wait::Ready };
            (strand.mask, strand.wait) = (here, Wait::Converge);
            if rest != 0 {
                warp.strands.push(on);
            }
        }
        Flow::Barrier => {
            strand.pc += 1;
            strand.wait = Wait::Barrier;
        }
    }
}
