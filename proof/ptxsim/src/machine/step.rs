//! Executes an instruction of a warp: guards, registers and arithmetic; other kinds are dispatched from here.

use super::Machine;
use super::barrier::Barriers;
use super::warp::{Warp, lanes};
use crate::error::FaultKind;
use crate::inst::{CONSTANT, Lanes, Op, PredRef, Reg, Special, WARP};
use crate::race::Clocks;
use crate::region::{Region, Trap};

/// A trap and the lane that caused it.
pub(super) type Exec<T = ()> = Result<T, (Trap, usize)>;

/// The state that a block's warps share.
pub(super) struct Env {
    pub(super) coordinates: [u32; 3],
    pub(super) shared: Region,
    pub(super) clocks: Clocks,
    pub(super) barriers: Barriers,
}

/// The effect of an instruction on its strand.
pub(super) enum Flow {
    Next,
    Branch {
        taken: u32,
        target: usize,
    },
    Exit {
        lanes: u32,
    },
    /// Waits until more lanes arrive; lanes of the strand whose guard fails continue.
    Gather {
        here: u32,
    },
    Barrier,
}

pub(super) struct Step<'a, 'm> {
    pub(super) machine: &'a mut Machine<'m>,
    pub(super) env: &'a mut Env,
    pub(super) warp: &'a mut Warp,
    /// The executing lanes: those of the strand, then only those whose guard holds.
    pub(super) active: u32,
}

impl Step<'_, '_> {
    #[inline]
    pub(super) fn execute(&mut self, pc: usize) -> Exec<Flow> {
        let entry = self.machine.entry;
        let inst = &entry.insts[pc];
        if let Some(guard) = inst.guard {
            self.active &= self.pred(guard)?;
        }
        if let Some(needed) = self.needed(&inst.op) {
            if self.active == 0 {
                self.count(pc);
                return Ok(Flow::Next);
            }
            if self.active != needed {
                return Ok(Flow::Gather { here: self.active });
            }
        }
        self.count(pc);
        match &inst.op {
            Op::Branch { target } => return Ok(Flow::Branch { taken: self.active, target: *target }),
            Op::Exit if self.early(self.active) != 0 => {
                return Err((FaultKind::NoWait.into(), lane_of(self.early(self.active))));
            }
            Op::Exit => return Ok(Flow::Exit { lanes: self.active }),
            Op::Barrier { id, warps } => {
                let all = self.machine.launch.block.iter().product::<u32>().div_ceil(WARP as u32);
                let ids = self.read(*id)?;
                let first = lane_of(self.active);
                let same = lanes(self.active).all(|lane| ids[lane] == ids[first]);
                let id = ids[first] as usize;
                let who = (self.warp.index, all as usize);
                if !same || !self.env.barriers.arrive(&mut self.env.clocks, who, id, *warps) {
                    return Err((FaultKind::Barrier.into(), first));
                }
                return Ok(Flow::Barrier);
            }
            _ if self.active == 0 => {}
            op => self.compute(op, pc)?,
        }
        Ok(Flow::Next)
    }

    fn count(&mut self, pc: usize) {
        let count = &mut self.machine.counts[pc];
        count.warps += 1;
        count.threads += u64::from(self.active.count_ones());
    }

    /// The lanes that must be at an instruction that lanes execute together.
    fn needed(&self, op: &Op) -> Option<u32> {
        match *op {
            Op::Mma { .. } | Op::LoadMatrix { .. } => Some(u32::MAX),
            // All lanes of the warp must arrive, and lanes that have exited cannot.
            Op::Barrier { .. } => Some(self.warp.exist),
            Op::Shuffle { .. } | Op::Ballot { .. } | Op::Redux { .. } | Op::WarpSync => Some(self.warp.live),
            _ => None,
        }
    }

    /// Of these lanes those that run before the launches on which they depend may have ended.
    pub(super) fn early(&self, lanes: u32) -> u32 {
        if self.machine.launch.overlapped { lanes & !self.warp.waited } else { 0 }
    }

