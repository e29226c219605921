//! Launches the three kernels of a gated-delta layer: convolution and norms, the delta rule, and the output gate.

use crate::{
    DraftLog, RowsKind, Run, Step,
    gpu::{
        Arg, Delta, Driver, Gpu, GpuError, Rows, State,
        table::{COPY_BLOCK, DELTA_INPUTS, DELTA_OUTPUTS, DELTA_RULE, DELTA_RULE_D128},
        upload::Upload,
    },
};

/// Heads of a thread block of [`DELTA_INPUTS`].
const INPUT_HEADS: usize = 8;
/// Lanes that take a head there, and value heads whose decays and rates they take instead.
const INPUT_LANES: usize = 16;
/// Values of a head, rows of its state, of a thread block of [`DELTA_RULE`].
const RULE_VALUES: usize = 32;
/// Heads of a thread block of [`DELTA_OUTPUTS`].
const OUTPUT_HEADS: usize = 4;

/// Position, slot, index in its run, accepted drafts before the run, tokens to the end of the run, and drafts among these,
/// of every token.
fn token_words(runs: &[Run]) -> Vec<u32> {
    let words = |run: &Run, i: usize| {
        let DraftLog { accepted, drafts } = run.log;
        [run.start + i, run.state as usize, i, accepted, run.tokens.len() - i, drafts].map(|word| word as u32)
    };
    runs.iter().flat_map(|run| (0..run.tokens.len()).flat_map(move |i| words(run, i))).collect()
}

/// First token, tokens, position of the first, slot, accepted drafts before it, and drafts at the end, of every run.
fn run_words(runs: &[Run]) -> Vec<u32> {
    let words = |run: &Run| {
        let DraftLog { accepted, drafts } = run.log;
        let Run { start, state, ref tokens, .. } = *run;
        [tokens.start, tokens.len(), start, state as usize, accepted, drafts].map(|word| word as u32)
    };
    runs.iter().flat_map(words).collect()
}

/// Checks that the tokens of runs follow each other without gaps, that no two runs share a slot, and that logs have room for
/// their drafts.
fn check(runs: &[Run], State { slots, room, .. }: &State) {
    let mut used: Vec<u32> = runs.iter().map(|run| run.state).collect();
    used.sort_unstable();
    assert!(used.iter().all(|&slot| (slot as usize) < *slots), "the slot must exist");
    assert!(used.windows(2).all(|pair| pair[0] != pair[1]), "no two runs may share a slot");
    let mut end = 0;
    for run in runs {
        assert_eq!(run.tokens.start, end, "runs must follow each other without gaps");
        let DraftLog { accepted, drafts } = run.log;
        assert!(accepted.max(drafts) <= *room, "logs must have room for the drafts");
        assert!(accepted <= run.start && drafts < run.tokens.len(), "drafts must follow other tokens");
        end = run.tokens.end;
    }
}

impl<D: Driver> Gpu<D> {
    /// Computes a gated-delta layer between its projections, in three kernels: convolution and norms of queries and keys;
    /// the rule, token by token; norm and gate of the outputs. All numbers between them are f32.
    pub fn gated_delta(
        &mut self,
        step: Step<'_>,
        x: &Rows,
        w: &Delta,
        state: &mut State,
        out: &mut Rows,
    ) -> Result<(), GpuError> {
        let (shape, n) = (w.shape, step.tokens());
        assert_eq!(shape, state.shape, "states must have the layer's shape");
        assert!(x.width >= shape.columns() && out.width == shape.value_width(), "rows must fit the layer");
        assert!(n <= x.rows && n <= out.rows, "the rows must fit their buffers");
        assert!(x.kind == RowsKind::Intermediate && out.kind == RowsKind::Intermediate, "rows must be bf16");
        check(step.runs, state);
        if n == 0 {
            return Ok(());
        }
        self.describe(step);
        let tokens = self.upload_once(step, Upload::DeltaTokens, || token_words(step.runs))?;
        let runs = self.upload_once(step, Upload::DeltaRuns, || run_words(step.runs))?;
        let mixed = self.make_mixed(n)?;
        self.delta_inputs(n, x, w, state, [tokens, mixed])?;
        self.delta_rule(step.runs.len(), w, state, [mixed, runs])?;
        self.delta_outputs(n, x, w, state, [mixed, tokens], out)
    }

    /// Heads, width of a head and taps, and the layout of a slot and of what kernels pass to each other.
    fn delta_sizes(&self, w: &Delta) -> [Arg; 8] {
        let shape = w.shape;
        [
            shape.key_heads,
            shape.value_heads,
            shape.head_dim,
            shape.taps,
            shape.state_len(),
            shape.value_heads * shape.head_len(),
            shape.channels().next_multiple_of(16),
            self.mixed_len,
        ]
        .map(|size| Arg::u32(size as u32))
    }

