use crate::tokenizer::Tokenizer;

/// Decodes ids one at a time, without splitting characters.
///
/// Control tokens are omitted. The concatenated results of [`DecodeStream::push`] and [`DecodeStream::finish`] equal
/// [`Tokenizer::decode`] of the same ids, except that the leading space of SentencePiece vocabularies is kept, because
/// it belongs to a continuation.
#[derive(Debug, Clone)]
pub struct DecodeStream {
    tokenizer: Tokenizer,
    /// The bytes of an incomplete character; at most three between calls.
    pending: Vec<u8>,
}

impl DecodeStream {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        DecodeStream { tokenizer, pending: Vec::new() }
    }

    /// Returns the text that `id` completes; empty if it ends within a character. An id outside the vocabulary, which a
    /// padded output head can produce, adds nothing.
    pub fn push(&mut self, id: u32) -> String {
        if !self.tokenizer.is_special(id) {
            self.pending.extend_from_slice(self.tokenizer.token_bytes(id).unwrap_or_default());
        }
        self.complete()
    }

    /// Returns the text that `bytes` complete, for the part of a token before a stop string.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        self.complete()
    }

    fn complete(&mut self) -> String {
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let rest = &self.pending[done..];
            // `error_len` is `None` for a character that more bytes could still complete.
            let broken = str::from_utf8(rest).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_some());
            if broken {
                text.push(char::REPLACEMENT_CHARACTER);
                done += chunk.invalid().len();
            }
        }
        self.pending.drain(..done);
        text
    }

    /// Ends the text: returns U+FFFD if a character is incomplete, otherwise nothing.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}
