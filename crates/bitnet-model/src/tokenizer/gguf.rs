//! Reads the vocabulary in a GGUF file (`tokenizer.ggml.*`): byte-level BPE and SentencePiece.
//! [`Tokenizer::from_gguf`] gives the same type as `tokenizer.json` does.

use tokenizers::{
    AddedToken,
    models::bpe::Vocab,
    normalizers::{Prepend, Replace, Sequence as Normalizers},
};

use super::{Recipe, Spelling, Tokenizer, fail, pre};
use crate::{ModelError, files::gguf::Gguf};

/// Token types of `tokenizer.ggml.token_type`.
const NORMAL: i64 = 1;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Texts of the tokens that end an answer, as llama.cpp knows them (`special_eog_ids`).
const ENDS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// The texts of a vocabulary's tokens that end an answer, whatever their types. In a vocabulary with its own tokens for
/// the ends of turns, `<|end|>` ends a message and `</s>` is text.
pub(crate) fn ends(has: impl Fn(&str) -> bool) -> impl Iterator<Item = &'static str> {
    let message = (has("<|call|>") || has("<|calls|>")) && (has("<|return|>") || has("<|flush|>"));
    let text = has("<|tool_response>");
    let not = [("<|end|>", message), ("</s>", text)];
    ENDS.into_iter().filter(move |end| !not.contains(&(end, true)) && has(end))
}

/// The special tokens that a file names by their ids.
#[derive(Debug, Default)]
pub(crate) struct SpecialTokens {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub eot: Option<u32>,
    pub eom: Option<u32>,
    unknown: Option<u32>,
}

impl SpecialTokens {
    /// Reads the ids. One that is not in the vocabulary stands for no token; unless it is -1, that is worth a warning.
    pub(crate) fn read(gguf: &Gguf, warnings: &mut Vec<String>) -> Result<SpecialTokens, ModelError> {
        let tokens = gguf.opt_array("tokenizer.ggml.tokens")?.map(|tokens| tokens.len);
        let mut id = |name: &str| -> Result<Option<u32>, ModelError> {
            let key = format!("tokenizer.ggml.{name}_token_id");
            let Some(id) = gguf.opt_integer(&key)? else { return Ok(None) };
            let none = id == -1 || id == i128::from(u32::MAX) || id == i128::from(u64::MAX);
            let valid = u32::try_from(id).ok().filter(|&id| tokens.is_none_or(|n| (id as usize) < n));
            if valid.is_none() && !none {
                let (file, n) = (&gguf.file, tokens.unwrap_or(0));
                warnings.push(format!("{key} is {id}, not one of the {n} tokens of {file}: ignored"));
            }
            Ok(valid.filter(|_| !none))
        };
        Ok(SpecialTokens {
            bos: id("bos")?,
            eos: id("eos")?,
            eot: id("eot")?,
            eom: id("eom")?,
            unknown: id("unknown")?,
        })
    }
}

/// Maximum length in bytes of a SentencePiece piece; real ones stay below 100.
const MAX_PIECE: usize = 256;

