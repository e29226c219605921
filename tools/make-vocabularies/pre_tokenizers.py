"""Token ids of llama.cpp for every rule that splits text, by its name in GGUF files.

    pip install gguf==0.19.* tokenizers==0.23.* xllamacpp numpy
    python pre_tokenizers.py NAME... > OUT

Prints a vocabulary whose merges cross every boundary, so that each split shows in the ids, texts, and their ids under
each NAME. The ids of falcon_e, which only bitnet.cpp knows, are those of the tokenizers library with its three patterns.
"""

import json
import sys
import tempfile
import urllib.request

import gguf
import numpy
import xllamacpp
from make import SONNET
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

TEXTS = [
    "It's 1234567 and 12, I'LL pay $3.14!",
    "x\n\n\ty  z\r\n  (a_b) a/b <= `c`",
    "你好，世界。これは かな 한국어",
    "DON'T camelCase HTMLParser éàü naïve",
    "    indent\n\n\n  end ",
]
FALCON_E = [
    r"[\p{P}\$\+<=>\^~\|`]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "[0-9]",
]
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def vocabulary() -> tuple[list[str], list[str]]:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = BYTES
    trainer = trainers.BpeTrainer(
        vocab_size=470, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, min_frequency=2
    )
    trained.train_from_iterator([t for t in TEXTS for _ in range(3)] + SONNET.split("\n"), trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return sorted(model["vocab"], key=model["vocab"].get), merges


def write(path: str, name: str, tokens: list[str], merges: list[str]) -> None:
    width, file = 32, gguf.GGUFWriter(path, "llama")
    file.add_context_length(128)
    file.add_embedding_length(width)
    file.add_block_count(1)
    file.add_feed_forward_length(width)
    file.add_head_count(1)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre(name)
    file.add_token_list(tokens)
    file.add_token_types([1] * len(tokens))
    file.add_token_merges(merges)
    file.add_bos_token_id(0)
    file.add_eos_token_id(1)
    file.add_add_bos_token(False)
    square, vector = (width, width), (width,)
    file.add_tensor("token_embd.weight", numpy.zeros((len(tokens), width), numpy.float32))
    file.add_tensor("output_norm.weight", numpy.zeros(vector, numpy.float32))
    for part in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]:
        file.add_tensor(f"blk.0.{part}.weight", numpy.zeros(square, numpy.float32))
    for part in ["attn_norm", "ffn_norm"]:
        file.add_tensor(f"blk.0.{part}.weight", numpy.zeros(vector, numpy.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def llama_cpp(name: str, tokens: list[str], merges: list[str]) -> list[list[int]]:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.gguf"
        write(path, name, tokens, merges)
        parameters = xllamacpp.CommonParams()
        parameters.model.path, parameters.n_ctx, parameters.warmup = path, 128, False
        server = xllamacpp.Server(parameters)

        def ids(text: str) -> list[int]:
            body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
            request = urllib.request.Request(
                server.listening_address.rstrip("/") + "/tokenize", body, {"Content-Type": "application/json"}
            )
            return json.load(urllib.request.urlopen(request))["tokens"]

        return [ids(text) for text in TEXTS]


def falcon_e(tokens: list[str], merges: list[str]) -> list[list[int]]:
    pairs = [tuple(merge.split(" ")) for merge in merges]
    encoder = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in FALCON_E]
    encoder.pre_tokenizer = pre_tokenizers.Sequence([*splits, BYTES])
    return [encoder.encode(text).ids for text in TEXTS]


if __name__ == "__main__":
    tokens, merges = vocabulary()
    ids = {name: llama_cpp(name, tokens, merges) for name in sys.argv[1:]} | {"falcon_e": falcon_e(tokens, merges)}
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in ids.items())
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in [("tokens", tokens), ("merges", merges), ("texts", TEXTS)]]
    print("{\n" + ",\n".join(parts) + ',\n"ids": {\n' + rows + "\n}\n}")
