//! Draws tokens on the CPU from rows whose logits have bounds: runs the races of a step and computes what they need.

use std::{
    ops::Range,
    sync::{Mutex, PoisonError},
};

use bitnet_tensor::BitNetTensor;

use super::{
    buffers::{ShortlistBuffers, open},
    copy::HeadCopy,
    race::{Bounded, Next, Race},
};
use crate::{
    Change, Drawn, KernelError, SamplingParams, Wanted,
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
    /// Draws tokens from rows with bounds. Rows that bounds leave undecided are added to those that need all logits.
    pub(super) fn race(
        &mut self,
        s: &mut ShortlistBuffers,
        (copy, changes): (&HeadCopy, &[Change]),
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
            let (limits, high, planes) = (&s.limits, &s.high, s.used_planes);
            let best = Shared::new(&mut s.best);
            let shared = &*races;
            self.parallel(shared.len(), 0, &|part, parts, _| {
                for race in &shared[share(shared.len(), parts, part)] {
                    let mut race = race.lock().unwrap_or_else(PoisonError::into_inner);
                    if !race.is_open() {
                        continue;
                    }
                    let here = race.place * panels..(race.place + 1) * panels;
                    let weights = limits[race.place].weights(planes, copy.cols);
                    // SAFETY: every race has a row and panels of its own and belongs to one part.
                    let (upper, best) =
                        unsafe { (out.slice(race.token * vocab, vocab), best.slice(here.start, panels)) };
                    let changes = &changes[race.changes.clone()];
                    race.advance(&mut Bounded {
                        upper,
                        best,
                        changes,
                        high: &high[here],
                        errors: &copy.errors,
                        norms: &copy.norms,
                        weights,
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
                    self.head.drawn += 1;
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
            self.parallel(units, dense::scratch(table), &|part, parts, scratch| {
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

/// How to draw a token from bounds, and after which changes, unless the highest logit decides.
pub(super) fn draw_by_bounds(wanted: &Wanted) -> Option<(SamplingParams, Range<usize>)> {
    match *wanted {
        Wanted::Token(params) if !params.is_greedy() => Some((params, 0..0)),
        Wanted::Changed { params, from, to } => Some((params, from as usize..to as usize)),
        _ => None,
    }
}
