use std::convert::Infallible;

use super::{Driver, Gain, Gpu, GpuError, Kv, Linear, Quants, Rope, Rows, Table};
use crate::{
    Backend, BackendInfo, DeltaShape, DeltaWeights, DeviceStatus, Drawn, Gate, Grouping, HeadNorms, Inspect,
    KernelError, KvShape, KvType, Norm, Norms, Rotate, RowOrder, RowsKind, Step, StepSize, TableWeights,
    Wanted, Weights,
};

/// Refuses what has no kernel.
fn no_kernel<T>(what: &'static str) -> Result<T, KernelError> {
    Err(GpuError::NoKernel { what }.into())
}

/// Refuses query rows that only a CPU takes: with further columns, or with heads that are rotated in part.
fn check_heads(heads: usize, rope: &Rope, qkv: &Rows, kv: &Kv) -> Result<(), KernelError> {
    if rope.head_dim != kv.shape.head_dim {
        return no_kernel("a rotary embedding of a part of each head");
    }
    if qkv.width != (heads + 2 * kv.shape.kv_heads) * kv.shape.head_dim {
        return no_kernel("rows that hold more than queries, keys and values");
    }
    Ok(())
}

/// Calls the methods of [`Gpu`] of the same names. What recurrent layers need has no kernels yet and is refused when it is
/// loaded: its types have no values.
impl<D: Driver> Backend for Gpu<D> {
    type Rows = Rows;
    type Quants = Quants;
    type Linear = Linear;
    type Table = Table;
    type Gain = Gain;
    type Rope = Rope;
    type Kv = Kv;
    type Delta = Infallible;
    type State = Infallible;
    type Rotation = Infallible;

    fn info(&self) -> BackendInfo {
        let info = self.driver.info();
        let (device, threads) = (info.name.clone(), info.processors as usize);
        BackendInfo { device, isa: "sm80", threads, kv: KvType::Bf16.name() }
    }

    fn rows(&mut self, rows: usize, width: usize, kind: RowsKind) -> Result<Rows, KernelError> {
        Ok(self.rows(rows, width, kind)?)
    }

    fn quants(&mut self, rows: usize, width: usize, grouping: Grouping) -> Result<Quants, KernelError> {
        Ok(self.quants(rows, width, grouping)?)
    }

