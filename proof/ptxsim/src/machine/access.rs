//! Loads, stores and atomics.

use super::step::{Exec, Step};
use super::warp::lanes;
use crate::inst::{Addr, AtomOp, Lanes, Op, Reg, WARP};
use crate::race::{Kind, Who};
use crate::region::Trap;
use crate::stats;
use crate::types::Type;

impl Step<'_, '_> {
    /// Addresses of an operand; shared addresses have 32 bits.
    pub(super) fn addresses(&self, at: Addr, shared: bool) -> Exec<Lanes> {
        let base = self.read(at.base)?;
        let keep = if shared { u64::from(u32::MAX) } else { u64::MAX };
        Ok(base.map(|base| base.wrapping_add(at.offset as u64) & keep))
    }

    pub(super) fn load_param(&mut self, d: &[Reg], at: usize, ty: Type) {
        for (i, &reg) in d.iter().enumerate() {
            let start = at + i * ty.bytes();
            let mut raw = [0; 8];
            raw[..ty.bytes()].copy_from_slice(&self.machine.params[start..start + ty.bytes()]);
            self.write(reg, &[u64::from_le_bytes(raw); WARP]);
        }
    }

    pub(super) fn load(
        &mut self,
        pc: usize,
        shared: bool,
        d: &[Reg],
        at: Addr,
        ty: Type,
        read_only: bool,
    ) -> Exec {
        let addresses = self.addresses(at, shared)?;
        let size = d.len() * ty.bytes();
        let kind = if read_only { Kind::PROMISE } else { Kind::READ };
        self.count_access(pc, shared, &addresses, size);
        for lane in lanes(self.active) {
            let value = self.at_lane(shared, addresses[lane], size, lane, |region, who| {
                region.read(addresses[lane], size, kind, who)
            })?;
            for (i, &reg) in d.iter().enumerate() {
                let part = (value >> (8 * ty.bytes() * i)) as u64 & (u64::MAX >> (64 - 8 * ty.bytes()));
                self.warp.regs[usize::from(reg)][lane] = part;
                self.warp.regs_set[usize::from(reg)] |= 1 << lane;
            }
        }
        Ok(())
    }

    pub(super) fn store(&mut self, pc: usize, shared: bool, at: Addr, s: &[Reg], ty: Type) -> Exec {
        let addresses = self.addresses(at, shared)?;
        let size = s.len() * ty.bytes();
        self.count_access(pc, shared, &addresses, size);
        let mut values = [0u128; WARP];
        for (i, &reg) in s.iter().enumerate() {
            let parts = self.read(reg)?;
            for lane in lanes(self.active) {
                values[lane] |= u128::from(parts[lane]) << (8 * ty.bytes() * i);
            }
        }
        for lane in lanes(self.active) {
            self.at_lane(shared, addresses[lane], size, lane, |region, who| {
                region.write(addresses[lane], size, values[lane], Kind::WRITE, who)
            })?;
        }
        Ok(())
    }

    /// Atomics: the lanes update one by one, starting at a lane chosen by the seed, so that no kernel can rely on the
    /// order.
    pub(super) fn atomic(&mut self, op: &Op) -> Exec {
        let Op::Atomic { shared, op, ty, d, at, b } = *op else { return Ok(()) };
        let addresses = self.addresses(at, shared)?;
        let b = *self.read(b)?;
        let (first, active) = (self.machine.rng.below(WARP), self.active);
        if shared {
            self.count_updates(&addresses);
        } else {
            self.count_sectors(self.active, &addresses);
        }
        for lane in (first..first + WARP).map(|lane| lane % WARP).filter(|lane| active >> lane & 1 == 1) {
            let f = |old: u64| match op {
                AtomOp::Inc if old >= b[lane] => 0,
                AtomOp::Inc => old + 1,
                AtomOp::Add => old.wrapping_add(b[lane]),
            };
            let address = addresses[lane];
            let old = self.at_lane(shared, address, ty.bytes(), lane, |region, who| {
                region.update(address, ty.bytes(), Kind::UPDATE, who, f)
            })?;
            let place = (if shared { self.env.clocks.serial() } else { 0 }, address);
            let who = (self.warp.index, lane);
            self.machine.releases.meet(place, &mut self.env.clocks, who, d.is_some());
            if let Some(d) = d {
                self.warp.regs[usize::from(d)][lane] = old;
                self.warp.regs_set[usize::from(d)] |= 1 << lane;
            }
        }
        Ok(())
    }

    /// Runs a lane's access on the region that holds its address.
    #[inline]
    pub(super) fn at_lane<T>(
        &mut self,
        shared: bool,
        address: u64,
        size: usize,
        lane: usize,
        access: impl FnOnce(&mut crate::region::Region, &mut Who<'_>) -> Result<T, Trap>,
    ) -> Exec<T> {
        let early = !shared && self.early(1 << (lane % WARP)) != 0;
        let (clocks, warp) = (&self.env.clocks, self.warp.index);
        let result = if shared {
            let sets = &mut self.machine.memory.sets;
            access(&mut self.env.shared, &mut Who { clocks, sets, warp, lane, early })
        } else {
            let found = self.machine.memory.for_access(address, size);
            found.and_then(|(region, sets)| access(region, &mut Who { clocks, sets, warp, lane, early }))
        };
        // An access of the whole warp is reported for its first thread.
        result.map_err(|trap| (trap, lane % WARP))
    }

    fn count_access(&mut self, pc: usize, shared: bool, addresses: &Lanes, size: usize) {
        if !shared {
            return self.count_sectors(self.active, addresses);
        }
        // A pass moves 128 bytes, so wider accesses split the warp into parts.
        let width = size.max(4);
        let phase = 128 / width;
        let active = self.active;
        for start in (0..WARP).step_by(phase) {
            let words = (start..start + phase).filter(|lane| active >> lane & 1 == 1);
            let words = words.flat_map(|lane| (0..width as u64 / 4).map(move |i| addresses[lane] / 4 + i));
            if words.clone().next().is_some() {
                self.count_pass(pc, words);
            }
        }
    }

    pub(super) fn count_pass(&mut self, pc: usize, words: impl Iterator<Item = u64> + Clone) {
        self.machine.stats.shared_passes += 1;
        self.machine.counts[pc].conflicts += stats::passes(words) - 1;
    }

    /// Updates of a bank come one after the other, also those of one word.
    fn count_updates(&mut self, addresses: &Lanes) {
        let mut in_bank = [0; 32];
        lanes(self.active).for_each(|lane| in_bank[(addresses[lane] / 4 % 32) as usize] += 1);
        self.machine.stats.shared_passes += in_bank.into_iter().max().unwrap_or(0);
    }

    /// Counts what the lanes of a mask move.
    pub(super) fn count_sectors(&mut self, mask: u32, addresses: &Lanes) {
        let mut sectors = [0; WARP];
        let mut len = 0;
        if mask == 0 {
            return;
        }
        for lane in lanes(mask) {
            sectors[len] = addresses[lane] / 32;
            len += 1;
        }
        let sectors = &mut sectors[..len];
        if !sectors.is_sorted() {
            sectors.sort_unstable();
        }
        let changes = sectors.windows(2).filter(|pair| pair[0] != pair[1]).count();
        self.machine.stats.global_requests += 1;
        self.machine.stats.global_sectors += changes as u64 + 1;
    }
}
