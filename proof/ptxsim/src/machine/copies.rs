//! `cp.async`: data moves at the wait, not before; until then the target must not be accessed.

use super::step::{Exec, Step};
use super::warp::{Copy, lanes};
use crate::error::FaultKind;
use crate::inst::{Addr, Reg, WARP};
use crate::race::Kind;

const SIZE: usize = 16;

impl Step<'_, '_> {
    pub(super) fn copy_issue(&mut self, dst: Addr, src: Addr, src_size: Option<Reg>) -> Exec {
        let (dst, src) = (self.addresses(dst, true)?, self.addresses(src, false)?);
        let src_size = match src_size {
            Some(reg) => *self.read(reg)?,
            None => [SIZE as u64; WARP],
        };
        let moves =
            lanes(self.active).filter(|&lane| src_size[lane] > 0).fold(0, |mask, lane| mask | 1 << lane);
        self.count_sectors(moves, &src);
        let mut value = [0; WARP];
        for lane in lanes(self.active) {
            if src_size[lane] > SIZE as u64 {
                let kind = FaultKind::CopySize { src_size: src_size[lane] };
                return Err((kind.into(), lane));
            }
            self.at_lane(true, dst[lane], SIZE, lane, |region, who| region.begin_copy(dst[lane], SIZE, who))?;
            if src_size[lane] == 0 {
                continue;
            }
            value[lane] = self.at_lane(false, src[lane], SIZE, lane, |region, who| {
                region.check_aligned(src[lane], SIZE)?;
                // Memory checkers of GPUs count all bytes as read.
                region.peek(src[lane], SIZE)?;
                // A shorter source is read byte by byte, because its length need not be a power of two.
                let whole = src_size[lane] == SIZE as u64;
                let (pieces, piece) = if whole { (1, SIZE) } else { (src_size[lane], 1) };
                (0..pieces).try_fold(0, |all, i| {
                    let part = region.read(src[lane] + i, piece, Kind::READ, who)?;
                    Ok(all | part << (8 * i))
                })
            })?;
        }
        let copies = &mut self.warp.copies;
        copies.pending.push(Copy { mask: self.active, src, src_size, dst, value, group: copies.groups });
        Ok(())
    }

    /// A prefetch changes nothing, but its bytes must exist: whole pieces of 16.
    pub(super) fn prefetch(&mut self, at: Addr, bytes: Reg) -> Exec {
        let (addresses, bytes) = (self.addresses(at, false)?, *self.read(bytes)?);
        for lane in lanes(self.active) {
            let (address, size) = (addresses[lane], bytes[lane] as usize);
            self.at_lane(false, address, size, lane, |region, _| {
                region.check_aligned(address, SIZE)?;
                region.check_aligned(size as u64, SIZE)?;
                region.peek(address + size as u64, 0).map(|_| ())
            })?;
        }
        Ok(())
    }

    /// Completes the copies of the active lanes, except for their newest `keep` groups.
    pub(super) fn copy_wait(&mut self, keep: Option<u32>) -> Exec {
        let mut pending = std::mem::take(&mut self.warp.copies.pending);
        let groups = self.warp.copies.groups;
        for copy in &mut pending {
            let due = |lane: &usize| keep.is_none_or(|keep| copy.group[*lane] + keep < groups[*lane]);
            let done = lanes(self.active & copy.mask).filter(due).fold(0u32, |mask, lane| mask | 1 << lane);
            copy.mask &= !done;
            for lane in lanes(done) {
                self.land(copy, lane)?;
            }
        }
        pending.retain(|copy| copy.mask != 0);
        self.warp.copies.pending = pending;
        Ok(())
    }

    fn land(&mut self, copy: &Copy, lane: usize) -> Exec {
        let (address, size) = (copy.src[lane], copy.src_size[lane] as usize);
        if size > 0 {
            let now = self.at_lane(false, address, size, lane, |region, _| region.peek(address, size))?;
            if now != copy.value[lane] {
                return Err((FaultKind::CopySource { address }.into(), lane));
            }
        }
        let (dst, value) = (copy.dst[lane], copy.value[lane]);
        self.at_lane(true, dst, SIZE, lane, |region, who| region.end_copy(dst, SIZE, value, who))
    }
}
