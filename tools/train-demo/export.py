"""Writes the trained model as users' tools expect it: a folder in the layout of microsoft/bitnet-b1.58-2B-4T.

The matrices are rounded to trits and one bf16 scale, four output rows a byte; norms and embedding become bf16.
Everything measured later (golden.py, sample.py) reads this folder, never the master weights.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

import tokens
from model import Config, ternarise

HERE = Path(__file__).resolve().parent
CONTEXT = 2048  # the longest window seen in training


def pack(trits):
    """[rows][columns] of -1..1 -> [rows/4][columns] bytes: bits 2i of byte row r hold row r + i * rows/4, plus one."""
    quarters = (trits + 1).to(torch.uint8).chunk(4)
    return sum(quarter << (2 * i) for i, quarter in enumerate(quarters)).to(torch.uint8)


def packed_tensors(master):
    tensors = {}
    for name, weight in master.items():
        if weight.dim() == 2 and "embed_tokens" not in name:
            trits, scale = ternarise(weight)
            tensors[name] = pack(trits)
            tensors[name + "_scale"] = scale.bfloat16().reshape(1)
        else:
            tensors[name] = weight.bfloat16()
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=HERE / "run", help="the folder that train.py wrote")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "crates/bitnet-model/demo")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    c = Config()
    tokenizer = Tokenizer.from_file(str(args.run / "tokenizer.json"))
    bos, eos = tokenizer.token_to_id(tokens.BOS), tokenizer.token_to_id(tokens.EOS)
    eot = tokenizer.token_to_id(tokens.EOT)
    master = torch.load(args.run / "checkpoint.pt")["model"]
    save_file(packed_tensors(master), args.out / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(args.run / "tokenizer.json", args.out / "tokenizer.json")
    shutil.copyfile(HERE / "chat_template.jinja", args.out / "chat_template.jinja")
    write_json(
        args.out / "config.json",
        {
            "model_type": "bitnet",
            "architectures": ["BitNetForCausalLM"],
            "hidden_act": "relu2",
            "rms_norm_eps": c.eps,
            "rope_theta": c.rope_theta,
            "max_position_embeddings": CONTEXT,
            "hidden_size": c.hidden,
            "intermediate_size": c.ffn,
            "num_hidden_layers": c.layers,
            "num_attention_heads": c.heads,
            "num_key_value_heads": c.kv_heads,
            "vocab_size": c.vocab,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "bos_token_id": bos,
            "eos_token_id": eos,
            "initializer_range": 0.02,
            "attention_bias": False,
            "quantization_config": {
                "quant_method": "bitnet",
                "linear_class": "autobitlinear",
                "quantization_mode": "offline",
            },
        },
    )
    write_json(
        args.out / "tokenizer_config.json",
        {
            "bos_token": tokens.BOS,
            "eos_token": tokens.EOS,
            "model_max_length": CONTEXT,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    write_json(
        args.out / "generation_config.json",
        {"bos_token_id": bos, "eos_token_id": [eos, eot], "do_sample": True, "temperature": 0.8, "top_p": 0.95},
    )
    size = sum(path.stat().st_size for path in args.out.iterdir())
    print(f"{args.out}: {size} bytes")


if __name__ == "__main__":
    main()
