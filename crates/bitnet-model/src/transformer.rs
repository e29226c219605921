use std::{collections::HashMap, fmt};

use bitnet_kernels::{
    Backend, BackendInfo, DeviceStatus, Grouping, KernelError, Norm, RowsKind, StepSize, Wanted,
};

use crate::{
    Batch, ForwardError, Limits, Logits, Model, ModelError, ModelSpec, PackedSource, Run, TensorSource,
    error::check_shape,
    layer::{Layer, Mixer, Origin},
    names::{self, Expected},
    read_ahead, rope,
    weights::{SOURCE, packed, read_table},
};

/// The forward pass of all families on any backend: a decoder with ternary projections, whose layers attend or keep a
/// recurrent state.
pub struct Transformer<B: Backend> {
    backend: B,
    spec: ModelSpec,
    limits: Limits,
    embedding: B::Table,
    /// The output head, or `None` if it is the embedding.
    head: Option<B::Table>,
    layers: Vec<Layer<B>>,
    norm: Norm<B::Gain>,
    rope: B::Rope,
    buffers: Buffers<B>,
    slots: Slots,
}

/// Checks that no two runs of a step name the same slot, in one pass and without allocating.
struct Slots {
    /// The last step that named each slot, `[state_slots]`.
    named: Vec<u64>,
    /// Number of the step that is being checked.
    step: u64,
}

impl Slots {
    fn check(&mut self, runs: &[Run]) -> Result<(), ForwardError> {
        self.step += 1;
        let step = self.step;
        for &Run { state: slot, .. } in runs {
            if std::mem::replace(self.entry(slot)?, step) == step {
                return Err(ForwardError::StateShared { slot });
            }
        }
        Ok(())
    }

    /// The last step that named `slot`, if there is such a slot.
    fn entry(&mut self, slot: u32) -> Result<&mut u64, ForwardError> {
        let slots = self.named.len();
        self.named.get_mut(slot as usize).ok_or(ForwardError::StateOutOfRange { slot, slots })
    }
}

/// Activations of one step, `[max_tokens][...]`.
struct Buffers<B: Backend> {
    /// `[hidden]` residual stream
    residual: B::Rows,
    /// `[hidden]` int8 input of a projection
    hidden_q: B::Quants,
    /// `[q_width + 2 kv_width]`, and `[q_width]` more for output gates
    qkv: B::Rows,
    /// `[q_width]`
    attention: B::Rows,
    /// `[q_width]` int8
    attention_q: B::Quants,
    /// For gated-delta layers, if the model has them.
    delta: Option<DeltaBuffers<B>>,
    /// `[2 ffn]`
    gate_up: B::Rows,
    /// `[ffn]` int8
    ffn_q: B::Quants,
    /// `[max_logit_rows][hidden]`
    last: B::Rows,
}

