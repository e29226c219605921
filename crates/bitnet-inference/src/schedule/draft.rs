//! Drafts the next tokens of a text from its own past. A draft is computed as an ordinary row and kept only if the
//! sampler draws the same token there, so drafting changes only the speed.

use super::pace::{StepLoad, StepModel};
use super::sequence::Sequence;

/// Minimum relative gain in speed for which drafts are made.
const MIN_GAIN: f64 = 0.02;
/// Number of tokens at the end of the text that must have occurred before.
const PATTERN: usize = 3;
/// Number of recent tokens that are searched, so that long texts cost no more than short ones.
const WINDOW: usize = 2048;

/// How many tokens to draft, at most `room`, in a step of `sequences` sequences whose load without drafts is
/// `step`.
pub(crate) fn depth(s: &Sequence, room: usize, step: StepLoad, sequences: usize, times: &StepModel) -> usize {
    // Assume one success in two at first.
    let rate = f64::from((s.drafts_accepted + 1.0) / (s.drafts_tried + 2.0));
    // Draft a token now and then anyway, to notice when the text begins to repeat itself.
    let probe = usize::from(s.tokens.len().is_multiple_of(32)).min(room);
    let depth = if rate > 0.2 { best(rate, room, step, sequences, times) } else { 0 };
    depth.max(probe)
}

/// The number of drafts that maximises tokens per time, if each is right with probability `rate` given that those
/// before it are. All sequences of the step wait for the drafts of one.
fn best(rate: f64, room: usize, step: StepLoad, sequences: usize, times: &StepModel) -> usize {
    let Some(without) = times.predict(step) else {
        // As many as are likely to be accepted.
        return room.min((2.0 * rate / (1.0 - rate).max(0.05)).ceil() as usize);
    };
    let (mut best, mut most, mut right) = (0, 1.0 + MIN_GAIN / sequences as f64, 0.0);
    for drafts in 1..=room {
        right += rate.powi(drafts as i32);
        let with = times.predict(StepLoad { drafts: step.drafts + drafts, ..step });
        let gain = with.map_or(0.0, |with| (1.0 + right / sequences as f64) * without / with);
        if gain > most {
            (best, most) = (drafts, gain);
        }
    }
    best
}

/// The position after the previous occurrence of the text's last tokens.
pub(crate) fn find(tokens: &[u32], depth: usize) -> Option<usize> {
    if depth == 0 || tokens.len() <= PATTERN {
        return None;
    }
    let past = &tokens[..tokens.len() - 1];
    let pattern = &tokens[tokens.len() - PATTERN..];
    let first = past.len().saturating_sub(WINDOW);
    let at = past[first..].windows(PATTERN).rposition(|w| w == pattern)?;
    Some(first + at + PATTERN)
}

/// Updates the acceptance rate; recent drafts count more.
pub(crate) fn learn(s: &mut Sequence, tried: usize, accepted: usize) {
    s.drafts_tried = s.drafts_tried * 0.9 + tried as f32;
    s.drafts_accepted = s.drafts_accepted * 0.9 + accepted as f32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_that_pay_for_one_sequence_are_not_made_where_many_would_wait_for_them() {
        let mut times = StepModel::default();
        let load = |decodes| StepLoad { decodes, ..StepLoad::default() };
        // Ten milliseconds plus one for each row.
        (0..200).for_each(|i| times.observe(load(1 + i % 40), 10_000 + 1000 * (1 + i as u64 % 40)));
        let best = |rate, sequences| best(rate, 4, load(sequences), sequences, &times);
        assert_eq!((best(0.5, 1), best(0.5, 32)), (2, 0));
        assert_eq!((best(0.95, 1), best(0.95, 32)), (4, 4));
        assert_eq!(best(0.05, 1), 0, "nearly never right");
        let unknown = StepModel::default();
        assert_eq!(super::best(0.5, 4, load(1), 1, &unknown), 2);
    }

    #[test]
    fn the_last_occurrence_is_followed() {
        assert_eq!(find(&[1, 2, 3, 4, 1, 2, 3, 5, 9, 1, 2, 3], 4), Some(7));
        assert_eq!(find(&[1, 2, 3, 4, 5], 4), None);
        assert_eq!(find(&[7, 7, 7, 7], 4), Some(3));
        assert_eq!(find(&[7, 7, 7], 4), None);
    }
}
