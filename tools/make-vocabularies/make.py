"""Small vocabularies with golden ids from the tools that own them.

    pip install sentencepiece==0.2.* tokenizers==0.23.*
    python make.py OUT

Writes OUT/sentencepiece.json (pieces, scores and types of a SentencePiece BPE model with byte fallback, and ids by
the sentencepiece library) and OUT/qwen2.json (a byte-level BPE with Qwen 2's split and NFC, and ids by the tokenizers
library), both trained on a sonnet and some of the examples below.
"""

import json
import pathlib
import sys
import tempfile

import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

EXAMPLES = [
    "The quick brown fox jumps over the lazy dog.",
    "It's 2024: they'll've paid 1234567 times, 3.14 each.",
    "DON'T, can't; WE'LL it'S",
    "tabs\tand  runs   of    spaces ",
    "lines\n\nand\r\nmore\n \n  end",
    "你好，世界。これは 한국어",
    "emoji 🙂 👩‍👩‍👧 done",
    "café cafe\u0301 naïve ½ Ω",
    "  two leading, two trailing  ",
    "",
    "a",
    " ",
    "Shall every summer shine? Thou wanderest.",
]
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


SONNET = """Shall I compare thee to a summer's day?
Thou art more lovely and more temperate:
Rough winds do shake the darling buds of May,
And summer's lease hath all too short a date;
Sometime too hot the eye of heaven shines,
And often is his gold complexion dimm'd;
And every fair from fair sometime declines,
By chance or nature's changing course untrimm'd;
But thy eternal summer shall not fade,
Nor lose possession of that fair thou ow'st;
Nor shall death brag thou wander'st in his shade,
When in eternal lines to time thou grow'st:
So long as men can breathe or eyes can see,
So long lives this, and this gives life to thee."""


def corpus() -> list[str]:
    return SONNET.splitlines() * 3 + EXAMPLES[:8]


def sentence_piece(out: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus()),
            model_prefix=f"{folder}/m",
            model_type="bpe",
            vocab_size=560,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            character_coverage=0.98,
        )
        model = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/m.model")
    kinds = []
    for i in range(model.get_piece_size()):
        if model.is_unknown(i):
            kinds.append(2)
        elif model.is_control(i):
            kinds.append(3)
        elif model.is_byte(i):
            kinds.append(6)
        else:
            kinds.append(1)
    vocabulary = {
        "tokens": [model.id_to_piece(i) for i in range(model.get_piece_size())],
        "scores": [model.get_score(i) for i in range(model.get_piece_size())],
        "token_type": kinds,
        "bos": model.bos_id(),
        "eos": model.eos_id(),
        "texts": [{"text": t, "ids": model.encode(t)} for t in EXAMPLES],
    }
    (out / "sentencepiece.json").write_text(json.dumps(vocabulary, ensure_ascii=True, indent=0) + "\n")


def qwen2(out: pathlib.Path) -> None:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(QWEN2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    state = json.loads(tokenizer.to_str())
    vocab = sorted(tokenizer.get_vocab(True).items(), key=lambda item: item[1])
    merges = [m if isinstance(m, str) else " ".join(m) for m in state["model"]["merges"]]
    special = {t["id"] for t in state["added_tokens"]}
    texts = EXAMPLES + ["<|im_start|>user\nhi<|im_end|>"]
    vocabulary = {
        "tokens": [token for token, _ in vocab],
        "merges": merges,
        "token_type": [3 if i in special else 1 for _, i in vocab],
        "texts": [{"text": t, "ids": tokenizer.encode(t).ids} for t in texts],
        "tokenizer_json": tokenizer.to_str(),
    }
    (out / "qwen2.json").write_text(json.dumps(vocabulary, ensure_ascii=True, indent=0) + "\n")


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    sentence_piece(target)
    qwen2(target)