/// Activations of gated-delta layers.
struct DeltaBuffers<B: Backend> {
    /// All projections of a layer's input
    input: B::Rows,
    /// `[value_width]`
    output: B::Rows,
    /// `[value_width]` int8
    output_q: B::Quants,
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
        spec.check(SOURCE)?;
        names::check_rotation(spec, SOURCE)?;
        check_shapes(spec, tensors)?;
        if spec.state_bytes() > 0 && limits.state_slots == 0 {
            let cure = "this model has recurrent layers; load it with a state slot for every sequence";
            return Err(ModelError::unsupported(SOURCE, "the number of state slots", 0, cure));
        }
        if packed::<B>(tensors).is_some() {
            return Self::read(spec, tensors, backend, limits, progress);
        }
        read_ahead::with(tensors, |tensors| Self::read(spec, tensors, backend, limits, progress))
    }

    fn read(
        spec: &ModelSpec,
        tensors: &dyn TensorSource,
        mut backend: B,
        limits: Limits,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, ModelError> {
        let b = &mut backend;
        progress(0, spec.layers);
        let mut embedding = read_table(b, spec, tensors, names::EMBEDDING)?;
        let mut head = match spec.tied_head {
            true => None,
            false => Some(read_table(b, spec, tensors, names::head(spec))?),
        };
        // Bounds need an int8 copy of the head. A ternary head has a quarter of the bytes of such a copy, so bounds
        // would not help.
        if b.screens() && !spec.grouped.head {
            let stored = packed::<B>(tensors).map(PackedSource::screen).transpose()?.flatten();
            b.screen(head.as_mut().unwrap_or(&mut embedding), stored)?;
        }
        let mut gain = tensors.dense(names::FINAL_NORM)?.to_f32();
        gain.iter_mut().for_each(|g| *g /= spec.multipliers.logit_divisor);
        let norm = Norm { gain: b.gain(&gain)?, eps: spec.rms_eps };
        let mut layers = Vec::with_capacity(spec.layers);
        for index in 0..spec.layers {
            layers.push(Layer::load(b, &Origin { spec, tensors, limits, index })?);
            progress(index + 1, spec.layers);
        }
        let context = spec.context.min(limits.kv_blocks.saturating_mul(Batch::BLOCK_TOKENS));
        let (cos, sin) = rope::tables(spec, context);
        let rope = b.rope(&cos, &sin, spec.rotary_width())?;
        let buffers = Buffers::new(b, spec, limits)?;
        b.prepare(&StepSize {
            tokens: limits.max_tokens,
            logit_rows: limits.max_logit_rows,
            blocks: limits.max_tokens.saturating_mul(context.div_ceil(Batch::BLOCK_TOKENS)),
            group: spec.heads / spec.kv_heads,
            vocab: spec.vocab,
        })?;
        let spec = ModelSpec { context, ..spec.clone() };
        let slots = Slots { named: vec![0; limits.state_slots], step: 0 };
        Ok(Transformer { backend, spec, limits, embedding, head, layers, norm, rope, buffers, slots })
    }

    /// The backend, to read its counters.
    pub fn backend_ref(&self) -> &B {
        &self.backend
    }

    /// The backend, which must keep what the model has made on it.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    fn check(&mut self, batch: &Batch) -> Result<(), ForwardError> {
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
        batch.blocks().iter().try_for_each(|&block| self.check_block(block))?;
        if self.spec.state_bytes() == 0 { Ok(()) } else { self.slots.check(batch.runs()) }
    }

    fn check_block(&self, block: u32) -> Result<(), ForwardError> {
        let blocks = self.limits.kv_blocks;
        if block as usize >= blocks {
            return Err(ForwardError::BlockOutOfRange { block, blocks });
        }
        Ok(())
    }
}

impl<B: Backend> Model for Transformer<B> {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn backend(&self) -> BackendInfo {
        self.backend.info()
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), ForwardError> {
        self.check(batch)?;
        let (n, step) = (batch.tokens().len(), batch.step());
        let Transformer { backend: b, spec, buffers: x, .. } = self;
        let factors = spec.multipliers;

        b.embed(&self.embedding, batch.tokens(), factors.embedding, &mut x.residual)?;
        for layer in &mut self.layers {
            let (r, q) = (&x.residual, &mut x.hidden_q);
            match &mut layer.mixer {
                Mixer::Attention(attention) => {
                    attention.rope_store(b, step, r, q, &self.rope, &mut x.qkv)?;
                    b.attention(step, &x.qkv, &attention.kv, &mut x.attention)?;
                    attention.gate(b, n, &x.qkv, &mut x.attention)?;
                    let (out, q) = (&x.attention, &mut x.attention_q);
                    attention.output.add(b, n, out, q, factors.residual, &mut x.residual)?;
                }
                Mixer::Delta(delta) => {
                    let d = x.delta.as_mut().expect("a model with gated-delta layers has their buffers");
                    delta.project(b, n, r, q, &mut d.input)?;
                    b.gated_delta(step, &d.input, &delta.weights, &mut delta.state, &mut d.output)?;
                    let (out, q) = (&d.output, &mut d.output_q);
                    delta.output.add(b, n, out, q, factors.residual, &mut x.residual)?;
                }
            }
            let (r, q, gate) = (&x.residual, &mut x.hidden_q, spec.activation);
            layer.gate_up.gate_quantize(b, n, r, q, gate, &layer.down, &mut x.gate_up, &mut x.ffn_q)?;
            layer.down.add_quantized(b, n, &x.ffn_q, factors.residual, &mut x.residual)?;
        }

        let head = self.head.as_ref().unwrap_or(&self.embedding);
        b.norm_rows(batch.logit_rows(), &x.residual, &self.norm, &mut x.last)?;
        let (rows, wanted) = (batch.logit_rows().len(), batch.wanted());
        let (values, drawn) = logits.resize_with_drawn(rows, spec.vocab);
        if wanted.iter().any(|&wanted| wanted != Wanted::Hidden) {
            b.logits(&x.last, head, wanted, values, drawn)?;
        }
        if wanted.contains(&Wanted::Hidden) {
            logits.set_hidden(b.read(&x.last, rows)?);
        }
        Ok(b.finish()?)
    }

