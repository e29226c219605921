use super::{Delta, Driver, Gain, Gpu, Kv, Linear, Quants, Rope, Rotation, Rows, State, Table};
use crate::{
    Backend, BackendInfo, DeltaShape, DeltaWeights, DeviceStatus, Drawn, Gate, Grouping, HeadNorms, Inspect,
    KernelError, KvShape, KvType, Norm, Norms, Rotate, RowOrder, RowsKind, SamplingParams, Step, StepSize,
    TableWeights, Wanted, Weights,
};

/// Calls the methods of [`Gpu`] of the same names.
impl<D: Driver> Backend for Gpu<D> {
    type Rows = Rows;
    type Quants = Quants;
    type Linear = Linear;
    type Table = Table;
    type Gain = Gain;
    type Rope = Rope;
    type Kv = Kv;
    type Delta = Delta;
    type State = State;
    type Rotation = Rotation;

    fn info(&self) -> BackendInfo {
        let info = self.driver.info();
        let (device, threads) = (info.name.clone(), info.processors as usize);
        BackendInfo { device, isa: info.texts(), threads, kv: KvType::Bf16.name() }
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

    fn delta(&mut self, shape: DeltaShape, weights: &DeltaWeights<'_>) -> Result<Delta, KernelError> {
        Ok(self.delta(shape, weights)?)
    }

    fn state(&mut self, shape: DeltaShape, slots: usize) -> Result<State, KernelError> {
        Ok(self.state(shape, slots)?)
    }

    fn rotation(&mut self, width: usize, rotate: &Rotate<'_>) -> Result<Rotation, KernelError> {
        Ok(self.rotation(width, rotate)?)
    }

    fn rotate_table(&mut self, table: &mut Table, rotation: Rotation) {
        let Table::Ternary(_, contained) = table else { panic!("only a ternary table can be rotated") };
        *contained = Some(rotation);
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
        rotation: Option<&Rotation>,
        out: &mut Quants,
    ) -> Result<(), KernelError> {
        Ok(self.norm_quantize(n, x, norms, rotation, out)?)
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
        Ok(self.rope_store(step, heads, rope, norms, qkv, kv)?)
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
        rotation: Option<&Rotation>,
        out: &mut Quants,
    ) -> Result<(), KernelError> {
        Ok(self.gate_quantize(n, gate_up, gate, norms, rotation, out)?)
    }

    /// The multiplication applies the gate itself; `gate_up` then holds only the gated values.
    fn bit_linear_gate_quantize(
        &mut self,
        n: usize,
        x: &Quants,
        w: &Linear,
        gate: Gate,
        norms: Norms<'_, Gain>,
        rotation: Option<&Rotation>,
        gate_up: &mut Rows,
        out: &mut Quants,
    ) -> Result<(), KernelError> {
        self.bit_linear_gate(n, x, w, gate, gate_up)?;
        Ok(self.quantize_gated(n, gate_up, norms, rotation, out)?)
    }

    /// Queries and keys without norms are rotated by the kernel that computes the sums.
    fn bit_linear_rope_store(
        &mut self,
        step: Step<'_>,
        x: &Quants,
        w: &Linear,
        _: usize,
        rope: &Rope,
        norms: HeadNorms<'_, Gain>,
        qkv: &mut Rows,
        kv: &mut Kv,
    ) -> Result<(), KernelError> {
        Ok(self.bit_linear_rope_store(step, x, w, rope, norms, qkv, kv)?)
    }

    fn gated_delta(
        &mut self,
        step: Step<'_>,
        x: &Rows,
        w: &Delta,
        state: &mut State,
        out: &mut Rows,
    ) -> Result<(), KernelError> {
        Ok(self.gated_delta(step, x, w, state, out)?)
    }

    fn copy_state(&mut self, state: &mut State, from: u32, to: u32) -> Result<(), KernelError> {
        Ok(self.copy_state(state, from, to)?)
    }

    fn sigmoid_gate(&mut self, n: usize, x: &Rows, column: usize, out: &mut Rows) -> Result<(), KernelError> {
        Ok(self.sigmoid_gate(n, x, column, out)?)
    }

    fn dense(
        &mut self,
        n: usize,
        x: &Rows,
        norm: &Norm<Gain>,
        w: &Table,
        out: &mut Rows,
        column: usize,
    ) -> Result<(), KernelError> {
        Ok(self.dense(n, x, norm, w, out, column)?)
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

    fn read(&mut self, x: &Rows, n: usize) -> Result<Vec<f32>, KernelError> {
        Ok(self.read_rows(x, n)?)
    }

    fn copy_block(&mut self, kv: &mut Kv, from: u32, to: u32) -> Result<(), KernelError> {
        Ok(self.copy_block(kv, from, to)?)
    }
}

impl<D: Driver> Inspect for Gpu<D> {
    fn write(&mut self, x: &mut Rows, values: &[f32]) -> Result<(), KernelError> {
        Ok(self.write_rows(x, values)?)
    }

    fn read_quants(&mut self, x: &Quants, n: usize) -> Result<(Vec<i8>, Vec<f32>, Vec<i32>), KernelError> {
        Ok(self.read_quants(x, n)?)
    }

    fn draw(&mut self, logits: &Rows, params: &[SamplingParams]) -> Result<bool, KernelError> {
        self.draw_rows(params, logits)?;
        Ok(true)
    }

    fn kernels(&self) -> Vec<&'static str> {
        self.queue.last()
    }
}
