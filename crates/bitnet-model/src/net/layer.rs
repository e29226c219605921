//! One decoder layer: its weights, the keys, values or states that sequences keep in it, and its products.
//! [`Layer::load`] reads it; `transformer.rs` runs it.

use bitnet_kernels::{
    Backend, DeltaWeights, ExpertShape, ExpertWeights, Gate, KernelError, KvShape, Norm, Norms, Rotate,
    RowOrder, Step,
};

use crate::{
    ModelError,
    files::TensorSource,
    names::{self, Part, StackedProjections},
    net::{
        CachePlace, Limits,
        weights::{read_dense_stack, read_int8, read_linear, read_norm, read_router, read_ternary},
    },
    spec::{Experts, Hybrid, ModelSpec},
};

/// The weights of one decoder layer, and the keys, values or states that sequences keep in it.
pub(crate) struct Layer<B: Backend> {
    pub(crate) mixer: Mixer<B>,
    pub(crate) ffn: FeedForward<B>,
}

/// The part of a layer in which every token is on its own.
pub(crate) enum FeedForward<B: Backend> {
    Dense(Dense<B>),
    /// Experts, applied to the residual after this norm.
    Experts(B::Experts, Norm<B::Gain>),
}

/// A feed-forward layer that every token passes.
pub(crate) struct Dense<B: Backend> {
    /// Gate and up projections, applied to the normed residual.
    pub(crate) gate_up: Projection<B>,
    /// Projection from the gated activation back to the residual.
    pub(crate) down: Projection<B>,
}

/// The token mixer: the part of a layer in which a token depends on the tokens before it.
pub(crate) enum Mixer<B: Backend> {
    Attention(Attention<B>),
    Delta(Delta<B>),
}

/// Attention to the keys and values of all earlier tokens.
pub(crate) struct Attention<B: Backend> {
    /// Projections from the normed residual to queries, keys, values and output gates.
    qkv: Projection<B>,
    /// Whether rope can be applied while `qkv` is computed.
    fused: bool,
    heads: usize,
    /// Norms of query heads and of key heads, if the model has them.
    head_norms: Option<[Norm<B::Gain>; 2]>,
    /// First column of the output gates, if the model has them.
    gate: Option<usize>,
    /// Projection from all query heads back to the residual.
    pub(crate) output: Projection<B>,
    /// Number of keys that a token attends to; all if `None`.
    pub(crate) window: Option<usize>,
    pub(crate) kv: B::Kv,
}

/// A recurrent state, updated by the gated delta rule.
pub(crate) struct Delta<B: Backend> {
    /// All projections of the normed residual, including alpha and beta if they are ternary.
    input: Projection<B>,
    /// Alpha and beta as a float matrix, and their first column.
    alpha_beta: Option<(B::Table, usize)>,
    pub(crate) weights: B::Delta,
    /// Projection from all value heads back to the residual.
    pub(crate) output: Projection<B>,
    pub(crate) state: B::State,
}

/// Ternary matrices that share an input.
///
/// They are stacked into one matrix, unless they need the input in different forms: each with its own norm
/// (`use_rms_norm`), or only some in a rotated basis. Then each quantises the input separately.
pub(crate) struct Projection<B: Backend> {
    /// Applied to the input before any matrix.
    norm: Option<Norm<B::Gain>>,
    matrices: Vec<Matrix<B>>,
    /// Applied to the output before it is added to the residual, if the model has such norms.
    post_norm: Option<Norm<B::Gain>>,
}

/// What a projection back to the residual adds to.
pub(crate) struct Sum<'a, B: Backend> {
    /// Multiplies what is added, unless it passes a norm.
    pub(crate) factor: f32,
    /// Room for the output of a projection that has a norm.
    pub(crate) projected: Option<&'a mut B::Rows>,
    pub(crate) residual: &'a mut B::Rows,
}

