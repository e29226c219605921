/// What a row of logits is drawn with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ask {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Only this many most likely tokens are kept; 0 keeps all, 1 takes the most likely token.
    pub top_k: u32,
    /// Only the fewest most likely tokens that together have this probability are kept; 1 keeps all.
    pub top_p: f32,
    /// Only tokens with at least this part of the most likely token's probability are kept; 0 keeps all.
    pub min_p: f32,
    /// The request's seed.
    pub seed: u64,
    /// Which of the request's choices this is.
    pub choice: u32,
    /// Position that the token will have.
    pub position: u32,
}

impl Ask {
    /// Takes the most likely token.
    pub const GREEDY: Self =
        Ask { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, choice: 0, position: 0 };

    /// Whether it takes the most likely token.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }
}

/// What came of a row of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drawn {
    /// This token.
    Token(u32),
    /// The logit of this token, the first such, is not a number.
    NotANumber(u32),
    /// All logits are minus infinity.
    NothingAllowed,
}

impl Drawn {
    /// Of the bytes that a kernel wrote.
    pub fn read(bytes: [u8; 8]) -> Self {
        let word = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        match word(4) {
            0 => Drawn::Token(word(0)),
            1 => Drawn::NotANumber(word(0)),
            _ => Drawn::NothingAllowed,
        }
    }
}