impl Tokenizer {
    /// The tokenizer of a GGUF file, or `None` if it has no vocabulary.
    pub(crate) fn from_gguf(
        gguf: &Gguf,
        special: &SpecialTokens,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Tokenizer>, ModelError> {
        let recipe = match gguf.opt_str("tokenizer.ggml.model")? {
            None | Some("none" | "no_vocab") => return Ok(None),
            Some("gpt2") => byte_level(gguf, special, warnings)?,
            Some("llama") => sentence_piece(gguf, special)?,
            Some(other) => {
                let cure =
                    "use gpt2 (byte-level BPE) or llama (SentencePiece), or the model's tokenizer.json";
                return Err(ModelError::unsupported(&gguf.file, "tokenizer.ggml.model", other, cure));
            }
        };
        Ok(Some(recipe.build()?))
    }
}

fn byte_level(
    gguf: &Gguf,
    special: &SpecialTokens,
    warnings: &mut Vec<String>,
) -> Result<Recipe, ModelError> {
    let file = gguf.file.as_str();
    let name = gguf.opt_str("tokenizer.ggml.pre")?.unwrap_or_else(|| {
        warnings.push(format!(
            "{file} does not name its pre-tokenizer (tokenizer.ggml.pre): using llama-bpe; if the text looks \
             wrong, use the model's tokenizer.json"
        ));
        "llama-bpe"
    });
    let rule = pre::named(name).ok_or_else(|| {
        let cure = "use a file whose text is split as by llama-bpe, qwen2, gpt-2 or another pre-tokenizer of \
                    patterns over bytes, or the model's tokenizer.json";
        ModelError::unsupported(file, "tokenizer.ggml.pre", name, cure)
    })?;
    let merges = gguf
        .opt_array("tokenizer.ggml.merges")?
        .ok_or_else(|| ModelError::missing_field(file, "tokenizer.ggml.merges"))?
        .strings()
        .ok_or_else(|| ModelError::field(file, "tokenizer.ggml.merges", "is not a list of strings"))?
        .map(|merge| {
            // Skip the first character, which may itself be a space, as llama.cpp does when it looks for the
            // separator.
            let merge = merge.unwrap_or_default();
            let at = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
            at.map(|at| (merge[..at].to_string(), merge[at + 1..].to_string()))
                .ok_or_else(|| fail(file, format!("merge {merge:?} is not two tokens")))
        })
        .collect::<Result<_, _>>()?;
    let (vocab, added) = vocabulary(gguf)?;
    let (prefix, suffix) = around(gguf, special, rule.begins)?;
    Ok(Recipe {
        file: file.into(),
        vocab,
        merges,
        added,
        normalizer: rule.normalizer(),
        pre_tokenizer: Some(rule.pre_tokenizer()?),
        ignore_merges: rule.whole_pieces,
        unknown: None,
        fuse_unknown: false,
        spelling: Spelling::ByteLevel,
        prefix,
        suffix,
        leading_space: false,
    })
}

/// A SentencePiece vocabulary has scores instead of merges: two neighbours join if their union is a piece, best score
/// first. Written as merges in the order of the scores, that is byte-pair encoding.
fn sentence_piece(gguf: &Gguf, special: &SpecialTokens) -> Result<Recipe, ModelError> {
    let file = gguf.file.as_str();
    let (vocab, added) = vocabulary(gguf)?;
    let scores: Vec<f32> = gguf
        .opt_array("tokenizer.ggml.scores")?
        .ok_or_else(|| ModelError::missing_field(file, "tokenizer.ggml.scores"))?
        .floats()
        .ok_or_else(|| ModelError::field(file, "tokenizer.ggml.scores", "is not a list of f32"))?
        .collect();
    let mut ranked = Vec::new();
    for (piece, &id) in &vocab {
        if piece.len() > MAX_PIECE {
            return Err(fail(file, format!("piece {id} has {} bytes, more than {MAX_PIECE}", piece.len())));
        }
        let score = scores.get(id as usize).copied();
        let score = score.ok_or_else(|| fail(file, format!("piece {id} has no score")))?;
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            if let (Some(&l), Some(&r)) = (vocab.get(left), vocab.get(right)) {
                ranked.push((score, l, r, left.to_string(), right.to_string()));
            }
        }
    }
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let space = gguf.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let mut normalizers = Vec::new();
    if space {
        normalizers.push(Prepend::new("▁".into()).into());
    }
    normalizers.push(Replace::new(" ", "▁").map_err(|e| fail(file, e))?.into());
    let unknown = special.unknown.unwrap_or(0);
    let unknown = vocab.iter().find(|(_, id)| **id == unknown).map(|(token, _)| token.clone());
    let (prefix, suffix) = around(gguf, special, true)?;
    Ok(Recipe {
        file: file.into(),
        merges: ranked.into_iter().map(|(_, _, _, left, right)| (left, right)).collect(),
        vocab,
        added,
        normalizer: Some(Normalizers::new(normalizers).into()),
        pre_tokenizer: None,
        ignore_merges: false,
        unknown,
        fuse_unknown: true,
        spelling: Spelling::SentencePiece,
        prefix,
        suffix,
        leading_space: space,
    })
}

/// All tokens with their ids, and those that are matched before a text is split.
fn vocabulary(gguf: &Gguf) -> Result<(Vocab, Vec<(u32, AddedToken)>), ModelError> {
    let file = gguf.file.as_str();
    let tokens = gguf
        .opt_array("tokenizer.ggml.tokens")?
        .ok_or_else(|| ModelError::missing_field(file, "tokenizer.ggml.tokens"))?;
    let types: Vec<i64> = match gguf.opt_array("tokenizer.ggml.token_type")? {
        Some(types) => types
            .integers()
            .ok_or_else(|| ModelError::field(file, "tokenizer.ggml.token_type", "is not a list of integers"))?
            .collect(),
        None => Vec::new(),
    };
    let mut vocab = Vocab::default();
    let mut added = Vec::new();
    let strings = tokens
        .strings()
        .ok_or_else(|| ModelError::field(file, "tokenizer.ggml.tokens", "is not a list of strings"))?;
    for (id, token) in strings.enumerate() {
        let token = token.ok_or_else(|| fail(file, format!("token {id} is not UTF-8")))?;
        let kind = types.get(id).copied().unwrap_or(NORMAL);
        // Of two equal tokens, encoding uses the first.
        let first = *vocab.entry(token.to_string()).or_insert(id as u32) == id as u32;
        if first && (kind == CONTROL || kind == USER_DEFINED) {
            added.push((id as u32, AddedToken::from(token, kind == CONTROL).normalized(false)));
        }
    }
    for end in ends(|text| vocab.contains_key(text)) {
        added.retain(|(_, token): &(u32, AddedToken)| token.content != end);
        added.push((vocab[end], AddedToken::from(end, true).normalized(false)));
    }
    Ok((vocab, added))
}

/// The ids put before and after a text.
fn around(gguf: &Gguf, special: &SpecialTokens, begins: bool) -> Result<(Vec<u32>, Vec<u32>), ModelError> {
    let ids = |add: &str, default: bool, id: Option<u32>| -> Result<Vec<u32>, ModelError> {
        let add = gguf.opt_bool(&format!("tokenizer.ggml.{add}"))?.unwrap_or(default);
        Ok(id.filter(|_| add).into_iter().collect())
    };
    Ok((ids("add_bos_token", begins, special.bos)?, ids("add_eos_token", false, special.eos)?))
}
