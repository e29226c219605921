//! Exports a vocabulary to `tokenizer.json` ([`Tokenizer::to_json`]) and to GGUF's metadata ([`Tokenizer::to_gguf`]).
//! A vocabulary that the format cannot hold is refused.

use serde_json::{Value, json};
use tokenizers::{ModelWrapper, models::bpe::BPE};

use super::{
    Spelling, Tokenizer, byte_piece,
    pre::{RULES, Rule},
};
use crate::ModelError;

/// A vocabulary as the values of `tokenizer.ggml.*`.
pub(crate) struct GgufVocabulary {
    /// `gpt2` or `llama`.
    pub model: &'static str,
    /// How text is split; `None` for SentencePiece.
    pub pre: Option<&'static str>,
    pub tokens: Vec<String>,
    pub types: Vec<i32>,
    /// For SentencePiece vocabularies.
    pub scores: Option<Vec<f32>>,
    /// For byte-level vocabularies.
    pub merges: Option<Vec<String>>,
    /// Whether a space is put before a text; for SentencePiece vocabularies.
    pub space_prefix: Option<bool>,
    /// The token put before a text.
    pub bos: Option<u32>,
    /// The token put after a text.
    pub eos: Option<u32>,
}

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// A text that every pre-tokenizer a GGUF file can name splits differently.
const PROBE: &str = "I'LL we'll aBC 1 12 123 1234567 3.14\n\n \n\t x\u{3000}y 你好かな e\u{301}! q\u{301}r ?!...\r\n  (a_b) a/\n<= `x` ε1 q'search       z";

