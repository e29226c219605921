//! The CPU backend: buffers, a thread pool, and kernels for the best instruction set that the CPU has.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod attend;
mod delta;
mod experts;
mod footprint;
mod generic;
mod head;
mod isa;
mod lanes;
pub(crate) mod memory;
mod panels;
mod pool;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bitnet_tensor::{BitNetTensor, SharedBytes, TernaryTensor};

use crate::{
    Backend, BackendInfo, DeltaShape, DeltaWeights, Drawn, Edits, ExpertShape, ExpertWeights, Fill, Gate,
    Grouping, HeadNorms, Inspect, Int8Matrix, KernelError, KvShape, KvType, MOST_PIECE, Norm, Norms, Rotate,
    RowOrder, RowsKind, Run, Step, StepSize, TableWeights, Wanted, Weights, scales::Scales,
};
use attend::Segments;
use delta::RecurrentScratch;
use experts::{ExpertScratch, Experts};
use generic::{
    attention,
    cache::Kv,
    delta::{Delta, State},
    dense,
    grouped::Grouped,
    int8::Int8,
    rotate::Rotation,
    rows::{
        Gain, GateNormQuantize, NormAdd, NormQuantize, NormRopeStore, NormRows, QuantOut, ScalesOut,
        quantize_scratch,
    },
    ternary::{BitLinear, Output},
};
use head::ShortlistBuffers;
pub use head::{CopyForm, HeadCopy, HeadCounts};
pub use isa::Isa;
use memory::{Arena, Buffer, Shared, Team};
pub use memory::{MemoryNode, memory_nodes, on_huge_pages};
use panels::PanelScales;
pub use panels::Panels;
pub(crate) use pool::Pool;
use pool::share;

/// Rows padded with zeros to whole vectors, `[rows][stride]` f32.
pub struct Rows {
    rows: usize,
    width: usize,
    stride: usize,
    values: Buffer<f32>,
}

impl Rows {
    /// Bytes of `rows` rows of `width` values.
    fn bytes(rows: usize, width: usize) -> usize {
        Buffer::<f32>::bytes(rows * width.next_multiple_of(16))
    }
}

/// Quantised rows padded with zeros to whole blocks, `[rows][stride]` i8.
pub struct Int8Rows {
    rows: usize,
    width: usize,
    stride: usize,
    values: Buffer<i8>,
    scales: Scales,
}

/// Rotary tables, `[positions][width / 2]` each.
pub struct Rope {
    cos: Vec<f32>,
    sin: Vec<f32>,
    width: usize,
}

/// A matrix for [`Backend::bit_linear`].
pub enum Linear {
    /// Ternary.
    Ternary(Panels),
    /// int8.
    Int8(Int8Matrix),
}

/// The embedding or the output head.
pub enum Table {
    /// Dense, with a copy for bounds if [`Backend::prepare_shortlist`] prepared one.
    Dense {
        /// The matrix.
        weights: BitNetTensor,
        /// The copy.
        copy: Option<HeadCopy>,
    },
    /// Ternary, with one scale per group of columns.
    Ternary {
        /// The matrix.
        weights: Panels,
        /// The transform that it contains.
        rotation: Option<Rotation>,
    },
}

impl Table {
    /// Rows and columns.
    fn shape(&self) -> [usize; 2] {
        match self {
            Table::Dense { weights, .. } => [weights.rows(), weights.cols()],
            Table::Ternary { weights, .. } => [weights.rows, weights.cols],
        }
    }
}

/// The CPU backend.
pub struct Cpu {
    isa: Isa,
    kv: KvType,
    pool: Pool,
    memory: Arena,
    /// One per thread, grown when buffers are made.
    scratch: Vec<Buffer<f32>>,
    shortlists: bool,
    shortlist: ShortlistBuffers,
    /// Quantised input rows of a ternary output head.
    head_input: Option<Int8Rows>,
    recurrent: RecurrentScratch,
    experts: ExpertScratch,
    segments: Segments,
    bit_linear_calls: u64,
    head: HeadCounts,
}

