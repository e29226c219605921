//! What a step needs to find the highest logits and to draw tokens by bounds.

use std::sync::{Mutex, PoisonError};

use super::{
    ask::Ask,
    copy::{CopyForm, HeadCopy},
    race::Race,
};
use crate::cpu::{generic::shortlist::Limits, panels::PANEL_ROWS};

/// The buffers that a step needs in addition to the copy; [`ShortlistBuffers::reserve`] grows them before the first step, so
/// that no step allocates.
#[derive(Default)]
pub(in crate::cpu) struct ShortlistBuffers {
    /// Sizes of the largest copy: bytes of a plane of activations, panels, and rows.
    pub(super) plane: usize,
    pub(super) panels: usize,
    pub(super) rows: usize,
    /// Most sums of groups that a plane needs.
    pub(super) groups: usize,
    /// Activations as two planes of int8, `[tokens][2][stride]`.
    pub(super) planes: Vec<i8>,
    /// Sums of their groups of columns, `[tokens][2][sums]`, if the copy needs them.
    pub(super) sums: Vec<f32>,
    /// How many of them are used of each token.
    pub(super) used_planes: usize,
    /// One per token with bounds.
    pub(super) limits: Vec<Limits>,
    /// The row of each of these tokens.
    pub(super) tokens: Vec<usize>,
    /// Of the tokens that need a number of the highest logits: index among the tokens with bounds, and that number.
    pub(super) keep: Vec<(usize, usize)>,
    /// Their rows, and a logit that at least so many rows reach.
    pub(super) listed: Vec<usize>,
    pub(super) thresholds: Vec<f32>,
    /// Draws; the first `begun` are of this step.
    pub(super) races: Vec<Mutex<Race>>,
    pub(super) begun: usize,
    /// Rows of the tokens that need all logits.
    pub(super) whole: Vec<usize>,
    /// The highest lower bound of each panel, `[tokens][panels]`, and the highest upper bound.
    pub(super) best: Vec<f32>,
    pub(super) high: Vec<f32>,
}

impl ShortlistBuffers {
    /// Bytes for `tokens` tokens, with a copy of a table of these rows and columns.
    pub(in crate::cpu) fn bytes(tokens: usize, copy: Option<(CopyForm, usize, usize)>) -> usize {
        let lists =
            size_of::<Limits>() + size_of::<f32>() + size_of::<(usize, usize)>() + 3 * size_of::<usize>();
        let bounds = |(form, rows, cols): (CopyForm, usize, usize)| {
            let floats = rows.div_ceil(PANEL_ROWS) + form.sums(cols);
            2 * plane_stride(cols) + 2 * size_of::<f32>() * floats + Race::bytes(rows)
        };
        tokens * (lists + copy.map_or(0, bounds))
    }

    /// Records the sizes of a copy.
    pub(in crate::cpu) fn fit(&mut self, copy: &HeadCopy) {
        self.plane = self.plane.max(plane_stride(copy.cols));
        self.panels = self.panels.max(copy.panels());
        self.rows = self.rows.max(copy.rows);
        self.groups = self.groups.max(copy.form.sums(copy.cols));
    }

    pub(in crate::cpu) fn reserve(&mut self, tokens: usize) {
        self.planes.resize(self.planes.len().max(2 * tokens * self.plane), 0);
        self.sums.resize(self.sums.len().max(2 * tokens * self.groups), 0.0);
        for extremes in [&mut self.best, &mut self.high] {
            extremes.resize(extremes.len().max(tokens * self.panels), 0.0);
        }
        if self.rows > 0 {
            let races = self.races.len().max(tokens);
            self.races.resize_with(races, || Mutex::new(Race::with_room(self.rows)));
        }
        self.limits.reserve(tokens);
        self.thresholds.reserve(tokens);
        self.keep.reserve(tokens);
        for list in [&mut self.tokens, &mut self.listed, &mut self.whole] {
            list.reserve(tokens);
        }
    }

    /// Drops the tokens of the last step.
    pub(super) fn clear(&mut self) {
        self.limits.clear();
        self.thresholds.clear();
        self.keep.clear();
        self.begun = 0;
        for list in [&mut self.tokens, &mut self.listed, &mut self.whole] {
            list.clear();
        }
    }

    /// Begins a draw from row `token`, which is number `place` of the tokens with bounds, if it has any.
    pub(super) fn begin_race(&mut self, token: usize, place: Option<usize>, ask: Ask) {
        open(&mut self.races[self.begun]).begin(token, place, ask);
        self.begun += 1;
    }

    /// With few tokens, memory bandwidth is the limit, so a second plane costs nothing.
    pub(super) fn set_planes(&mut self) {
        let coarse = self.tokens.len() > 2 && self.limits.iter().all(Limits::is_coarse_enough);
        self.used_planes = if coarse { 1 } else { 2 };
    }

    /// Sums the groups of the planes, if the copy needs that.
    pub(super) fn sum_groups(&mut self, copy: &HeadCopy) {
        let (stride, groups) = (plane_stride(copy.cols), copy.form.sums(copy.cols));
        if groups > 0 {
            let sums = self.sums.chunks_exact_mut(groups);
            let planes = self.planes.chunks_exact(stride).take(2 * self.tokens.len());
            planes.zip(sums).for_each(|(plane, sums)| copy.form.sum_groups(plane, sums));
        }
    }

    /// Sets each threshold to the `keep`-th highest of the panels' lower bounds: one row in each of `keep` panels
    /// reaches it.
    pub(super) fn set_thresholds(&mut self, panels: usize) {
        for &(place, keep) in &self.keep {
            let best = &mut self.best[place * panels..][..panels];
            let threshold = match keep {
                1 => best.iter().copied().fold(f32::NEG_INFINITY, f32::max),
                _ => *best.select_nth_unstable_by(keep - 1, |a, b| b.total_cmp(a)).1,
            };
            self.listed.push(self.tokens[place]);
            self.thresholds.push(threshold);
        }
    }
}

/// Bytes from one plane of activations to the next.
pub(super) fn plane_stride(cols: usize) -> usize {
    cols.next_multiple_of(64)
}

/// The race behind a lock that nobody else holds.
pub(super) fn open(race: &mut Mutex<Race>) -> &mut Race {
    race.get_mut().unwrap_or_else(PoisonError::into_inner)
}
