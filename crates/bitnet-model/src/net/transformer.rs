//! The forward pass of every family on every backend, on one screen: [`Transformer::forward`].
//! The rest of the file loads the model, allocates its buffers and checks a step before it runs.

use std::collections::HashMap;

use bitnet_kernels::{
    Backend, BackendInfo, DeviceStatus, DraftLog, Fill, Grouping, HeadCounts, KernelError, MOST_PIECE, Norm,
    RowsKind, Step, Wanted,
};

use crate::{
    ModelError,
    error::check_shape,
    files::{PackedSource, TensorSource, read_ahead},
    names::{self, Expected},
    net::{
        Batch, CacheBytes, CachePlace, ForwardError, HiddenRows, Limits, Logits, Model, Run,
        draft_head::DraftHead,
        footprint,
        layer::{Dense, FeedForward, Layer, Mixer, Origin, Sum},
        weights::{SOURCE, packed, read_table},
    },
    spec::{ModelSpec, Windows, rope},
};

/// The forward pass of all families on any backend: a decoder with ternary projections, whose layers attend or keep a
/// recurrent state.
pub struct Transformer<B: Backend> {
    backend: B,
    spec: ModelSpec,
    limits: Limits,
    window_blocks: usize,
    embedding: B::Table,
    /// The output head, or `None` if it is the embedding.
    head: Option<B::Table>,
    layers: Vec<Layer<B>>,
    norm: Norm<B::Gain>,
    rope: B::Rope,
    /// Rope of the layers with full attention, if others slide.
    full_rope: Option<B::Rope>,
    buffers: Buffers<B>,
    slots: Slots,
    draft_head: Option<DraftHead<B>>,
}

/// Checks that no two runs of a step name the same slot, and what they say about its log, in one pass and without
/// allocating.
struct Slots {
    /// The last step that named each slot, `[state_slots]`.
    named: Vec<u64>,
    /// Number of the step that is being checked.
    step: u64,
    /// Number of drafts in the log of each slot, `[state_slots]`.
    logged: Vec<usize>,
    /// Drafts for which a log has room.
    room: usize,
}

impl Slots {
    fn check(&mut self, runs: &[Run]) -> Result<(), ForwardError> {
        self.step += 1;
        let (step, room) = (self.step, self.room);
        for &Run { state: slot, log: DraftLog { accepted, drafts }, start, ref tokens, .. } in runs {
            if std::mem::replace(self.entry(slot)?, step) == step {
                return Err(ForwardError::StateShared { slot });
            }
            let logged = self.logged[slot as usize].min(start);
            if accepted > logged || drafts > room || drafts >= tokens.len() {
                return Err(ForwardError::LogExceeded { slot, accepted, logged, drafts, room });
            }
        }
        Ok(())
    }

    /// Takes note of the drafts of a step that has been computed.
    fn log(&mut self, runs: &[Run]) {
        runs.iter().for_each(|run| self.logged[run.state as usize] = run.log.drafts);
    }

    /// The last step that named `slot`, if there is such a slot.
    fn entry(&mut self, slot: u32) -> Result<&mut u64, ForwardError> {
        let slots = self.named.len();
        self.named.get_mut(slot as usize).ok_or(ForwardError::StateOutOfRange { slot, slots })
    }
}

/// Activations of one step, `[max_tokens][...]`.
struct Buffers<B: Backend> {
    /// Residual stream, `[hidden]`.
    residual: B::Rows,
    /// Normed residual in int8, the input of projections, `[hidden]`.
    input_quants: B::Int8Rows,
    /// Queries, keys and values, `[q_width + 2 kv_width]`, and `[q_width]` more for output gates.
    qkv: B::Rows,
    /// Output of attention, `[q_width]`.
    attended: B::Rows,
    /// The same in int8, the input of the output projection.
    attended_quants: B::Int8Rows,
    /// Buffers of gated-delta layers, if the model has any.
    delta: Option<DeltaBuffers<B>>,
    /// Gate and up projections, `[2 ffn]`; no rows in a model with experts.
    gate_up: B::Rows,
    /// Gated activation in int8, the input of the down projection, `[ffn]`; no rows in a model with experts.
    gated_quants: B::Int8Rows,
    /// Outputs that pass a norm before they are added, `[hidden]`, if the model has such norms.
    projected: Option<B::Rows>,
    /// Normed rows whose logits are needed, `[max_logit_rows][hidden]`.
    head_rows: B::Rows,
}