impl Cpu {
    /// Makes a backend with `threads` threads, including the caller's, that uses the instruction set `isa`.
    ///
    /// # Errors
    /// If a thread cannot be started.
    ///
    /// # Panics
    /// If `threads` is 0.
    pub fn new(isa: Isa, threads: usize) -> Result<Self, KernelError> {
        assert!(threads > 0, "a backend needs at least one thread");
        Self::of_team(isa, threads, Team::new(memory_nodes(), threads))
    }

    /// Makes a backend whose threads are spread over memory nodes, if there are several.
    fn of_team(isa: Isa, threads: usize, team: Option<Team>) -> Result<Self, KernelError> {
        let team = team.map(Arc::new);
        let pool = match team.clone() {
            None => Pool::new(threads)?,
            Some(team) => Pool::on_nodes(team.members().to_vec(), move |node| {
                team.stay_on(node);
            })?,
        };
        let scratch = (0..threads).map(|_| Buffer::zeroed(0, "scratch")).collect::<Result<_, _>>()?;
        Ok(Cpu {
            isa,
            kv: KvType::default(),
            pool,
            memory: Arena::of(team),
            scratch,
            shortlists: true,
            shortlist: ShortlistBuffers::default(),
            head_input: None,
            recurrent: RecurrentScratch::default(),
            experts: ExpertScratch::default(),
            segments: Segments::new(threads)?,
            bit_linear_calls: 0,
            head: HeadCounts::default(),
        })
    }

    /// Sets the type of cached keys and values.
    pub fn keeping(self, kv: KvType) -> Self {
        Cpu { kv, ..self }
    }

    /// Makes no int8 copy of the output head, for callers that need all logits.
    pub fn for_all_logits(self) -> Self {
        Cpu { shortlists: false, ..self }
    }

    /// Type of cached keys and values.
    pub fn kv_type(&self) -> KvType {
        self.kv
    }

    /// Measures the integer products per second that all threads compute together from registers, the upper bound for
    /// [`Backend::bit_linear`]. Takes a few tens of milliseconds.
    pub fn peak_products(&mut self) -> f64 {
        let (kernel, threads) = (self.isa.kernels().products, self.pool.threads());
        let mut rounds = 1;
        loop {
            let made = AtomicU64::new(0);
            let start = Instant::now();
            self.pool.run(4 * threads, &|_, _| {
                // SAFETY: `isa` proves the instruction set.
                made.fetch_add(unsafe { kernel(rounds) }, Relaxed);
            });
            let time = start.elapsed();
            if time >= Duration::from_millis(40) {
                return made.into_inner() as f64 / time.as_secs_f64();
            }
            rounds *= 2;
        }
    }

    /// Work of the output head so far.
    pub fn head_counts(&self) -> HeadCounts {
        self.head
    }

    /// Number of calls of [`Backend::bit_linear`] so far. It must not grow with the number of requests in a step.
    pub fn bit_linear_calls(&self) -> u64 {
        self.bit_linear_calls
    }

    /// Ensures that every thread has at least `len` floats of scratch.
    fn reserve(&mut self, len: usize) -> Result<(), KernelError> {
        for scratch in &mut self.scratch {
            if scratch.len() < len {
                *scratch = Buffer::zeroed(len, "scratch")?;
            }
        }
        Ok(())
    }

    /// Ensures that there is room for `rows` quantised input rows of a ternary output head.
    fn reserve_head_input(&mut self, rows: usize, width: usize) -> Result<(), KernelError> {
        let fits = |input: &Int8Rows| input.rows >= rows && input.width == width;
        if !self.head_input.as_ref().is_some_and(fits) {
            self.head_input = Some(self.int8_rows(rows, width, Grouping::Groups)?);
        }
        Ok(())
    }

