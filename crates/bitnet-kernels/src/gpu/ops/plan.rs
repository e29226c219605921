//! Which tile of a product takes the least time: large ones load least, and small ones give every multiprocessor work.

use crate::{Grouping, gpu::DeviceInfo};

use super::tile::{Kind, Shape, Tile};

/// Thread blocks that a multiprocessor takes at once, when K is split.
const BLOCKS_PER_PROCESSOR: usize = 2;
/// Minimum number of stages of 128 features in a split; fewer would be done before the copies are in flight.
const SPLIT_STAGES: usize = 4;

/// Factor by which an estimate may be wrong: plans that are estimated to take longer are not measured.
const TRUSTED: usize = 3;

/// Thread blocks that the memory for split sums has room for.
pub(super) fn split_blocks(processors: u32) -> usize {
    BLOCKS_PER_PROCESSOR * processors as usize
}

/// A tile, and the cycles that it takes on compute capability 9.0, fitted to measurements or estimated from machine code.
pub(super) struct TimedTile {
    pub(super) tile: Tile,
    /// Blocks that a multiprocessor holds if it has shared memory for them.
    pub(super) resident: usize,
    /// Teams of a block's warps that share the stages.
    pub(super) teams: usize,
    /// Cycles of a block before its first stage and after its last.
    pub(super) fixed: usize,
    /// Cycles in which each team multiplies a stage of 128 features, for a block alone on its multiprocessor.
    pub(super) stage: usize,
    /// Cycles of a stage for which a block occupies the multiprocessor's busiest unit.
    pub(super) busy: usize,
    /// Cycles of a block whose sums others add, and more for each of these blocks.
    pub(super) split: [usize; 2],
    /// Bytes of a stage for each row and for each token.
    pub(super) bytes: [usize; 2],
    /// Bytes that the second-level cache gives a multiprocessor in a cycle.
    pub(super) cache: usize,
}

/// How a product is launched: its tile, and the number of blocks that share the features of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) tile: &'static Tile,
    pub(super) splits: usize,
}

impl TimedTile {
    /// The maximum number of blocks that can share the features of a tile.
    fn most_splits(&self, shape: Shape, gpu: &DeviceInfo) -> usize {
        let blocks: usize = self.tile.blocks(shape).iter().product();
        match shape.kind {
            Kind::Trits(Grouping::Row) => {
                (split_blocks(gpu.processors) / blocks).min(shape.k_tiles / SPLIT_STAGES).max(1)
            }
            Kind::Trits(Grouping::Groups) | Kind::Int8 => 1,
        }
    }

    /// Estimated cycles of a launch: until its longest chain of blocks, the busiest unit and the cache are done.
    fn cycles(&self, shape: Shape, splits: usize, gpu: &DeviceInfo) -> usize {
        let processors = gpu.processors as usize;
        let resident = gpu.resident(self.tile.kernel.shared + self.tile.kernel.dynamic, self.resident);
        let blocks = self.tile.blocks(shape).iter().product::<usize>() * splits;
        let stages = shape.k_tiles.div_ceil(splits);
        let on_each = blocks.div_ceil(processors);
        let addition = if splits == 1 { 0 } else { self.split[0] + splits * self.split[1] };
        let turns = stages.div_ceil(self.teams);
        let chain = (self.fixed + turns * self.stage + addition) * on_each.div_ceil(resident);
        let units = on_each * stages * self.busy;
        let loaded = self.bytes[0] * self.tile.rows + self.bytes[1] * self.tile.tokens;
        let moved = blocks * stages * loaded + 8 * shape.rows * shape.tokens;
        let cache = moved / (self.cache * processors);
        chain.max(units).max(cache)
    }
}

