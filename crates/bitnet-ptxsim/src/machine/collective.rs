//! What lanes of a warp compute together. The machine has brought exactly the named lanes here.

use super::step::{Exec, Step, lane_of};
use super::warp::lanes;
use crate::error::FaultKind;
use crate::inst::{Op, Pred, PredRef, ReduxOp, Reg, ShflMode, VoteMode, WARP};

impl Step<'_, '_> {
    pub(super) fn shuffle(&mut self, op: &Op) -> Exec {
        let Op::Shuffle { mode, d, p, a, b, c, .. } = *op else { return Ok(()) };
        let (a, b, c) = (self.read(a)?, self.read(b)?, self.read(c)?);
        let mut out = [0; WARP];
        let mut in_range = 0u32;
        for lane in lanes(self.active) {
            let (this, by) = (lane as i32, (b[lane] & 31) as i32);
            let (clamp, segment) = ((c[lane] & 31) as i32, (c[lane] >> 8 & 31) as i32);
            let last = (this & segment) | (clamp & !segment);
            let (from, inside) = match mode {
                ShflMode::Up => (this - by, this - by >= last),
                ShflMode::Down => (this + by, this + by <= last),
                ShflMode::Bfly => (this ^ by, this ^ by <= last),
                ShflMode::Idx => {
                    let from = (this & segment) | (by & !segment);
                    (from, from <= last)
                }
            };
            let from = if inside { from as usize } else { lane };
            if self.active >> from & 1 == 0 {
                return Err((FaultKind::InactiveLane { lane: from as u32 }.into(), lane));
            }
            out[lane] = a[from];
            in_range |= u32::from(inside) << lane;
        }
        self.write(d, &out);
        self.write_pred(p, in_range);
        Ok(())
    }

    pub(super) fn vote(&mut self, mode: VoteMode, d: Reg, p: PredRef) -> Exec {
        let votes = self.pred(p)? & self.active;
        let all = |holds: bool| if holds { u32::MAX } else { 0 };
        match mode {
            VoteMode::Ballot => self.write(d, &[votes.into(); WARP]),
            VoteMode::All => self.write_pred(Some(d), all(votes == self.active)),
            VoteMode::Any => self.write_pred(Some(d), all(votes != 0)),
            VoteMode::Uni => self.write_pred(Some(d), all(votes == 0 || votes == self.active)),
        }
        Ok(())
    }

    pub(super) fn matching(&mut self, all: bool, d: Reg, p: Option<Pred>, a: Reg) -> Exec {
        let values = *self.read(a)?;
        let mask = |lane: usize| {
            let alike = lanes(self.active).filter(|&l| values[l] == values[lane]);
            alike.fold(0u64, |mask, l| mask | 1 << l)
        };
        let everywhere = mask(lane_of(self.active)) == u64::from(self.active);
        let out = std::array::from_fn(|lane| match all {
            true if everywhere => u64::from(self.active),
            true => 0,
            false => mask(lane),
        });
        self.write(d, &out);
        self.write_pred(p, if everywhere { u32::MAX } else { 0 });
        Ok(())
    }

    pub(super) fn redux(&mut self, op: ReduxOp, signed: bool, d: Reg, a: Reg) -> Exec {
        let values = self.read(a)?;
        let f = |x: u32, y: u32| match (op, signed) {
            (ReduxOp::Add, _) => x.wrapping_add(y),
            (ReduxOp::And, _) => x & y,
            (ReduxOp::Or, _) => x | y,
            (ReduxOp::Xor, _) => x ^ y,
            (ReduxOp::Min, false) => x.min(y),
            (ReduxOp::Max, false) => x.max(y),
            (ReduxOp::Min, true) => (x as i32).min(y as i32) as u32,
            (ReduxOp::Max, true) => (x as i32).max(y as i32) as u32,
        };
        let total = lanes(self.active).map(|lane| values[lane] as u32).reduce(f).unwrap_or_default();
        self.write(d, &[total.into(); WARP]);
        Ok(())
    }
}
