//! Sequences of different lengths, padded to a rectangle.
//! The engine itself never pads.

/// Sequences of different lengths, padded to a common width, for kernels and models that need a rectangle. The engine
/// itself never pads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaddedBatch {
    /// `[rows][width]`; zeros after each row's length are padding.
    tokens: Vec<u32>,
    lengths: Vec<usize>,
    width: usize,
}

/// A sequence is empty, so it has no last position to continue from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("sequence {index} is empty")]
pub struct EmptySequence {
    /// Index of the sequence.
    pub index: usize,
}

impl PaddedBatch {
    /// Pads sequences to the length of the longest, or to the smallest of `buckets` that holds it.
    pub fn pack<S: AsRef<[u32]>>(sequences: &[S], buckets: &[usize]) -> Result<Self, EmptySequence> {
        let lengths: Vec<usize> = sequences.iter().map(|s| s.as_ref().len()).collect();
        if let Some(index) = lengths.iter().position(|&l| l == 0) {
            return Err(EmptySequence { index });
        }
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let width = buckets.iter().copied().filter(|&b| b >= longest).min().unwrap_or(longest);
        let mut tokens = vec![0; lengths.len() * width];
        for (i, sequence) in sequences.iter().enumerate() {
            tokens[i * width..][..lengths[i]].copy_from_slice(sequence.as_ref());
        }
        Ok(PaddedBatch { tokens, lengths, width })
    }

    /// The sequences without their padding.
    pub fn unpack(&self) -> Vec<Vec<u32>> {
        (0..self.rows()).map(|row| self.row(row).to_vec()).collect()
    }

    /// A sequence without its padding.
    pub fn row(&self, row: usize) -> &[u32] {
        &self.tokens[row * self.width..][..self.lengths[row]]
    }

    /// All tokens with padding, `[rows][width]`.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// True for tokens of a sequence and false for padding, `[rows][width]`.
    pub fn mask(&self) -> Vec<bool> {
        self.lengths.iter().flat_map(|&length| (0..self.width).map(move |i| i < length)).collect()
    }

    /// Number of sequences.
    pub fn rows(&self) -> usize {
        self.lengths.len()
    }

    /// The padded length of every sequence.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Fraction of the rectangle that is padding, from 0 to 1; `None` if the rectangle is empty.
    pub fn waste(&self) -> Option<f64> {
        let all = self.tokens.len();
        let padding = all - self.lengths.iter().sum::<usize>();
        (all > 0).then(|| padding as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_mask_is_true_for_tokens_and_false_for_padding() {
        let batch = PaddedBatch::pack(&[vec![0, 0, 0], vec![5]], &[]).unwrap();
        assert_eq!(batch.mask(), [true, true, true, true, false, false]);
        assert_eq!(batch.waste(), Some(2.0 / 6.0));
    }

    #[test]
    fn the_width_is_the_smallest_bucket_that_holds_the_longest() {
        let rows = [vec![1; 5], vec![2; 9]];
        assert_eq!(PaddedBatch::pack(&rows, &[8, 16, 32]).unwrap().width(), 16);
        assert_eq!(PaddedBatch::pack(&rows, &[8]).unwrap().width(), 9);
        assert_eq!(PaddedBatch::pack::<Vec<u32>>(&[], &[8]).unwrap().waste(), None);
    }

    #[test]
    fn an_empty_sequence_is_named() {
        assert_eq!(PaddedBatch::pack(&[vec![1], vec![]], &[]), Err(EmptySequence { index: 1 }));
    }

    proptest! {
        #[test]
        fn unpacking_gives_what_was_packed(
            rows in proptest::collection::vec(proptest::collection::vec(0u32..9, 1..20), 0..8),
            bucket in 1usize..40,
        ) {
            let batch = PaddedBatch::pack(&rows, &[bucket]).unwrap();
            prop_assert_eq!(batch.mask().iter().filter(|&&m| m).count(), rows.iter().map(Vec::len).sum::<usize>());
            prop_assert_eq!(batch.unpack(), rows);
        }
    }
}
