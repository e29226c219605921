//! How byte-level vocabularies in GGUF files split text, by the name in `tokenizer.ggml.pre` ([`named`]).
//! The table has every name that llama.cpp knows; those whose rule is more than patterns are refused by name.

use tokenizers::{
    NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
    normalizers::NFC,
    pre_tokenizers::{
        byte_level::ByteLevel,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::fail;
use crate::ModelError;

/// A way to split text: each pattern splits the pieces that the one before it left.
///
/// Source: `llama-vocab.cpp` of llama.cpp and the models' own `tokenizer.json`, which wins where they differ.
#[derive(Debug)]
pub(super) struct Rule {
    /// Values of `tokenizer.ggml.pre`; files are written with the first.
    pub names: &'static [&'static str],
    patterns: &'static [&'static str],
    /// Whether text is composed (NFC) first.
    composes: bool,
    /// Whether a piece in the vocabulary is taken whole, regardless of merges.
    pub whole_pieces: bool,
    /// Whether a text begins with a token unless the file says otherwise.
    pub begins: bool,
}

const fn rule(names: &'static [&'static str], patterns: &'static [&'static str]) -> Rule {
    Rule { names, patterns, composes: false, whole_pieces: false, begins: false }
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 2's pattern splits digits singly.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// In Qwen 3.5's pattern, combining marks belong to words.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const SPARK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
const BAILING: &str =
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|`]+";
const LINES: &str = r"[^\n]+|[\n]+";
const DIGIT: &str = r"\p{N}";
const DIGITS: &str = r"\p{N}{1,3}";
const THREE: &str = "[0-9][0-9][0-9]";
const KANA: &str = "[一-龥぀-ゟ゠-ヿ]+";
const HANGUL: &str = "[一-龥ࠀ-一가-퟿]+";

/// The rules; of those that split a text alike, the first is the one that files are written with.
pub(super) const RULES: &[Rule] = &[
    Rule {
        whole_pieces: true,
        begins: true,
        ..rule(
            &[
                "llama-bpe",
                "llama3",
                "llama-v3",
                "falcon3",
                "falcon-h1",
                "pixtral",
                "midm-2.0",
                "lfm2",
                "jina-v5-nano",
            ],
            &[LLAMA3],
        )
    },
    // Qwen was trained on composed text, which llama.cpp leaves to its user.
    Rule { composes: true, ..rule(&["qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"], &[QWEN2]) },
    Rule { composes: true, ..rule(&["qwen35"], &[QWEN35]) },
    rule(&["falcon_e", "falcon-e"], &[PUNCTUATION, GPT2, "[0-9]"]),
    rule(&["falcon"], &[PUNCTUATION, GPT2, THREE]),
    rule(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", THREE]),
    rule(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
        ],
        &[GPT2],
    ),
    rule(
        &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[DIGIT, GPT2],
    ),
    rule(&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], &[LLAMA3]),
    rule(&["stablelm2", "hunyuan", "solar-open", "grok-2"], &[QWEN2]),
    rule(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O]),
    Rule { whole_pieces: true, ..rule(&["granite-embed-multi-97m"], &[GPT4O]) },
    rule(&["tiny_aya", "cohere2moe"], &[r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O]),
    Rule { whole_pieces: true, begins: true, ..rule(&["tekken"], &[TEKKEN]) },
    rule(&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], &[DIGITS, KANA, DEEPSEEK3]),
    rule(&["deepseek-coder"], &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HANGUL, DIGIT]),
    rule(&["spark2_5"], &[DIGITS, KANA, SPARK, DIGIT]),
    Rule {
        whole_pieces: true,
        ..rule(&["youtu"], &["[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+", YOUTU])
    },
    rule(&["jais-2"], &[JAIS2]),
    rule(&["poro-chat", "bloom", "gpt3-finnish"], &[BLOOM]),
    rule(&["viking"], &[BLOOM, DIGIT]),
    Rule {
        begins: true,
        ..rule(
            &["chameleon"],
            &[
                "<sentinel:[0-9]+>",
                "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                "([\t\n]|    |  )",
                DIGIT,
                r"[\p{P}!-/:-@\[-`{-~]",
                GPT2,
            ],
        )
    },
    rule(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]),
    rule(&["seed-coder"], &[SEED]),
    rule(&["ufakzeka"], &[UFAKZEKA]),
    rule(&["laguna"], &[LINES, QWEN2]),
    rule(&["exaone-moe"], &[EXAONE_MOE]),
    Rule { whole_pieces: true, ..rule(&["minicpm5"], &[DIGITS, MINICPM5]) },
];

/// The rule with this name, or `None` if it is unknown or more than patterns: text that is not spelled in bytes
/// (`gemma4`, `sarvam-moe`, `granite-embed-multi-311m`, `whitespace`), separators (`jina-v1-en`, `jina-v2-code`,
/// `roberta-bpe`), splitters written in code (`kimi-k2`, `afmoe`, `superbpe`), and a list of letters of its own
/// (`deepseek-llm`).
pub(super) fn named(name: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.names.contains(&name))
}

impl Rule {
    /// What composes text before it is split.
    pub(super) fn normalizer(&self) -> Option<NormalizerWrapper> {
        self.composes.then(|| NFC.into())
    }

    /// What splits text and spells it in bytes.
    pub(super) fn pre_tokenizer(&self) -> Result<PreTokenizerWrapper, ModelError> {
        let split = |pattern: &&str| {
            let pattern = SplitPattern::Regex((*pattern).into());
            Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map(PreTokenizerWrapper::Split)
        };
        let splits = self.patterns.iter().map(split).collect::<Result<Vec<_>, _>>();
        let mut steps = splits.map_err(|e| fail("tokenizer.ggml.pre", e))?;
        steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, false)));
        Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
    }
}
