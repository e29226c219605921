//! Launches norms, gate, transform and quantisation. A norm of one row waits, because the product that reads it may
//! include it.

use crate::{
    Gate, Grouping, Norm, Norms, RowsKind,
    gpu::{
        Arg, Driver, Gain, Gpu, GpuError, Int8Rows, Rotation, Rows, queue::WaitingNorm, table::NORM_QUANTIZE,
    },
};

/// The input of the kernel, as it numbers them.
#[derive(Clone, Copy)]
enum Mode {
    Residual = 0,
    Intermediate = 1,
    SquaredRelu = 2,
    Silu = 3,
    Gelu = 4,
}

/// Maximum width of a row whose norm a product can include, and of one that it quantises in groups.
const INCLUDED_WIDTH: usize = 7168;
const INCLUDED_GROUPED_WIDTH: usize = 6144;

impl<D: Driver> Gpu<D> {
    /// Each row through `norms` in turn, then `rotation`, then quantised to int8 with the grouping of `out`.
    pub fn norm_quantize(
        &mut self,
        n: usize,
        x: &Rows,
        norms: Norms<'_, Gain>,
        rotation: Option<&Rotation>,
        out: &mut Int8Rows,
    ) -> Result<(), GpuError> {
        assert_eq!(x.width, out.width, "rows must be as wide as their quantised form");
        let mode = match x.kind {
            RowsKind::Residual => Mode::Residual,
            RowsKind::Intermediate => Mode::Intermediate,
        };
        self.quantize(n, x, (mode, f32::INFINITY), norms, rotation, out)
    }

    /// Applies the gate to `gate_up` (`[n][ffn | ffn]`), then does the same as [`Gpu::norm_quantize`].
    pub fn gate_norm_quantize(
        &mut self,
        n: usize,
        gate_up: &Rows,
        gate: Gate,
        norms: Norms<'_, Gain>,
        rotation: Option<&Rotation>,
        out: &mut Int8Rows,
    ) -> Result<(), GpuError> {
        assert_eq!(gate_up.width, 2 * out.width, "there must be a gate for every output");
        assert_eq!(gate_up.kind, RowsKind::Intermediate, "gate and up must be bf16");
        let mode = match gate {
            Gate::SquaredRelu => Mode::SquaredRelu,
            Gate::Silu | Gate::ClampedSilu { .. } => Mode::Silu,
            Gate::Gelu => Mode::Gelu,
        };
        self.quantize(n, gate_up, (mode, gate.limit()), norms, rotation, out)
    }

    /// [`Gpu::norm_quantize`] of the result of [`Gpu::bit_linear_gate`] in `gate_up`.
    pub(in crate::gpu) fn quantize_gated(
        &mut self,
        n: usize,
        gate_up: &Rows,
        norms: Norms<'_, Gain>,
        rotation: Option<&Rotation>,
        out: &mut Int8Rows,
    ) -> Result<(), GpuError> {
        assert_eq!(gate_up.width, 2 * out.width, "there must be a gate for every output");
        self.quantize(n, gate_up, (Mode::Intermediate, f32::INFINITY), norms, rotation, out)
    }

    fn quantize(
        &mut self,
        n: usize,
        x: &Rows,
        (mode, limit): (Mode, f32),
        norms: Norms<'_, Gain>,
        rotation: Option<&Rotation>,
        out: &mut Int8Rows,
    ) -> Result<(), GpuError> {
        assert!(n <= x.rows && n <= out.rows, "the rows must fit their buffers");
        let width = out.width;
        let mut present = norms.into_iter().flatten().inspect(|norm| {
            assert_eq!(norm.gain.width, width, "gains must be as wide as the rows");
        });
        let [first, second] = [present.next(), present.next()];
        assert!(rotation.is_none_or(|r| r.width == width), "the transform must be as wide as the rows");
        let gain = |norm: Option<&Norm<Gain>>| Arg::u64(norm.map_or(0, |norm| norm.gain.buffer.address()));
        let eps = |norm: Option<&Norm<Gain>>| Arg::f32(norm.map_or(0.0, |norm| norm.eps));
        let grouped = rotation.and_then(|rotation| rotation.grouped);
        let (key_heads, per_key) = grouped.unwrap_or((1, 0));
        let head_dim = width / (key_heads * per_key.max(1));
        // Gains, and later columns that change places, need rows of their own.
        let gains = usize::from(first.is_some()) + usize::from(second.is_some());
        let columns = width.next_multiple_of(1024) * (1 + gains.max(usize::from(grouped.is_some())));
        let shared = NORM_QUANTIZE.dynamic as usize * columns;
        let (row, reciprocal) = (Arg::u64(x.address()), Arg::f64(1.0 / width as f64));
        let alone = [
            row,
            gain(first),
            gain(second),
            Arg::u64(out.values.address()),
            Arg::u64(out.scales.address()),
            Arg::u64(rotation.map_or(0, |rotation| rotation.signs.address())),
            Arg::u32(out.atoms as u32),
            Arg::u32(width as u32),
            Arg::u32(x.stride as u32),
            Arg::u32(mode as u32),
            Arg::u32(u32::from(out.grouping == Grouping::Groups)),
            Arg::u32(rotation.map_or(1, |rotation| rotation.block) as u32),
            Arg::u32(key_heads as u32),
            Arg::u32(per_key as u32),
            Arg::u32(head_dim as u32),
            Arg::f32(rotation.map_or(1.0, |rotation| rotation.scale)),
            Arg::f32(limit),
            eps(first),
            eps(second),
            reciprocal,
        ];
        let one = n == 1 && rotation.is_none();
        let whole = out.grouping == Grouping::Row && gains == 1 && width <= INCLUDED_WIDTH;
        // In groups, a product can include the norm of a residual, or no norm of anything else.
        let fours = out.grouping == Grouping::Groups && width.is_multiple_of(4);
        let wide = match mode {
            Mode::Residual if one && (whole || fours && gains == 1 && width <= INCLUDED_GROUPED_WIDTH) => 1,
            Mode::Intermediate if one && (whole || fours && gains == 0) => 0,
            _ => return self.launch(&NORM_QUANTIZE, [n, 1, 1], shared, &alone),
        };
        self.launch_norm()?;
        let args = [row, gain(first), Arg::u32(width as u32), Arg::u32(wide), eps(first), reciprocal];
        self.norm = Some(WaitingNorm { row: x.address(), out: out.values.address(), args, shared, alone });
        Ok(())
    }
}