impl Tokenizer {
    /// This tokenizer as the text of a `tokenizer.json`.
    pub(crate) fn to_json(&self) -> String {
        let inner = &*self.inner;
        let decoder = match inner.spelling {
            Spelling::ByteLevel => {
                json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})
            }
            Spelling::SentencePiece => {
                let mut steps = vec![
                    json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
                    json!({"type": "ByteFallback"}),
                    json!({"type": "Fuse"}),
                ];
                if inner.leading_space {
                    steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
                }
                json!({"type": "Sequence", "decoders": steps})
            }
        };
        let special = |&id: &u32| self.token(id).map(|t| json!({"SpecialToken": {"id": t, "type_id": 0}}));
        let mut single: Vec<Value> = inner.prefix.iter().filter_map(special).collect();
        single.push(json!({"Sequence": {"id": "A", "type_id": 0}}));
        single.extend(inner.suffix.iter().filter_map(special));
        let mut pair = single.clone();
        pair.push(json!({"Sequence": {"id": "B", "type_id": 0}}));
        let tokens = inner.prefix.iter().chain(&inner.suffix).filter_map(|&id| {
            let text = self.token(id)?;
            Some((text.clone(), json!({"id": text, "ids": [id], "tokens": [text]})))
        });
        let tokens: serde_json::Map<_, _> = tokens.collect();
        let mut added: Vec<_> = inner.encoder.get_added_tokens_decoder().into_iter().collect();
        added.sort_unstable_by_key(|&(id, _)| id);
        let added = added.into_iter().map(|(id, token)| {
            json!({
                "id": id,
                "content": token.content,
                "single_word": token.single_word,
                "lstrip": token.lstrip,
                "rstrip": token.rstrip,
                "normalized": token.normalized,
                "special": token.special,
            })
        });
        // Part by part, so that the code that writes other kinds of models and decoders is not compiled.
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added.collect::<Vec<_>>(),
            "normalizer": inner.encoder.get_normalizer(),
            "pre_tokenizer": inner.encoder.get_pre_tokenizer(),
            "post_processor":
                {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens},
            "decoder": decoder,
            "model": self.model(),
        })
        .to_string()
    }

    fn model(&self) -> &BPE {
        match self.inner.encoder.get_model() {
            ModelWrapper::BPE(model) => model,
            _ => unreachable!("every recipe builds byte-pair encoding"),
        }
    }

    /// A token in the vocabulary's own spelling.
    fn token(&self, id: u32) -> Option<String> {
        self.inner.encoder.id_to_token(id)
    }

    /// This vocabulary for a GGUF file with `rows` tokens; ids beyond the vocabulary are marked unused.
    pub(crate) fn to_gguf(&self, rows: usize) -> Result<GgufVocabulary, ModelError> {
        let inner = &*self.inner;
        let refuse = |problem: &str| ModelError::Convert {
            what: "the tokenizer".into(),
            format: "gguf".into(),
            problem: problem.into(),
            cure: "convert to packed, which keeps tokenizer.json",
        };
        let model = serde_json::to_value(self.model()).unwrap_or_default();
        let merges: Vec<(&str, &str)> = model["merges"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
            .iter()
            .filter_map(|m| Some((m[0].as_str()?, m[1].as_str()?)))
            .collect();
        let (tokens, types) = self.typed_tokens(rows, model["unk_token"].as_str());
        let one = |ids: &[u32]| match ids {
            [] => Ok(None),
            [id] => Ok(Some(*id)),
            _ => Err(refuse("it puts several tokens around a text")),
        };
        let mut vocabulary = GgufVocabulary {
            model: "gpt2",
            pre: None,
            tokens,
            types,
            scores: None,
            merges: None,
            space_prefix: None,
            bos: one(&inner.prefix)?,
            eos: one(&inner.suffix)?,
        };
        match inner.spelling {
            Spelling::ByteLevel => {
                let rule = RULES
                    .iter()
                    .find(|rule| self.splits_as(rule).unwrap_or(false))
                    .ok_or_else(|| refuse("no pre-tokenizer of GGUF splits text in the same way"))?;
                vocabulary.pre = rule.names.first().copied();
                vocabulary.merges = Some(merges.iter().map(|(a, b)| format!("{a} {b}")).collect());
            }
            Spelling::SentencePiece => {
                vocabulary.model = "llama";
                vocabulary.scores = Some(self.scores(rows, &merges));
                vocabulary.space_prefix = Some(inner.leading_space);
            }
        }
        Ok(vocabulary)
    }

    /// The first `rows` tokens, with GGUF's type of each.
    fn typed_tokens(&self, rows: usize, unknown: Option<&str>) -> (Vec<String>, Vec<i32>) {
        let added = self.inner.encoder.get_added_tokens_decoder();
        let is_byte =
            |token: &str| self.inner.spelling == Spelling::SentencePiece && byte_piece(token).is_some();
        let typed = |id| {
            let token = self.token(id);
            let kind = match (&token, added.get(&id)) {
                (None, _) => UNUSED,
                (Some(t), _) if unknown == Some(t.as_str()) => UNKNOWN,
                (_, Some(added)) if added.special => CONTROL,
                (_, Some(_)) => USER_DEFINED,
                (Some(t), _) if is_byte(t) => BYTE,
                _ => NORMAL,
            };
            (token.unwrap_or_else(|| format!("[PAD{id}]")), kind)
        };
        (0..rows as u32).map(typed).unzip()
    }

    /// The score of each token: the first merge that produces a piece ranks it; pieces without a merge are never chosen
    /// by score.
    fn scores(&self, rows: usize, merges: &[(&str, &str)]) -> Vec<f32> {
        let mut scores = vec![-1e9; rows];
        for (rank, (a, b)) in merges.iter().enumerate().rev() {
            let id = self.token_id(&format!("{a}{b}"));
            if let Some(score) = id.and_then(|id| scores.get_mut(id as usize)) {
                *score = -(rank as f32);
            }
        }
        scores
    }

    /// Whether a rule of GGUF splits text in the same way.
    fn splits_as(&self, rule: &Rule) -> Result<bool, ModelError> {
        let mut encoder = self.inner.encoder.clone();
        // Words too, because few vocabularies have tokens that would show every split.
        let split = |encoder: &tokenizers::Tokenizer| {
            let encoding = encoder.encode(PROBE, false);
            encoding.map(|e| (e.get_ids().to_vec(), e.get_word_ids().to_vec())).unwrap_or_default()
        };
        let expected = split(&encoder);
        if encoder.with_normalizer(rule.normalizer()).is_err() {
            return Ok(false);
        }
        encoder.with_pre_tokenizer(Some(rule.pre_tokenizer()?));
        Ok(split(&encoder) == expected)
    }
}
