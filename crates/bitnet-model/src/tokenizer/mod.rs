//! Text to token ids and back.
//!
//! Encoding uses the `tokenizers` crate's byte-pair encoding, built by one [`Recipe`] from `tokenizer.json` or from the
//! vocabulary in a GGUF file. Decoding is done here from the bytes of each token, so that a stream of ids and a list of
//! ids give the same text.

pub(crate) mod config;
mod export;
mod gguf;
mod json;
mod pre;
mod stream;

use std::sync::Arc;

use tokenizers::{
    AddedToken, NormalizerWrapper, PreTokenizerWrapper,
    models::bpe::{BPE, Merges, Vocab},
};

pub(crate) use gguf::{SpecialTokens, ends};
pub(crate) use json::MAX_BYTES as MAX_JSON_BYTES;
pub use stream::DecodeStream;

use crate::{ModelError, error::one_line};

/// Maximum total bytes of added tokens, enough for ten thousand of 26 bytes. The automaton that finds them in a text
/// takes about 150 bytes for each byte.
const MAX_ADDED: usize = 256 << 10;
/// Ids must be below this; real vocabularies stay below 300,000.
const MAX_ID: u32 = 1 << 22;
/// The cure for a vocabulary that cannot be read.
const CURE: &str = "download the tokenizer again, or use the original model's tokenizer.json";

/// The error about a tokenizer in this file.
fn fail(file: &str, problem: impl ToString) -> ModelError {
    ModelError::Tokenizer { file: file.into(), problem: one_line(problem), cure: CURE }
}

/// Encodes text and decodes token ids. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: String,
    encoder: tokenizers::Tokenizer,
    /// Ids put before and after a text that is encoded with special tokens.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    /// The bytes of all tokens, concatenated.
    bytes: Vec<u8>,
    /// Start of each token's bytes, and the end of the last.
    starts: Vec<u32>,
    /// Length in bytes of the longest token.
    max_token_bytes: usize,
    /// For each id, whether it is a control token.
    special: Vec<bool>,
    spelling: Spelling,
    /// Whether encoding adds a space before a text, which decoding removes.
    leading_space: bool,
}

/// How a vocabulary spells its pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// GPT-2's: each byte is one printable character.
    ByteLevel,
    /// SentencePiece's: `▁` is a space, `<0x0A>` a byte.
    SentencePiece,
}

/// The parts of a tokenizer, from any kind of file.
struct Recipe {
    file: String,
    vocab: Vocab,
    merges: Merges,
    /// Tokens that are matched before a text is split, with their ids.
    added: Vec<(u32, AddedToken)>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    /// Whether a piece in the vocabulary is taken whole, regardless of merges.
    ignore_merges: bool,
    unknown: Option<String>,
    fuse_unknown: bool,
    spelling: Spelling,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    leading_space: bool,
}

impl Recipe {
    fn fail(&self, problem: String) -> ModelError {
        ModelError::Tokenizer { file: self.file.clone(), problem, cure: CURE }
    }

    /// Adds the added tokens to the vocabulary, checks everything that the crate does not, and returns the number of
    /// ids.
    fn check(&mut self) -> Result<usize, ModelError> {
        let added: usize = self.added.iter().map(|(_, token)| token.content.len()).sum();
        if added > MAX_ADDED {
            return Err(self.fail(format!("its added tokens have {added} bytes, more than {MAX_ADDED}")));
        }
        for (id, token) in &self.added {
            let known = *self.vocab.entry(token.content.clone()).or_insert(*id);
            if known != *id {
                let text = one_line(&token.content);
                return Err(self.fail(format!("token {text} has two ids, {known} and {id}")));
            }
        }
        if let Some((token, id)) = self.vocab.iter().find(|(_, id)| **id >= MAX_ID) {
            return Err(self.fail(format!("token {} has id {id}, {MAX_ID} or more", one_line(token))));
        }
        // The crate does not check that every merge produces a token of the vocabulary.
        let mut joined = String::new();
        for (a, b) in &self.merges {
            joined.clear();
            joined.extend([a.as_str(), b.as_str()]);
            if ![a, b, &joined].into_iter().all(|t| self.vocab.contains_key(t)) {
                let (a, b) = (one_line(a), one_line(b));
                return Err(self.fail(format!("merge {a} + {b} has a part that is not in the vocabulary")));
            }
        }
        if let Some(unknown) = self.unknown.as_ref().filter(|u| !self.vocab.contains_key(*u)) {
            return Err(self.fail(format!("unknown token {} is not in the vocabulary", one_line(unknown))));
        }
        let size = self.vocab.values().max().map_or(0, |&id| id as usize + 1);
        if let Some(id) = self.prefix.iter().chain(&self.suffix).find(|&&id| id as usize >= size) {
            return Err(self.fail(format!("special token {id} is not in the vocabulary of {size}")));
        }
        Ok(size)
    }

    fn build(mut self) -> Result<Tokenizer, ModelError> {
        let size = self.check()?;
        let mut special = vec![false; size];
        let mut literal = vec![false; size];
        for (id, token) in &self.added {
            special[*id as usize] = token.special;
            literal[*id as usize] = true;
        }
        let (bytes, starts) = self.spell(&literal, size);
        let max_token_bytes = starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0) as usize;

