//! The trait by which everything reads weights: [`TensorSource`] has a model's tensors by Hugging Face name, whatever
//! file and form they are stored in.

use bitnet_kernels::{HeadCopy, Panels};
use bitnet_tensor::{BitNetTensor, DType, TernaryTensor};

use crate::ModelError;

/// The tensors of a model, by Hugging Face name, in the forms that all files of a model share: rows of queries and of
/// their output gates are two tensors (`q_proj` and `gate_proj`), value heads of gated-delta layers are in the order in
/// which head `j` uses key head `j % key_heads`, gains include the 1, and `A_log` is the factor `-exp(A_log)`.
pub trait TensorSource: Send + Sync {
    /// All tensors of the model, in the order of a forward pass.
    fn entries(&self) -> &[TensorEntry];

    /// The tensors of the model's draft head, in the order of a pass; none if it has no such head. They are float
    /// tensors, those of its layer under the names of a layer after the last.
    fn draft_head(&self) -> &[TensorEntry] {
        &[]
    }

    /// A ternary matrix, with one scale or with a scale for every group of weights, as its [`TensorKind`] says: rows in
    /// Hugging Face order, `w = scale * trit` whatever the file's convention.
    ///
    /// # Errors
    /// If there is no such matrix, or its bytes are invalid for its type.
    fn ternary(&self, name: &str) -> Result<TernaryTensor, ModelError>;

    /// Warnings for the user from the tensors read so far, one line each.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// A float tensor: the embedding, the output head or the gain of a norm. Not copied if the file is mapped.
    ///
    /// # Errors
    /// If there is no such tensor, or it is not dense.
    fn dense(&self, name: &str) -> Result<BitNetTensor, ModelError>;

    /// Whether the tensors are random numbers that follow from their names and shapes.
    fn is_generated(&self) -> bool {
        false
    }

    /// The weights in the layout of the CPU kernels, if they are stored in it.
    fn packed(&self) -> Option<&dyn PackedSource> {
        None
    }
}

/// Weights stored in the layout of the CPU kernels.
pub trait PackedSource {
    /// The matrix that stacks exactly these projections, or is this embedding or output head; `None` if the file stacks
    /// them differently.
    ///
    /// # Errors
    /// If there is no such matrix, or its bytes are not valid panels.
    fn panels(&self, names: &[String]) -> Result<Option<Panels>, ModelError>;

    /// The int8 copy of the output head, if the file has one.
    ///
    /// # Errors
    /// If its bytes are not a valid copy.
    fn head_copy(&self) -> Result<Option<HeadCopy>, ModelError>;
}

/// The role of a tensor in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorKind {
    /// A matrix of trits with one scale; a projection.
    Ternary,
    /// A matrix of 2-bit weights with a scale for every group; a projection, the embedding or the output head.
    Grouped,
    /// A float matrix; the embedding, the output head, or a small projection of a gated-delta layer.
    Dense,
    /// The gain of an RMSNorm, or a parameter of a gated-delta layer.
    Norm,
}

/// A tensor of a [`TensorSource`].
#[derive(Debug, Clone, PartialEq)]
pub struct TensorEntry {
    /// Hugging Face name.
    pub name: String,
    /// Name in the file.
    pub stored_name: String,
    /// `[out][in]` for a matrix, `[width]` for a norm, `[channels][taps]` for a convolution; never the shape of packed
    /// bytes.
    pub shape: Vec<usize>,
    /// The stored form: `packed u8`, `i2_s`, `bf16`, ...
    pub stored: String,
    /// Its role in the model.
    pub kind: TensorKind,
    /// Type of a [`TensorKind::Dense`] matrix when it is read.
    pub dtype: Option<DType>,
    /// Columns that share a scale in a [`TensorKind::Grouped`] matrix; the fewest possible, if only its scales decide.
    pub group: Option<usize>,
}

impl TensorEntry {
    /// Number of its elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of a [`TensorKind::Dense`] matrix when it is read; 0 for any other tensor.
    pub fn bytes(&self) -> usize {
        let cols = self.shape.last().copied().unwrap_or(1);
        self.dtype.map_or(0, |dtype| self.elements() / cols.max(1) * dtype.row_bytes(cols))
    }
}
