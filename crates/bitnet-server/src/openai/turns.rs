use std::collections::VecDeque;

use bitnet_inference::{End, TokenLogprobs};

/// What the engine has told of a choice, kept small: thousands may wait for their turn.
#[derive(Debug, PartialEq)]
pub(crate) enum Told {
    Token(u32, Option<Box<TokenLogprobs>>),
    /// Why the choice ended; `None` at the deadline of its request.
    End(Option<Box<End>>),
}

/// Puts what is told of several choices in one order: the next update of each choice in turn. The engine tells them
/// as its batches fall; in this order they are the same however busy it is.
///
/// A choice may be finished before another begins, so all tokens of all choices but one may have to wait here:
/// [`MAX_WAITING`] bounds what a request may ask for.
pub(crate) struct Turns {
    /// What waits of each choice; none when its end has been handed out.
    choices: Vec<Option<VecDeque<Told>>>,
    at: usize,
}

/// Maximum tokens that the choices of one stream may have together, if there are several: 64 MiB, and no more than
/// that wait for their turn.
pub(crate) const MAX_WAITING: usize = 1 << 22;

impl Turns {
    pub fn new(choices: usize) -> Self {
        Turns { choices: (0..choices).map(|_| Some(VecDeque::new())).collect(), at: 0 }
    }

    /// Takes in what was told.
    pub fn put(&mut self, choice: usize, told: Told) {
        self.choices[choice].as_mut().expect("nothing follows the end").push_back(told);
    }

    /// The choice whose turn it is, and what was told of it, if it has come.
    pub fn take(&mut self) -> Option<(usize, Told)> {
        let count = self.choices.len();
        let open = |i: &usize| self.choices[i % count].is_some();
        let at = (self.at..self.at + count).find(open)? % count;
        let told = self.choices[at].as_mut()?.pop_front()?;
        if matches!(told, Told::End(_)) {
            self.choices[at] = None;
        }
        self.at = at + 1;
        Some((at, told))
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
        // As they were generated one after the other, and as rotations and interleavings of that.
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
                let (mut turns, mut out) = (Turns::new(3), Vec::new());
                for (choice, index) in order {
                    turns.put(
                        choice,
                        if index == lengths[choice] {
                            Told::End(None)
                        } else {
                            Told::Token(index as u32, None)
                        },
                    );
                    out.extend(std::iter::from_fn(|| turns.take()).map(|(choice, told)| match told {
                        Told::Token(token, _) => (choice, token as usize),
                        Told::End(_) => (choice, lengths[choice]),
                    }));
                }
                out
            })
            .collect();
        let want = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2), (2, 2), (0, 3)];
        assert_eq!(outs, [want; 3]);
    }

    #[test]
    fn what_waits_for_its_turn_is_small() {
        assert!(size_of::<Told>() * MAX_WAITING <= 64 << 20, "{}", size_of::<Told>());
    }
}