impl Plan {
    /// All plans for a product and their estimated cycles, smaller tiles and fewer splits first.
    fn all(
        tiles: &'static [TimedTile],
        shape: Shape,
        gpu: &DeviceInfo,
    ) -> impl Iterator<Item = (Self, usize)> {
        tiles.iter().flat_map(move |timed| {
            let splits = 1..=timed.most_splits(shape, gpu);
            splits.map(move |splits| (Plan { tile: &timed.tile, splits }, timed.cycles(shape, splits, gpu)))
        })
    }

    /// All plans that a measurement should compare: those whose estimate is not far above the least.
    pub(super) fn likely(tiles: &'static [TimedTile], shape: Shape, gpu: &DeviceInfo) -> Vec<Self> {
        let least = Plan::all(tiles, shape, gpu).map(|(_, cycles)| cycles).min().unwrap_or(0);
        let all = Plan::all(tiles, shape, gpu);
        all.filter(|&(_, cycles)| cycles <= TRUSTED * least).map(|(plan, _)| plan).collect()
    }

    /// The plan with the tile for `tokens` tokens and this number of splits, if a product can be launched with it.
    pub(super) fn of(
        tiles: &'static [TimedTile],
        shape: Shape,
        gpu: &DeviceInfo,
        [tokens, splits]: [usize; 2],
    ) -> Option<Self> {
        let timed = tiles.iter().find(|timed| timed.tile.tokens == tokens)?;
        let fits = (1..=timed.most_splits(shape, gpu)).contains(&splits);
        fits.then_some(Plan { tile: &timed.tile, splits })
    }

    /// Returns the plan with the fewest estimated cycles; among equals, the one with the smallest tile and fewest splits.
    pub(super) fn by_time(tiles: &'static [TimedTile], shape: Shape, gpu: &DeviceInfo) -> Self {
        let plans = Plan::all(tiles, shape, gpu);
        plans.min_by_key(|&(_, cycles)| cycles).expect("there are tiles").0
    }

    /// Returns the smallest tile that takes all tokens at once, or else the largest, split as often as possible.
    pub(super) fn by_size(tiles: &'static [TimedTile], shape: Shape, gpu: &DeviceInfo) -> Self {
        let timed =
            tiles.iter().find(|timed| shape.tokens <= timed.tile.tokens).unwrap_or(&tiles[tiles.len() - 1]);
        Plan { tile: &timed.tile, splits: timed.most_splits(shape, gpu) }
    }
}

/// The rule by which products are planned, measured plans, and the plans of recent products.
#[derive(Debug)]
pub(crate) struct Plans {
    pub(super) by_size: bool,
    measured: Vec<(Shape, Plan)>,
    recent: Vec<(Shape, Plan)>,
}

impl Plans {
    /// More than a step of any model has.
    const MOST: usize = 32;

    pub(crate) fn new(by_size: bool) -> Self {
        Plans { by_size, measured: Vec::new(), recent: Vec::new() }
    }

    /// Takes measured plans in place of those before.
    pub(super) fn measure(&mut self, measured: Vec<(Shape, Plan)>) {
        *self = Plans { measured, ..Plans::new(self.by_size) };
    }

    /// The plan measured with as many tokens, or with the next larger number if that is at most twice as large.
    pub(super) fn measured(&self, shape: Shape) -> Option<Plan> {
        let near = |known: &Shape| (shape.tokens..=2 * shape.tokens).contains(&known.tokens);
        let fits = |known: &Shape| near(known) && Shape { tokens: shape.tokens, ..*known } == shape;
        let measured = self.measured.iter().filter(|(known, _)| fits(known));
        measured.min_by_key(|(known, _)| known.tokens).map(|&(_, plan)| plan)
    }

    pub(super) fn get(&self, shape: Shape) -> Option<Plan> {
        self.recent.iter().find(|known| known.0 == shape).map(|known| known.1)
    }

    /// Adds the plan of a new shape, and forgets all others if there are too many.
    pub(super) fn keep(&mut self, shape: Shape, plan: Plan) {
        if self.recent.len() == Self::MOST {
            self.recent.clear();
        }
        self.recent.push((shape, plan));
    }
}
