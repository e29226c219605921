//! Instructions that the lanes of a warp compute together. The machine ensures that all live lanes are here.

use super::step::{Exec, Step};
use super::warp::lanes;
use crate::error::FaultKind;
use crate::inst::{Op, PredRef, ReduxOp, Reg, ShflMode, WARP};

impl Step<'_, '_> {
    pub(super) fn shuffle(&mut self, op: &Op) -> Exec {
        let Op::Shuffle { mode, d, p, a, b, c } = *op else { return Ok(()) };
        let (a, b, c) = (self.read(a)?, self.read(b)?, self.read(c)?);
        let mut out = [0; WARP];
        let mut in_range = 0u32;
        for lane in lanes(self.active) {
            let (this, by) = (lane as i32, (b[lane] & 31) as i32);
            let (clamp, segment) = ((c[lane] & 31) as i32, (c[lane] >> 8 & 31) as i32);
            let last = (this & segment) | (clamp & !segment);
            let (from, inside) = match mode {
                ShflMode::Up => (this - by, this - by >= last),
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
        if let Some(p) = p {
            self.warp.set_pred(p, self.active, in_range);
        }
        Ok(())
    }

    pub(super) fn ballot(&mut self, d: Reg, p: PredRef) -> Exec {
        let votes = self.pred(p)? & self.active;
        self.write(d, &[votes.into(); WARP]);
        Ok(())
    }

    pub(super) fn redux(&mut self, op: ReduxOp, d: Reg, a: Reg) -> Exec {
        let values = self.read(a)?;
        let f = match op {
            ReduxOp::Add => u32::wrapping_add,
            ReduxOp::Min => u32::min,
            ReduxOp::Max => u32::max,
        };
        let total = lanes(self.active).map(|lane| values[lane] as u32).reduce(f).unwrap_or_default();
        self.write(d, &[total.into(); WARP]);
        Ok(())
    }
}
