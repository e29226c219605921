//! A limit on the digits of generated numbers, so that a model that repeats itself comes to an end.

use bitnet_model::Tokenizer;

use super::strings::StringTracker;

/// Maximum number of digits in a row, before or after the point or in the exponent of a number; enough for any 64-bit
/// integer. Without a limit, a model that repeats itself writes digits until the maximum length of its text.
pub(super) const MAX_DIGITS: usize = 20;

/// The tokens that make a number longer.
pub(super) struct Digits {
    tokenizer: Option<Tokenizer>,
    /// Bit set of the tokens that begin with a digit, 32 a word, lowest bit first.
    leading: Vec<u32>,
}

impl Digits {
    pub fn new(tokenizer: Option<Tokenizer>, vocab: usize) -> Self {
        let mut digits = Digits { tokenizer, leading: vec![0; vocab.div_ceil(32)] };
        for id in 0..vocab as u32 {
            if digits.text(id).first().is_some_and(u8::is_ascii_digit) {
                digits.leading[id as usize / 32] |= 1 << (id % 32);
            }
        }
        digits
    }

    /// All tokens of the vocabulary.
    pub fn tokens(&self) -> std::ops::Range<u32> {
        0..32 * self.leading.len() as u32
    }

    /// The tokenizer of the vocabulary.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// The bytes that a token adds to a text; none for a control token.
    pub fn text(&self, id: u32) -> &[u8] {
        let tokenizer = self.tokenizer.as_ref();
        tokenizer.filter(|t| !t.is_special(id)).and_then(|t| t.token_bytes(id)).unwrap_or_default()
    }

    /// The allowed tokens without those that begin with a digit, or `None` if none would be left: a schema may
    /// require a longer number.
    pub fn ended(&self, allowed: &[u32]) -> Option<Vec<u32>> {
        let others: Vec<u32> =
            allowed.iter().zip(&self.leading).map(|(word, digits)| word & !digits).collect();
        others.iter().any(|&word| word != 0).then_some(others)
    }
}

/// The position of a JSON text within a number.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Number {
    /// Whether the JSON can be within other text, and so begins with a brace.
    embedded: bool,
    /// Number of open braces.
    depth: usize,
    strings: StringTracker,
    /// Number of digits in a row up to here, outside of strings.
    digits: usize,
}

impl Number {
    pub fn new(embedded: bool) -> Self {
        Number { embedded, ..Number::default() }
    }

    pub fn read(&mut self, text: &[u8]) {
        for &byte in text {
            let outside = self.strings.read(byte);
            match byte {
                b'{' if outside => self.depth += 1,
                b'}' if outside => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            let counts = outside && (!self.embedded || self.depth > 0);
            self.digits = if byte.is_ascii_digit() && counts { self.digits + 1 } else { 0 };
        }
    }

    /// Whether the number must end.
    pub fn is_full(&self) -> bool {
        self.digits >= MAX_DIGITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_of_a_number_count() {
        for (text, digits) in [
            ("", 0),
            ("{\"a\":12", 2),
            ("{\"a\":-12.345", 3),
            ("[1e17", 2),
            ("[123,", 0),
            ("{\"123", 0),
            ("{\"1\\\"23", 0),
            ("{\"1\\\\\":23", 2),
        ] {
            let mut number = Number::default();
            number.read(text.as_bytes());
            assert_eq!(number.digits, digits, "{text}");
        }
    }

    #[test]
    fn digits_of_the_text_around_json_do_not_count() {
        for (text, digits) in [("On 24", 0), ("{\"a\": 24", 2), ("{\"}\": 24", 2), ("{\"a\": 1} 24", 0)] {
            let mut number = Number::new(true);
            number.read(text.as_bytes());
            assert_eq!(number.digits, digits, "{text}");
        }
    }
}
