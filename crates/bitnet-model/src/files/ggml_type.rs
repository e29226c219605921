//! The types of tensors in GGUF files: ids, names, block geometry.

use bitnet_tensor::DType;

/// A ggml type that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GgmlType {
    /// A type of float values.
    Dense(DType),
    /// Signed bytes: not values of a model, but what a file of panels keeps its own layouts in.
    I8,
    /// 2 bits a weight in blocks of 128 over the whole tensor, one f32 scale, 32 bytes after the codes.
    I2S,
    /// 256 weights in 54 bytes, five to a byte in base 3, an f16 scale a block.
    Tq1_0,
    /// 256 weights in 66 bytes, 2 bits each, an f16 scale a block.
    Tq2_0,
}

impl GgmlType {
    pub(crate) const ALL: [GgmlType; 10] = [
        GgmlType::Dense(DType::F32),
        GgmlType::Dense(DType::F16),
        GgmlType::Dense(DType::BF16),
        GgmlType::Dense(DType::Q8_0),
        GgmlType::Dense(DType::Q6K),
        GgmlType::Dense(DType::Q4K),
        GgmlType::I8,
        GgmlType::I2S,
        GgmlType::Tq1_0,
        GgmlType::Tq2_0,
    ];

    /// The id in the file; `None` for a dense type that GGUF does not have.
    pub(crate) fn id(self) -> Option<u32> {
        Some(match self {
            GgmlType::Dense(DType::F32) => 0,
            GgmlType::Dense(DType::F16) => 1,
            GgmlType::Dense(DType::Q8_0) => 8,
            GgmlType::Dense(DType::Q4K) => 12,
            GgmlType::Dense(DType::Q6K) => 14,
            GgmlType::I8 => 24,
            GgmlType::Dense(DType::BF16) => 30,
            GgmlType::Tq1_0 => 34,
            GgmlType::Tq2_0 => 35,
            GgmlType::I2S => 36,
            GgmlType::Dense(_) => return None,
        })
    }

    pub(crate) fn from_id(id: u32) -> Option<GgmlType> {
        Self::ALL.into_iter().find(|t| t.id() == Some(id))
    }

    /// Bytes of `rows` rows of `cols` elements, or why there is no such tensor.
    pub(crate) fn byte_len(self, rows: usize, cols: usize) -> Result<usize, String> {
        let elements = rows.checked_mul(cols).ok_or("the number of elements overflows")?;
        let (unit, block, bytes, extra) = match self {
            GgmlType::Dense(t) => (cols, t.block_elements(), t.block_bytes(), 0),
            GgmlType::I8 => (elements, 1, 1, 0),
            GgmlType::I2S => (elements, 128, 32, 32),
            GgmlType::Tq1_0 => (cols, 256, 54, 0),
            GgmlType::Tq2_0 => (cols, 256, 66, 0),
        };
        if !unit.is_multiple_of(block) {
            return Err(format!("{unit} elements of {} are not whole blocks of {block}", self.name()));
        }
        (elements / block)
            .checked_mul(bytes)
            .and_then(|n| n.checked_add(extra))
            .ok_or_else(|| "the number of bytes overflows".into())
    }

    pub(crate) fn name(self) -> String {
        match self {
            GgmlType::Dense(t) => t.to_string(),
            GgmlType::I8 => "i8".into(),
            GgmlType::I2S => "i2_s".into(),
            GgmlType::Tq1_0 => "tq1_0".into(),
            GgmlType::Tq2_0 => "tq2_0".into(),
        }
    }
}

/// What an unreadable type id is called by the projects that use it, and what helps.
pub(crate) fn foreign(id: u32) -> (&'static str, &'static str) {
    const DENSE: &str = "use a file whose linear layers are I2_S, TQ1_0 or TQ2_0 and whose embedding is F16, BF16, F32, Q8_0, Q6_K or Q4_K";
    const FORK: &str =
        "this type belongs to a fork of llama.cpp; convert the original model to I2_S, TQ1_0 or TQ2_0";
    match id {
        2 => ("Q4_0", DENSE),
        3 => ("Q4_1", DENSE),
        6 => ("Q5_0", DENSE),
        7 => ("Q5_1", DENSE),
        10 => ("Q2_K", DENSE),
        11 => ("Q3_K", DENSE),
        13 => ("Q5_K", DENSE),
        16..=23 | 29 => ("an IQ type", DENSE),
        37 => ("I8_S", FORK),
        38 => ("TL1", "TL1 is laid out for one machine; use the I2_S file of the model"),
        39 => ("TL2 or MXFP4", "both claim this number; use the I2_S file of the model"),
        41 => ("Q1_0", DENSE),
        134 | 135 => ("IQ1_BN or IQ2_BN", FORK),
        143 => ("PTQ1_0", FORK),
        _ => ("unknown", DENSE),
    }
}

/// A type with a scale for every group of weights: what it is called, how many weights a group has, and what helps.
///
/// llama.cpp's Q2_0 has groups of 64 in 18 bytes. A fork gave the same number to groups of 128 in 34 bytes before it
/// called them PQ2_0: only `room`, the bytes that the file has for the tensor, tells the two apart.
pub(crate) fn grouped(id: u32, elements: usize, room: usize) -> Option<(&'static str, usize, &'static str)> {
    const CURE: &str = "a scale a group is not supported; use a model that was trained with one scale a tensor, as I2_S, TQ1_0, TQ2_0 or packed safetensors";
    const FORK: &str = "this is the type 42 of a fork, not llama.cpp's, and no scale a group is supported; use a model that was trained with one scale a tensor, as I2_S, TQ1_0, TQ2_0 or packed safetensors";
    match id {
        42 if room < elements.div_ceil(64).saturating_mul(18) => Some(("a fork's Q2_0", 128, FORK)),
        42 => Some(("Q2_0", 64, CURE)),
        142 => Some(("PQ2_0", 128, CURE)),
        _ => None,
    }
}