struct Matrix<B: Backend> {
    norm: Option<Norm<B::Gain>>,
    /// Rotates the normed input into the basis of the weights.
    rotation: Option<B::Rotation>,
    weights: B::Linear,
    /// First output column.
    column: usize,
}

/// What loading a layer needs to know.
pub(crate) struct Origin<'a> {
    pub(crate) spec: &'a ModelSpec,
    pub(crate) tensors: &'a dyn TensorSource,
    pub(crate) limits: Limits,
    /// Number of blocks that sliding layers have for themselves; 0 if they share those of the others.
    pub(crate) window_blocks: usize,
    /// Index of the layer.
    pub(crate) index: usize,
}

impl Origin<'_> {
    fn norm<B: Backend>(&self, backend: &mut B, part: Part) -> Result<Norm<B::Gain>, ModelError> {
        read_norm(backend, self.tensors, &part.tensor(self.index), self.spec.rms_eps)
    }

    fn floats(&self, part: Part) -> Result<Vec<f32>, ModelError> {
        Ok(self.tensors.dense(&part.tensor(self.index))?.to_f32())
    }
}

impl<B: Backend> Layer<B> {
    pub(crate) fn load(backend: &mut B, from: &Origin<'_>) -> Result<Self, ModelError> {
        let spec = from.spec;
        let mixer = match &spec.hybrid {
            Some(hybrid) if !spec.attends(from.index) => Mixer::Delta(Delta::load(backend, from, hybrid)?),
            _ => Mixer::Attention(Attention::load(backend, from)?),
        };
        let norm = from.norm(backend, Part::FfnNorm)?;
        let ffn = match spec.experts {
            Some(experts) => FeedForward::Experts(load_experts(backend, from, experts)?, norm),
            None => FeedForward::Dense(Dense::load(backend, from, norm)?),
        };
        Ok(Layer { mixer, ffn })
    }
}

impl<B: Backend> Dense<B> {
    fn load(backend: &mut B, from: &Origin<'_>, norm: Norm<B::Gain>) -> Result<Self, ModelError> {
        let spec = from.spec;
        let gate_up = Projection::load(backend, from, Some(norm), [names::GATE_UP], RowOrder::GateUp)?;
        let norm = spec.sub_norms.then(|| from.norm(backend, Part::FfnSubNorm)).transpose()?;
        let down = Projection::load(backend, from, norm, [names::DOWN], RowOrder::Plain)?;
        Ok(Dense { gate_up, down: down.normed(backend, from, Part::FfnPostNorm)? })
    }
}

/// Reads the router and the matrices of all experts of a layer.
fn load_experts<B: Backend>(
    backend: &mut B,
    from: &Origin<'_>,
    experts: Experts,
) -> Result<B::Experts, ModelError> {
    let (spec, tensors) = (from.spec, from.tensors);
    let Experts { count, used } = experts;
    let shape = ExpertShape { count, used, hidden: spec.hidden, ffn: spec.ffn, gate: spec.activation };
    let router = read_router(tensors, &Part::Router.tensor(from.index))?;
    let read = |part: Part| read_ternary::<B>(tensors, &[part.tensor(from.index)], spec.grouped.projections);
    let gate = read(Part::ExpertGate)?;
    let up = read(Part::ExpertUp)?;
    let down = read(Part::ExpertDown)?;
    Ok(backend.experts(shape, ExpertWeights { router: &router, gate, up, down })?)
}

impl<B: Backend> Mixer<B> {
    /// Bytes that it keeps in a place, if sliding layers have blocks of their `own` or not.
    pub(crate) fn kept_bytes(&self, place: CachePlace, own: bool) -> usize {
        match (self, place) {
            (Mixer::Attention(attention), _) if attention.is_in(place, own) => B::block_bytes(&attention.kv),
            (Mixer::Delta(delta), CachePlace::State(_)) => B::state_bytes(&delta.state),
            _ => 0,
        }
    }
}