    /// Packs a ternary matrix, to store its panels in a file.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn panels(&mut self, weights: &TernaryTensor) -> Result<Panels, KernelError> {
        self.pack(weights.into())
    }

    /// Packs a ternary matrix, unless it comes from a file of panels.
    fn pack(&mut self, weights: Weights<'_>) -> Result<Panels, KernelError> {
        match weights {
            Weights::Int8(_) => Err(KernelError::NoInt8),
            Weights::Ternary(weights) => Panels::pack(&weights, &mut self.pool, &mut self.memory),
            Weights::Panels(panels) => Ok(Panels { data: self.near(panels.data)?, ..panels }),
        }
    }

    /// Copies panels that a file holds to the nodes whose threads read them, if there are several: where the file's own
    /// pages are was decided by whoever first read it.
    fn near(&mut self, panels: SharedBytes) -> Result<SharedBytes, KernelError> {
        if !self.memory.is_spread() {
            return Ok(panels);
        }
        let mut copy = self.memory.zeroed(panels.len(), "weights")?;
        let out = copy.shared();
        self.pool.run(panels.len().div_ceil(COPY_PIECE), &|_, piece| {
            let start = piece * COPY_PIECE;
            let from = &panels[start..panels.len().min(start + COPY_PIECE)];
            // SAFETY: every piece is written by one part.
            unsafe { out.slice(start, from.len()) }.copy_from_slice(from);
        });
        Ok(SharedBytes::new(copy))
    }

    /// Multiplies `n` quantised rows by a matrix.
    fn multiply(&mut self, n: usize, x: &Int8Rows, w: &Panels, out: Output<'_>) -> Result<(), KernelError> {
        assert!(n <= x.rows && x.width == w.cols, "the rows must fit their buffers");
        let (kernels, panels) = (self.isa.kernels(), w.panels());
        let units = (w.data.len() * n / WEIGHT_UNIT).min(panels);
        match (&w.scales, &x.scales) {
            (PanelScales::Rows(scales), Scales::Rows(rows)) => {
                let a = BitLinear { w, scales, x: &x.values, x_stride: x.stride, x_rows: &rows[..n], out };
                self.parallel(units, 0, &|part, parts, _| {
                    // SAFETY: `isa` proves the instruction set; every panel, and so every output row, belongs to one
                    // part; `x` is padded with zeros to whole blocks and holds `n` rows.
                    unsafe { (kernels.bit_linear)(&a, share(panels, parts, part)) }
                })
            }
            (&PanelScales::Groups(group), Scales::Groups(groups)) => {
                let (x, x_stride) = (&x.values, x.stride);
                let a = Grouped { w, group, x, x_stride, x_groups: groups, n, out, next: None };
                self.parallel(units, 0, &|part, parts, _| {
                    // SAFETY: as above; `groups` holds all groups of every row.
                    unsafe { (kernels.grouped)(&a, share(panels, parts, part)) }
                })
            }
            _ => panic!("activations and matrix must have the same grouping"),
        }
    }

    /// Multiplies `n` quantised rows by an int8 matrix.
    fn multiply_int8(
        &mut self,
        n: usize,
        x: &Int8Rows,
        w: &Int8Matrix,
        out: Output<'_>,
    ) -> Result<(), KernelError> {
        assert!(n <= x.rows && x.width == w.cols(), "the rows must fit their buffers");
        let Scales::Groups(x_groups) = &x.scales else {
            panic!("activations and matrix must have the same grouping")
        };
        let (kernel, rows) = (self.isa.kernels().int8, w.rows());
        let a = Int8 { w, x: &x.values, x_stride: x.stride, x_groups, n, out };
        self.parallel((rows * w.cols() * n / WEIGHT_UNIT).min(rows), 0, &|part, parts, _| {
            // SAFETY: `isa` proves the instruction set; every output row belongs to one part.
            unsafe { kernel(&a, share(rows, parts, part)) }
        })
    }

    /// Runs `job(part, parts, scratch)` for every part, with one part per unit of work up to a maximum, and at least
    /// `scratch` floats of scratch. Making a buffer reserves the scratch that it needs, so that no step allocates.
    fn parallel(
        &mut self,
        units: usize,
        scratch: usize,
        job: &(dyn Fn(usize, usize, &mut [f32]) + Sync),
    ) -> Result<(), KernelError> {
        self.reserve(scratch)?;
        // More parts than threads, so that no thread waits long for another, even for one that loses its core.
        let parts = if self.pool.threads() == 1 { 1 } else { units.clamp(1, PARTS * self.pool.threads()) };
        let scratch = PerThread(self.scratch.as_mut_ptr());
        self.pool.run(parts, &|thread, part| {
            // SAFETY: only thread `thread` uses this entry, and `thread < threads == scratch.len()`.
            job(part, parts, unsafe { &mut *scratch.get(thread) });
        });
        Ok(())
    }
}

