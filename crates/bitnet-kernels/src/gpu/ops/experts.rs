//! Launches a mixture of experts: router, choice, tokens grouped by expert, the products of each expert, and their sum. The
//! host knows how many places there are, but not which experts are met.

use crate::{
    ExpertShape, Norm, RowsKind,
    gpu::{
        Arg, Driver, Experts, Gain, Gpu, GpuError, Int8Rows, Linear, Rows,
        layout::{Mixture, Scales, most_tiles},
        table::{CHOOSE, EXPERTS_T8, EXPERTS_T32, EXPERTS_T64, GROUP_TOKENS, MIX, ROUTER},
    },
};

use super::{
    bit_linear::{Sink, arguments},
    tile::Tile,
};

/// The kernels for the products of experts, by number of tokens in a tile.
static TILES: [Tile; 3] = [
    Tile { kernel: &EXPERTS_T8, rows: 64, tokens: 8 },
    Tile { kernel: &EXPERTS_T32, rows: 64, tokens: 32 },
    Tile { kernel: &EXPERTS_T64, rows: 128, tokens: 64 },
];

/// Rows of the router that a thread block takes.
const ROUTER_ROWS: usize = 16;
/// Columns that a thread block of [`MIX`] takes.
const MIX_COLUMNS: usize = 512;

/// Chooses the tile that takes twice the mean number of tokens of an expert: experts are met unevenly, and each tile reads
/// the weights of its expert.
fn tile(places: usize, count: usize) -> &'static Tile {
    Tile::choose(&TILES, 2 * places.div_ceil(count))
}

impl<D: Driver> Gpu<D> {
    /// Adds to every row of `x`, the residual, what its experts compute from it after `norm`.
    pub fn mix_experts(
        &mut self,
        n: usize,
        norm: &Norm<Gain>,
        w: &Experts,
        x: &mut Rows,
    ) -> Result<(), GpuError> {
        assert!(n <= x.rows && x.width == w.shape.hidden, "the rows must have the layer's shape");
        assert_eq!(norm.gain.width, x.width, "the gain must be as wide as the rows");
        assert_eq!(x.kind, RowsKind::Residual, "experts add to the residual");
        if n == 0 {
            return Ok(());
        }
        let mut mixture = self.make_mixture(n, w.shape)?;
        let done = self.pass_experts(n, norm, w, x, &mut mixture);
        self.mixture = Some(mixture);
        done
    }

    fn pass_experts(
        &mut self,
        n: usize,
        norm: &Norm<Gain>,
        w: &Experts,
        x: &mut Rows,
        m: &mut Mixture,
    ) -> Result<(), GpuError> {
        let ExpertShape { count, used, gate, .. } = w.shape;
        let places = n * used;
        let tile = tile(places, count);
        self.choose(n, norm, w, x, m)?;
        self.group_tokens(places, count, tile, m)?;
        self.norm_quantize(n, x, [Some(norm), None], None, &mut m.input)?;
        let lists = [m.tiles.address(), m.order.address()];
        let to = Sink::Gate { out: &mut m.gated, gate };
        self.multiply_experts(tile, [places, count, used], lists, &m.input, &w.gate_up, to)?;
        self.norm_quantize(places, &m.gated, [None, None], None, &mut m.gated_int8)?;
        let to = Sink::Rows { out: &mut m.outputs, column: 0, add: None };
        self.multiply_experts(tile, [places, count, 1], lists, &m.gated_int8, &w.down, to)?;
        self.launch(
            &MIX,
            [n, x.width.div_ceil(MIX_COLUMNS), 1],
            0,
            &[
                Arg::u64(m.chosen.address()),
                Arg::u64(m.outputs.address()),
                Arg::u64(x.address()),
                Arg::u32(x.width as u32),
                Arg::u32(used as u32),
                Arg::u32(m.outputs.stride as u32),
                Arg::u32(x.stride as u32),
            ],
        )
    }

    /// Computes the logits of all experts, and chooses those of each token.
    fn choose(
        &mut self,
        n: usize,
        norm: &Norm<Gain>,
        w: &Experts,
        x: &Rows,
        m: &Mixture,
    ) -> Result<(), GpuError> {
        let ExpertShape { count, used, .. } = w.shape;
        self.launch(
            &ROUTER,
            [n, count.div_ceil(ROUTER_ROWS), 1],
            ROUTER.dynamic as usize * w.router_stride,
            &[
                Arg::u64(x.address()),
                Arg::u64(norm.gain.buffer.address()),
                Arg::u64(w.router.address()),
                Arg::u64(m.logits.address()),
                Arg::u32(x.width as u32),
                Arg::u32(count as u32),
                Arg::u32(x.stride as u32),
                Arg::u32(w.router_stride as u32),
                Arg::u32(m.logits.stride as u32),
                Arg::u32(0),
                Arg::f32(norm.eps),
                Arg::f64(1.0 / x.width as f64),
            ],
        )?;
        self.launch(
            &CHOOSE,
            [n, 1, 1],
            CHOOSE.dynamic as usize * count,
            &[
                Arg::u64(m.logits.address()),
                Arg::u64(m.chosen.address()),
                Arg::u32(count as u32),
                Arg::u32(m.logits.stride as u32),
                Arg::u32(used as u32),
            ],
        )
    }

    fn group_tokens(
        &mut self,
        places: usize,
        count: usize,
        tile: &Tile,
        m: &Mixture,
    ) -> Result<(), GpuError> {
        self.launch(
            &GROUP_TOKENS,
            [1, 1, 1],
            GROUP_TOKENS.dynamic as usize * count,
            &[
                Arg::u64(m.chosen.address()),
                Arg::u64(m.order.address()),
                Arg::u64(m.tiles.address()),
                Arg::u32(places as u32),
                Arg::u32(count as u32),
                Arg::u32(tile.tokens.ilog2()),
                Arg::u32(most_tiles(places, count, tile.tokens) as u32),
            ],
        )
    }

    /// Multiplies the rows of `x`, one for `used` places, by the matrices of the places' experts.
    fn multiply_experts(
        &mut self,
        tile: &Tile,
        [places, count, used]: [usize; 3],
        lists: [u64; 2],
        x: &Int8Rows,
        w: &Linear,
        to: Sink<'_>,
    ) -> Result<(), GpuError> {
        let Scales::Groups(group) = w.scales else { panic!("experts have scales for groups of columns") };
        let common = arguments(x, w, &to.target(), [places, w.k_tiles()], [0; 2], (0, group));
        let mut args = [Arg::u64(0); 31];
        let own =
            [Arg::u64(lists[0]), Arg::u64(lists[1]), Arg::u32(used as u32), Arg::u32(w.row_tiles() as u32)];
        args[..4].copy_from_slice(&own);
        args[4..].copy_from_slice(&common);
        let blocks = [w.rows.div_ceil(tile.rows), most_tiles(places, count, tile.tokens), 1];
        self.launch(tile.kernel, blocks, tile.kernel.dynamic as usize, &args)
    }
}
