"""Makes fixtures/qwen3-embedding: a small random BitNet embedding model with golden values, computed by transformers'
Qwen3Model in float32 on the CPU, whose linear layers are replaced by those of BitNet (below), written for this purpose.

For prompts j = 0..4 of 1, 2, 7, 33 and 130 tokens, golden.safetensors has `ids_j`, `embedding_j` (the last token's
hidden state, divided by its length), `logits_j` of the tied head (all positions; the last one only for j = 4), 24
tokens continued by argmax in `greedy_j` with their top-1 minus top-2 in `margin_j`, and `hidden_7`
[layers+1][7][hidden] for j = 2, the last one after the final norm.

Prompts are drawn token by token so that no activation lies within 3e-4 of a tie between two int8 values: every exact
implementation rounds alike.

    pip install torch transformers safetensors && python make.py ../../fixtures/qwen3-embedding
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch import nn

PROMPTS = (1, 2, 7, 33, 130)
GREEDY = 24
TIE = 3e-4
CONFIG = dict(
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    vocab_size=320,
    max_position_embeddings=512,
    rope_theta=1e6,
    rms_norm_eps=1e-6,
    hidden_act="silu",
    tie_word_embeddings=True,
    attention_bias=False,
)


class BitLinear(nn.Module):
    """RMSNorm, int8 activations with one scale a row, ternary weights with one scale a matrix, no bias."""

    closest = 1.0
    """The smallest distance from a tie between two int8 values in the last forward pass, at the last position."""

    def __init__(self, linear):
        super().__init__()
        self.weight = linear.weight
        self.gain = nn.Parameter(torch.empty(linear.in_features).uniform_(0.5, 1.5).bfloat16().float())

    def forward(self, x):
        scale = self.weight.abs().mean()
        trits = (self.weight / scale).round().clamp(-1, 1)
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]) * self.gain
        most = x.abs().amax(-1, keepdim=True)
        steps = x * 127 / most
        BitLinear.closest = min(BitLinear.closest, (steps[:, -1] % 1 - 0.5).abs().min().item())
        return steps.round() @ trits.T * (most / 127 * scale)


def make_model():
    config = transformers.Qwen3Config(**CONFIG, attn_implementation="eager")
    model = transformers.Qwen3Model(config).float().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.data.uniform_(0.5, 1.5)
        else:
            parameter.data.normal_(std=0.1)
        parameter.data = parameter.data.bfloat16().float()
    for layer in model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, linear in list(block.named_children()):
                if isinstance(linear, nn.Linear):
                    setattr(block, name, BitLinear(linear))
    return model


def run(model, ids):
    BitLinear.closest = 1.0
    return model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)


def drawn(model, length):
    ids = []
    while len(ids) < length:
        token = torch.randint(CONFIG["vocab_size"], ()).item()
        run(model, ids + [token])
        if BitLinear.closest > TIE:
            ids.append(token)
    return ids


def golden(model):
    tensors, head = {}, model.embed_tokens.weight
    for j, length in enumerate(PROMPTS):
        ids = drawn(model, length)
        out = run(model, ids)
        hidden = out.last_hidden_state[0]
        logits = hidden @ head.T
        tensors[f"ids_{j}"] = torch.tensor(ids, dtype=torch.int32)
        tensors[f"embedding_{j}"] = nn.functional.normalize(hidden[-1], dim=0)
        tensors[f"logits_{j}"] = (logits[-1:] if length == PROMPTS[-1] else logits).clone()
        if length == 7:
            tensors["hidden_7"] = torch.cat(out.hidden_states)
        greedy, margins, row = [], [], logits[-1]
        while len(greedy) < GREEDY:
            (first, second), (token, _) = row.topk(2)
            greedy.append(token.item())
            margins.append((first - second).item())
            row = run(model, ids + greedy).last_hidden_state[0, -1] @ head.T
        tensors[f"greedy_{j}"] = torch.tensor(greedy, dtype=torch.int32)
        tensors[f"margin_{j}"] = torch.tensor(margins)
    return tensors


def published(model):
    """The tensors under their published names, which have no `model.` before them."""
    norm = lambda name: name.replace(".gain", ".norm.weight")
    return {norm(name): tensor.bfloat16().contiguous() for name, tensor in model.state_dict().items()}


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    torch.manual_seed(1)
    model = make_model()
    with torch.no_grad():
        save_file(golden(model), folder / "golden.safetensors")
    save_file(published(model), folder / "model.safetensors", metadata={"format": "pt"})
    config = {"model_type": "qwen3", "architectures": ["Qwen3Model"], "dtype": "bfloat16", **CONFIG}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
