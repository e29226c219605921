use crate::Tokenizer;

/// Decodes a sequence of ids as it comes, without ever splitting a character.
///
/// Control tokens are left out. What [`DecodeStream::push`] and [`DecodeStream::finish`] return, put together, is
/// what [`Tokenizer::decode`] returns for the same ids, but for the space before the first word that
/// SentencePiece vocabularies carry: it belongs to a continuation and is kept.
#[derive(Debug, Clone)]
pub struct DecodeStream {
    tokenizer: Tokenizer,
    /// The bytes of a character that is not complete: at most three, between two calls.
    pending: Vec<u8>,
}

impl DecodeStream {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        DecodeStream { tokenizer, pending: Vec::new() }
    }

    /// The text that `id` completes; empty if it ends within a character. An id outside the vocabulary, which a
    /// padded output head can give, adds nothing.
    pub fn push(&mut self, id: u32) -> String {
        if !self.tokenizer.is_special(id) {
            self.pending.extend_from_slice(self.tokenizer.token_bytes(id).unwrap_or_default());
        }
        self.complete()
    }

    /// The text that bytes of no token complete: the part of a token before a stop string.
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
            // `error_len` is unknown for a character that more bytes could still complete.
            let broken = str::from_utf8(rest).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_some());
            if broken {
                text.push(char::REPLACEMENT_CHARACTER);
                done += chunk.invalid().len();
            }
        }
        self.pending.drain(..done);
        text
    }

    /// The end of the text: U+FFFD if a character was left incomplete, else nothing.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}
