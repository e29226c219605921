//! Draws tokens on the CPU without computing all logits of their rows: runs the races of a step and computes what they need.

use std::{
    ops::Range,
    sync::{Mutex, PoisonError},
};

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
        generic::dense::{self, DenseLogits},
        memory::Shared,
        pool::share,
    },
    draw::GROUP,
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
        let isa = self.isa;
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
                        isa,
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
        for race in races {
            let race = open(race);
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
            let scratch = dense::scratch(table.dtype(), table.cols());
            let count = match race.next {
                Next::Some => {
                    let ids = &race.ids;
                    let units = (ids.len() * table.row_bytes() / WEIGHT_UNIT).min(ids.len());
                    self.parallel(units, scratch, &|part, parts, scratch| {
                        for &id in &ids[share(ids.len(), parts, part)] {
                            let id = id as usize;
                            // SAFETY: `isa` proves the instruction set; ids differ, and each belongs to one part; scratch
                            // is as large as the kernel needs.
                            unsafe { kernel(&a, id..id + 1, scratch) }
                        }
                    })?;
                    ids.len()
                }
                Next::Asked(count) => {
                    let asked = &race.asked;
                    let units = (count * table.row_bytes() / WEIGHT_UNIT).min(asked.len());
                    let fetch = self.isa.kernels().floats.fetch;
                    self.parallel(units, scratch, &|part, parts, scratch| {
                        let of_panel = |panel: usize| {
                            runs(asked[panel])
                                .map(move |run| panel * GROUP + run.start..panel * GROUP + run.end)
                        };
                        let mut all = share(asked.len(), parts, part).flat_map(of_panel).peekable();
                        while let Some(rows) = all.next() {
                            // Rows are so far apart that the processor does not foresee them.
                            if let Some(next) = all.peek() {
                                let next =
                                    &table.bytes()[next.start * table.row_bytes()..][..table.row_bytes()];
                                // SAFETY: `isa` proves the instruction set.
                                unsafe { fetch(next) }
                            }
                            // SAFETY: as above; every panel belongs to one part.
                            unsafe { kernel(&a, rows, scratch) }
                        }
                    })?;
                    count
                }
                Next::All | Next::Nothing(_) => 0,
            };
            self.head.rescored += count as u64;
        }
        Ok(())
    }
}

/// The runs of ones in a word.
fn runs(mut word: u64) -> impl Iterator<Item = Range<usize>> {
    std::iter::from_fn(move || {
        let from = word.trailing_zeros();
        if from == 64 {
            return None;
        }
        let len = (word >> from).trailing_ones();
        word &= u64::MAX.checked_shl(from + len).unwrap_or(0);
        Some(from as usize..(from + len) as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_ones_are_found() {
        let all = |word| runs(word).collect::<Vec<_>>();
        assert_eq!(all(0), []);
        assert_eq!(runs(u64::MAX).next(), Some(0..64));
        assert_eq!(all(1 << 63 | 0b1_0110), [1..3, 4..5, 63..64]);
    }
}