struct PerThread<T>(*mut T);

// SAFETY: every thread uses the pointer only for its own entry.
unsafe impl<T: Send> Sync for PerThread<T> {}

impl<T> PerThread<T> {
    fn get(&self, i: usize) -> *mut T {
        self.0.wrapping_add(i)
    }
}

/// Maximum number of parts of a job per thread.
const PARTS: usize = 64;
/// Bytes of panels or of a state that a thread copies at a time.
const COPY_PIECE: usize = 128 << 10;
/// Minimum number of row values that justifies a separate part.
const ROW_UNIT: usize = 1 << 14;
/// Minimum bytes of weights that justify a separate part.
const WEIGHT_UNIT: usize = 1 << 14;

impl Int8Rows {
    /// Bytes of `rows` rows of `width` values, with their scales and sums.
    fn bytes(rows: usize, width: usize, grouping: Grouping) -> usize {
        Buffer::<i8>::bytes(rows * width.next_multiple_of(64)) + Scales::bytes(rows, width, grouping)
    }

    fn out(&mut self) -> QuantOut<'_> {
        let scales = match &mut self.scales {
            Scales::Rows(rows) => ScalesOut::Rows(Shared::new(rows)),
            Scales::Groups(groups) => ScalesOut::Groups(Shared::new(groups)),
        };
        QuantOut { values: self.values.shared(), stride: self.stride, scales }
    }
}

fn assert_apart(runs: &[Run]) {
    let ends = runs.iter().scan(0, |end, run| {
        let apart = run.tokens.start >= *end;
        *end = run.tokens.end;
        Some(apart)
    });
    assert!(ends.into_iter().all(|apart| apart), "runs must be in order and share no row");
}

fn assert_widths(norms: Norms<'_, Gain>, width: usize) {
    assert!(norms.iter().flatten().all(|norm| norm.gain.width == width), "gains must be as wide as the rows");
}

fn assert_rotation(rotation: Option<&Rotation>, width: usize) {
    assert!(rotation.is_none_or(|r| r.width == width), "the transform must be as wide as the rows");
}

impl Backend for Cpu {
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

    const READS_PANELS: bool = true;

