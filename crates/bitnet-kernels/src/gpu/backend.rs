//! [`Backend`] for the GPU: passes each operation on to the method of [`Gpu`] that launches it, and adds the
//! multiplications that a GPU fuses with their neighbours.

use super::{
    Delta, Driver, Experts, Gain, Gpu, Int8Rows, Kv, Linear, Rope, Rotation, Rows, State, Table,
    tilings::Tiling,
};
use crate::{
    Backend, BackendInfo, DeltaShape, DeltaWeights, DeviceStatus, Drawn, Edits, ExpertShape, ExpertWeights,
    Gate, Grouping, HeadCopy, HeadNorms, Inspect, Int8Matrix, KernelError, KvShape, Norm, Norms, Rotate,
    RowOrder, RowsKind, SamplingParams, Step, StepSize, TableWeights, Wanted, Weights,
};

impl<D: Driver> Backend for Gpu<D> {
    type Rows = Rows;
    type Int8Rows = Int8Rows;
    type Linear = Linear;
    type Table = Table;
    type Gain = Gain;
    type Rope = Rope;
    type Kv = Kv;
    type Delta = Delta;
    type State = State;
    type Rotation = Rotation;
    type Experts = Experts;

    by_methods! {
        fn rows(rows: usize, width: usize, kind: RowsKind) -> Rows;
        fn int8_rows(rows: usize, width: usize, grouping: Grouping) -> Int8Rows;
        fn gain(gain: &[f32]) -> Gain;
        fn rope(cos: &[f32], sin: &[f32], width: usize) -> Rope;
        fn kv(shape: KvShape) -> Kv;
        fn delta(shape: DeltaShape, weights: &DeltaWeights<'_>) -> Delta;
        fn state(shape: DeltaShape, slots: usize) -> State;
        fn rotation(width: usize, rotate: &Rotate<'_>) -> Rotation;
        fn embed(table: &Table, tokens: &[u32], factor: f32, out: &mut Rows);
        fn norm_quantize(
            n: usize, x: &Rows, norms: Norms<'_, Gain>, rotation: Option<&Rotation>, out: &mut Int8Rows
        );
        fn bit_linear(n: usize, x: &Int8Rows, w: &Linear, out: &mut Rows, column: usize, add: Option<f32>);
        fn norm_rope_store(
            step: Step<'_>, heads: usize, rope: &Rope, norms: HeadNorms<'_, Gain>, qkv: &mut Rows, kv: &mut Kv
        );
        fn attention(step: Step<'_>, qkv: &Rows, kv: &Kv, out: &mut Rows);
        fn gate_norm_quantize(
            n: usize, gate_up: &Rows, gate: Gate, norms: Norms<'_, Gain>, rotation: Option<&Rotation>,
            out: &mut Int8Rows
        );
        fn gated_delta(step: Step<'_>, x: &Rows, w: &Delta, state: &mut State, out: &mut Rows);
        fn reserve_log(state: &mut State, drafts: usize) -> usize;
        fn copy_state(state: &mut State, from: u32, to: u32);
        fn sigmoid_gate(n: usize, x: &Rows, column: usize, out: &mut Rows);
        fn dense(n: usize, x: &Rows, norm: &Norm<Gain>, w: &Table, out: &mut Rows, column: usize);
        fn mix_experts(n: usize, norm: &Norm<Gain>, w: &Experts, x: &mut Rows);
        fn norm_add(n: usize, x: &Rows, norm: &Norm<Gain>, out: &mut Rows);
        fn norm_rows(rows: &[usize], x: &Rows, norm: &Norm<Gain>, out: &mut Rows);
        fn logits(
            x: &Rows, table: &Table, wanted: &[Wanted], edits: Edits<'_>, logits: &mut [f32],
            drawn: &mut [Option<Drawn>]
        );
        fn prepare(size: &StepSize);
        fn finish();
        fn copy_block(kv: &mut Kv, from: u32, to: u32);
        fn read_block(kv: &mut Kv, block: u32, to: &mut [u8]);
        fn write_block(kv: &mut Kv, block: u32, from: &[u8]);
        fn read_state(state: &mut State, slot: u32, to: &mut [u8]);
        fn write_state(state: &mut State, slot: u32, from: &[u8]);
    }

    fn block_bytes(kv: &Kv) -> usize {
        2 * kv.block_bytes()
    }

    fn state_bytes(state: &State) -> usize {
        state.slot_bytes()
    }

    fn info(&self) -> BackendInfo {
        let info = self.driver.info();
        let (device, threads) = (info.name.clone(), info.processors as usize);
        BackendInfo { device, isa: info.texts(), threads, kv: self.kv.name() }
    }

    fn linear<'a>(
        &mut self,
        weights: impl Into<Weights<'a>>,
        order: RowOrder,
    ) -> Result<Linear, KernelError> {
        match weights.into() {
            Weights::Int8(weights) => {
                self.converter.start(Int8Matrix::bytes(weights.rows(), weights.cols()))?;
                Ok(self.int8_linear(&weights, order)?)
            }
            weights => {
                let weights = weights.canonical()?;
                self.converter.start(weights.codes().len())?;
                Ok(self.linear(&weights, order)?)
            }
        }
    }

    fn table<'a>(&mut self, weights: impl Into<TableWeights<'a>>) -> Result<Table, KernelError> {
        Ok(match weights.into() {
            TableWeights::Dense(weights) => {
                self.converter.start(weights.bytes().len())?;
                self.table(weights)?
            }
            TableWeights::Ternary(weights) => {
                let weights = weights.canonical()?;
                self.converter.start(weights.codes().len())?;
                self.ternary_table(&weights)?
            }
        })
    }

    fn experts(&mut self, shape: ExpertShape, weights: ExpertWeights<'_>) -> Result<Experts, KernelError> {
        let ExpertWeights { router, gate, up, down } = weights;
        let (gate, up, down) = (gate.canonical()?, up.canonical()?, down.canonical()?);
        self.converter.start(gate.codes().len())?;
        self.pack_experts(shape, router, [&gate, &up, &down])
    }

    fn rotate_table(&mut self, table: &mut Table, rotation: Rotation) {
        let Table::Ternary(_, contained) = table else { panic!("only a ternary table can be rotated") };
        *contained = Some(rotation);
    }

    /// The multiplication applies the gate itself; `gate_up` then holds only the gated values.
    fn bit_linear_gate_norm_quantize(
        &mut self,
        n: usize,
        x: &Int8Rows,
        w: &Linear,
        gate: Gate,
        norms: Norms<'_, Gain>,
        rotation: Option<&Rotation>,
        gate_up: &mut Rows,
        out: &mut Int8Rows,
    ) -> Result<(), KernelError> {
        self.bit_linear_gate(n, x, w, gate, gate_up)?;
        Ok(self.quantize_gated(n, gate_up, norms, rotation, out)?)
    }

    /// Queries and keys without norms are rotated by the kernel that computes the sums.
    fn bit_linear_norm_rope_store(
        &mut self,
        step: Step<'_>,
        x: &Int8Rows,
        w: &Linear,
        _: usize,
        rope: &Rope,
        norms: HeadNorms<'_, Gain>,
        qkv: &mut Rows,
        kv: &mut Kv,
    ) -> Result<(), KernelError> {
        Ok(self.bit_linear_norm_rope_store(step, x, w, rope, norms, qkv, kv)?)
    }

    fn shortlists(&self) -> bool {
        self.shortlists
    }

    /// Makes the copy from the table on the device, because a file's copy has the layout of the CPU kernels.
    fn prepare_shortlist(&mut self, table: &mut Table, _: Option<HeadCopy>) -> Result<(), KernelError> {
        self.copy_head(table)
    }

    fn device(&self) -> Option<DeviceStatus> {
        let (total, counts) = (self.driver.info().memory, self.counts());
        let used = total.saturating_sub(self.free);
        Some(DeviceStatus {
            memory_used: used as u64,
            memory_total: total as u64,
            counts,
            recorded: self.recordings().how,
            lost: self.lost.is_some(),
        })
    }

    fn read(&mut self, x: &Rows, n: usize) -> Result<Vec<f32>, KernelError> {
        Ok(self.read_rows(x, n)?)
    }
}

impl<D: Driver> Inspect for Gpu<D> {
    fn write(&mut self, x: &mut Rows, values: &[f32]) -> Result<(), KernelError> {
        Ok(self.write_rows(x, values)?)
    }

    fn read_int8_rows(
        &mut self,
        x: &Int8Rows,
        n: usize,
    ) -> Result<(Vec<i8>, Vec<f32>, Vec<i32>), KernelError> {
        Ok(self.read_int8_rows(x, n)?)
    }

    fn draw(&mut self, logits: &Rows, params: &[SamplingParams]) -> Result<bool, KernelError> {
        self.draw_rows(params, logits)?;
        Ok(true)
    }

    fn kernels(&self) -> Vec<&'static str> {
        self.queue.last()
    }

    fn tilings(&self, w: &Linear, n: usize) -> Vec<Tiling> {
        self.tilings(w, n)
    }

    fn use_tilings(&mut self, tilings: &[Tiling]) -> Result<(), KernelError> {
        Ok(self.use_tilings(tilings)?)
    }
}
