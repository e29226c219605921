//! Finds stop strings in a text as it grows, token by token.
//! A token is held back while it may still belong to one.

use std::{collections::VecDeque, fmt};

use bitnet_model::Tokenizer;

/// Maps tokens to the bytes that they add to a text.
pub trait TokenText: Send + Sync {
    /// Appends the bytes of `token` to `out`.
    fn append_bytes(&self, token: u32, out: &mut Vec<u8>);
}

impl fmt::Debug for dyn TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenText")
    }
}

/// Text as readers see it: control tokens have none.
impl TokenText for Tokenizer {
    fn append_bytes(&self, token: u32, out: &mut Vec<u8>) {
        if !self.is_special(token) {
            out.extend_from_slice(self.token_bytes(token).unwrap_or_default());
        }
    }
}

/// The effect of a new token on the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan {
    /// No stop string is complete.
    Open,
    /// This stop string, given by index, is complete and ends the text.
    Stop(usize),
}

/// Looks for stop strings in the text of a sequence as it grows. A token is held back while any of its bytes may still
/// become part of a stop string, so readers never see a piece of one.
///
/// The stop string that is completed at the earliest byte ends the text; if several end there, the longest one. The
/// result does not depend on how the text is cut into tokens.
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    patterns: Vec<Box<[u8]>>,
    /// Bytes of the held tokens.
    pending: Vec<u8>,
    /// Held tokens with the number of their bytes in `pending`.
    held: VecDeque<(u32, usize)>,
    /// Bytes at the front of `pending` that cannot be part of a stop string.
    exempt: usize,
    /// Whether the last pending bytes have not been searched.
    unsearched: bool,
}

impl StopMatcher {
    /// Creates a matcher for these strings.
    pub fn new(patterns: &[String]) -> Self {
        StopMatcher { patterns: patterns.iter().map(|p| p.as_bytes().into()).collect(), ..Self::default() }
    }

    /// Adds a token and its text. Appends the tokens that have become safe to `out`.
    pub fn push(&mut self, token: u32, text: &dyn TokenText, out: &mut Vec<u32>) -> Scan {
        self.push_after(0, token, text, out)
    }

    /// Like [`StopMatcher::push`], for a token whose first `exempt` bytes cannot be part of a stop string.
    pub(crate) fn push_after(
        &mut self,
        exempt: usize,
        token: u32,
        text: &dyn TokenText,
        out: &mut Vec<u32>,
    ) -> Scan {
        let before = if std::mem::take(&mut self.unsearched) { 0 } else { self.pending.len() };
        if exempt > 0 {
            self.exempt = self.pending.len() + exempt;
        }
        self.add(token, text);
        for end in before.max(self.exempt) + 1..=self.pending.len() {
            let complete = self.patterns.iter().enumerate();
            let complete = complete.filter(|(_, p)| self.pending[self.exempt..end].ends_with(p));
            if let Some((index, pattern)) = complete.max_by_key(|(i, p)| (p.len(), usize::MAX - i)) {
                let start = end - pattern.len();
                self.pending.truncate(start);
                self.release(start, out);
                self.held.clear();
                return Scan::Stop(index);
            }
        }
        self.release(self.safe(), out);
        Scan::Open
    }

    /// Adds a token without a search for stop strings: the next push searches its text too, unless it is flushed before.
    pub(crate) fn hold(&mut self, token: u32, text: &dyn TokenText) {
        self.add(token, text);
        self.unsearched = true;
    }

    fn add(&mut self, token: u32, text: &dyn TokenText) {
        let before = self.pending.len();
        text.append_bytes(token, &mut self.pending);
        self.held.push_back((token, self.pending.len() - before));
    }

    /// Ends the text without a stop string and releases all held tokens.
    pub fn flush(&mut self, out: &mut Vec<u32>) {
        out.extend(self.held.drain(..).map(|(token, _)| token));
        self.pending.clear();
        (self.exempt, self.unsearched) = (0, false);
    }

    /// After [`Scan::Stop`]: the bytes before the stop string in the token where it begins. They belong to no released
    /// token.
    pub fn tail(&self) -> &[u8] {
        &self.pending
    }

    /// Number of bytes at the front of `pending` in which no stop string can begin.
    fn safe(&self) -> usize {
        let open = |from: usize| self.patterns.iter().any(|p| p.starts_with(&self.pending[from..]));
        (self.exempt..self.pending.len()).find(|&from| open(from)).unwrap_or(self.pending.len())
    }