    fn compute(&mut self, op: &Op, pc: usize) -> Exec {
        match op {
            Op::Alu { f, d, s, n, divisor } => {
                let mut x = [self.read(s[0])?; 3];
                for i in 1..usize::from(*n) {
                    x[i] = self.read(s[i])?;
                }
                if *divisor && let Some(lane) = lanes(self.active).find(|&lane| x[1][lane] == 0) {
                    return Err((FaultKind::DivisionByZero.into(), lane));
                }
                let mut out = [0; WARP];
                f(x, &mut out);
                self.write(*d, &out);
            }
            Op::Move { d, s } => {
                let value = *self.read(*s)?;
                self.write(*d, &value);
            }
            Op::Setp { f, d, a, b, with } => {
                let holds = f(self.read(*a)?, self.read(*b)?);
                let value = match with {
                    Some((combine, p)) => combine(holds, self.pred(*p)?),
                    None => holds,
                };
                self.warp.set_pred(*d, self.active, value);
            }
            Op::Selp { d, a, b, p } => {
                let (a, b, p) = (self.read(*a)?, self.read(*b)?, self.pred(*p)?);
                let out = std::array::from_fn(|lane| if p >> lane & 1 == 1 { a[lane] } else { b[lane] });
                self.write(*d, &out);
            }
            Op::ReadSpecial { d, what } => self.write(*d, &self.special(*what)),
            Op::Pack { d, parts } => {
                let (low, high) = (self.read(parts[0])?, self.read(parts[1])?);
                let out = std::array::from_fn(|lane| low[lane] | high[lane] << 32);
                self.write(*d, &out);
            }
            Op::Unpack { parts, s } => {
                let value = *self.read(*s)?;
                self.write(parts[0], &value.map(|v| v & u64::from(u32::MAX)));
                self.write(parts[1], &value.map(|v| v >> 32));
            }
            Op::LoadParam { d, at, ty } => self.load_param(d, *at, *ty),
            Op::Load { shared, d, at, ty, read_only } => self.load(pc, *shared, d, *at, *ty, *read_only)?,
            Op::Store { shared, at, s, ty } => self.store(pc, *shared, *at, s, *ty)?,
            Op::Atomic { .. } => self.atomic(op)?,
            Op::Fence => lanes(self.active).for_each(|lane| self.env.clocks.fence(self.warp.index, lane)),
            Op::CopyAsync { dst, src, src_size } => self.copy_issue(*dst, *src, *src_size)?,
            Op::Prefetch { at, bytes } => self.prefetch(*at, *bytes)?,
            Op::GridWait => self.warp.waited |= self.active,
            Op::LaunchDependents => {}
            Op::CopyCommit => self.warp.copies.commit(self.active),
            Op::CopyWait { keep } => self.copy_wait(*keep)?,
            Op::Shuffle { .. } => self.shuffle(op)?,
            Op::Ballot { d, p } => self.ballot(*d, *p)?,
            Op::Redux { op, d, a } => self.redux(*op, *d, *a)?,
            Op::WarpSync => self.env.clocks.sync_warp(self.warp.index),
            Op::LoadMatrix { d, at, transposed } => self.load_matrix(pc, d, *at, *transposed)?,
            Op::Mma { kind, d, a, b, c } => self.mma(*kind, d, a, b, c)?,
            Op::Branch { .. } | Op::Exit | Op::Barrier { .. } => {
                unreachable!("`execute` handles control flow")
            }
        }
        Ok(())
    }

    /// The lanes of a register, which must be set in all active lanes.
    #[inline]
    pub(super) fn read(&self, reg: Reg) -> Exec<&Lanes> {
        if reg & CONSTANT != 0 {
            return Ok(&self.machine.entry.constants[usize::from(reg & !CONSTANT)]);
        }
        let unset = self.active & !self.warp.regs_set[usize::from(reg)];
        if unset != 0 {
            return Err(never_set(&self.machine.entry.regs[usize::from(reg)], unset));
        }
        Ok(&self.warp.regs[usize::from(reg)])
    }

    #[inline]
    pub(super) fn write(&mut self, reg: Reg, value: &Lanes) {
        let reg = usize::from(reg);
        if self.active == u32::MAX {
            self.warp.regs[reg] = *value;
        } else {
            lanes(self.active).for_each(|lane| self.warp.regs[reg][lane] = value[lane]);
        }
        self.warp.regs_set[reg] |= self.active;
    }

    /// The lanes in which `pred` holds.
    #[inline]
    pub(super) fn pred(&self, pred: PredRef) -> Exec<u32> {
        let index = usize::from(pred.index);
        let unset = self.active & !self.warp.preds_set[index];
        if unset != 0 {
            return Err(never_set(&self.machine.entry.preds[index], unset));
        }
        Ok(if pred.negated { !self.warp.preds[index] } else { self.warp.preds[index] })
    }

    fn special(&self, what: Special) -> Lanes {
        let launch = self.machine.launch;
        let warp = self.warp.index;
        std::array::from_fn(|lane| {
            let thread = super::split((warp * WARP + lane) as u32, launch.block);
            u64::from(match what {
                Special::Tid(axis) => thread[axis],
                Special::Ctaid(axis) => self.env.coordinates[axis],
                Special::Nctaid(axis) => launch.grid[axis],
            })
        })
    }
}

pub(super) fn lane_of(mask: u32) -> usize {
    mask.trailing_zeros() as usize
}

#[cold]
fn never_set(name: &str, unset: u32) -> (Trap, usize) {
    (FaultKind::UninitialisedRegister { register: name.into() }.into(), lane_of(unset))
}