/// Activations of gated-delta layers.
struct DeltaBuffers<B: Backend> {
    /// All projections of a layer's input, `[columns]`.
    projected: B::Rows,
    /// Output of the recurrence, `[value_width]`.
    output: B::Rows,
    /// The same in int8, the input of the output projection.
    output_quants: B::Int8Rows,
}

impl<B: Backend> Transformer<B> {
    /// Converts all weights to the layout of `backend`, unless they are already stored in it, and allocates memory for
    /// steps up to `limits`. `progress` receives the number of layers done and the total.
    ///
    /// # Errors
    /// If a tensor is missing or damaged, or the backend runs out of memory.
    pub fn load(
        spec: &ModelSpec,
        tensors: &dyn TensorSource,
        backend: B,
        limits: Limits,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, ModelError> {
        Self::load_for(spec, tensors, backend, (limits, 0), progress)
    }

    /// As [`Transformer::load`], with blocks that only sliding layers use ([`Limits::window_blocks`]), if the model has
    /// such layers.
    ///
    /// # Errors
    /// As [`Transformer::load`].
    pub fn load_with_windows(
        spec: &ModelSpec,
        tensors: &dyn TensorSource,
        backend: B,
        limits: Limits,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, ModelError> {
        let window_blocks = spec.sliding_window().map_or(0, |window| limits.window_blocks(window));
        Self::load_for(spec, tensors, backend, (limits, window_blocks), progress)
    }

    fn load_for(
        spec: &ModelSpec,
        tensors: &dyn TensorSource,
        backend: B,
        sizes: (Limits, usize),
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, ModelError> {
        spec.check(SOURCE)?;
        names::check_rotation(spec, SOURCE)?;
        check_shapes(spec, tensors)?;
        if spec.state_bytes() > 0 && sizes.0.state_slots == 0 {
            let cure = "this model has recurrent layers; load it with a state slot for every sequence";
            return Err(ModelError::unsupported(SOURCE, "the number of state slots", 0, cure));
        }
        if packed::<B>(tensors).is_some() {
            return Self::read(spec, tensors, backend, sizes, progress);
        }
        read_ahead::with(tensors, |tensors| Self::read(spec, tensors, backend, sizes, progress))
    }

    fn read(
        spec: &ModelSpec,
        tensors: &dyn TensorSource,
        mut backend: B,
        (limits, window_blocks): (Limits, usize),
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, ModelError> {
        let b = &mut backend;
        progress(0, spec.layers);
        let mut embedding = read_table(b, spec, tensors, names::EMBEDDING)?;
        let mut head =
            if spec.tied_head { None } else { Some(read_table(b, spec, tensors, names::head(spec))?) };
        // Bounds need an int8 copy of the head. A ternary head has a quarter of the bytes of such a copy, so bounds
        // would not help.
        if b.shortlists() && !spec.grouped.head {
            let stored = packed::<B>(tensors).map(PackedSource::head_copy).transpose()?.flatten();
            b.prepare_shortlist(head.as_mut().unwrap_or(&mut embedding), stored)?;
        }
        let mut gain = tensors.dense(names::FINAL_NORM)?.to_f32();
        gain.iter_mut().for_each(|g| *g /= spec.multipliers.logit_divisor);
        let norm = Norm { gain: b.gain(&gain)?, eps: spec.rms_eps };
        let mut layers = Vec::with_capacity(spec.layers);
        for index in 0..spec.layers {
            layers.push(Layer::load(b, &Origin { spec, tensors, limits, window_blocks, index })?);
            progress(index + 1, spec.layers);
        }
        let context = footprint::context(spec, limits);
        let rope = read_rope(b, spec, Some(spec.rope.theta), context)?;
        let full = |windows: &Windows| read_rope(b, spec, windows.full_theta, context);
        let full_rope = spec.windows.as_ref().map(full).transpose()?;
        let buffers = Buffers::new(b, spec, limits)?;
        let draft_head = spec.draft_head.then(|| DraftHead::load(b, spec, tensors, limits)).transpose()?;
        b.prepare(&footprint::step_size(spec, limits, context))?;
        let spec = ModelSpec { context, ..spec.clone() };
        let named = vec![0; limits.state_slots];
        let logged = vec![0; limits.state_slots];
        let slots = Slots { named, step: 0, logged, room: 0 };
        Ok(Transformer {
            backend,
            spec,
            limits,
            window_blocks,
            embedding,
            head,
            layers,
            norm,
            rope,
            full_rope,
            buffers,
            slots,
            draft_head,
        })
    }

    /// The backend, to read its counters.
    pub fn backend_ref(&self) -> &B {
        &self.backend
    }

    /// The backend, which must keep what the model has made on it.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    fn check(&self, batch: &Batch) -> Result<(), ForwardError> {
        let sizes = [
            ("tokens", batch.tokens().len(), self.limits.max_tokens),
            ("logit rows", batch.logit_rows().len(), self.limits.max_logit_rows),
        ];
        for (what, actual, limit) in sizes {
            if actual > limit {
                return Err(ForwardError::StepTooLarge { what, actual, limit });
            }
        }
        let vocab = self.spec.vocab;
        if let Some(index) = batch.tokens().iter().position(|&t| t as usize >= vocab) {
            return Err(ForwardError::TokenOutOfRange { index, token: batch.tokens()[index], vocab });
        }
        let context = self.spec.context;
        for run in batch.runs() {
            if run.start + run.tokens.len() > context {
                return Err(ForwardError::ContextExceeded { position: context, context });
            }
        }
        batch.blocks().iter().try_for_each(|&block| check_block(block, self.limits.kv_blocks))?;
        if self.window_blocks > 0 { self.check_windows(batch) } else { Ok(()) }
    }

    /// Checks that every run has a block of sliding layers wherever it reads or writes.
    fn check_windows(&self, batch: &Batch) -> Result<(), ForwardError> {
        let Some(window) = self.spec.sliding_window() else { return Ok(()) };
        for run in batch.runs() {
            let last = (run.start + run.tokens.len()).div_ceil(Batch::BLOCK_TOKENS);
            let used = batch.windows(run).get(Batch::first_block(window, run.start)..last);
            let used = used.ok_or(ForwardError::WindowMissing { position: run.start })?;
            used.iter().try_for_each(|&block| check_block(block, self.window_blocks))?;
        }
        Ok(())
    }

    fn check_states(&mut self, batch: &Batch) -> Result<(), ForwardError> {
        if self.spec.state_bytes() == 0 { Ok(()) } else { self.slots.check(batch.runs()) }
    }

    /// Checks that there is such a place and that it has this many bytes.
    fn check_cache(&mut self, place: CachePlace, actual: usize) -> Result<(), ForwardError> {
        match place {
            CachePlace::Block(block) => check_block(block, self.limits.kv_blocks)?,
            CachePlace::Window(block) => check_block(block, self.window_blocks)?,
            CachePlace::State(slot) => self.slots.entry(slot).map(drop)?,
        }
        let expected = self.cache_bytes().map_or(0, |bytes| bytes.of(place));
        if actual == expected { Ok(()) } else { Err(ForwardError::CacheSize { actual, expected }) }
    }

    /// Copies a block of the layers that keep something in `place` to another block there.
    fn copy_to(&mut self, place: CachePlace, from: u32, to: u32) -> Result<(), ForwardError> {
        let own = self.window_blocks > 0;
        let head = self.draft_head.iter_mut().map(|head| &mut head.layer);
        for layer in self.layers.iter_mut().chain(head) {
            if let Mixer::Attention(attention) = &mut layer.mixer
                && attention.is_in(place, own)
            {
                self.backend.copy_block(&mut attention.kv, from, to)?;
            }
        }
        Ok(())
    }
}

fn check_block(block: u32, blocks: usize) -> Result<(), ForwardError> {
    if (block as usize) < blocks { Ok(()) } else { Err(ForwardError::BlockOutOfRange { block, blocks }) }
}

impl<B: Backend> Model for Transformer<B> {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn window_blocks(&self) -> usize {
        self.window_blocks
    }

    fn backend(&self) -> BackendInfo {
        self.backend.info()
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), ForwardError> {
        self.check(batch)?;
        self.check_states(batch)?;
        let (tokens, step) = (batch.tokens().len(), batch.step());
        let windows = if self.window_blocks > 0 { batch.window_step() } else { step };
        let Transformer { backend, spec, buffers, .. } = self;
        let factors = spec.multipliers;

        backend.embed(&self.embedding, batch.tokens(), factors.embedding, &mut buffers.residual)?;
        for layer in &mut self.layers {
            buffers.run(backend, spec, [step, windows], (&self.rope, self.full_rope.as_ref()), layer)?;
        }
        if let Some(head) = &mut self.draft_head {
            backend.norm_rows(&head.all_rows[..tokens], &buffers.residual, &self.norm, &mut head.hidden)?;
        }

        let head = self.head.as_ref().unwrap_or(&self.embedding);
        backend.norm_rows(batch.logit_rows(), &buffers.residual, &self.norm, &mut buffers.head_rows)?;
        let (rows, wanted) = (batch.logit_rows().len(), batch.wanted());
        let (values, drawn) = logits.resize_with_drawn(rows, spec.vocab);
        if wanted.iter().any(|&wanted| wanted != Wanted::Hidden) {
            backend.logits(&buffers.head_rows, head, wanted, batch.edits(), values, drawn)?;
        }
        if wanted.contains(&Wanted::Hidden) {
            logits.set_hidden(backend.read(&buffers.head_rows, rows)?);
        }
        backend.finish()?;
        if self.spec.state_bytes() > 0 {
            self.slots.log(batch.runs());
        }
        Ok(())
    }

    fn has_draft_head(&self) -> bool {
        self.draft_head.is_some()
    }

    fn draft(
        &mut self,
        batch: &Batch,
        hidden: HiddenRows<'_>,
        logits: &mut Logits,
    ) -> Result<(), ForwardError> {
        self.check(batch)?;
        let (tokens, step) = (batch.tokens().len(), batch.step());
        assert_eq!(hidden.rows().len(), tokens, "each token is paired with a hidden state");
        let Transformer { backend, spec, buffers, draft_head, .. } = self;
        let draft = draft_head.as_mut().ok_or(ForwardError::NoDraftHead)?;
        let (residual, input) = (&mut buffers.residual, &mut buffers.input_quants);

        backend.embed(&self.embedding, batch.tokens(), spec.multipliers.embedding, residual)?;
        backend.norm_quantize(tokens, residual, [Some(&draft.embedding_norm), None], None, input)?;
        backend.bit_linear(tokens, input, &draft.of_embedding, residual, 0, None)?;
        let from = match hidden {
            HiddenRows::Forward(_) => &draft.hidden,
            HiddenRows::Drafted(_) => &draft.drafted,
        };
        backend.norm_rows(hidden.rows(), from, &draft.hidden_norm, &mut draft.gathered)?;
        backend.norm_quantize(tokens, &draft.gathered, [None, None], None, input)?;
        backend.bit_linear(tokens, input, &draft.of_hidden, residual, 0, Some(1.0))?;
        buffers.run(backend, spec, [step; 2], (&self.rope, None), &mut draft.layer)?;

        let rows = batch.logit_rows();
        let (values, drawn) = logits.resize_with_drawn(rows.len(), spec.vocab);
        if !rows.is_empty() {
            let head = self.head.as_ref().unwrap_or(&self.embedding);
            backend.norm_rows(rows, &buffers.residual, &draft.norm, &mut draft.drafted)?;
            backend.logits(&draft.drafted, head, batch.wanted(), batch.edits(), values, drawn)?;
        }
        Ok(backend.finish()?)
    }

    fn device(&self) -> Option<DeviceStatus> {
        self.backend.device()
    }

    fn head_work(&self) -> Option<HeadCounts> {
        self.backend.head_work()
    }

    /// Always 0: batches are ragged.
    fn padding(&self) -> Option<f64> {
        Some(0.0)
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        check_block(from.max(to), self.limits.kv_blocks)?;
        self.copy_to(CachePlace::Block(from), from, to)
    }

    fn copy_window(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        check_block(from.max(to), self.window_blocks)?;
        self.copy_to(CachePlace::Window(from), from, to)
    }

    fn reserve_log(&mut self, drafts: usize) -> Result<usize, ForwardError> {
        for layer in &mut self.layers {
            if let Mixer::Delta(delta) = &mut layer.mixer {
                self.slots.room = self.backend.reserve_log(&mut delta.state, drafts)?;
            }
        }
        Ok(self.slots.room)
    }

    fn copy_state(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        self.slots.entry(from.max(to))?;
        if from != to {
            self.slots.logged[to as usize] = 0;
        }
        for layer in &mut self.layers {
            if let Mixer::Delta(delta) = &mut layer.mixer {
                self.backend.copy_state(&mut delta.state, from, to)?;
            }
        }
        Ok(())
    }

    fn cache_bytes(&self) -> Option<CacheBytes> {
        let own = self.window_blocks > 0;
        let bytes = |place| self.layers.iter().map(|layer| layer.mixer.kept_bytes(place, own)).sum();
        let (block, window) = (bytes(CachePlace::Block(0)), bytes(CachePlace::Window(0)));
        let pieces = self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => Some(B::block_piece(&attention.kv)),
            Mixer::Delta(_) => None,
        });
        let piece = pieces.min().unwrap_or(MOST_PIECE);
        Some(CacheBytes { block, window, state: bytes(CachePlace::State(0)), piece })
    }

    fn read_cache(&mut self, place: CachePlace, mut to: &mut [u8]) -> Result<(), ForwardError> {
        self.check_cache(place, to.len())?;
        let own = self.window_blocks > 0;
        for Layer { mixer, .. } in &mut self.layers {
            let part = to.split_off_mut(..mixer.kept_bytes(place, own)).expect("the bytes are counted");
            match (mixer, place) {
                _ if part.is_empty() => {}
                (Mixer::Attention(attention), CachePlace::Block(at) | CachePlace::Window(at)) => {
                    self.backend.read_block(&mut attention.kv, at, part)?;
                }
                (Mixer::Delta(delta), CachePlace::State(at)) => {
                    self.backend.read_state(&mut delta.state, at, part)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn fill_block(&mut self, block: u32, fill: &Fill<'_>) -> Result<(), ForwardError> {
        check_block(block, self.limits.kv_blocks)?;
        let (own, place) = (self.window_blocks > 0, CachePlace::Block(block));
        let layers = self.layers.iter_mut().filter_map(|layer| match &mut layer.mixer {
            Mixer::Attention(attention) if attention.is_in(place, own) => Some(&mut attention.kv),
            _ => None,
        });
        self.backend.fill_block(&mut layers.collect::<Vec<_>>(), block, fill)?;
        Ok(())
    }

    fn write_cache(&mut self, place: CachePlace, mut from: &[u8]) -> Result<(), ForwardError> {
        self.check_cache(place, from.len())?;
        let own = self.window_blocks > 0;
        if let CachePlace::State(slot) = place {
            self.slots.logged[slot as usize] = 0;
        }
        for Layer { mixer, .. } in &mut self.layers {
            let part = from.split_off(..mixer.kept_bytes(place, own)).expect("the bytes are counted");
            match (mixer, place) {
                _ if part.is_empty() => {}
                (Mixer::Attention(attention), CachePlace::Block(at) | CachePlace::Window(at)) => {
                    self.backend.write_block(&mut attention.kv, at, part)?;
                }
                (Mixer::Delta(delta), CachePlace::State(at)) => {
                    self.backend.write_state(&mut delta.state, at, part)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl<B: Backend> Buffers<B> {
    /// Runs one layer on the residual stream. `steps` say where tokens belong in layers with full attention and in sliding
    /// ones. `ropes` are those of most layers and, if others slide, of full attention.
    fn run(
        &mut self,
        backend: &mut B,
        spec: &ModelSpec,
        [step, windows]: [Step<'_>; 2],
        ropes: (&B::Rope, Option<&B::Rope>),
        layer: &mut Layer<B>,
    ) -> Result<(), KernelError> {
        let (tokens, factor) = (step.tokens(), spec.multipliers.residual);
        let (residual, input) = (&mut self.residual, &mut self.input_quants);
        match &mut layer.mixer {
            Mixer::Attention(attention) => {
                let (qkv, attended) = (&mut self.qkv, &mut self.attended);
                let (step, rope) = match attention.window {
                    Some(_) => (windows.within(attention.window), ropes.0),
                    None => (step, ropes.1.unwrap_or(ropes.0)),
                };
                attention.project_rope_store(backend, step, residual, input, rope, qkv)?;
                backend.attention(step, qkv, &attention.kv, attended)?;
                attention.gate(backend, tokens, qkv, attended)?;
                let sum = Sum { factor, projected: self.projected.as_mut(), residual };
                attention.output.project_add(backend, tokens, attended, &mut self.attended_quants, sum)?;
            }
            Mixer::Delta(delta) => {
                let own = self.delta.as_mut().expect("a model with gated-delta layers has their buffers");
                let (projected, output) = (&mut own.projected, &mut own.output);
                delta.project(backend, tokens, residual, input, projected)?;
                backend.gated_delta(step, projected, &delta.weights, &mut delta.state, output)?;
                let quants = &mut own.output_quants;
                let sum = Sum { factor, projected: None, residual };
                delta.output.project_add(backend, tokens, output, quants, sum)?;
            }
        }
        match &layer.ffn {
            FeedForward::Experts(experts, norm) => backend.mix_experts(tokens, norm, experts, residual),
            FeedForward::Dense(Dense { gate_up: projection, down }) => {
                let (gate_up, gated) = (&mut self.gate_up, &mut self.gated_quants);
                let gate = spec.activation;
                projection
                    .project_gate_quantize(backend, tokens, residual, input, gate, down, gate_up, gated)?;
                let sum = Sum { factor, projected: self.projected.as_mut(), residual };
                down.add_quantized(backend, tokens, gated, sum)
            }
        }
    }

    fn new(b: &mut B, spec: &ModelSpec, limits: Limits) -> Result<Self, KernelError> {
        let n = limits.max_tokens;
        let grouping = if spec.grouped.projections { Grouping::Groups } else { Grouping::Row };
        let gates = if spec.output_gate { spec.q_width() } else { 0 };
        let dense = if spec.experts.is_some() { 0 } else { n };
        let delta = spec.delta().map(|delta| {
            let (columns, values) = (delta.columns(), delta.value_width());
            Ok::<_, KernelError>(DeltaBuffers {
                projected: b.rows(n, columns, RowsKind::Intermediate)?,
                output: b.rows(n, values, RowsKind::Intermediate)?,
                output_quants: b.int8_rows(n, values, grouping)?,
            })
        });
        Ok(Buffers {
            delta: delta.transpose()?,
            residual: b.rows(n, spec.hidden, RowsKind::Residual)?,
            input_quants: b.int8_rows(n, spec.hidden, grouping)?,
            qkv: b.rows(n, spec.q_width() + 2 * spec.kv_width() + gates, RowsKind::Intermediate)?,
            attended: b.rows(n, spec.q_width(), RowsKind::Intermediate)?,
            attended_quants: b.int8_rows(n, spec.q_width(), grouping)?,
            gate_up: b.rows(dense, 2 * spec.ffn, RowsKind::Intermediate)?,
            gated_quants: b.int8_rows(dense, spec.ffn, grouping)?,
            projected: if spec.post_norms {
                Some(b.rows(n, spec.hidden, RowsKind::Intermediate)?)
            } else {
                None
            },
            head_rows: b.rows(limits.max_logit_rows, spec.hidden, RowsKind::Intermediate)?,
        })
    }
}

/// The rotary tables of layers with this base; without one, nothing is rotated.
fn read_rope<B: Backend>(
    b: &mut B,
    spec: &ModelSpec,
    theta: Option<f32>,
    context: usize,
) -> Result<B::Rope, KernelError> {
    let Some(theta) = theta else { return b.rope(&[], &[], 0) };
    let mut spec = spec.clone();
    spec.rope.theta = theta;
    let (cos, sin) = rope::tables(&spec, context);
    b.rope(&cos, &sin, spec.rotary_width())
}

/// Checks that a source has every tensor of the model in the right shape.
fn check_shapes(spec: &ModelSpec, tensors: &dyn TensorSource) -> Result<(), ModelError> {
    let shapes: HashMap<&str, &[usize]> = tensors
        .entries()
        .iter()
        .chain(tensors.draft_head())
        .map(|e| (e.name.as_str(), e.shape.as_slice()))
        .collect();
    let head = spec.draft_head.then(|| names::draft_head(spec)).into_iter().flatten();
    for Expected { name, shape: expected, .. } in names::expected(spec).chain(head) {
        let Some(actual) = shapes.get(name.as_str()) else {
            return Err(ModelError::MissingTensor { file: SOURCE.into(), tensor: name });
        };
        check_shape(SOURCE, &name, &expected, actual)?;
    }
    Ok(())
}

bitnet_tensor::opaque_debug!(Transformer<B: Backend> { spec, limits });
