//! Orders of rows and columns that differ between files and the forward pass.
//! [`Reorder::of`] decides by part, model and convention of the file.

use bitnet_kernels::DeltaShape;

use crate::{names::Part, spec::ModelSpec};

/// How the rows or columns of a stored tensor become those of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reorder {
    /// As they are stored.
    None,
    /// Rows of heads are stored for interleaved rope: in a head of `head_dim` rows, dimension `i` of half `h` is at
    /// `2 i + h` (`permute` in llama.cpp's `convert_hf_to_gguf.py`).
    Interleaved { head_dim: usize },
    /// The `head_dim` rows of every head of queries are followed by as many of its output gate. The model has either.
    QueryGate { head_dim: usize, gates: bool },
    /// From row `first` on, rows of value heads, `width` each, are stored in groups that use the same key head.
    ValueRows { first: usize, width: usize, heads: ValueHeads },
    /// As [`Reorder::ValueRows`], for columns.
    ValueColumns { width: usize, heads: ValueHeads },
}

/// The two orders of value heads. Stored in groups, head `h` uses key head `h / per_key`. In the model, as in GGUF files,
/// head `j` uses key head `j % key_heads`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ValueHeads {
    key_heads: usize,
    per_key: usize,
}

impl ValueHeads {
    fn stored(self, head: usize) -> usize {
        head % self.key_heads * self.per_key + head / self.key_heads
    }
}

/// The facts that decide how a file orders its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Convention {
    /// GGUF, with rows of queries and keys for interleaved rope or not.
    Gguf { interleaved: bool },
    /// Hugging Face's and MLX's.
    Grouped,
}

impl Reorder {
    /// The order of a part of a model in a file.
    pub(crate) fn of(part: Part, spec: &ModelSpec, convention: Convention, name: &str) -> Reorder {
        let head_dim = spec.head_dim;
        if part.shares_rows(spec) {
            return Reorder::QueryGate { head_dim, gates: part == Part::OutputGate };
        }
        if let Convention::Gguf { interleaved } = convention {
            let rotated = interleaved && part.rotated_heads(spec).is_some();
            return if rotated { Reorder::Interleaved { head_dim } } else { Reorder::None };
        }
        let Some(DeltaShape { key_heads, value_heads, head_dim: width, .. }) =
            spec.hybrid.as_ref().map(|hybrid| hybrid.delta)
        else {
            return Reorder::None;
        };
        let heads = ValueHeads { key_heads, per_key: value_heads / key_heads };
        let first = 2 * key_heads * width;
        match part {
            Part::DeltaInput | Part::Convolution => Reorder::ValueRows { first, width, heads },
            Part::DeltaGate => Reorder::ValueRows { first: 0, width, heads },
            Part::Alpha | Part::Beta | Part::Decay | Part::TimeBias => {
                Reorder::ValueRows { first: 0, width: 1, heads }
            }
            // A rotated matrix keeps its columns: the input is reordered before it is rotated.
            Part::DeltaOutput if spec.rotation.as_ref().is_none_or(|r| !r.weights.contains(name)) => {
                Reorder::ValueColumns { width, heads }
            }
            _ => Reorder::None,
        }
    }

    /// Number of rows that are stored for `rows` rows of the model.
    pub(crate) fn stored_rows(self, rows: usize) -> usize {
        if matches!(self, Reorder::QueryGate { .. }) { 2 * rows } else { rows }
    }

    /// The place in the file of the model's `row`.
    pub(crate) fn row(self, row: usize) -> usize {
        match self {
            Reorder::None | Reorder::ValueColumns { .. } => row,
            Reorder::Interleaved { head_dim } => {
                let head = row / head_dim;
                let within = row % head_dim;
                let half = head_dim / 2;
                head * head_dim + 2 * (within % half) + within / half
            }
            Reorder::QueryGate { head_dim, gates } => {
                let (head, within) = (row / head_dim, row % head_dim);
                (2 * head + usize::from(gates)) * head_dim + within
            }
            Reorder::ValueRows { first, .. } if row < first => row,
            Reorder::ValueRows { first, width, heads } => {
                let value = row - first;
                first + heads.stored(value / width) * width + value % width
            }
        }
    }

    /// The width of a block of columns that moves as a whole, and the stored place of block `i`; `None` if columns are
    /// as stored.
    pub(crate) fn columns(self) -> Option<(usize, impl Fn(usize) -> usize)> {
        match self {
            Reorder::ValueColumns { width, heads } => Some((width, move |head| heads.stored(head))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_rows_pair_the_halves_of_a_head() {
        // One head of 6: Hugging Face has halves 0 1 2 | 3 4 5, the file has 0 3 1 4 2 5.
        let order: Vec<_> = (0..12).map(|row| Reorder::Interleaved { head_dim: 6 }.row(row)).collect();
        assert_eq!(order, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
    }

    #[test]
    fn gates_stand_behind_the_queries_of_their_head() {
        let rows =
            |gates| (0..4).map(|row| Reorder::QueryGate { head_dim: 2, gates }.row(row)).collect::<Vec<_>>();
        assert_eq!((rows(false), rows(true)), (vec![0, 1, 4, 5], vec![2, 3, 6, 7]));
        assert_eq!(Reorder::QueryGate { head_dim: 2, gates: true }.stored_rows(4), 8);
    }

    #[test]
    fn value_heads_move_from_groups_of_a_key_head_to_rounds_of_key_heads() {
        // Two key heads, each for three value heads, behind two other rows.
        let heads = ValueHeads { key_heads: 2, per_key: 3 };
        let order = |width, first, rows| {
            (0..rows).map(|row| Reorder::ValueRows { first, width, heads }.row(row)).collect::<Vec<_>>()
        };
        assert_eq!(order(1, 0, 6), [0, 3, 1, 4, 2, 5]);
        assert_eq!(order(2, 2, 8), [0, 1, 2, 3, 8, 9, 4, 5]);
        let (width, column) = Reorder::ValueColumns { width: 4, heads }.columns().unwrap();
        assert_eq!((width, column(1)), (4, 3));
    }
}
