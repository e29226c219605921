//! Follows a text along the text that its request predicts, to draft from it and to count how well it was predicted.

use crate::request::Predicted;

/// Number of tokens that must agree for a text to be found in its prediction again.
const PATTERN: usize = 3;

/// Where a text is in its prediction. A function of the two texts alone, so drafting does not change the counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Prediction {
    /// The predicted token that comes next; `None` where the text has left its prediction.
    at: Option<usize>,
    /// Where to look for it again.
    from: usize,
    counts: Predicted,
}

impl Prediction {
    /// At the beginning of the prediction.
    pub fn new() -> Self {
        Prediction { at: Some(0), ..Prediction::default() }
    }

    /// The index of the predicted token that comes next.
    pub fn next(&self, predicted: &[u32]) -> Option<usize> {
        self.at.filter(|&at| at < predicted.len())
    }

    /// The counts so far.
    pub fn counts(&self) -> Predicted {
        self.counts
    }

    /// Goes on by the last token of `text`, the tokens generated so far.
    pub fn follow(&mut self, predicted: &[u32], text: &[u32]) {
        let Some(token) = text.last() else { return };
        match self.next(predicted) {
            Some(at) if predicted[at] == *token => {
                self.counts.accepted += 1;
                (self.at, self.from) = (Some(at + 1), at + 1);
                return;
            }
            Some(_) => self.counts.rejected += 1,
            None => {}
        }
        let wanted = &text[text.len().saturating_sub(PATTERN)..];
        let find = |range: std::ops::Range<usize>| {
            let start = range.start;
            predicted.get(range)?.windows(PATTERN).position(|w| w == wanted).map(|at| start + at + PATTERN)
        };
        let from = self.from.saturating_sub(PATTERN);
        self.at = find(from..predicted.len()).or_else(|| find(0..predicted.len()));
        self.from = self.at.unwrap_or(self.from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_again_after_what_was_inserted_replaced_or_left_out() {
        let predicted: Vec<u32> = (1..30).collect();
        // Tokens 5 and 6 are replaced by one, three are inserted after 12, and 20 to 24 are missing.
        let text: Vec<u32> =
            (1..5).chain([90]).chain(7..13).chain([91, 92, 93]).chain(13..20).chain(25..30).collect();
        let mut prediction = Prediction::new();
        for end in 1..=text.len() {
            prediction.follow(&predicted, &text[..end]);
        }
        // Three tokens after each of these changes are needed to find the place.
        let Predicted { accepted, rejected } = prediction.counts();
        assert_eq!((accepted, rejected), (4 + (6 - 3) + (7 - 3) + (5 - 3), 3));
        assert_eq!(prediction.next(&predicted), None, "the prediction has ended");
    }

    #[test]
    fn an_empty_prediction_predicts_nothing() {
        let mut prediction = Prediction::new();
        prediction.follow(&[], &[1]);
        prediction.follow(&[], &[1, 2, 3, 4]);
        assert_eq!((prediction.next(&[]), prediction.counts()), (None, Predicted::default()));
    }
}
