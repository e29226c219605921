//! Draws tokens on the CPU without computing all logits of their rows: runs the races of a step and computes what they need.

use std::sync::{Mutex, PoisonError};

use bitnet_tensor::BitNetTensor;

use super::{
    bounded::Bounded,
    buffers::{ShortlistBuffers, open},
    copy::HeadCopy,
    race::{Next, Race},
};
use crate::{
    Drawn, Edits, KernelError,
    cpu::{
        Cpu, Rows, WEIGHT_UNIT,
        generic::{
            dense::{self, DenseLogits},
            mass,
        },
        memory::Shared,
        pool::share,
    },
};

impl Cpu {
    /// Draws tokens from rows with bounds, and from those with few allowed tokens. Rows that bounds leave undecided are added to those that need all logits.
    pub(super) fn race(
        &mut self,
        s: &mut ShortlistBuffers,
        (copy, edits): (&HeadCopy, Edits<'_>),
        x: &Rows,
        table: &BitNetTensor,
        logits: &mut [f32],
        drawn: &mut [Option<Drawn>],
    ) -> Result<(), KernelError> {
        let (panels, vocab) = (copy.panels(), copy.rows);
        let races = &mut s.races[..s.begun];
        let out = Shared::new(logits);
        let mass = self.isa.kernels().floats.mass;
        // SAFETY: `isa` proves the instruction set.
        let mass = |rows: &mass::Rows<'_>| unsafe { mass(rows) };
        while races.iter_mut().any(|race| open(race).is_open()) {
            let (limits, planes) = (&s.limits, s.used_planes);
            let (best, high) = (Shared::new(&mut s.best), Shared::new(&mut s.high));
            let shared = &*races;
            self.parallel(shared.len(), 0, &|part, parts, _| {
                for race in &shared[share(shared.len(), parts, part)] {
                    let mut race = race.lock().unwrap_or_else(PoisonError::into_inner);
                    if !race.is_open() {
                        continue;
                    }
                    let weights = race.place.map(|place| limits[place].weights(planes, copy.cols));
                    let (at, panels) = race.place.map_or((0, 0), |place| (place * panels, panels));
                    // SAFETY: every race has a row and, if it has bounds, panels of its own and belongs to one part.
                    let (upper, best, high) = unsafe {
                        (out.slice(race.token * vocab, vocab), best.slice(at, panels), high.slice(at, panels))
                    };
                    let changes = &edits.changes[race.ask.changes.clone()];
                    let mask = race.ask.mask(edits, vocab);
                    race.advance(&mut Bounded {
                        upper,
                        best,
                        changes,
                        mask,
                        high,
                        errors: &copy.errors,
                        norms: &copy.norms,
                        weights: weights.unwrap_or_default(),
                        mass: &mass,
                    });
                }
            })?;
            self.compute_contenders(races, x, table, out)?;
        }
        for race in races {
            let race = open(race);
            match race.next {
                Next::Nothing(token) => {
                    drawn[race.token] = Some(Drawn::Token(token));
                    *(if race.place.is_some() { &mut self.head.drawn } else { &mut self.head.allowed }) += 1;
                }
                _ => {
                    s.whole.push(race.token);
                    self.head.undecided += 1;
                }
            }
        }
        Ok(())
    }

    /// Computes the logits that races need next.
    fn compute_contenders(
        &mut self,
        races: &mut [Mutex<Race>],
        x: &Rows,
        table: &BitNetTensor,
        out: Shared<'_, f32>,
    ) -> Result<(), KernelError> {
        for race in &mut *races {
            let race = open(race);
            if let Next::From(least) = race.next {
                self.rescore(&[race.token], &[least], true, x, table, out)?;
            }
        }
        for race in races {
            let race = open(race);
            let ids = &race.ids;
            let a = DenseLogits {
                table,
                x: &x.values,
                stride: x.stride,
                tokens: &[race.token],
                out,
                out_stride: table.rows(),
                column: 0,
            };
            let kernel = self.isa.kernels().floats.logits;
            let units = (ids.len() * table.row_bytes() / WEIGHT_UNIT).min(ids.len());
            if ids.is_empty() || race.next != Next::Some {
                continue;
            }
            self.head.rescored += ids.len() as u64;
            self.parallel(units, dense::scratch(table.dtype(), table.cols()), &|part, parts, scratch| {
                for &id in &ids[share(ids.len(), parts, part)] {
                    let id = id as usize;
                    // SAFETY: `isa` proves the instruction set; ids differ, and each belongs to one part; scratch is as
                    // large as the kernel needs.
                    unsafe { kernel(&a, id..id + 1, scratch) }
                }
            })?;
        }
        Ok(())
    }
}
