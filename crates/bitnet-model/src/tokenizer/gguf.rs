//! Reads the vocabulary in a GGUF file (`tokenizer.ggml.*`): byte-level BPE and SentencePiece.
//! [`Tokenizer::from_gguf`] gives the same type as `tokenizer.json` does.

use tokenizers::{
    AddedToken, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
    models::bpe::Vocab,
    normalizers::{NFC, Prepend, Replace, Sequence as Normalizers},
    pre_tokenizers::{
        byte_level::ByteLevel,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::{CURE, Recipe, Spelling, Tokenizer};
use crate::{ModelError, error::one_line, files::gguf::Gguf};

/// Token types of `tokenizer.ggml.token_type`.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Llama 3's pattern (`LLAMA_VOCAB_PRE_TYPE_LLAMA3` in llama.cpp, and its `tokenizer.json`).
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 2's pattern, which splits digits singly.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 3.5's pattern, in which combining marks belong to words.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Maximum length in bytes of a SentencePiece piece; real ones stay below 100.
const MAX_PIECE: usize = 256;

impl Tokenizer {
    /// The tokenizer of a GGUF file, or `None` if it has no vocabulary, and warnings for the user.
    pub(crate) fn from_gguf(gguf: &Gguf) -> Result<(Option<Tokenizer>, Vec<String>), ModelError> {
        let mut warnings = Vec::new();
        let Some(model) = gguf.opt_str("tokenizer.ggml.model")? else { return Ok((None, warnings)) };
        let recipe = match model {
            "gpt2" => byte_level(gguf, &mut warnings)?,
            "llama" => sentence_piece(gguf)?,
            other => {
                let cure =
                    "use gpt2 (byte-level BPE) or llama (SentencePiece), or the model's tokenizer.json";
                return Err(ModelError::unsupported(&gguf.file, "tokenizer.ggml.model", other, cure));
            }
        };
        Ok((Some(recipe.build()?), warnings))
    }
}

/// Values of `tokenizer.ggml.pre` that files are written with, one for each way to split.
pub(super) const PRE_TOKENIZERS: [&str; 3] = ["llama-bpe", "qwen2", "qwen35"];

/// How a byte-level vocabulary splits text.
pub(super) struct Parts {
    pub normalizer: Option<NormalizerWrapper>,
    pub pre_tokenizer: PreTokenizerWrapper,
    /// Llama 3's family prefers whole pieces, and begins texts with a token by default.
    ignore_merges: bool,
}

/// The parts for a value of `tokenizer.ggml.pre`; llama.cpp treats several values alike.
pub(super) fn pre_tokenizer(name: &str) -> Option<Result<Parts, ModelError>> {
    let (pattern, llama3) = match name {
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" => (LLAMA3, true),
        "qwen2" => (QWEN2, false),
        "qwen35" => (QWEN35, false),
        _ => return None,
    };
    let split = Split::new(SplitPattern::Regex(pattern.into()), SplitDelimiterBehavior::Isolated, false)
        .map_err(|e| fail("tokenizer.ggml.pre", e));
    Some(split.map(|split| Parts {
        // Qwen was trained on NFC-normalised text, Llama 3 on text as it is.
        normalizer: (!llama3).then(|| NFC.into()),
        pre_tokenizer: PreTokenizerWrapper::Sequence(Sequence::new(vec![
            PreTokenizerWrapper::Split(split),
            PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, false)),
        ])),
        ignore_merges: llama3,
    }))
}

fn byte_level(gguf: &Gguf, warnings: &mut Vec<String>) -> Result<Recipe, ModelError> {
    let file = gguf.file.as_str();
    let pre = gguf.opt_str("tokenizer.ggml.pre")?.unwrap_or_else(|| {
        warnings.push(format!(
            "{file} does not name its pre-tokenizer (tokenizer.ggml.pre): using llama-bpe; if the text looks \
             wrong, use the model's tokenizer.json"
        ));
        "llama-bpe"
    });
    let Some(parts) = pre_tokenizer(pre) else {
        let cure = "use llama-bpe, falcon3, qwen2 or qwen35, or the model's tokenizer.json";
        return Err(ModelError::unsupported(file, "tokenizer.ggml.pre", pre, cure));
    };
    let parts = parts?;
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
    let (prefix, suffix) = around(gguf, parts.ignore_merges)?;
    Ok(Recipe {
        file: file.into(),
        vocab,
        merges,
        added,
        normalizer: parts.normalizer,
        pre_tokenizer: Some(parts.pre_tokenizer),
        ignore_merges: parts.ignore_merges,
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
fn sentence_piece(gguf: &Gguf) -> Result<Recipe, ModelError> {
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
    let unknown = gguf.opt_u64("tokenizer.ggml.unknown_token_id")?.unwrap_or(0);
    let unknown = vocab.iter().find(|(_, id)| u64::from(**id) == unknown).map(|(token, _)| token.clone());
    let (prefix, suffix) = around(gguf, true)?;
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

pub(super) fn fail(file: &str, problem: impl ToString) -> ModelError {
    ModelError::Tokenizer { file: file.into(), problem: one_line(problem), cure: CURE }
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
        let kind = types.get(id).copied().unwrap_or(1);
        // Of two equal tokens, encoding uses the first.
        let first = *vocab.entry(token.to_string()).or_insert(id as u32) == id as u32;
        if first && (kind == CONTROL || kind == USER_DEFINED) {
            added.push((id as u32, AddedToken::from(token, kind == CONTROL).normalized(false)));
        }
    }
    Ok((vocab, added))
}

/// The ids put before and after a text.
fn around(gguf: &Gguf, bos_by_default: bool) -> Result<(Vec<u32>, Vec<u32>), ModelError> {
    let id = |add: &str, default: bool, key: &str| -> Result<Vec<u32>, ModelError> {
        if !gguf.opt_bool(&format!("tokenizer.ggml.{add}"))?.unwrap_or(default) {
            return Ok(Vec::new());
        }
        let id = gguf.opt_u64(&format!("tokenizer.ggml.{key}"))?;
        Ok(id.and_then(|id| id.try_into().ok()).into_iter().collect())
    };
    Ok((id("add_bos_token", bos_by_default, "bos_token_id")?, id("add_eos_token", false, "eos_token_id")?))
}