impl<B: Backend> Attention<B> {
    fn load(backend: &mut B, from: &Origin<'_>) -> Result<Self, ModelError> {
        let (spec, head_dim) = (from.spec, from.spec.head_dim);
        let head_norms = if spec.head_norms {
            Some([from.norm(backend, Part::QueryNorm)?, from.norm(backend, Part::KeyNorm)?])
        } else {
            None
        };
        // Layers that do not slide may have no rope.
        let slides = spec.window(from.index).is_some();
        let rotates = slides || spec.windows.as_ref().is_none_or(|windows| windows.full_theta.is_some());
        let fused = !spec.output_gate && rotates && spec.rotary_width() == head_dim;
        let order = if fused { RowOrder::Rope { head_dim } } else { RowOrder::Plain };
        let norm = Some(from.norm(backend, Part::InputNorm)?);
        let qkv = Projection::load(backend, from, norm, [names::qkv(spec)], order)?;
        let norm = spec.sub_norms.then(|| from.norm(backend, Part::AttentionSubNorm)).transpose()?;
        let output = Projection::load(backend, from, norm, [names::OUTPUT], RowOrder::Plain)?;
        let output = output.normed(backend, from, Part::AttentionPostNorm)?;
        let blocks = match from.window_blocks {
            own if slides && own > 0 => own,
            _ => from.limits.kv_blocks,
        };
        let shape = KvShape { blocks, kv_heads: spec.kv_heads, head_dim };
        let gate = spec.output_gate.then(|| spec.q_width() + 2 * spec.kv_width());
        let heads = spec.heads;
        let window = spec.window(from.index);
        let kv = backend.kv(shape)?;
        Ok(Attention { qkv, fused, heads, head_norms, gate, output, window, kv })
    }

    /// Whether the layer keeps something in a place of this kind, if sliding layers have blocks of their `own` or not.
    pub(crate) fn is_in(&self, place: CachePlace, own: bool) -> bool {
        match place {
            CachePlace::Block(_) => !(own && self.window.is_some()),
            CachePlace::Window(_) => own && self.window.is_some(),
            CachePlace::State(_) => false,
        }
    }

    /// `qkv = W x`; normalises and rotates the queries and keys, and stores the keys and values.
    pub(crate) fn project_rope_store(
        &mut self,
        backend: &mut B,
        step: Step<'_>,
        input: &B::Rows,
        quants: &mut B::Int8Rows,
        rope: &B::Rope,
        qkv: &mut B::Rows,
    ) -> Result<(), KernelError> {
        let Attention { heads, head_norms, kv, .. } = self;
        let tokens = step.tokens();
        let norms = head_norms.as_ref().map(|norms| norms.each_ref());
        if let ([stacked], true) = (&self.qkv.matrices[..], self.fused) {
            backend.norm_quantize(tokens, input, self.qkv.norms(), self.qkv.rotation(), quants)?;
            return backend.bit_linear_norm_rope_store(
                step,
                quants,
                &stacked.weights,
                *heads,
                rope,
                norms,
                qkv,
                kv,
            );
        }
        self.qkv.project(backend, tokens, input, quants, qkv)?;
        backend.norm_rope_store(step, *heads, rope, norms, qkv, kv)
    }

    /// Multiplies the output of attention by the sigmoid of the gates in `qkv`, if the model has gates.
    pub(crate) fn gate(
        &self,
        backend: &mut B,
        tokens: usize,
        qkv: &B::Rows,
        out: &mut B::Rows,
    ) -> Result<(), KernelError> {
        self.gate.map_or(Ok(()), |column| backend.sigmoid_gate(tokens, qkv, column, out))
    }
}

