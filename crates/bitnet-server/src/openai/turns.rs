use std::collections::VecDeque;

use crate::openai::answers::Piece;

/// Puts the pieces of several choices in one order: the next piece of each choice in turn. The engine tells them as
/// its batches fall; in this order they are the same however busy it is.
pub(crate) struct Turns {
    /// What has come of each choice; none when its end has been handed out.
    choices: Vec<Option<VecDeque<Piece>>>,
    at: usize,
}

impl Turns {
    pub fn new(choices: usize) -> Self {
        Turns { choices: vec![Some(VecDeque::new()); choices], at: 0 }
    }

    /// Takes in a piece.
    pub fn put(&mut self, piece: Piece) {
        self.choices[piece.choice].as_mut().expect("nothing follows the end").push_back(piece);
    }

    /// The piece whose turn it is, if it has come.
    pub fn take(&mut self) -> Option<Piece> {
        let count = self.choices.len();
        let open = |i: &usize| self.choices[i % count].is_some();
        let at = (self.at..self.at + count).find(open)? % count;
        let piece = self.choices[at].as_mut()?.pop_front()?;
        if piece.finish.is_some() {
            self.choices[at] = None;
        }
        self.at = at + 1;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(choice: usize, index: usize, last: bool) -> Piece {
        let finish = last.then_some("stop");
        Piece { choice, index, offset: 0, text: String::new(), token: None, finish }
    }

    #[test]
    fn the_order_is_the_same_however_the_pieces_come() {
        let lengths = [3, 1, 2];
        let all: Vec<Piece> =
            (0..3).flat_map(|c| (0..=lengths[c]).map(move |i| piece(c, i, i == lengths[c]))).collect();
        // As they were generated one after the other, and as rotations and interleavings of that.
        let mut orders = vec![all.clone()];
        let mut by_index = all.clone();
        by_index.sort_by_key(|p| (p.index, 2 - p.choice));
        orders.push(by_index);
        let mut last_first = all.clone();
        last_first.sort_by_key(|p| (2 - p.choice, p.index));
        orders.push(last_first);
        let outs: Vec<Vec<(usize, usize)>> = orders
            .into_iter()
            .map(|order| {
                let (mut turns, mut out) = (Turns::new(3), Vec::new());
                for piece in order {
                    turns.put(piece);
                    out.extend(std::iter::from_fn(|| turns.take()).map(|p| (p.choice, p.index)));
                }
                out
            })
            .collect();
        let want = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2), (2, 2), (0, 3)];
        assert_eq!(outs, [want; 3]);
    }
}