    /// Releases the held tokens that lie entirely in the first `bytes` pending bytes.
    fn release(&mut self, bytes: usize, out: &mut Vec<u32>) {
        let mut released = 0;
        while let Some(&(token, len)) = self.held.front()
            && released + len <= bytes
        {
            out.push(token);
            released += len;
            self.held.pop_front();
        }
        self.pending.drain(..released);
        self.exempt = self.exempt.saturating_sub(released);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Token `i` spells `words[i]`.
    struct Words(Vec<Vec<u8>>);

    impl TokenText for Words {
        fn append_bytes(&self, token: u32, out: &mut Vec<u8>) {
            out.extend_from_slice(&self.0[token as usize]);
        }
    }

    /// Feeds the words as tokens 0.. and returns the tokens released by each push, and how the text ended.
    fn feed(stops: &[&str], words: &[&str]) -> (Vec<Vec<u32>>, Scan, Vec<u8>) {
        let text = Words(words.iter().map(|w| w.as_bytes().to_vec()).collect());
        let mut matcher = StopMatcher::new(&stops.iter().map(|s| s.to_string()).collect::<Vec<_>>());
        let mut steps = Vec::new();
        for token in 0..words.len() as u32 {
            let mut out = Vec::new();
            let scan = matcher.push(token, &text, &mut out);
            steps.push(out);
            if scan != Scan::Open {
                return (steps, scan, matcher.tail().to_vec());
            }
        }
        let mut out = Vec::new();
        matcher.flush(&mut out);
        steps.push(out);
        (steps, Scan::Open, Vec::new())
    }

    #[test]
    fn a_token_is_held_while_it_may_begin_a_stop_string() {
        let (steps, scan, tail) = feed(&["END"], &["a", "bE", "N", "x", "E", "ND"]);
        assert_eq!(steps, [vec![0], vec![], vec![], vec![1, 2, 3], vec![], vec![]]);
        assert_eq!((scan, tail.as_slice()), (Scan::Stop(0), &b""[..]));
    }

    #[test]
    fn text_before_a_stop_string_inside_a_token_is_kept_as_the_tail() {
        let (steps, scan, tail) = feed(&["stop"], &["go ", "on. st", "op now"]);
        assert_eq!(steps, [vec![0], vec![], vec![]]);
        assert_eq!((scan, tail.as_slice()), (Scan::Stop(0), &b"on. "[..]));
    }

    #[test]
    fn what_was_held_comes_out_when_the_text_ends_otherwise() {
        let (steps, scan, _) = feed(&["END"], &["x", "E"]);
        assert_eq!(steps, [vec![0], vec![], vec![1]]);
        assert_eq!(scan, Scan::Open);
    }

    #[test]
    fn of_stop_strings_that_end_together_the_longest_wins() {
        assert_eq!(feed(&["b", "ab"], &["ab"]).1, Scan::Stop(1));
        assert_eq!(feed(&["abc", "b"], &["abc"]).1, Scan::Stop(1));
        assert_eq!(feed(&["x", "b", "b"], &["b"]).1, Scan::Stop(1), "the first of equal ones");
    }

    proptest! {
        /// Compares with a search of the whole text, byte by byte.
        #[test]
        fn no_piece_of_a_stop_string_is_released_however_the_text_is_cut(
            text in "[ab]{0,24}",
            stops in proptest::collection::vec("[ab]{1,4}", 1..4),
            cuts in proptest::collection::vec(1usize..4, 24),
        ) {
            let end = (1..=text.len())
                .find_map(|end| {
                    let ends = stops.iter().filter(|s| text[..end].ends_with(s.as_str()));
                    ends.map(String::len).max().map(|len| end - len)
                });
            let (mut words, mut at) = (Vec::new(), 0);
            for cut in cuts {
                let to = (at + cut).min(text.len());
                words.push(&text[at..to]);
                at = to;
            }
            let refs: Vec<&str> = stops.iter().map(String::as_str).collect();
            let (steps, scan, tail) = feed(&refs, &words);
            let mut seen: Vec<u8> = Vec::new();
            for token in steps.into_iter().flatten() {
                seen.extend(words[token as usize].as_bytes());
            }
            seen.extend(tail);
            prop_assert_eq!(scan != Scan::Open, end.is_some());
            prop_assert_eq!(seen, &text.as_bytes()[..end.unwrap_or(text.len())]);
        }
    }
}