impl<B: Backend> Delta<B> {
    fn load(backend: &mut B, from: &Origin<'_>, hybrid: &Hybrid) -> Result<Self, ModelError> {
        let (spec, shape) = (from.spec, hybrid.delta);
        let norm = Some(from.norm(backend, Part::InputNorm)?);
        let input = Projection::load(backend, from, norm, names::delta_inputs(spec), RowOrder::Plain)?;
        let alpha_beta = if hybrid.float_alpha_beta {
            let names = [Part::Alpha, Part::Beta].map(|part| part.tensor(from.index));
            let column = shape.channels() + shape.value_width();
            Some((backend.table(&read_dense_stack(from.tensors, &names)?)?, column))
        } else {
            None
        };
        let (conv, a) = (from.floats(Part::Convolution)?, from.floats(Part::Decay)?);
        let dt_bias = from.floats(Part::TimeBias)?;
        let norm = from.floats(Part::DeltaNorm)?;
        let weights = DeltaWeights { conv: &conv, a: &a, dt_bias: &dt_bias, norm: &norm, eps: spec.rms_eps };
        let weights = backend.delta(shape, &weights)?;
        let output = Projection::load(backend, from, None, [names::DELTA_OUTPUT], RowOrder::Plain)?;
        let state = backend.state(shape, from.limits.state_slots)?;
        Ok(Delta { input, alpha_beta, weights, output, state })
    }

    /// `out = W x` for all projections of the layer's input.
    pub(crate) fn project(
        &self,
        backend: &mut B,
        tokens: usize,
        input: &B::Rows,
        quants: &mut B::Int8Rows,
        out: &mut B::Rows,
    ) -> Result<(), KernelError> {
        self.input.project(backend, tokens, input, quants, out)?;
        match (&self.alpha_beta, &self.input.norm) {
            (Some((table, column)), Some(norm)) => backend.dense(tokens, input, norm, table, out, *column),
            _ => Ok(()),
        }
    }
}

impl<B: Backend> Projection<B> {
    fn load(
        backend: &mut B,
        from: &Origin<'_>,
        norm: Option<Norm<B::Gain>>,
        stacks: impl IntoIterator<Item = StackedProjections>,
        order: RowOrder,
    ) -> Result<Self, ModelError> {
        let (spec, tensors) = (from.spec, from.tensors);
        let mut matrices = Vec::new();
        let mut column = 0;
        for stack in stacks {
            let Some(eps) = spec.linear_norms else {
                let names: Vec<String> = stack.parts.iter().map(|part| part.tensor(from.index)).collect();
                let weights = if from.index < spec.layers {
                    read_linear(backend, spec, tensors, &names, order)?
                } else {
                    // The layer of a draft head, which is not ternary.
                    let width = stack.parts[0].input_width(spec);
                    backend.linear(read_int8(tensors, &names, 0..width)?, order)?
                };
                let rotation = rotation(backend, from, stack.parts[0])?;
                matrices.push(Matrix { norm: None, rotation, weights, column });
                column += stack.rows(spec);
                continue;
            };
            for part in stack.parts {
                let trits = tensors.ternary(&part.tensor(from.index))?;
                let own =
                    read_norm(backend, tensors, &format!("{}.rms_norm.weight", part.path(from.index)), eps)?;
                let weights = backend.linear(&trits, RowOrder::Plain)?;
                matrices.push(Matrix { norm: Some(own), rotation: None, weights, column });
                column += trits.rows();
            }
        }
        Ok(Projection { norm, matrices, post_norm: None })
    }

    /// With the norm of its output, if the model has such norms.
    fn normed(self, backend: &mut B, from: &Origin<'_>, part: Part) -> Result<Self, ModelError> {
        let post_norm = from.spec.post_norms.then(|| from.norm(backend, part)).transpose()?;
        Ok(Projection { post_norm, ..self })
    }