    fn delta_inputs(
        &mut self,
        n: usize,
        x: &Rows,
        w: &Delta,
        state: &State,
        [tokens, mixed]: [u64; 2],
    ) -> Result<(), GpuError> {
        let heads = 2 * w.shape.key_heads + w.shape.value_heads + w.shape.value_heads.div_ceil(INPUT_LANES);
        let weights = [&w.conv, &w.a, &w.dt_bias].map(|buffer| buffer.address());
        let addresses =
            [x.address(), state.values.address()].into_iter().chain(weights).chain([tokens, mixed]);
        let scale = 1.0 / (w.shape.head_dim as f32).sqrt();
        let args: Vec<Arg> = addresses
            .map(Arg::u64)
            .chain([Arg::u32(x.stride as u32)])
            .chain(self.delta_sizes(w))
            .chain([Arg::f32(scale)])
            .chain(state.log_args())
            .collect();
        self.launch(&DELTA_INPUTS, [n, heads.div_ceil(INPUT_HEADS), 1], 0, &args)
    }

    fn delta_rule(
        &mut self,
        runs: usize,
        w: &Delta,
        state: &State,
        [mixed, listed]: [u64; 2],
    ) -> Result<(), GpuError> {
        let shape = w.shape;
        let kernel = if shape.head_dim == 128 { &DELTA_RULE_D128 } else { &DELTA_RULE };
        let addresses = [state.values.address(), mixed, listed].map(Arg::u64);
        let args: Vec<Arg> =
            addresses.into_iter().chain(self.delta_sizes(w)).chain(state.log_args()).collect();
        self.launch(kernel, [shape.head_dim.div_ceil(RULE_VALUES), shape.value_heads, runs], 0, &args)
    }

    fn delta_outputs(
        &mut self,
        n: usize,
        x: &Rows,
        w: &Delta,
        state: &State,
        [mixed, tokens]: [u64; 2],
        out: &Rows,
    ) -> Result<(), GpuError> {
        let addresses = [x.address(), state.values.address(), mixed, w.norm.address(), tokens, out.address()];
        let args: Vec<Arg> = addresses
            .map(Arg::u64)
            .into_iter()
            .chain([x.stride, out.stride].map(|size| Arg::u32(size as u32)))
            .chain(self.delta_sizes(w))
            .chain([Arg::f32(w.eps), Arg::f64(1.0 / w.shape.head_dim as f64)])
            .chain(state.log_args())
            .collect();
        self.launch(&DELTA_OUTPUTS, [n, w.shape.value_heads.div_ceil(OUTPUT_HEADS), 1], 0, &args)
    }

    /// Copies slot `from` to slot `to`: the kernel that copies blocks of keys and of values takes the halves of a slot.
    pub fn copy_state(&mut self, state: &mut State, from: u32, to: u32) -> Result<(), GpuError> {
        assert!((from.max(to) as usize) < state.slots, "the slots must exist");
        if from == to {
            return Ok(());
        }
        let half = 2 * state.shape.state_len();
        let first = state.values.address();
        self.launch(
            &COPY_BLOCK,
            [half.div_ceil(16 * COPY_BLOCK.block as usize), 1, 1],
            0,
            &[
                Arg::u64(first),
                Arg::u64(first + half as u64),
                Arg::u32(half as u32),
                Arg::u32(2 * from),
                Arg::u32(2 * to),
            ],
        )
    }

    /// Copies the state in a slot to the host.
    pub(in crate::gpu) fn read_state(
        &mut self,
        state: &mut State,
        slot: u32,
        to: &mut [u8],
    ) -> Result<(), GpuError> {
        let address = state.address(slot, to.len());
        self.receive(address, to)
    }

    /// Overwrites a slot with what [`Gpu::read_state`] has copied.
    pub(in crate::gpu) fn write_state(
        &mut self,
        state: &mut State,
        slot: u32,
        from: &[u8],
    ) -> Result<(), GpuError> {
        let address = state.address(slot, from.len());
        self.send(address, from)
    }
}

impl State {
    /// The logs, floats of a slot's log, and floats of a draft.
    fn log_args(&self) -> [Arg; 3] {
        let draft = self.shape.gpu_log_len();
        let address = self.log.as_ref().map_or(0, |log| log.address());
        [Arg::u64(address), Arg::u32((self.room * draft) as u32), Arg::u32(draft as u32)]
    }

    /// Bytes of a slot.
    pub(in crate::gpu) fn slot_bytes(&self) -> usize {
        4 * self.shape.state_len()
    }

    /// The address of a slot that a buffer of this size holds.
    fn address(&self, slot: u32, bytes: usize) -> u64 {
        assert!((slot as usize) < self.slots, "the slots must exist");
        assert_eq!(bytes, self.slot_bytes(), "the bytes of a slot");
        self.values.address() + u64::from(slot) * bytes as u64
    }
}
