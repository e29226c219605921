//! A mixture of experts in device memory: a router, and two matrices for each expert ([`Experts`]); and what its kernels
//! pass to each other in a step ([`Mixture`]).

use bitnet_tensor::{BitNetTensor, TernaryTensor};

use super::{
    int8_bytes, rows_bytes,
    ternary::{ROW_PADDING, Scales, linear_bytes, row_at},
};
use crate::gpu::{DeviceBuffer, Driver, Gpu, GpuError, Int8Rows, Linear, Rows, layout::f32_bytes};
use crate::{ExpertShape, Grouping, KernelError, RowOrder, RowsKind};

/// Columns of the router are padded to a multiple of this.
const ROUTER_COLUMNS: usize = 64;

/// Places that the smallest tile of a kernel takes.
const SMALLEST_TILE: usize = 8;

/// The weights of a mixture of experts.
#[derive(Debug)]
pub struct Experts {
    pub(in crate::gpu) shape: ExpertShape,
    /// f32 `[count][stride]`, and zeros after the last column.
    pub(in crate::gpu) router: DeviceBuffer,
    pub(in crate::gpu) router_stride: usize,
    /// Gate and up of the first expert; those of the others follow, each padded like a matrix.
    pub(in crate::gpu) gate_up: Linear,
    /// The same of the projection back.
    pub(in crate::gpu) down: Linear,
}

/// What the kernels of a mixture pass to each other. A place is a token at one of its experts.
#[derive(Debug)]
pub(in crate::gpu) struct Mixture {
    tokens: usize,
    pub(in crate::gpu) shape: ExpertShape,
    /// The normed rows, `[tokens][hidden]`.
    pub(in crate::gpu) input: Int8Rows,
    /// f32 `[tokens][count]`
    pub(in crate::gpu) logits: Rows,
    /// `{u32 expert, f32 weight}` of each place, `[tokens][used]`, in ascending order of expert.
    pub(in crate::gpu) chosen: DeviceBuffer,
    /// u32 `[tokens * used]`: places, those of an expert together.
    pub(in crate::gpu) order: DeviceBuffer,
    /// `{u32 expert, u32 first in order, u32 places, 0}` of each tile.
    pub(in crate::gpu) tiles: DeviceBuffer,
    /// Gated values of each place, bf16 and quantised.
    pub(in crate::gpu) gated: Rows,
    pub(in crate::gpu) gated_int8: Int8Rows,
    /// f32 `[tokens * used][hidden]`
    pub(in crate::gpu) outputs: Rows,
}

/// Bytes of [`Experts`]: router, gate and up, down.
pub(in crate::gpu) fn expert_bytes(shape: &ExpertShape, group: usize) -> [usize; 3] {
    let &ExpertShape { count, hidden, ffn, .. } = shape;
    let router = size_of::<f32>() * count * hidden.next_multiple_of(ROUTER_COLUMNS);
    let each = |rows, cols| count * linear_bytes(rows, cols, Some(group))[0];
    [router, each(2 * ffn, hidden), each(hidden, ffn)]
}

/// Bytes of a [`Mixture`] for steps of `tokens` tokens.
pub(in crate::gpu) fn mixture_bytes(tokens: usize, shape: &ExpertShape) -> [usize; 10] {
    let &ExpertShape { count, used, hidden, ffn, .. } = shape;
    let places = tokens * used;
    let [input, input_scales] = int8_bytes(tokens, hidden, Grouping::Groups);
    let [gated, gated_scales] = int8_bytes(places, ffn, Grouping::Groups);
    [
        input,
        input_scales,
        rows_bytes(tokens, count, RowsKind::Residual),
        8 * places,
        4 * places,
        16 * most_tiles(places, count, SMALLEST_TILE),
        rows_bytes(places, ffn, RowsKind::Intermediate),
        gated,
        gated_scales,
        rows_bytes(places, hidden, RowsKind::Residual),
    ]
}

/// Maximum number of tiles of up to `tile` places, for `places` places at up to `count` experts.
pub(in crate::gpu) fn most_tiles(places: usize, count: usize, tile: usize) -> usize {
    let met = places.min(count);
    met + (places - met) / tile
}

