//! Puts the updates of several choices into an order that does not depend on the load.

use std::collections::VecDeque;

use bitnet::inference::{End, TokenLogprobs};

/// An update of a choice, kept small because millions may wait for their turn.
#[derive(Debug, PartialEq)]
pub(crate) enum ChoiceUpdate {
    Token(u32, Option<Box<TokenLogprobs>>),
    /// Why the choice ended; `None` at the deadline of its request.
    End(Option<Box<End>>),
}

/// Puts the updates of several choices into a fixed order: the next update of each choice in turn. The engine's own
/// order depends on its batches, and so on its load.
///
/// A choice may end before another begins, so the tokens of all choices but one may have to wait here. [`MAX_WAITING`]
/// bounds their number.
pub(crate) struct RoundRobin {
    /// The waiting updates of each choice; `None` once its end has been returned.
    choices: Vec<Option<VecDeque<ChoiceUpdate>>>,
    at: usize,
}

/// Maximum number of tokens in all choices of a stream with several choices: waiting updates take at most 64 MiB.
pub(crate) const MAX_WAITING: usize = 1 << 22;

impl RoundRobin {
    pub fn new(choices: usize) -> Self {
        RoundRobin { choices: (0..choices).map(|_| Some(VecDeque::new())).collect(), at: 0 }
    }

    /// Adds an update.
    pub fn put(&mut self, choice: usize, update: ChoiceUpdate) {
        self.choices[choice].as_mut().expect("nothing follows the end").push_back(update);
    }

    /// Takes the next update of the choice whose turn it is, if that update has come.
    pub fn take(&mut self) -> Option<(usize, ChoiceUpdate)> {
        let count = self.choices.len();
        let open = |i: &usize| self.choices[i % count].is_some();
        let at = (self.at..self.at + count).find(open)? % count;
        let update = self.choices[at].as_mut()?.pop_front()?;
        if matches!(update, ChoiceUpdate::End(_)) {
            self.choices[at] = None;
        }
        self.at = at + 1;
        Some((at, update))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_the_same_however_the_updates_come() {
        let lengths = [3, 1, 2];
        let all: Vec<(usize, usize)> =
            (0..3).flat_map(|choice| (0..=lengths[choice]).map(move |index| (choice, index))).collect();
        // The choices one after the other, interleaved, and in reverse.
        let mut orders = vec![all.clone()];
        let mut by_index = all.clone();
        by_index.sort_by_key(|&(choice, index)| (index, 2 - choice));
        orders.push(by_index);
        let mut last_first = all.clone();
        last_first.sort_by_key(|&(choice, index)| (2 - choice, index));
        orders.push(last_first);
        let outs: Vec<Vec<(usize, usize)>> = orders
            .into_iter()
            .map(|order| {
                let (mut robin, mut out) = (RoundRobin::new(3), Vec::new());
                for (choice, index) in order {
                    robin.put(
                        choice,
                        if index == lengths[choice] {
                            ChoiceUpdate::End(None)
                        } else {
                            ChoiceUpdate::Token(index as u32, None)
                        },
                    );
                    out.extend(std::iter::from_fn(|| robin.take()).map(|(choice, update)| match update {
                        ChoiceUpdate::Token(token, _) => (choice, token as usize),
                        ChoiceUpdate::End(_) => (choice, lengths[choice]),
                    }));
                }
                out
            })
            .collect();
        let want = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2), (2, 2), (0, 3)];
        assert_eq!(outs, [want; 3]);
    }

    #[test]
    fn a_waiting_update_is_small() {
        assert!(size_of::<ChoiceUpdate>() * MAX_WAITING <= 64 << 20, "{}", size_of::<ChoiceUpdate>());
    }
}
