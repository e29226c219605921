use std::fmt;

use crate::RequestError;

/// Says which tokens may follow a text: a grammar, a schema, a list of answers.
///
/// The answer is a function of the generated tokens and of nothing else. Batches, drafts and a sequence that is
/// computed again therefore cannot change it. An implementation may remember how far it has read the text of a
/// choice, as long as it notices when it is asked about another text.
pub trait Constraint: fmt::Debug + Send + Sync {
    /// Adds to `allowed`, which is empty, every token that may follow `generated`, the text of choice number
    /// `choice`; end tokens too, where the text may end. If nothing is added, the choice fails.
    ///
    /// # Errors
    /// If the question cannot be answered; the choice fails with the message, and no other.
    fn allow(&self, choice: u32, generated: &[u32], allowed: &mut TokenSet) -> Result<(), ConstraintError>;
}

/// Why a constraint gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub String);

impl From<ConstraintError> for RequestError {
    fn from(ConstraintError(message): ConstraintError) -> Self {
        RequestError::Constraint { message }
    }
}

/// Some of the tokens of a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSet {
    /// Token `t` is bit `t % 32` of word `t / 32`.
    words: Vec<u32>,
    vocab: usize,
}

impl TokenSet {
    /// No tokens of a vocabulary of this size.
    pub fn new(vocab: usize) -> Self {
        TokenSet { words: vec![0; vocab.div_ceil(32)], vocab }
    }

    /// Takes all tokens out.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Puts a token in; one that the vocabulary does not have changes nothing.
    pub fn insert(&mut self, token: u32) {
        if (token as usize) < self.vocab {
            self.words[token as usize / 32] |= 1 << (token % 32);
        }
    }

    /// Puts in the tokens of a bit set of 32 a word, lowest first; those beyond the vocabulary are left out.
    pub fn insert_words(&mut self, words: &[u32]) {
        self.words.iter_mut().zip(words).for_each(|(mine, more)| *mine |= more);
        if let (Some(last), used @ 1..) = (self.words.last_mut(), self.vocab % 32) {
            *last &= (1 << used) - 1;
        }
    }

    /// Whether a token is in it.
    pub fn contains(&self, token: u32) -> bool {
        self.words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// Makes every other token of a row of logits impossible.
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
        set.insert_words(&[1 << 31, 0, u32::MAX, u32::MAX]);
        let held: Vec<u32> = (0..200).filter(|&t| set.contains(t)).collect();
        assert_eq!(held, [3, 31, 64, 65, 66, 67, 68, 69]);
        let mut row = vec![0.0; 70];
        set.forbid_others(&mut row);
        let kept: Vec<u32> = (0..70).filter(|&t| row[t as usize] == 0.0).collect();
        assert_eq!(kept, held);
        set.clear();
        assert!(!(0..70).any(|t| set.contains(t)));
    }
}
