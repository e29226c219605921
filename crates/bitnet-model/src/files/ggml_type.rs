//! The tensor types of GGUF files: ids, names and block geometry ([`GgmlType`]).
//! Three projects use id 42 differently; the sizes in the file tell which.

use bitnet_tensor::DType;

/// A tensor type of known name and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GgmlType {
    /// A type of float values.
    Dense(DType),
    /// Signed bytes, in which a file of panels stores its own layouts; never values of a model.
    I8,
    /// 2 bits a weight in blocks of 128 over the whole tensor, one f32 scale, 32 bytes after the codes.
    I2S,
    /// 256 weights in 54 bytes, five to a byte in base 3, with an f16 scale.
    Tq1_0,
    /// 256 weights in 66 bytes, 2 bits each, with an f16 scale.
    Tq2_0,
    /// llama.cpp's type: 64 weights in 18 bytes, an f16 scale and 2 bits each.
    Q2_0,
    /// Earlier files of PrismML's fork, under the same id: 128 weights in 34 bytes.
    Q2_0Fork,
    /// Sherry's type, under the same id: 256 weights in 42 bytes. Listed only to be refused by name.
    Stq1_0,
    /// The fork's later id for the same 128 weights in 34 bytes.
    Pq2_0,
    /// 128 weights in 28 bytes, five to a byte in base 3, with an f16 scale.
    Ptq1_0,
    /// 128 weights in 18 bytes, an f16 scale and a sign bit each.
    Q1_0,
}

/// The layouts of type id 42, which three projects use differently.
const Q2_0_LAYOUTS: [GgmlType; 3] = [GgmlType::Q2_0, GgmlType::Q2_0Fork, GgmlType::Stq1_0];

/// The ids of float types.
const DENSE: [(DType, u32); 11] = [
    (DType::F32, 0),
    (DType::F16, 1),
    (DType::BF16, 30),
    (DType::Q8_0, 8),
    (DType::Q6K, 14),
    (DType::Q4K, 12),
    (DType::Q5K, 13),
    (DType::Q4_0, 2),
    (DType::Q4_1, 3),
    (DType::Q5_0, 6),
    (DType::Q5_1, 7),
];

/// A type that is not of floats.
struct Packed {
    kind: GgmlType,
    id: u32,
    name: &'static str,
    /// Weights and bytes of a block.
    block: usize,
    bytes: usize,
    /// Number of weights that share a scale, if the type was made for group scales.
    group: Option<usize>,
}

const PACKED: [Packed; 10] = [
    Packed { kind: GgmlType::I8, id: 24, name: "i8", block: 1, bytes: 1, group: None },
    Packed { kind: GgmlType::I2S, id: 36, name: "i2_s", block: 128, bytes: 32, group: None },
    Packed { kind: GgmlType::Tq1_0, id: 34, name: "tq1_0", block: 256, bytes: 54, group: None },
    Packed { kind: GgmlType::Tq2_0, id: 35, name: "tq2_0", block: 256, bytes: 66, group: None },
    Packed { kind: GgmlType::Q2_0, id: 42, name: "q2_0", block: 64, bytes: 18, group: Some(64) },
    Packed { kind: GgmlType::Q2_0Fork, id: 42, name: "q2_0 (g128)", block: 128, bytes: 34, group: Some(128) },
    Packed { kind: GgmlType::Stq1_0, id: 42, name: "stq1_0", block: 256, bytes: 42, group: None },
    Packed { kind: GgmlType::Pq2_0, id: 142, name: "pq2_0", block: 128, bytes: 34, group: Some(128) },
    Packed { kind: GgmlType::Ptq1_0, id: 143, name: "ptq1_0", block: 128, bytes: 28, group: Some(128) },
    Packed { kind: GgmlType::Q1_0, id: 41, name: "q1_0", block: 128, bytes: 18, group: Some(128) },
];

impl GgmlType {
    fn packed(self) -> &'static Packed {
        PACKED.iter().find(|packed| packed.kind == self).expect("every type that is not of floats has a row")
    }

    /// The id in the file, or `None` for a dense type that GGUF lacks.
    pub(crate) fn id(self) -> Option<u32> {
        match self {
            GgmlType::Dense(dtype) => DENSE.iter().find(|row| row.0 == dtype).map(|row| row.1),
            _ => Some(self.packed().id),
        }
    }

    /// The type with this id. Only the sizes in a file distinguish the three types with id 42 ([`q2_0_layout`]).
    pub(crate) fn from_id(id: u32) -> Option<GgmlType> {
        let dense = DENSE.iter().find(|row| row.1 == id).map(|row| GgmlType::Dense(row.0));
        dense.or_else(|| PACKED.iter().find(|packed| packed.id == id).map(|packed| packed.kind))
    }

    /// Size in bytes of `rows` rows of `cols` elements, or why there is no such tensor.
    pub(crate) fn byte_len(self, rows: usize, cols: usize) -> Result<usize, String> {
        let elements = rows.checked_mul(cols).ok_or("the number of elements overflows")?;
        let (unit, block, bytes, tail) = match self {
            GgmlType::Dense(t) => (cols, t.block_elements(), t.block_bytes(), 0),
            // Its blocks go over the whole tensor.
            GgmlType::I2S => (elements, self.packed().block, self.packed().bytes, 32),
            _ => (cols, self.packed().block, self.packed().bytes, 0),
        };
        if !unit.is_multiple_of(block) {
            return Err(format!("{unit} elements of {} are not whole blocks of {block}", self.name()));
        }
        (elements / block)
            .checked_mul(bytes)
            .and_then(|n| n.checked_add(tail))
            .ok_or_else(|| "the number of bytes overflows".into())
    }

    pub(crate) fn name(self) -> String {
        match self {
            GgmlType::Dense(dtype) => dtype.to_string(),
            _ => self.packed().name.into(),
        }
    }

    /// Number of weights that share a scale, for the types made for group scales.
    pub(crate) fn group(self) -> Option<usize> {
        match self {
            GgmlType::Dense(_) => None,
            _ => self.packed().group,
        }
    }
}

