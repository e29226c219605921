//! One instruction of one warp: guards, registers, arithmetic, and the way to everything else.

use super::Machine;
use super::block::{Env, Flow};
use super::warp::{Warp, lanes};
use crate::error::FaultKind;
use crate::inst::{CONSTANT, Lanes, Op, Pred, PredRef, Reg, Special, WARP};
use crate::ops::float;
use crate::region::Trap;

/// A trap and the lane that caused it.
pub(super) type Exec<T = ()> = Result<T, (Trap, usize)>;

pub(super) struct Step<'a, 'm> {
    pub(super) machine: &'a mut Machine<'m>,
    pub(super) env: &'a mut Env,
    pub(super) warp: &'a mut Warp,
    /// The lanes that execute: those of the strand, later those whose guard holds.
    pub(super) active: u32,
}

impl Step<'_, '_> {
    #[inline]
    pub(super) fn execute(&mut self, pc: usize) -> Exec<Flow> {
        let entry = self.machine.entry;
        let inst = &entry.insts[pc];
        let strand = self.active;
        if let Some(guard) = inst.guard {
            self.active &= self.pred(guard)?;
        }
        if let Some(needed) = self.needed(&inst.op)? {
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
            Op::Branch { target, uniform } => {
                let taken = self.active;
                if *uniform && taken != 0 && taken != strand {
                    return Err((FaultKind::Divergent { lanes: taken }.into(), lane_of(taken)));
                }
                return Ok(Flow::Branch { taken, target: *target });
            }
            Op::Exit => return Ok(Flow::Exit { lanes: self.active }),
            Op::Barrier { arrive_only, id, threads } => {
                self.barrier(*arrive_only, *id, *threads)?;
                return Ok(if *arrive_only { Flow::Arrived } else { Flow::Barrier });
            }
            _ if self.active == 0 => {}
            op => match members(op) {
                Some(mask) => self.in_groups(op, mask, pc)?,
                None => self.compute(op, pc)?,
            },
        }
        Ok(Flow::Next)
    }

    fn count(&mut self, pc: usize) {
        let count = &mut self.machine.counts[pc];
        count.warps += 1;
        count.threads += u64::from(self.active.count_ones());
    }

    /// For an instruction that lanes execute together: all that must be at it.
    fn needed(&self, op: &Op) -> Exec<Option<u32>> {
        match *op {
            Op::Mma { .. } | Op::LoadMatrix { .. } => Ok(Some(u32::MAX)),
            // Lanes that have exited can no longer come, as all of the warp must.
            Op::Barrier { .. } => Ok(Some(self.warp.exist)),
            _ if self.active == 0 => Ok(None),
            _ => match members(op) {
                None => Ok(None),
                Some(mask) => {
                    let masks = self.read(mask)?;
                    let named = lanes(self.active).fold(0, |all, lane| all | masks[lane] as u32);
                    Ok(Some(named & self.warp.live | self.active))
                }
            },
        }
    }

    /// Executes a `.sync` instruction once for each group of lanes that name each other. All named lanes are here.
    fn in_groups(&mut self, op: &Op, mask: Reg, pc: usize) -> Exec {
        let masks = *self.read(mask)?;
        let all = self.active;
        let mut left = all;
        while left != 0 {
            let first = lane_of(left);
            let mask = masks[first] as u32;
            let group =
                lanes(all).filter(|&lane| masks[lane] as u32 == mask).fold(0, |g, lane| g | 1 << lane);
            if group != mask & self.warp.live {
                return Err((FaultKind::MemberMask { lanes: group, mask }.into(), first));
            }
            self.active = group;
            self.compute(op, pc)?;
            left &= !group;
        }
        Ok(())
    }

