//! The vocabulary of a model, as `llguidance` reads it. Text that a schema leaves no choice about becomes the tokens that
//! the tokenizer gives it, so that the same text in a later prompt has the same tokens.

use std::sync::Arc;

use bitnet_model::Tokenizer;
use llguidance::{
    ParserFactory,
    toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv},
};

/// A compiler of grammars for this vocabulary of `vocab` tokens.
pub(super) fn factory(
    tokenizer: Option<&Tokenizer>,
    eos: &[u32],
    vocab: usize,
) -> Result<ParserFactory, String> {
    let tokenizer = tokenizer.ok_or("this model has no tokenizer, so its texts cannot follow a format")?;
    let [end, ..] = *eos else {
        return Err("this model has no end token, so a format could not end".into());
    };
    let info = TokRxInfo::new(vocab as u32, end);
    let words: Vec<Vec<u8>> = (0..vocab as u32).map(|id| word(tokenizer, id)).collect();
    let trie = TokTrie::from(&info, &words).with_eos_tokens(eos);
    let environment: TokEnv = Arc::new(Vocabulary { tokenizer: tokenizer.clone(), trie });
    let mut factory = ParserFactory::new_simple(&environment).map_err(|e| e.to_string())?;
    factory.quiet();
    factory.limits_mut().verbose_errors = false;
    Ok(factory)
}

/// The bytes of a token. Control tokens are marked, so that no text matches one.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    if tokenizer.is_special(id) { [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat() } else { bytes.to_vec() }
}

/// Tokenizes as the model's tokenizer does within a text.
struct Vocabulary {
    tokenizer: Tokenizer,
    trie: TokTrie,
}

impl Vocabulary {
    /// The tokenizer's tokens of a text, if they have exactly its bytes.
    fn canonical(&self, text: &str) -> Option<Vec<TokenId>> {
        let exact = |tokens: &[TokenId], text: &str| self.trie.decode_raw(tokens) == text.as_bytes();
        let tokens = self.tokenizer.encode(text, false).ok()?;
        if exact(&tokens, text) {
            return Some(tokens);
        }
        // Some tokenizers put a space before a text, but not after a line end.
        let continued = self.tokenizer.encode(&format!("\n{text}"), false).ok()?;
        let begins = (1..=continued.len().min(4)).find(|&n| exact(&continued[n..], text))?;
        Some(continued[begins..].to_vec())
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let canonical = str::from_utf8(bytes).ok().and_then(|text| self.canonical(text));
        canonical.unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }
}