/// What is known of a tensor with type id 42 that helps to find its layout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Q2_0Tensor {
    pub rows: usize,
    pub cols: usize,
    /// Bytes from its start to the next tensor, or to the end of the file.
    pub room: usize,
    /// Whether it is the last tensor in the file, which need not be padded.
    pub last: bool,
}

/// The layout of a file's tensors with type id 42: the one in which each of them, padded to `alignment`, ends where the
/// next tensor begins. `None` if no layout fits, as in a damaged file.
///
/// A file has a single layout. Judging all tensors together resolves even short tensors, whose padding leaves room for
/// more than one layout.
pub(crate) fn q2_0_layout(tensors: &[Q2_0Tensor], alignment: usize) -> Option<GgmlType> {
    let fills = |kind: GgmlType, t: &Q2_0Tensor| {
        let Ok(length) = kind.byte_len(t.rows, t.cols) else { return false };
        t.room == length.next_multiple_of(alignment) || t.last && t.room == length
    };
    Q2_0_LAYOUTS.into_iter().find(|&kind| tensors.iter().all(|t| fills(kind, t)))
}

/// The name that other projects give to an unreadable type id, and the cure.
pub(crate) fn foreign(id: u32) -> (&'static str, &'static str) {
    const DENSE: &str = "use a file whose linear layers are I2_S, TQ1_0 or TQ2_0 (BitNet) or Q2_0, PQ2_0 or PTQ1_0 (Bonsai) and whose embedding is one of these or F16, BF16, F32, Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_K, Q4_1 or Q4_0";
    const FORK: &str =
        "this type belongs to a fork of llama.cpp; convert the original model to I2_S, TQ1_0 or TQ2_0";
    match id {
        10 => ("Q2_K", DENSE),
        11 => ("Q3_K", DENSE),
        16..=23 | 29 => ("an IQ type", DENSE),
        37 => ("I8_S", FORK),
        38 => ("TL1", "TL1 is packed for a specific machine; use the I2_S file of the model"),
        39 => ("TL2 or MXFP4", "both use this number; use the I2_S file of the model"),
        43 => (
            "STQ1_0 in Tencent's files",
            "it holds 256 weights in 42 bytes; use a file of the model in another type",
        ),
        134 | 135 => ("IQ1_BN or IQ2_BN", FORK),
        _ => ("unknown", DENSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(kind: GgmlType, rows: usize, cols: usize) -> Q2_0Tensor {
        let length = kind.byte_len(rows, cols).unwrap();
        Q2_0Tensor { rows, cols, room: length.next_multiple_of(32), last: false }
    }

    #[test]
    fn type_42_is_recognised_by_its_bytes() {
        for kind in Q2_0_LAYOUTS {
            let tensors = [tensor(kind, 512, 256), tensor(kind, 256, 768)];
            assert_eq!(q2_0_layout(&tensors, 32), Some(kind));
            let unpadded =
                Q2_0Tensor { room: kind.byte_len(3, 256).unwrap(), last: true, ..tensor(kind, 3, 256) };
            assert_eq!(q2_0_layout(&[tensors[0], unpadded], 32), Some(kind));
        }
    }

    #[test]
    fn a_row_whose_padding_holds_another_layout_takes_the_layout_of_the_file() {
        // 72 and 68 bytes: both padded to 96.
        let short = tensor(GgmlType::Q2_0Fork, 1, 256);
        assert_eq!(short.room, tensor(GgmlType::Q2_0, 1, 256).room);
        let long = tensor(GgmlType::Q2_0Fork, 512, 256);
        assert_eq!(q2_0_layout(&[short, long], 32), Some(GgmlType::Q2_0Fork));
    }

    #[test]
    fn bytes_that_fit_no_layout_or_two_have_none() {
        let two = [tensor(GgmlType::Q2_0, 512, 256), tensor(GgmlType::Q2_0Fork, 512, 256)];
        assert_eq!(q2_0_layout(&two, 32), None);
        let short = Q2_0Tensor { room: 100, ..two[0] };
        assert_eq!(q2_0_layout(&[short], 32), None);
        // Rows of 320 are whole blocks of 64 alone.
        assert_eq!(q2_0_layout(&[tensor(GgmlType::Q2_0, 512, 320)], 32), Some(GgmlType::Q2_0));
    }
}
