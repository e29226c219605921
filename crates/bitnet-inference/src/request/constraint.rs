//! Restricts which tokens may be drawn, for schemas and grammars.
//! [`TokenSet`] is a bit for each token of a vocabulary.

use std::fmt;

/// Restricts which tokens may follow a text, for example to a grammar, a schema or a list of answers.
///
/// The answer must be a function of the generated tokens and of nothing else, so that batches, drafts and recomputed
/// sequences cannot change it. It is also asked about texts that end in drafts, which it allows, but which may not be kept. An implementation may remember its position in the text of a choice, if it notices
/// when it is asked about a different text.
pub trait Constraint: fmt::Debug + Send + Sync {
    /// Adds every token that may follow `generated`, the text of choice number `choice`, to `allowed`, which is
    /// empty. Includes end tokens where the text may end. If nothing is added, the choice fails.
    ///
    /// # Errors
    /// If there is no answer. The choice fails with the message; other choices are not affected.
    fn allow(&self, choice: u32, generated: &[u32], allowed: &mut TokenSet) -> Result<(), ConstraintError>;

    /// The only token that [`Constraint::allow`] would add, if there is only one and it is found with little work. Such
    /// tokens are computed together, and no logits before them.
    fn forced(&self, choice: u32, generated: &[u32]) -> Option<u32> {
        let _ = (choice, generated);
        None
    }
}

/// A constraint failed to answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub String);

/// A set of tokens of a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSet {
    /// Token `t` is bit `t % 32` of word `t / 32`.
    words: Vec<u32>,
    vocab: usize,
}

impl TokenSet {
    /// An empty set for a vocabulary of `vocab` tokens.
    pub fn new(vocab: usize) -> Self {
        TokenSet { words: vec![0; vocab.div_ceil(32)], vocab }
    }

    /// Removes all tokens.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Adds a token; ignores one outside the vocabulary.
    pub fn insert(&mut self, token: u32) {
        if (token as usize) < self.vocab {
            self.words[token as usize / 32] |= 1 << (token % 32);
        }
    }

    /// Removes a token.
    pub fn remove(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / 32) {
            *word &= !(1 << (token % 32));
        }
    }

    /// Adds the tokens of a bit set with 32 tokens a word, lowest bit first; ignores those outside the vocabulary.
    pub fn insert_words(&mut self, words: &[u32]) {
        self.words.iter_mut().zip(words).for_each(|(mine, more)| *mine |= more);
        self.forget_outside();
    }

    /// Adds all tokens of the vocabulary.
    pub fn insert_all(&mut self) {
        self.words.fill(u32::MAX);
        self.forget_outside();
    }

    /// Clears the bits after the last token.
    fn forget_outside(&mut self) {
        if let (Some(last), used @ 1..) = (self.words.last_mut(), self.vocab % 32) {
            *last &= (1 << used) - 1;
        }
    }

    /// Whether a token is in the set.
    pub fn contains(&self, token: u32) -> bool {
        self.words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// The token of a set of one.
    pub fn only(&self) -> Option<u32> {
        let mut tokens = (0..).zip(&self.words).filter(|(_, word)| **word != 0);
        let (at, word) = tokens.next()?;
        let single = word.is_power_of_two() && tokens.next().is_none();
        single.then(|| 32 * at + word.trailing_zeros())
    }

    /// The set as [`Edits::masks`] has it.
    ///
    /// [`Edits::masks`]: bitnet_kernels::Edits::masks
    pub(crate) fn words(&self) -> &[u32] {
        &self.words
    }

    /// Sets the logits of all other tokens of a row to negative infinity.
    pub(crate) fn forbid_others(&self, row: &mut [f32]) {
        for (logits, &word) in row.chunks_mut(32).zip(&self.words) {
            if word != u32::MAX {
                let others = logits.iter_mut().enumerate().filter(|(i, _)| word >> i & 1 == 0);
                others.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in_and_nothing_beyond_the_vocabulary() {
        let mut set = TokenSet::new(70);
        set.insert(3);
        set.insert(69);
        set.insert(70);
        set.insert(5);
        set.remove(5);
        set.remove(700);
        set.insert_words(&[1 << 31, 0, u32::MAX, u32::MAX]);
        let held: Vec<u32> = (0..200).filter(|&t| set.contains(t)).collect();
        assert_eq!(held, [3, 31, 64, 65, 66, 67, 68, 69]);
        let mut row = vec![0.0; 70];
        set.forbid_others(&mut row);
        let kept: Vec<u32> = (0..70).filter(|&t| row[t as usize] == 0.0).collect();
        assert_eq!(kept, held);
        assert_eq!(set.only(), None);
        set.clear();
        assert_eq!(set.only(), None);
        set.insert(64);
        assert_eq!(set.only(), Some(64));
        set.clear();
        assert!(!(0..70).any(|t| set.contains(t)));
    }
}