    fn device(&self) -> Option<DeviceStatus> {
        self.backend.device()
    }

    /// Always 0: batches are ragged.
    fn padding(&self) -> Option<f64> {
        Some(0.0)
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        self.check_block(from.max(to))?;
        for layer in &mut self.layers {
            if let Mixer::Attention(attention) = &mut layer.mixer {
                self.backend.copy_block(&mut attention.kv, from, to)?;
            }
        }
        Ok(())
    }

    fn copy_state(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        self.slots.entry(from.max(to))?;
        for layer in &mut self.layers {
            if let Mixer::Delta(delta) = &mut layer.mixer {
                self.backend.copy_state(&mut delta.state, from, to)?;
            }
        }
        Ok(())
    }
}

impl<B: Backend> Buffers<B> {
    fn new(b: &mut B, spec: &ModelSpec, limits: Limits) -> Result<Self, KernelError> {
        let n = limits.max_tokens;
        let grouping = if spec.grouped.projections { Grouping::Groups } else { Grouping::Row };
        let gates = if spec.output_gate { spec.q_width() } else { 0 };
        let delta = spec.delta().map(|delta| {
            let (columns, values) = (delta.columns(), delta.value_width());
            Ok::<_, KernelError>(DeltaBuffers {
                input: b.rows(n, columns, RowsKind::Intermediate)?,
                output: b.rows(n, values, RowsKind::Intermediate)?,
                output_q: b.quants(n, values, grouping)?,
            })
        });
        Ok(Buffers {
            delta: delta.transpose()?,
            residual: b.rows(n, spec.hidden, RowsKind::Residual)?,
            hidden_q: b.quants(n, spec.hidden, grouping)?,
            qkv: b.rows(n, spec.q_width() + 2 * spec.kv_width() + gates, RowsKind::Intermediate)?,
            attention: b.rows(n, spec.q_width(), RowsKind::Intermediate)?,
            attention_q: b.quants(n, spec.q_width(), grouping)?,
            gate_up: b.rows(n, 2 * spec.ffn, RowsKind::Intermediate)?,
            ffn_q: b.quants(n, spec.ffn, grouping)?,
            last: b.rows(limits.max_logit_rows, spec.hidden, RowsKind::Intermediate)?,
        })
    }
}

/// Checks that a source has every tensor of the model in the right shape.
fn check_shapes(spec: &ModelSpec, tensors: &dyn TensorSource) -> Result<(), ModelError> {
    let shapes: HashMap<&str, &[usize]> =
        tensors.entries().iter().map(|e| (e.name.as_str(), e.shape.as_slice())).collect();
    for Expected { name, shape: expected, .. } in names::expected(spec) {
        let Some(actual) = shapes.get(name.as_str()) else {
            return Err(ModelError::MissingTensor { file: SOURCE.into(), tensor: name });
        };
        check_shape(SOURCE, &name, &expected, actual)?;
    }
    Ok(())
}

impl<B: Backend> fmt::Debug for Transformer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Transformer { spec, limits, .. } = self;
        f.debug_struct("Transformer").field("spec", spec).field("limits", limits).finish_non_exhaustive()
    }
}
