//! Cuts the runs of a step into work items for the thread blocks of attention.

use crate::{BLOCK_TOKENS, Run, Step};

/// Rows of a thread block for few rows.
pub(super) const FEW: usize = 16;
/// Tiles by which the launch for a growing sequence grows, so that the next steps launch the same.
const TILE_STEP: usize = 8;
/// The window of a layer without one; more keys than any sequence has.
const ALL: usize = 1 << 30;

/// WorkItems of runs. For every thread block: {first token, tokens, position of the first token, start of the block table,
/// first row, first tile, window, 0}.
#[derive(Debug, Default)]
pub(super) struct WorkList {
    pub(super) items: Vec<[u32; 8]>,
    /// Keys that the runs see.
    pub(super) keys: usize,
    /// Maximum number of tiles of 64 keys that a work item attends to.
    pub(super) longest: usize,
    /// The same in steps.
    pub(super) tiles: usize,
}

impl WorkList {
    fn add(&mut self, step: Step<'_>, run: &Run, group: usize, rows: usize) {
        let tokens = run.tokens.len();
        let window = step.window.map_or(ALL, |window| window.min(ALL));
        // The last rows have the most keys, so they start first.
        for first_row in (0..tokens * group).step_by(rows).rev() {
            let last = run.start + ((first_row + rows - 1) / group).min(tokens - 1);
            let tile = step.first_key(run.start + first_row / group) / BLOCK_TOKENS;
            let item = [run.tokens.start, tokens, run.start, run.blocks.start, first_row, tile, window, 0];
            self.items.push(item.map(|x| x as u32));
            self.longest = self.longest.max(last / BLOCK_TOKENS + 1 - tile);
        }
        self.keys += run.start + tokens - step.first_key(run.start);
    }

    /// Rounds the number of tiles up; tiles without keys for a row change nothing. A token's window begins anywhere in a
    /// tile, so it has one tile more in most steps than in some; all of them count as having it, so that the plans of steps
    /// are equal.
    fn round_tiles(&mut self, window: Option<usize>) {
        let most = window.map_or(usize::MAX, |window| (window - 1).div_ceil(BLOCK_TOKENS) + 1);
        if self.longest == most || self.longest + 1 == most {
            self.longest = most;
            self.tiles = most;
        } else if self.longest < TILE_STEP {
            self.tiles = self.longest.next_power_of_two();
        } else {
            self.tiles = self.longest.next_multiple_of(TILE_STEP);
        }
    }

    /// The words that the kernels read.
    pub(super) fn words(&self) -> impl Iterator<Item = u32> {
        self.items.as_flattened().iter().copied()
    }
}

/// The work items of all runs of a step.
#[derive(Debug)]
pub(super) struct WorkItems {
    group: usize,
    rows: usize,
    /// Those of few rows, for thread blocks of [`FEW`].
    pub(super) few: WorkList,
    /// The others.
    pub(super) many: WorkList,
}

impl WorkItems {
    /// Cuts the runs of a step into work items for `group` query heads per key head and thread blocks of [`FEW`] or of
    /// `rows` rows.
    pub(super) fn of(step: Step<'_>, group: usize, rows: usize) -> Self {
        let (mut few, mut many) = (WorkList::default(), WorkList::default());
        for run in step.runs.iter().filter(|run| !run.tokens.is_empty()) {
            if run.tokens.len() == 1 || run.tokens.len() * group <= FEW {
                few.add(step, run, group, FEW);
            } else {
                many.add(step, run, group, rows);
            }
        }
        few.round_tiles(step.window);
        WorkItems { group, rows, few, many }
    }

    /// Whether they are for this number of query heads per key head and this size of thread blocks.
    pub(super) fn fit(&self, group: usize, rows: usize) -> bool {
        (self.group, self.rows) == (group, rows)
    }
}
