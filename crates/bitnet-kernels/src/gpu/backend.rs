use bitnet_tensor::{BitNetTensor, GroupedTensor, TernaryTensor};

use super::{Driver, Gain, Gpu, Kv, Linear, Quants, Rope, Rows, Table};
use crate::{
    Ask, Backend, BackendInfo, DeviceStatus, Drawn, Gate, Grouping, HeadNorms, KernelError, KvShape, KvType,
    Norm, Norms, RowOrder, RowsKind, Run, StepSize,
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

    fn linear(&mut self, weights: &TernaryTensor, order: RowOrder) -> Result<Linear, KernelError> {
        Ok(self.linear(weights, order)?)
    }

    fn grouped(&mut self, weights: &GroupedTensor, order: RowOrder) -> Result<Linear, KernelError> {
        Ok(self.grouped(weights, order)?)
    }

    fn ternary_table(&mut self, weights: &GroupedTensor) -> Result<Table, KernelError> {
        Ok(self.ternary_table(weights)?)
    }

    fn table(&mut self, weights: &BitNetTensor) -> Result<Table, KernelError> {
        Ok(self.table(weights)?)
    }

    fn gain(&mut self, gain: &[f32]) -> Result<Gain, KernelError> {
        Ok(self.gain(gain)?)
    }

    fn rope(&mut self, cos: &[f32], sin: &[f32], head_dim: usize) -> Result<Rope, KernelError> {
        Ok(self.rope(cos, sin, head_dim)?)
    }

    fn kv(&mut self, shape: KvShape) -> Result<Kv, KernelError> {
        Ok(self.kv(shape)?)
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
        runs: &[Run],
        blocks: &[u32],
        rope: &Rope,
        norms: HeadNorms<'_, Gain>,
        qkv: &mut Rows,
        kv: &mut Kv,
    ) -> Result<(), KernelError> {
        Ok(self.rope_store(runs, blocks, rope, norms, qkv, kv)?)
    }

    fn attention(
        &mut self,
        runs: &[Run],
        blocks: &[u32],
        qkv: &Rows,
        kv: &Kv,
        out: &mut Rows,
    ) -> Result<(), KernelError> {
        Ok(self.attention(runs, blocks, qkv, kv, out)?)
    }

    fn gate_quantize(
        &mut self,
        n: usize,
        gate_up: &Rows,
        gate: Gate,
        norms: Norms<'_, Gain>,
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
        gate_up: &mut Rows,
        out: &mut Quants,
    ) -> Result<(), KernelError> {
        self.bit_linear_gate(n, x, w, gate, gate_up)?;
        Ok(self.quantize_gated(n, gate_up, norms, out)?)
    }

    /// Queries and keys without norms are rotated by the kernel that computes the sums.
    fn bit_linear_rope_store(
        &mut self,
        n: usize,
        x: &Quants,
        w: &Linear,
        runs: &[Run],
        blocks: &[u32],
        rope: &Rope,
        norms: HeadNorms<'_, Gain>,
        qkv: &mut Rows,
        kv: &mut Kv,
    ) -> Result<(), KernelError> {
        Ok(self.bit_linear_rope_store(n, x, w, runs, blocks, rope, norms, qkv, kv)?)
    }

    fn norm_rows(
        &mut self,
        wanted: &[usize],
        x: &Rows,
        norm: &Norm<Gain>,
        out: &mut Rows,
    ) -> Result<(), KernelError> {
        Ok(self.norm_rows(wanted, x, norm, out)?)
    }

    fn logits(&mut self, n: usize, x: &Rows, table: &Table, logits: &mut [f32]) -> Result<(), KernelError> {
        Ok(self.draw(x, table, &vec![None; n], logits, &mut vec![None; n])?)
    }

    fn draw(
        &mut self,
        x: &Rows,
        table: &Table,
        _keep: &[usize],
        asks: &[Option<Ask>],
        logits: &mut [f32],
        drawn: &mut [Option<Drawn>],
    ) -> Result<(), KernelError> {
        Ok(self.draw(x, table, asks, logits, drawn)?)
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