    fn linear<'a>(
        &mut self,
        weights: impl Into<Weights<'a>>,
        order: RowOrder,
    ) -> Result<Linear, KernelError> {
        Ok(match weights.into() {
            Weights::Rows(weights) => self.linear(weights, order)?,
            Weights::Groups(weights) => self.grouped(weights, order)?,
            Weights::RowPanels(panels) => self.linear(&panels.unpack(0..panels.rows())?, order)?,
            Weights::GroupPanels(panels) => self.grouped(&panels.unpack(0..panels.rows())?, order)?,
        })
    }

    fn table<'a>(&mut self, weights: impl Into<TableWeights<'a>>) -> Result<Table, KernelError> {
        Ok(match weights.into() {
            TableWeights::Dense(weights) => self.table(weights)?,
            TableWeights::Groups(weights) => self.ternary_table(weights)?,
            TableWeights::GroupPanels(panels) => self.ternary_table(&panels.unpack(0..panels.rows())?)?,
        })
    }

    fn gain(&mut self, gain: &[f32]) -> Result<Gain, KernelError> {
        Ok(self.gain(gain)?)
    }

    fn rope(&mut self, cos: &[f32], sin: &[f32], width: usize) -> Result<Rope, KernelError> {
        Ok(self.rope(cos, sin, width)?)
    }

    fn kv(&mut self, shape: KvShape) -> Result<Kv, KernelError> {
        Ok(self.kv(shape)?)
    }

    fn delta(&mut self, _: DeltaShape, _: &DeltaWeights<'_>) -> Result<Infallible, KernelError> {
        no_kernel("gated-delta layers")
    }

    fn state(&mut self, _: DeltaShape, _: usize) -> Result<Infallible, KernelError> {
        no_kernel("gated-delta layers")
    }

    fn rotation(&mut self, _: usize, _: &Rotate<'_>) -> Result<Infallible, KernelError> {
        no_kernel("Walsh-Hadamard transforms")
    }

    fn rotate_table(&mut self, _: &mut Table, rotation: Infallible) {
        match rotation {}
    }

    fn embed(
        &mut self,
        table: &Table,
        tokens: &[u32],
        factor: f32,
        out: &mut Rows,
    ) -> Result<(), KernelError> {
        Ok(self.embed(table, tokens, factor, out)?)
    }

    fn norm_quantize(
        &mut self,
        n: usize,
        x: &Rows,
        norms: Norms<'_, Gain>,
        _: Option<&Infallible>,
        out: &mut Quants,
    ) -> Result<(), KernelError> {
        Ok(self.norm_quantize(n, x, norms, out)?)
    }

    fn bit_linear(
        &mut self,
        n: usize,
        x: &Quants,
        w: &Linear,
        out: &mut Rows,
        column: usize,
        add: Option<f32>,
    ) -> Result<(), KernelError> {
        Ok(self.bit_linear(n, x, w, out, column, add)?)
    }

    fn rope_store(
        &mut self,
        step: Step<'_>,
        heads: usize,
        rope: &Rope,
        norms: HeadNorms<'_, Gain>,
        qkv: &mut Rows,
        kv: &mut Kv,
    ) -> Result<(), KernelError> {
        check_heads(heads, rope, qkv, kv)?;
        Ok(self.rope_store(step, rope, norms, qkv, kv)?)
    }

    fn attention(&mut self, step: Step<'_>, qkv: &Rows, kv: &Kv, out: &mut Rows) -> Result<(), KernelError> {
        Ok(self.attention(step, qkv, kv, out)?)
    }

    fn gate_quantize(
        &mut self,
        n: usize,
        gate_up: &Rows,
        gate: Gate,
        norms: Norms<'_, Gain>,
        _: Option<&Infallible>,
        out: &mut Quants,
    ) -> Result<(), KernelError> {
        Ok(self.gate_quantize(n, gate_up, gate, norms, out)?)
    }

    /// The multiplication applies the gate itself; `gate_up` then holds only the gated values.
    fn bit_linear_gate_quantize(
        &mut self,
        n: usize,
        x: &Quants,
        w: &Linear,
        gate: Gate,
        norms: Norms<'_, Gain>,
        _: Option<&Infallible>,
        gate_up: &mut Rows,
        out: &mut Quants,
    ) -> Result<(), KernelError> {
        self.bit_linear_gate(n, x, w, gate, gate_up)?;
        Ok(self.quantize_gated(n, gate_up, norms, out)?)
    }

    /// Queries and keys without norms are rotated by the kernel that computes the sums.
    fn bit_linear_rope_store(
        &mut self,
        step: Step<'_>,
        x: &Quants,
        w: &Linear,
        heads: usize,
        rope: &Rope,
        norms: HeadNorms<'_, Gain>,
        qkv: &mut Rows,
        kv: &mut Kv,
    ) -> Result<(), KernelError> {
        check_heads(heads, rope, qkv, kv)?;
        Ok(self.bit_linear_rope_store(step, x, w, rope, norms, qkv, kv)?)
    }

    fn gated_delta(
        &mut self,
        _: Step<'_>,
        _: &Rows,
        w: &Infallible,
        _: &mut Infallible,
        _: &mut Rows,
    ) -> Result<(), KernelError> {
        match *w {}
    }

    fn copy_state(&mut self, state: &mut Infallible, _: u32, _: u32) -> Result<(), KernelError> {
        match *state {}
    }

    fn sigmoid_gate(&mut self, _: usize, _: &Rows, _: usize, _: &mut Rows) -> Result<(), KernelError> {
        no_kernel("gates of attention")
    }

    fn dense(
        &mut self,
        _: usize,
        _: &Rows,
        _: &Norm<Gain>,
        _: &Table,
        _: &mut Rows,
        _: usize,
    ) -> Result<(), KernelError> {
        no_kernel("dense projections")
    }

    fn norm_rows(
        &mut self,
        rows: &[usize],
        x: &Rows,
        norm: &Norm<Gain>,
        out: &mut Rows,
    ) -> Result<(), KernelError> {
        Ok(self.norm_rows(rows, x, norm, out)?)
    }

    fn logits(
        &mut self,
        x: &Rows,
        table: &Table,
        wanted: &[Wanted],
        logits: &mut [f32],
        drawn: &mut [Option<Drawn>],
    ) -> Result<(), KernelError> {
        Ok(self.logits(x, table, wanted, logits, drawn)?)
    }

    fn prepare(&mut self, size: &StepSize) -> Result<(), KernelError> {
        Ok(self.prepare(size)?)
    }

    fn finish(&mut self) -> Result<(), KernelError> {
        Ok(self.finish()?)
    }

    fn device(&self) -> Option<DeviceStatus> {
        let (total, counts) = (self.driver.info().memory, self.counts);
        let used = total.saturating_sub(self.free);
        Some(DeviceStatus {
            memory_used: used as u64,
            memory_total: total as u64,
            counts,
            lost: self.lost.is_some(),
        })
    }

    fn copy_block(&mut self, kv: &mut Kv, from: u32, to: u32) -> Result<(), KernelError> {
        Ok(self.copy_block(kv, from, to)?)
    }
}

impl<D: Driver> Inspect for Gpu<D> {
    fn read(&mut self, x: &Rows, n: usize) -> Result<Vec<f32>, KernelError> {
        Ok(self.read_rows(x, n)?)
    }

    fn write(&mut self, x: &mut Rows, values: &[f32]) -> Result<(), KernelError> {
        Ok(self.write_rows(x, values)?)
    }

    fn read_quants(&mut self, x: &Quants, n: usize) -> Result<(Vec<i8>, Vec<f32>, Vec<i32>), KernelError> {
        Ok(self.read_quants(x, n)?)
    }
}