    /// `gate_up = W x`; applies the gate and quantises the result for `down`.
    #[expect(clippy::too_many_arguments, reason = "the arguments of three operations")]
    pub(crate) fn project_gate_quantize(
        &self,
        backend: &mut B,
        tokens: usize,
        input: &B::Rows,
        quants: &mut B::Int8Rows,
        gate: Gate,
        down: &Projection<B>,
        gate_up: &mut B::Rows,
        out: &mut B::Int8Rows,
    ) -> Result<(), KernelError> {
        let (norms, rotation) = (down.norms(), down.rotation());
        if let [stacked] = &self.matrices[..] {
            backend.norm_quantize(tokens, input, self.norms(), self.rotation(), quants)?;
            let w = &stacked.weights;
            return backend
                .bit_linear_gate_norm_quantize(tokens, quants, w, gate, norms, rotation, gate_up, out);
        }
        self.project(backend, tokens, input, quants, gate_up)?;
        backend.gate_norm_quantize(tokens, gate_up, gate, norms, rotation, out)
    }

    /// `out = W x`; each matrix writes its own columns.
    fn project(
        &self,
        backend: &mut B,
        tokens: usize,
        input: &B::Rows,
        quants: &mut B::Int8Rows,
        out: &mut B::Rows,
    ) -> Result<(), KernelError> {
        for matrix in &self.matrices {
            backend.norm_quantize(
                tokens,
                input,
                matrix.norms(&self.norm),
                matrix.rotation.as_ref(),
                quants,
            )?;
            backend.bit_linear(tokens, quants, &matrix.weights, out, matrix.column, None)?;
        }
        Ok(())
    }

    /// Adds `W x` to `sum`, for a projection of one matrix.
    pub(crate) fn project_add(
        &self,
        backend: &mut B,
        tokens: usize,
        input: &B::Rows,
        quants: &mut B::Int8Rows,
        sum: Sum<'_, B>,
    ) -> Result<(), KernelError> {
        backend.norm_quantize(tokens, input, self.norms(), self.rotation(), quants)?;
        self.add_quantized(backend, tokens, quants, sum)
    }

    /// Adds `W q` to `sum`, for a projection of one matrix whose input is already normed and quantised.
    pub(crate) fn add_quantized(
        &self,
        backend: &mut B,
        tokens: usize,
        quants: &B::Int8Rows,
        Sum { factor, projected, residual }: Sum<'_, B>,
    ) -> Result<(), KernelError> {
        let weights = &self.matrices[0].weights;
        match (&self.post_norm, projected) {
            (Some(norm), Some(rows)) => {
                backend.bit_linear(tokens, quants, weights, rows, 0, None)?;
                backend.norm_add(tokens, rows, norm, residual)
            }
            _ => backend.bit_linear(tokens, quants, weights, residual, 0, Some(factor)),
        }
    }

    /// The norms of a projection of one matrix.
    fn norms(&self) -> Norms<'_, B::Gain> {
        self.matrices[0].norms(&self.norm)
    }

    /// The rotation of a projection of one matrix.
    fn rotation(&self) -> Option<&B::Rotation> {
        self.matrices[0].rotation.as_ref()
    }
}

impl<B: Backend> Matrix<B> {
    fn norms<'a>(&'a self, shared: &'a Option<Norm<B::Gain>>) -> Norms<'a, B::Gain> {
        [shared.as_ref(), self.norm.as_ref()]
    }
}

/// The rotation of the input of stacked projections that begin with `part`, if their weights are rotated.
fn rotation<B: Backend>(
    backend: &mut B,
    from: &Origin<'_>,
    part: Part,
) -> Result<Option<B::Rotation>, ModelError> {
    let Some(rotation) = &from.spec.rotation else { return Ok(None) };
    if !rotation.weights.contains(&part.tensor(from.index)) {
        return Ok(None);
    }
    let width = part.input_width(from.spec);
    let values = from.spec.hybrid.as_ref().filter(|_| rotation.grouped_values && part == Part::DeltaOutput);
    let grouped = values.map(|h| (h.delta.key_heads, h.delta.value_heads / h.delta.key_heads));
    let signs = rotation.signs.get(&width).map(|signs| &signs[..]);
    Ok(Some(backend.rotation(width, &Rotate { block: rotation.block, signs, grouped })?))
}
