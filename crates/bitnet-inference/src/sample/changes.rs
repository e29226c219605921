//! Which logits a request changes before a token is drawn, by penalties, biases and bans.

use bitnet_kernels::Change;

use crate::request::{GenerationConfig, TokenSet};

/// Makes lists of changes; keeps its memory between calls, but no state.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    list: Vec<Change>,
    /// How often the token of each change was generated.
    generated: Vec<u32>,
    /// One more than the index of a token's change; zero for tokens that the list does not have.
    places: Vec<u32>,
}

impl Changes {
    /// Memory for a vocabulary of `vocab` tokens.
    pub fn new(vocab: usize) -> Self {
        let room = vocab.min(4096);
        Changes {
            list: Vec::with_capacity(room),
            generated: Vec::with_capacity(room),
            places: vec![0; vocab],
        }
    }

    /// The changes of the logits after `tokens`, of which `prompt_len` are the prompt, with these tokens banned. Each is of
    /// a different token.
    pub fn of(
        &mut self,
        config: &GenerationConfig,
        tokens: &[u32],
        prompt_len: usize,
        banned: &[u32],
    ) -> &[Change] {
        // At the beginning, since the last call may have ended in a panic.
        for change in self.list.drain(..) {
            self.places[change.token as usize] = 0;
        }
        self.generated.clear();
        let GenerationConfig { repetition_penalty, presence_penalty, frequency_penalty, .. } = *config;
        let prompt_len = prompt_len.min(tokens.len());
        // Only repetition counts the prompt.
        let counted = if repetition_penalty == 1.0 { prompt_len } else { 0 };
        if config.has_penalties() {
            for &token in &tokens[counted..] {
                self.place(token, repetition_penalty);
            }
            if presence_penalty != 0.0 || frequency_penalty != 0.0 {
                for &token in &tokens[prompt_len..] {
                    self.generated[self.places[token as usize] as usize - 1] += 1;
                }
                for (change, &generated) in self.list.iter_mut().zip(&self.generated) {
                    if generated > 0 {
                        change.less = presence_penalty + frequency_penalty * generated as f32;
                    }
                }
            }
        }
        for &(token, bias) in &config.logit_bias {
            let place = self.place(token, 1.0);
            self.list[place].more += bias;
        }
        for &token in banned {
            let place = self.place(token, 1.0);
            self.list[place].more = f32::NEG_INFINITY;
        }
        &self.list
    }

    /// Drops the changes of tokens that are not `allowed`.
    pub fn keep_only(&mut self, allowed: &TokenSet) {
        self.list.retain(|change| {
            let keep = allowed.contains(change.token);
            if !keep {
                self.places[change.token as usize] = 0;
            }
            keep
        });
    }

    /// The list that [`Self::of`] made last.
    pub fn last(&self) -> &[Change] {
        &self.list
    }

    /// The index of a token's change, which is made, with this `repetition`, if there is none.
    fn place(&mut self, token: u32, repetition: f32) -> usize {
        let known = &mut self.places[token as usize];
        if *known == 0 {
            self.list.push(Change { repetition, ..Change::none(token) });
            self.generated.push(0);
            *known = self.list.len() as u32;
        }
        *known as usize - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_has_one_change_with_all_that_applies_to_it() {
        let config = GenerationConfig {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            logit_bias: vec![(3, 1.0), (3, 2.0), (9, -1.0)],
            ..GenerationConfig::default()
        };
        let mut changes = Changes::new(10);
        for _ in 0..2 {
            let list = changes.of(&config, &[1, 3, 3, 5], 2, &[5, 7]).to_vec();
            let of = |token, repetition, less, more| Change { token, repetition, less, more };
            let never = f32::NEG_INFINITY;
            assert_eq!(
                list,
                [
                    of(1, 2.0, 0.0, 0.0),
                    of(3, 2.0, 0.75, 3.0),
                    of(5, 2.0, 0.75, never),
                    of(9, 1.0, 0.0, -1.0),
                    of(7, 1.0, 0.0, never),
                ]
            );
        }
        let mut allowed = TokenSet::new(10);
        [2, 5].into_iter().for_each(|token| allowed.insert(token));
        changes.keep_only(&allowed);
        assert_eq!(changes.last().iter().map(|change| change.token).collect::<Vec<_>>(), [5]);
        // Without repetition, tokens of the prompt alone have no change.
        let config = GenerationConfig { repetition_penalty: 1.0, logit_bias: Vec::new(), ..config };
        assert_eq!(changes.of(&config, &[1, 3, 3], 2, &[]).len(), 1);
    }
}