        let mut bpe = BPE::builder()
            .vocab_and_merges(self.vocab, self.merges)
            .ignore_merges(self.ignore_merges)
            .byte_fallback(self.spelling == Spelling::SentencePiece)
            .fuse_unk(self.fuse_unknown);
        if let Some(unknown) = self.unknown {
            bpe = bpe.unk_token(unknown);
        }
        let file = self.file.clone();
        let crate_error = |e: Box<dyn std::error::Error + Send + Sync>| fail(&file, e);
        let mut encoder = tokenizers::Tokenizer::new(bpe.build().map_err(crate_error)?);
        encoder.with_normalizer(self.normalizer).map_err(crate_error)?;
        encoder.with_pre_tokenizer(self.pre_tokenizer);
        encoder.add_tokens(self.added.into_iter().map(|(_, token)| token)).map_err(crate_error)?;
        Ok(Tokenizer {
            inner: Arc::new(Inner {
                file: self.file,
                encoder,
                prefix: self.prefix,
                suffix: self.suffix,
                bytes,
                starts,
                max_token_bytes,
                special,
                spelling: self.spelling,
                leading_space: self.leading_space,
            }),
        })
    }

    /// The bytes of all ids, and where those of each id start.
    fn spell(&self, literal: &[bool], size: usize) -> (Vec<u8>, Vec<u32>) {
        let mut by_id = vec![""; size];
        for (token, &id) in &self.vocab {
            by_id[id as usize] = token;
        }
        for (id, token) in &self.added {
            by_id[*id as usize] = &token.content;
        }
        let bytes_of = byte_level_bytes();
        let (mut bytes, mut starts) = (Vec::new(), vec![0]);
        for (token, &literal) in by_id.iter().zip(literal) {
            match self.spelling {
                _ if literal => bytes.extend_from_slice(token.as_bytes()),
                Spelling::ByteLevel => {
                    let spelled: Option<Vec<u8>> =
                        token.chars().map(|c| bytes_of.get(c as usize).copied().flatten()).collect();
                    bytes.extend(spelled.unwrap_or_else(|| token.as_bytes().into()));
                }
                Spelling::SentencePiece => match byte_piece(token) {
                    Some(byte) => bytes.push(byte),
                    None => bytes.extend(token.replace('▁', " ").as_bytes()),
                },
            }
            starts.push(bytes.len() as u32);
        }
        (bytes, starts)
    }
}

/// The byte for each character of GPT-2's alphabet: printable Latin-1 characters stand for themselves; the other bytes
/// follow from U+0100 in ascending order.
fn byte_level_bytes() -> [Option<u8>; 0x144] {
    let mut bytes = [None; 0x144];
    let mut next = 0x100;
    for byte in 0..=u8::MAX {
        if matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) {
            bytes[usize::from(byte)] = Some(byte);
        } else {
            bytes[next] = Some(byte);
            next += 1;
        }
    }
    bytes
}

/// The byte of a SentencePiece byte token such as `<0x0A>`.
fn byte_piece(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

impl Tokenizer {
    /// Reads a tokenizer from the bytes of a `tokenizer.json` with a byte-pair encoding model.
    ///
    /// # Errors
    /// If the file is damaged or of an unsupported kind.
    pub fn from_json(bytes: &[u8]) -> Result<Tokenizer, ModelError> {
        json::read(bytes)?.build()
    }

    /// Reads the tokenizer of a Hugging Face folder: `tokenizer.json`, and the contents of `tokenizer_config.json`.
    pub(crate) fn from_folder(bytes: &[u8], config: &serde_json::Value) -> Result<Tokenizer, ModelError> {
        let mut recipe = json::read(bytes)?;
        config::extend(&mut recipe, config)?;
        recipe.build()
    }

    /// Encodes `text`. `add_special` adds the tokens that the model expects around a text, such as begin-of-text; a
    /// text rendered by a chat template already has them.
    ///
    /// # Errors
    /// If the `tokenizers` crate refuses the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, ModelError> {
        let fail = |e: Box<dyn std::error::Error + Send + Sync>| ModelError::Tokenizer {
            file: self.inner.file.clone(),
            problem: one_line(e),
            cure: "check the text for characters that the vocabulary lacks",
        };
        let encoding = self.inner.encoder.encode_fast(text, false).map_err(fail)?;
        let (prefix, suffix) =
            if add_special { (&self.inner.prefix[..], &self.inner.suffix[..]) } else { (&[][..], &[][..]) };
        Ok([prefix, encoding.get_ids(), suffix].concat())
    }

    /// Decodes `ids`; bytes that are not UTF-8 become U+FFFD. `skip_special` omits control tokens.
    ///
    /// # Errors
    /// [`ModelError::TokenId`] for an id outside the vocabulary.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, ModelError> {
        let mut bytes = Vec::new();
        for &id in ids {
            let token = self.token_bytes(id).ok_or(ModelError::TokenId { id, vocab: self.vocab_size() })?;
            if !(skip_special && self.is_special(id)) {
                bytes.extend_from_slice(token);
            }
        }
        let strip = usize::from(self.inner.leading_space && bytes.first() == Some(&b' '));
        Ok(String::from_utf8_lossy(&bytes[strip..]).into_owned())
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.inner.special.len()
    }

    /// The id of a token, given in the vocabulary's own spelling.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.encoder.token_to_id(token)
    }

    /// The bytes of a token: part of a character, several characters, or nothing. `None` for an id outside the
    /// vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let start = *self.inner.starts.get(id)?;
        let end = *self.inner.starts.get(id + 1)?;
        Some(&self.inner.bytes[start as usize..end as usize])
    }

    /// Length in bytes of the longest token: `n` tokens decode to at most `n` times as many bytes.
    pub fn max_token_bytes(&self) -> usize {
        self.inner.max_token_bytes
    }

    /// Whether an id is a control token, which is not part of an answer's text.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.special.get(id as usize).copied().unwrap_or(false)
    }

    /// The ids that [`Tokenizer::encode`] puts before a text.
    pub fn prefix(&self) -> &[u32] {
        &self.inner.prefix
    }

    /// Decodes ids one at a time, as the continuation of a prompt.
    pub fn stream(&self) -> DecodeStream {
        DecodeStream::new(self.clone())
    }
}