    fn compute(&mut self, op: &Op, pc: usize) -> Exec {
        match op {
            Op::Alu { f, d, s, n, ftz, sat, divisor } => {
                let mut x = [self.read(s[0])?; 4];
                for i in 1..usize::from(*n) {
                    x[i] = self.read(s[i])?;
                }
                if *divisor && let Some(lane) = lanes(self.active).find(|&lane| x[1][lane] == 0) {
                    return Err((FaultKind::DivisionByZero.into(), lane));
                }
                let mut out = [0; WARP];
                if *ftz {
                    let flushed = x.map(float::flush);
                    f(flushed.each_ref(), &mut out);
                    out = float::flush(&out);
                } else {
                    f(x, &mut out);
                }
                if *sat {
                    out = float::saturate(&out);
                }
                self.write(*d, &out);
            }
            Op::Convert { how, d, s } => {
                let (a, b) = (self.read(s[0])?, self.read(s[1])?);
                let mut out = [0; WARP];
                lanes(self.active).for_each(|lane| out[lane] = how.apply(a[lane], b[lane]));
                self.write(*d, &out);
            }
            Op::Setp { f, d, not_d, a, b, ftz, with } => {
                let (a, b) = (self.read(*a)?, self.read(*b)?);
                let holds = if *ftz { f(&float::flush(a), &float::flush(b)) } else { f(a, b) };
                let combine = match with {
                    Some((combine, p)) => Some((combine, self.pred(*p)?)),
                    None => None,
                };
                let result = |value: u32| combine.map_or(value, |(combine, p)| combine(value, p));
                for (d, value) in [(d, result(holds)), (not_d, result(!holds))] {
                    if let Some(d) = d {
                        self.warp.set_pred(*d, self.active, value);
                    }
                }
            }
            Op::Selp { d, a, b, p } => {
                let (a, b, p) = (self.read(*a)?, self.read(*b)?, self.pred(*p)?);
                let out = std::array::from_fn(|lane| if p >> lane & 1 == 1 { a[lane] } else { b[lane] });
                self.write(*d, &out);
            }
            Op::PredLogic { f, d, a, b } => {
                let value = f(self.pred(*a)?, self.pred(*b)?);
                self.warp.set_pred(*d, self.active, value);
            }
            Op::PredConst { d, value } => {
                self.warp.set_pred(*d, self.active, if *value { u32::MAX } else { 0 })
            }
            Op::ReadSpecial { d, what } => self.write(*d, &self.special(*what)),
            Op::Pack { d, parts, bits } => {
                let mut out = [0; WARP];
                for (i, &part) in parts.iter().enumerate() {
                    let value = self.read(part)?;
                    out.iter_mut().zip(value).for_each(|(o, v)| *o |= v << (i as u32 * bits));
                }
                self.write(*d, &out);
            }
            Op::Unpack { parts, s, bits } => {
                let value = *self.read(*s)?;
                for (i, part) in parts.iter().enumerate() {
                    if let Some(d) = part {
                        let low = u64::MAX >> (64 - bits);
                        self.write(*d, &value.map(|v| v >> (i as u32 * bits) & low));
                    }
                }
            }
            Op::LoadParam { d, at, ty } => self.load_param(d, *at, *ty),
            Op::Load { shared, d, at, ty, strength } => self.load(pc, *shared, d, *at, *ty, *strength)?,
            Op::Store { shared, at, s, ty, strength } => self.store(pc, *shared, *at, s, *ty, *strength)?,
            Op::Atomic { .. } => self.atomic(op)?,
            Op::Fence { gpu } => {
                lanes(self.active).for_each(|lane| self.env.clocks.fence(self.warp.index, lane, *gpu));
            }
            Op::CopyAsync { dst, src, size, src_size } => self.copy_issue(*dst, *src, *size, *src_size)?,
            Op::CopyCommit => self.warp.copies.commit(self.active),
            Op::CopyWait { keep } => self.copy_wait(*keep)?,
            Op::Shuffle { .. } => self.shuffle(op)?,
            Op::Vote { mode, d, p, .. } => self.vote(*mode, *d, *p)?,
            Op::Match { all, d, p, a, .. } => self.matching(*all, *d, *p, *a)?,
            Op::Redux { op, signed, d, a, .. } => self.redux(*op, *signed, *d, *a)?,
            Op::ActiveMask { d } => self.write(*d, &[self.active.into(); WARP]),
            Op::WarpSync { .. } => self.env.clocks.sync_lanes(self.warp.index, self.active, self.warp.exist),
            Op::LoadMatrix { d, at, transposed } => self.load_matrix(pc, d, *at, *transposed)?,
            Op::Mma { kind, d, a, b, c } => self.mma(*kind, d, a, b, c)?,
            Op::Branch { .. } | Op::Exit | Op::Barrier { .. } => {
                unreachable!("control flow is followed by `execute`")
            }
        }
        Ok(())
    }

    /// A register's lanes, all active ones of which must have been set.
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

    pub(super) fn write_pred(&mut self, pred: Option<Pred>, value: u32) {
        if let Some(pred) = pred {
            self.warp.set_pred(pred, self.active, value);
        }
    }

    fn special(&self, what: Special) -> Lanes {
        let launch = self.machine.launch;
        let warp = self.warp.index;
        std::array::from_fn(|lane| {
            let thread = super::split((warp * WARP + lane) as u32, launch.block);
            u64::from(match what {
                Special::Tid(axis) => thread[axis],
                Special::Ntid(axis) => launch.block[axis],
                Special::Ctaid(axis) => self.env.coordinates[axis],
                Special::Nctaid(axis) => launch.grid[axis],
                Special::LaneId => lane as u32,
                Special::WarpId => warp as u32,
                Special::MaskEq => 1 << lane,
                Special::MaskLt => (1 << lane) - 1,
                Special::MaskLe => u32::MAX >> (31 - lane),
                Special::MaskGt => !(u32::MAX >> (31 - lane)),
                Special::MaskGe => !((1 << lane) - 1),
            })
        })
    }

    fn barrier(&mut self, arrive_only: bool, id: Reg, threads: Option<Reg>) -> Exec {
        let first = lane_of(self.active);
        let uniform = |values: &Lanes| lanes(self.active).all(|lane| values[lane] == values[first]);
        let ids = self.read(id)?;
        let counts = threads.map(|reg| self.read(reg)).transpose()?;
        if !uniform(ids) || !counts.is_none_or(uniform) {
            let kind =
                FaultKind::BarrierMisuse { barrier: ids[first], what: "lanes of a warp name different ones" };
            return Err((kind.into(), first));
        }
        let (id, threads) = (ids[first], counts.map(|counts| counts[first]));
        let warps = self.machine.launch.block.iter().product::<u32>().div_ceil(WARP as u32) as usize;
        let who = (self.warp.index, warps);
        let arrived = self.env.barriers.arrive(&mut self.env.clocks, who, id, threads, arrive_only);
        arrived.map_err(|kind| (kind.into(), first))
    }
}

/// The operand that names the lanes of a `.sync` instruction.
fn members(op: &Op) -> Option<Reg> {
    match *op {
        Op::Shuffle { mask, .. }
        | Op::Vote { mask, .. }
        | Op::Match { mask, .. }
        | Op::Redux { mask, .. }
        | Op::WarpSync { mask } => Some(mask),
        _ => None,
    }
}

pub(super) fn lane_of(mask: u32) -> usize {
    mask.trailing_zeros() as usize
}

#[cold]
fn never_set(name: &str, unset: u32) -> (Trap, usize) {
    (FaultKind::UninitialisedRegister { register: name.into() }.into(), lane_of(unset))
}