impl<D: Driver> Gpu<D> {
    /// Takes the router and the matrices of all experts: gate and up `[count * ffn][hidden]`, down `[count * hidden][ffn]`.
    pub(in crate::gpu) fn pack_experts(
        &mut self,
        shape: ExpertShape,
        router: &BitNetTensor,
        [gate, up, down]: [&TernaryTensor; 3],
    ) -> Result<Experts, KernelError> {
        let ExpertShape { count, used, hidden, ffn, .. } = shape;
        assert!((1..=count).contains(&used), "a token must pass some of the experts");
        assert_eq!([router.rows(), router.cols()], [count, hidden], "the router must have the shape");
        for (weights, shape) in [(gate, [ffn, hidden]), (up, [ffn, hidden]), (down, [hidden, ffn])] {
            let [rows, cols] = shape;
            assert_eq!([weights.rows(), weights.cols()], [count * rows, cols], "experts must have the shape");
        }
        let router_stride = hidden.next_multiple_of(ROUTER_COLUMNS);
        let mut rows = vec![0.0; count * router_stride];
        for (expert, row) in rows.chunks_exact_mut(router_stride).enumerate() {
            router.decode_row(expert, &mut row[..hidden]);
        }
        let router = self.store(&f32_bytes(&rows), "routers of experts")?;
        // Both halves of a matrix have groups of one width.
        let (both, apart) = (gate.group() != up.group(), count * ffn);
        let stacked = if both { Some(TernaryTensor::stack(&[gate.clone(), up.clone()])?) } else { None };
        let pair = |row: usize, expert: usize| match (&stacked, row < ffn) {
            (Some(stacked), true) => (stacked, expert * ffn + row),
            (Some(stacked), false) => (stacked, apart + expert * ffn + row - ffn),
            (None, true) => (gate, expert * ffn + row),
            (None, false) => (up, expert * ffn + row - ffn),
        };
        let group = stacked.as_ref().unwrap_or(gate).group();
        let gate_up = self.pack_each(count, [2 * ffn, hidden], RowOrder::GateUp, group, &pair)?;
        let row = |row: usize, expert: usize| (down, expert * hidden + row);
        let down = self.pack_each(count, [hidden, ffn], RowOrder::Plain, down.group(), &row)?;
        self.mixes = Some(shape);
        Ok(Experts { shape, router, router_stride, gate_up, down })
    }

    /// Packs a matrix of each expert, one after the other. `row` finds a row of an expert.
    fn pack_each<'a>(
        &mut self,
        count: usize,
        [rows, cols]: [usize; 2],
        order: RowOrder,
        group: Option<usize>,
        row: &(dyn Fn(usize, usize) -> (&'a TernaryTensor, usize) + Sync),
    ) -> Result<Linear, GpuError> {
        let padded = rows.next_multiple_of(ROW_PADDING);
        let find = |place: usize| Some(row(row_at(order, rows, place % padded)?, place / padded));
        let codes = self.pack([count * padded, cols], group, &find)?;
        let scales = Scales::Groups(group.expect("experts have scales for groups of columns"));
        Ok(Linear { rows, cols, order, codes, scales })
    }

    /// Makes room for what the kernels of a mixture pass to each other in a step of `tokens` tokens.
    pub(in crate::gpu) fn make_mixture(
        &mut self,
        tokens: usize,
        shape: ExpertShape,
    ) -> Result<Mixture, GpuError> {
        let known = self.mixture.take().filter(|known| known.shape == shape && known.tokens >= tokens);
        if let Some(mixture) = known {
            return Ok(mixture);
        }
        let ExpertShape { count, used, hidden, ffn, .. } = shape;
        let places = tokens * used;
        let what = "activations of experts";
        let [_, _, _, chosen, order, tiles, ..] = mixture_bytes(tokens, &shape);
        Ok(Mixture {
            tokens,
            shape,
            input: self.int8_rows(tokens, hidden, Grouping::Groups)?,
            logits: self.rows(tokens, count, RowsKind::Residual)?,
            chosen: self.alloc(chosen, what)?,
            order: self.alloc(order, what)?,
            tiles: self.alloc(tiles, what)?,
            gated: self.rows(places, ffn, RowsKind::Intermediate)?,
            gated_int8: self.int8_rows(places, ffn, Grouping::Groups)?,
            outputs: self.rows(places, hidden, RowsKind::Residual)?,
        })
    }
}
