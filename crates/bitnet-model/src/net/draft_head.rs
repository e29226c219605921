//! The head that drafts tokens (multi-token prediction): its weights and what it keeps between passes.
//! `transformer.rs` runs it.

use bitnet_kernels::{Backend, Norm, RowOrder, RowsKind};

use crate::{
    ModelError,
    files::TensorSource,
    names,
    net::{
        Limits,
        layer::{Layer, Origin},
        weights::{SOURCE, read_int8, read_norm},
    },
    spec::ModelSpec,
};

/// A draft head. From the embedding `e` of a token and the hidden state `h` of the position before it, both normed, it
/// computes `W [e; h]`, then a layer that attends to earlier such pairs; the normed result is its own hidden state,
/// from which the model's output head computes logits.
pub(crate) struct DraftHead<B: Backend> {
    pub(crate) embedding_norm: Norm<B::Gain>,
    pub(crate) hidden_norm: Norm<B::Gain>,
    /// The halves of `W`.
    pub(crate) of_embedding: B::Linear,
    pub(crate) of_hidden: B::Linear,
    pub(crate) layer: Layer<B>,
    pub(crate) norm: Norm<B::Gain>,
    /// Hidden states of all tokens of the model's last pass, `[max_tokens][hidden]`.
    pub(crate) hidden: B::Rows,
    /// The head's own hidden states of the rows of logits of its last pass, `[max_logit_rows][hidden]`.
    pub(crate) drafted: B::Rows,
    /// Normed hidden states that a pass reads, `[max_tokens][hidden]`.
    pub(crate) gathered: B::Rows,
    /// Every row of a step, ascending.
    pub(crate) all_rows: Vec<usize>,
}

impl<B: Backend> DraftHead<B> {
    pub(crate) fn load(
        b: &mut B,
        spec: &ModelSpec,
        tensors: &dyn TensorSource,
        limits: Limits,
    ) -> Result<Self, ModelError> {
        if !spec.grouped.projections {
            let cure = "draft without the model's head";
            return Err(ModelError::unsupported(
                SOURCE,
                "a draft head",
                "weights with scales for rows",
                cure,
            ));
        }
        let hidden = spec.hidden;
        let norm = |b: &mut B, name| read_norm(b, tensors, name, spec.rms_eps);
        let half = |b: &mut B, from: usize| {
            let matrix = read_int8(tensors, &[names::DRAFT_PROJECTION.into()], from..from + hidden)?;
            Ok::<_, ModelError>(b.linear(matrix, RowOrder::Plain)?)
        };
        Ok(DraftHead {
            embedding_norm: norm(b, names::DRAFT_EMBEDDING_NORM)?,
            hidden_norm: norm(b, names::DRAFT_HIDDEN_NORM)?,
            of_embedding: half(b, 0)?,
            of_hidden: half(b, hidden)?,
            layer: Layer::load(b, &Origin { spec, tensors, limits, window_blocks: 0, index: spec.layers })?,
            norm: norm(b, names::DRAFT_NORM)?,
            hidden: b.rows(limits.max_tokens, hidden, RowsKind::Intermediate)?,
            drafted: b.rows(limits.max_logit_rows, hidden, RowsKind::Intermediate)?,
            gathered: b.rows(limits.max_tokens, hidden, RowsKind::Intermediate)?,
            all_rows: (0..limits.max_tokens).collect(),
        })
    }
}
