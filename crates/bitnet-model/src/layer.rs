use bitnet_kernels::{Backend, Gate, KernelError, Norm, Norms, RowOrder, Step};

use crate::{
    ModelError, ModelSpec, TensorSource,
    names::{self, Part},
    weights::{read_linear, read_norm},
};

/// The weights of one decoder layer.
pub(crate) struct Layer<B: Backend> {
    /// Queries, keys and values of the normed residual.
    qkv: Projection<B>,
    /// Query heads.
    heads: usize,
    /// Norms of query heads and of key heads, if the model has them.
    head_norms: Option<[Norm<B::Gain>; 2]>,
    /// From all query heads back to the residual.
    pub(crate) output: Projection<B>,
    /// Gate and up of the normed residual.
    pub(crate) gate_up: Projection<B>,
    /// From the gated activation back to the residual.
    pub(crate) down: Projection<B>,
}

/// Ternary matrices that share an input.
///
/// They are stacked into one matrix, unless each has its own norm (`use_rms_norm`); then each quantises the input
/// separately.
pub(crate) struct Projection<B: Backend> {
    /// Applied to the input before any matrix.
    norm: Option<Norm<B::Gain>>,
    matrices: Vec<Matrix<B>>,
}

struct Matrix<B: Backend> {
    norm: Option<Norm<B::Gain>>,
    weights: B::Linear,
    /// First output column.
    column: usize,
}

impl<B: Backend> Layer<B> {
    pub(crate) fn load(
        b: &mut B,
        spec: &ModelSpec,
        tensors: &dyn TensorSource,
        index: usize,
    ) -> Result<Self, ModelError> {
        let norm = |b: &mut B, part: Part| {
            read_norm(b, tensors, &format!("{}.weight", part.path(index)), spec.rms_eps)
        };
        let head_norms = match spec.head_norms {
            true => Some([norm(b, Part::QueryNorm)?, norm(b, Part::KeyNorm)?]),
            false => None,
        };
        let mut projection = |before: Option<Part>, stack: names::Stack, order: RowOrder| {
            let norm = before.map(|part| norm(b, part)).transpose()?;
            let parts: Vec<String> = stack.parts.iter().map(|part| part.path(index)).collect();
            Projection::load(b, spec, tensors, norm, &parts, order)
        };
        let sub = |norm| spec.sub_norms.then_some(norm);
        Ok(Layer {
            head_norms,
            qkv: projection(Some(Part::InputNorm), names::QKV, RowOrder::Rope { head_dim: spec.head_dim })?,
            heads: spec.heads,
            output: projection(sub(Part::AttentionSubNorm), names::OUTPUT, RowOrder::Plain)?,
            gate_up: projection(Some(Part::FfnNorm), names::GATE_UP, RowOrder::GateUp)?,
            down: projection(sub(Part::FfnSubNorm), names::DOWN, RowOrder::Plain)?,
        })
    }

    /// `qkv = W x`; norms and rotates the queries and keys, and stores the keys and values.
    #[expect(clippy::too_many_arguments, reason = "the arguments of three operations")]
    pub(crate) fn rope_store(
        &self,
        b: &mut B,
        step: Step<'_>,
        x: &B::Rows,
        q: &mut B::Quants,
        rope: &B::Rope,
        qkv: &mut B::Rows,
        kv: &mut B::Kv,
    ) -> Result<(), KernelError> {
        let (n, norms) = (step.tokens(), self.head_norms.as_ref().map(|[q, k]| [q, k]));
        if let [stacked] = &self.qkv.matrices[..] {
            b.norm_quantize(n, x, self.qkv.norms(), None, q)?;
            return b.bit_linear_rope_store(step, q, &stacked.weights, self.heads, rope, norms, qkv, kv);
        }
        self.qkv.apply(b, n, x, q, qkv)?;
        b.rope_store(step, self.heads, rope, norms, qkv, kv)
    }
}

impl<B: Backend> Projection<B> {
    fn load(
        b: &mut B,
        spec: &ModelSpec,
        tensors: &dyn TensorSource,
        norm: Option<Norm<B::Gain>>,
        parts: &[String],
        order: RowOrder,
    ) -> Result<Self, ModelError> {
        let weight = |part: &String| format!("{part}.weight");
        let Some(eps) = spec.linear_norms else {
            let names: Vec<String> = parts.iter().map(weight).collect();
            let weights = read_linear(b, spec, tensors, &names, order)?;
            return Ok(Projection { norm, matrices: vec![Matrix { norm: None, weights, column: 0 }] });
        };
        let mut matrices = Vec::new();
        let mut column = 0;
        for part in parts {
            let trits = tensors.ternary(&weight(part))?;
            let own = read_norm(b, tensors, &format!("{part}.rms_norm.weight"), eps)?;
            matrices.push(Matrix { norm: Some(own), weights: b.linear(&trits, RowOrder::Plain)?, column });
            column += trits.rows();
        }
        Ok(Projection { norm, matrices })
    }

    /// `gate_up = W x`; gates it and quantises the result for `down`.
    #[expect(clippy::too_many_arguments, reason = "the arguments of three operations")]
    pub(crate) fn gate_quantize(
        &self,
        b: &mut B,
        n: usize,
        x: &B::Rows,
        q: &mut B::Quants,
        gate: Gate,
        down: &Projection<B>,
        gate_up: &mut B::Rows,
        out: &mut B::Quants,
    ) -> Result<(), KernelError> {
        if let [stacked] = &self.matrices[..] {
            b.norm_quantize(n, x, self.norms(), None, q)?;
            let w = &stacked.weights;
            return b.bit_linear_gate_quantize(n, q, w, gate, down.norms(), None, gate_up, out);
        }
        self.apply(b, n, x, q, gate_up)?;
        b.gate_quantize(n, gate_up, gate, down.norms(), None, out)
    }

    /// `out = W x`; each matrix writes its own columns.
    fn apply(
        &self,
        b: &mut B,
        n: usize,
        x: &B::Rows,
        q: &mut B::Quants,
        out: &mut B::Rows,
    ) -> Result<(), KernelError> {
        for matrix in &self.matrices {
            b.norm_quantize(n, x, matrix.norms(&self.norm), None, q)?;
            b.bit_linear(n, q, &matrix.weights, out, matrix.column, None)?;
        }
        Ok(())
    }

    /// `out += factor * W x`, for a projection of one matrix.
    pub(crate) fn add(
        &self,
        b: &mut B,
        n: usize,
        x: &B::Rows,
        q: &mut B::Quants,
        factor: f32,
        out: &mut B::Rows,
    ) -> Result<(), KernelError> {
        b.norm_quantize(n, x, self.norms(), None, q)?;
        self.add_quantized(b, n, q, factor, out)
    }

    /// `out += factor * W q`, for a projection of one matrix whose input is already normed and quantised.
    pub(crate) fn add_quantized(
        &self,
        b: &mut B,
        n: usize,
        q: &B::Quants,
        factor: f32,
        out: &mut B::Rows,
    ) -> Result<(), KernelError> {
        b.bit_linear(n, q, &self.matrices[0].weights, out, 0, Some(factor))
    }

    /// The norms of a projection of one matrix.
    pub(crate) fn norms(&self) -> Norms<'_, B::Gain> {
        self.matrices[0].norms(&self.norm)
    }
}

impl<B: Backend> Matrix<B> {
    fn norms<'a>(&'a self, shared: &'a Option<Norm<B::Gain>>) -> Norms<'a, B::Gain> {
        [shared.as_ref(), self.norm.as_ref()]
    }
}