    by_methods! {
        fn delta(shape: DeltaShape, weights: &DeltaWeights<'_>) -> Delta;
        fn state(shape: DeltaShape, slots: usize) -> State;
        fn rotation(width: usize, rotate: &Rotate<'_>) -> Rotation;
        fn experts(shape: ExpertShape, weights: ExpertWeights<'_>) -> Experts;
        fn gated_delta(step: Step<'_>, x: &Rows, w: &Delta, state: &mut State, out: &mut Rows);
        fn reserve_log(state: &mut State, drafts: usize) -> usize;
        fn copy_state(state: &mut State, from: u32, to: u32);
        fn sigmoid_gate(n: usize, x: &Rows, column: usize, out: &mut Rows);
        fn dense(n: usize, x: &Rows, norm: &Norm<Gain>, w: &Table, out: &mut Rows, column: usize);
        fn mix_experts(n: usize, norm: &Norm<Gain>, w: &Experts, x: &mut Rows);
    }

    fn info(&self) -> BackendInfo {
        let (isa, kv) = (self.isa.name(), self.kv.name());
        BackendInfo { device: "cpu".into(), isa, threads: self.pool.threads(), kv }
    }

    fn rows(&mut self, rows: usize, width: usize, _: RowsKind) -> Result<Rows, KernelError> {
        let stride = width.next_multiple_of(16);
        self.reserve(stride)?;
        Ok(Rows { rows, width, stride, values: Buffer::zeroed(rows * stride, "activations")? })
    }

    fn int8_rows(&mut self, rows: usize, width: usize, grouping: Grouping) -> Result<Int8Rows, KernelError> {
        // Whole cache lines, so that threads never share one.
        let stride = width.next_multiple_of(64);
        let values = Buffer::zeroed(rows * stride, "int8 activations")?;
        let scales = Scales::zeroed(rows, width, grouping);
        Ok(Int8Rows { rows, width, stride, values, scales })
    }

    fn linear<'a>(&mut self, weights: impl Into<Weights<'a>>, _: RowOrder) -> Result<Linear, KernelError> {
        Ok(match weights.into() {
            Weights::Int8(weights) => Linear::Int8(weights),
            weights => Linear::Ternary(self.pack(weights)?),
        })
    }

    fn table<'a>(&mut self, weights: impl Into<TableWeights<'a>>) -> Result<Table, KernelError> {
        match weights.into() {
            TableWeights::Dense(weights) => {
                self.reserve(dense::scratch(weights.dtype(), weights.cols()))?;
                self.fit_dense(weights.cols());
                Ok(Table::Dense { weights: weights.clone(), copy: None })
            }
            TableWeights::Ternary(weights) => {
                let weights = self.pack(weights)?;
                assert!(weights.group().is_some(), "a ternary table must have scales for groups of columns");
                self.reserve_head_input(1, weights.cols)?;
                Ok(Table::Ternary { weights, rotation: None })
            }
        }
    }

    fn gain(&mut self, gain: &[f32]) -> Result<Gain, KernelError> {
        let mut values = Buffer::zeroed(gain.len().next_multiple_of(16), "norm gains")?;
        values[..gain.len()].copy_from_slice(gain);
        Ok(Gain { width: gain.len(), values })
    }

    fn rope(&mut self, cos: &[f32], sin: &[f32], width: usize) -> Result<Rope, KernelError> {
        Ok(Rope { cos: cos.to_vec(), sin: sin.to_vec(), width })
    }

    fn kv(&mut self, shape: KvShape) -> Result<Kv, KernelError> {
        self.reserve(attention::scratch(&shape))?;
        Kv::zeroed(shape, self.kv)
    }

    fn rotate_table(&mut self, table: &mut Table, rotation: Rotation) {
        assert_eq!(table.shape()[1], rotation.width, "the transform must be as wide as the table");
        let Table::Ternary { rotation: contained, .. } = table else {
            panic!("only a ternary table can be rotated")
        };
        *contained = Some(rotation);
    }

    fn embed(
        &mut self,
        table: &Table,
        tokens: &[u32],
        factor: f32,
        out: &mut Rows,
    ) -> Result<(), KernelError> {
        assert!(table.shape()[1] == out.width && tokens.len() <= out.rows, "the rows must fit their buffers");
        let (n, width, stride) = (tokens.len(), out.width, out.stride);
        let (rows, undo) = (out.values.shared(), self.isa.kernels().floats.undo);
        self.parallel((n * width / ROW_UNIT).min(n), 0, &|part, parts, _| {
            for i in share(n, parts, part) {
                // SAFETY: every row is written by one part.
                let row = unsafe { rows.slice(i * stride, stride) };
                let token = tokens[i] as usize;
                match table {
                    Table::Dense { weights, .. } => weights.decode_row(token, &mut row[..width]),
                    Table::Ternary { weights, rotation } => {
                        weights.decode_row(token, &mut row[..width]);
                        if let Some(rotation) = rotation {
                            // SAFETY: `isa` proves the instruction set; rows are padded to whole vectors.
                            unsafe { undo(rotation, row) }
                        }
                    }
                }
                if factor != 1.0 {
                    row[..width].iter_mut().for_each(|x| *x *= factor);
                }
            }
        })
    }

    fn norm_quantize(
        &mut self,
        n: usize,
        x: &Rows,
        norms: Norms<'_, Gain>,
        rotation: Option<&Rotation>,
        out: &mut Int8Rows,
    ) -> Result<(), KernelError> {
        assert!(n <= x.rows && n <= out.rows && x.width == out.width, "the rows must fit their buffers");
        assert_widths(norms, x.width);
        assert_rotation(rotation, x.width);
        let (stride, width) = (x.stride, x.width);
        let a = NormQuantize { x: &x.values, stride, width, norms, rotation, out: out.out() };
        let kernel = self.isa.kernels().floats.norm_quantize;
        let scratch = quantize_scratch(width, rotation);
        self.parallel((n * x.width / ROW_UNIT).min(n), scratch, &|part, parts, scratch| {
            // SAFETY: `isa` proves the instruction set; every row is written by one part; scratch holds what it needs.
            unsafe { kernel(&a, share(n, parts, part), scratch) }
        })
    }

    fn bit_linear(
        &mut self,
        n: usize,
        x: &Int8Rows,
        w: &Linear,
        out: &mut Rows,
        column: usize,
        add: Option<f32>,
    ) -> Result<(), KernelError> {
        let rows = match w {
            Linear::Ternary(w) => w.rows,
            Linear::Int8(w) => w.rows(),
        };
        assert!(n <= out.rows && column + rows <= out.width, "the output columns must fit the rows");
        self.bit_linear_calls += 1;
        let out = Output { values: out.values.shared(), stride: out.stride, column, add };
        match w {
            Linear::Ternary(w) => self.multiply(n, x, w, out),
            Linear::Int8(w) => self.multiply_int8(n, x, w, out),
        }
    }

    fn norm_rope_store(
        &mut self,
        Step { runs, blocks, .. }: Step<'_>,
        heads: usize,
        rope: &Rope,
        norms: HeadNorms<'_, Gain>,
        qkv: &mut Rows,
        kv: &mut Kv,
    ) -> Result<(), KernelError> {
        let dim = kv.shape.head_dim;
        assert!(rope.width <= dim, "the rotary table must be no wider than the heads");
        let parts = heads + 2 * kv.shape.kv_heads;
        assert!(parts * dim <= qkv.width, "the rows must hold queries, keys and values");
        assert_widths(norms.map_or([None; 2], |[queries, keys]| [Some(queries), Some(keys)]), dim);
        let a = NormRopeStore {
            runs,
            blocks,
            cos: &rope.cos,
            sin: &rope.sin,
            width: rope.width,
            heads,
            norms,
            shape: kv.shape,
            kv: kv.kv,
            qkv: qkv.values.shared(),
            stride: qkv.stride,
            keys: kv.keys.shared(),
            values: kv.values.shared(),
        };
        let tokens: usize = runs.iter().map(|run| run.tokens.len()).sum();
        let units = (tokens * parts * dim / ROW_UNIT).min(parts);
        let kernel = self.isa.kernels().floats.norm_rope_store;
        self.parallel(units, dim.next_multiple_of(16), &|part, of, scratch| {
            // SAFETY: `isa` proves the instruction set; every head is handled by one part; scratch holds a head.
            unsafe { kernel(&a, share(parts, of, part), scratch) }
        })
    }

    fn attention(&mut self, step: Step<'_>, qkv: &Rows, kv: &Kv, out: &mut Rows) -> Result<(), KernelError> {
        self.attend(step, qkv, kv, out)
    }

    fn gate_norm_quantize(
        &mut self,
        n: usize,
        gate_up: &Rows,
        gate: Gate,
        norms: Norms<'_, Gain>,
        rotation: Option<&Rotation>,
        out: &mut Int8Rows,
    ) -> Result<(), KernelError> {
        let ffn = out.width;
        assert!(
            n <= gate_up.rows && n <= out.rows && gate_up.width == 2 * ffn,
            "the rows must fit their buffers"
        );
        assert_widths(norms, ffn);
        assert_rotation(rotation, ffn);
        let (x, stride) = (&gate_up.values, gate_up.stride);
        let a = GateNormQuantize { x, stride, ffn, gate, norms, rotation, out: out.out() };
        let kernel = self.isa.kernels().floats.gate_norm_quantize;
        let scratch = quantize_scratch(ffn, rotation);
        self.parallel((n * ffn / ROW_UNIT).min(n), scratch, &|part, parts, scratch| {
            // SAFETY: `isa` proves the instruction set; every row is written by one part; scratch holds what it needs.
            unsafe { kernel(&a, share(n, parts, part), scratch) }
        })
    }

    fn norm_add(&mut self, n: usize, x: &Rows, norm: &Norm<Gain>, out: &mut Rows) -> Result<(), KernelError> {
        assert!(n <= x.rows && n <= out.rows && x.width == out.width, "the rows must fit their buffers");
        assert_widths([Some(norm), None], x.width);
        let (stride, width) = (x.stride, x.width);
        let a = NormAdd { x: &x.values, stride, width, norm, out: out.values.shared() };
        let kernel = self.isa.kernels().floats.norm_add;
        self.parallel((n * width / ROW_UNIT).min(n), stride, &|part, parts, scratch| {
            // SAFETY: `isa` proves the instruction set; every row belongs to one part; scratch holds a row.
            unsafe { kernel(&a, share(n, parts, part), scratch) }
        })
    }

    fn norm_rows(
        &mut self,
        rows: &[usize],
        x: &Rows,
        norm: &Norm<Gain>,
        out: &mut Rows,
    ) -> Result<(), KernelError> {
        assert!(rows.len() <= out.rows && x.width == out.width, "the rows must fit their buffers");
        assert_widths([Some(norm), None], x.width);
        assert!(rows.iter().all(|&row| row < x.rows), "the rows must exist");
        let a =
            NormRows { rows, x: &x.values, stride: x.stride, width: x.width, norm, out: out.values.shared() };
        // SAFETY: `isa` proves the instruction set; only this thread has access to the output.
        unsafe { (self.isa.kernels().floats.norm_rows)(&a) }
        Ok(())
    }

    fn logits(
        &mut self,
        x: &Rows,
        table: &Table,
        wanted: &[Wanted],
        edits: Edits<'_>,
        logits: &mut [f32],
        drawn: &mut [Option<Drawn>],
    ) -> Result<(), KernelError> {
        self.head_logits(x, table, (wanted, edits), logits, drawn)
    }

    fn prepare(&mut self, size: &StepSize) -> Result<(), KernelError> {
        self.shortlist.reserve(size.logit_rows);
        self.reserve_delta(size.tokens)?;
        self.reserve_experts(size.tokens)?;
        match &self.head_input {
            Some(input) => self.reserve_head_input(size.logit_rows, input.width),
            None => Ok(()),
        }
    }

    fn head_work(&self) -> Option<HeadCounts> {
        Some(self.head)
    }

    fn shortlists(&self) -> bool {
        self.shortlists
    }

    fn prepare_shortlist(&mut self, table: &mut Table, stored: Option<HeadCopy>) -> Result<(), KernelError> {
        self.set_head_copy(table, stored)
    }

    fn read(&mut self, x: &Rows, n: usize) -> Result<Vec<f32>, KernelError> {
        Ok(x.values.chunks_exact(x.stride).take(n).flat_map(|row| &row[..x.width]).copied().collect())
    }

    fn copy_block(&mut self, kv: &mut Kv, from: u32, to: u32) -> Result<(), KernelError> {
        kv.copy_block(from as usize, to as usize);
        Ok(())
    }

    fn block_bytes(kv: &Kv) -> usize {
        kv.block(0).map(<[u8]>::len).iter().sum()
    }

    fn read_block(&mut self, kv: &mut Kv, block: u32, to: &mut [u8]) -> Result<(), KernelError> {
        let [keys, values] = kv.block(block as usize);
        let (first, second) = to.split_at_mut(keys.len());
        first.copy_from_slice(keys);
        second.copy_from_slice(values);
        Ok(())
    }

    fn write_block(&mut self, kv: &mut Kv, block: u32, from: &[u8]) -> Result<(), KernelError> {
        assert_eq!(from.len(), Self::block_bytes(kv), "the bytes of a block");
        self.fill_block(&mut [kv], block, &|at, to| to.copy_from_slice(&from[at..][..to.len()]))
    }

    fn fill_block(&mut self, layers: &mut [&mut Kv], block: u32, fill: &Fill<'_>) -> Result<(), KernelError> {
        let sides: Vec<_> = layers.iter_mut().flat_map(|kv| kv.block_mut(block as usize)).collect();
        // Each piece: its side, where it is in that side, its length, and where it is in all layers together.
        let (mut pieces, mut before) = (Vec::new(), 0);
        for (side, bytes) in sides.iter().enumerate() {
            for start in (0..bytes.len()).step_by(MOST_PIECE) {
                pieces.push((side, start, MOST_PIECE.min(bytes.len() - start), before + start));
            }
            before += bytes.len();
        }
        let sides: Vec<_> = sides.into_iter().map(Shared::new).collect();
        self.pool.run(pieces.len(), &|_, part| {
            let (side, start, len, at) = pieces[part];
            // SAFETY: every piece of a side is written by one part.
            fill(at, unsafe { sides[side].slice(start, len) });
        });
        Ok(())
    }

    fn block_piece(kv: &Kv) -> usize {
        let [keys, values] = kv.block(0).map(<[u8]>::len);
        1 << (keys | values | MOST_PIECE).trailing_zeros()
    }

    fn state_bytes(state: &State) -> usize {
        4 * state.shape.state_len()
    }

    fn read_state(&mut self, state: &mut State, slot: u32, to: &mut [u8]) -> Result<(), KernelError> {
        let values = state.slot_mut(slot as usize);
        assert_eq!(to.len(), 4 * values.len(), "the bytes of a slot");
        for (to, value) in to.as_chunks_mut().0.iter_mut().zip(values) {
            *to = value.to_le_bytes();
        }
        Ok(())
    }

    fn write_state(&mut self, state: &mut State, slot: u32, from: &[u8]) -> Result<(), KernelError> {
        let values = state.slot_mut(slot as usize);
        assert_eq!(from.len(), 4 * values.len(), "the bytes of a slot");
        let values = Shared::new(values);
        self.pool.run(from.len().div_ceil(COPY_PIECE), &|_, part| {
            let start = part * COPY_PIECE;
            let from = from[start..from.len().min(start + COPY_PIECE)].as_chunks().0;
            // SAFETY: every piece is written by one part.
            let values = unsafe { values.slice(start / 4, from.len()) };
            values.iter_mut().zip(from).for_each(|(value, from)| *value = f32::from_le_bytes(*from));
        });
        Ok(())
    }
}

impl Inspect for Cpu {
    fn write(&mut self, x: &mut Rows, values: &[f32]) -> Result<(), KernelError> {
        assert!(values.len() <= x.rows * x.width, "values must fit the rows");
        for (to, from) in x.values.chunks_exact_mut(x.stride).zip(values.chunks_exact(x.width)) {
            to[..x.width].copy_from_slice(from);
        }
        Ok(())
    }

    fn read_int8_rows(
        &mut self,
        x: &Int8Rows,
        n: usize,
    ) -> Result<(Vec<i8>, Vec<f32>, Vec<i32>), KernelError> {
        let values = x.values.chunks_exact(x.stride).take(n).flat_map(|row| &row[..x.width]);
        let (scales, sums) = x.scales.read(n, x.width);
        Ok((values.copied().collect(), scales, sums))
    }
}

bitnet_tensor::opaque_debug!(
    Cpu, Delta, Experts, Gain, Kv, Linear, Panels, Int8Rows, Rope, Rotation, Rows, HeadCopy, State, Table,
);
