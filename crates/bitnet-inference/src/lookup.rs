use crate::pace::{StepLoad, StepModel};
use crate::sequence::Sequence;

/// Guesses the next tokens of a text from its own past. A guess is computed as an ordinary row and kept only if it is
/// what the sampler draws there, so that guessing changes the speed and nothing else.
pub(crate) struct Lookup;

impl Lookup {
    /// Tokens at the end that must have occurred before.
    const PATTERN: usize = 3;
    /// Tokens searched for it, so that a long text costs no more than a page.
    const WINDOW: usize = 2048;

    /// How many tokens to guess, at most `room`: as many as are likely to be right, and none if a step with them
    /// would take longer than what they save.
    pub fn depth(s: &Sequence, room: usize, times: &StepModel) -> usize {
        // One success in two is assumed before there is experience.
        let rate = f64::from((s.drafts_accepted + 1.0) / (s.drafts_tried + 2.0));
        let expected = rate / (1.0 - rate).max(0.05);
        let depth = room.min((2.0 * expected).ceil() as usize);
        let load = |decodes| StepLoad { decodes, context: s.computed, prefill: 0 };
        let gain = |depth: usize| {
            let (alone, with) = (times.predict(load(1))?, times.predict(load(1 + depth))?);
            let tokens: f64 = 1.0 + (1..=depth as i32).map(|i| rate.powi(i)).sum::<f64>();
            Some(tokens * alone / with)
        };
        // Now and then one guess is made all the same, to notice when the text begins to repeat itself.
        let probe = usize::from(s.tokens.len().is_multiple_of(32)).min(room);
        if gain(depth).is_none_or(|gain| gain > 1.02) && rate > 0.2 { depth } else { probe }
    }

    /// Where the text went on, the last time its last tokens occurred.
    pub fn find(tokens: &[u32], depth: usize) -> Option<usize> {
        if depth == 0 || tokens.len() <= Self::PATTERN {
            return None;
        }
        let (past, pattern) = (&tokens[..tokens.len() - 1], &tokens[tokens.len() - Self::PATTERN..]);
        let first = past.len().saturating_sub(Self::WINDOW);
        let at = past[first..].windows(Self::PATTERN).rposition(|w| w == pattern)?;
        Some(first + at + Self::PATTERN)
    }

    /// Remembers how a guess went; what is long ago counts little.
    pub fn learn(s: &mut Sequence, tried: usize, accepted: usize) {
        s.drafts_tried = s.drafts_tried * 0.9 + tried as f32;
        s.drafts_accepted = s.drafts_accepted * 0.9 + accepted as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_occurrence_is_followed() {
        assert_eq!(Lookup::find(&[1, 2, 3, 4, 1, 2, 3, 5, 9, 1, 2, 3], 4), Some(7));
        assert_eq!(Lookup::find(&[1, 2, 3, 4, 5], 4), None);
        assert_eq!(Lookup::find(&[7, 7, 7, 7], 4), Some(3));
        assert_eq!(Lookup::find(&[7, 7, 7], 4), None);
    }
}
