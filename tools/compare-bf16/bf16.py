#!/usr/bin/env python3
"""Measures a dense bf16 model with the shapes of bitnet-b1.58-2B-4T in PyTorch, for comparison with `bitnet bench`.

    python3 bf16.py [-b 1,32] [-c 128,1024] [-n 64] [-p 2048,512] [--device cuda] [--shape 2b4t]

Random weights, greedy tokens. On a GPU a decode step is a CUDA graph. Each sequence attends to `context` keys; a prompt
is one step, and only its last token passes through the head. Prints each row as a JSON object on its own line when it
is measured: tokens per second of the median of several runs, with the extremes.
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F

# Layers, hidden, ffn, heads, key heads, vocabulary.
SHAPES = {"2b4t": (30, 2560, 6912, 20, 5, 128_256), "tiny": (2, 256, 768, 4, 2, 512)}
RUNS = 5


class Layer:
    def __init__(self, hidden, ffn, heads, kv_heads, dim, new):
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        self.qkv = new((heads + 2 * kv_heads) * dim, hidden)
        self.out = new(hidden, heads * dim)
        self.gate_up = new(2 * ffn, hidden)
        self.down = new(hidden, ffn)
        self.norms = [torch.ones(n, dtype=torch.bfloat16, device=new.device) for n in (hidden, hidden, heads * dim, ffn)]

    def forward(self, x, angles, keys, values, slot):
        """x [batch, tokens, hidden]; keys and values [batch, kv_heads, context, dim], or none for a prompt."""
        batch, tokens, _ = x.shape
        h, kv, dim = self.heads, self.kv_heads, self.dim
        qkv = F.linear(norm(x, self.norms[0]), self.qkv).view(batch, tokens, h + 2 * kv, dim).transpose(1, 2)
        turned = turn(qkv[:, : h + kv], angles)
        q, k, v = turned[:, :h], turned[:, h:], qkv[:, h + kv :]
        if keys is None:
            k, v = (t.repeat_interleave(h // kv, 1) for t in (k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            keys.index_copy_(2, slot, k)
            values.index_copy_(2, slot, v)
            # The query heads that share a key head are rows of one query.
            q = q.view(batch, kv, h // kv, dim)
            y = F.scaled_dot_product_attention(q, keys, values).view(batch, h, 1, dim)
        y = y.transpose(1, 2).reshape(batch, tokens, h * dim)
        x = x + F.linear(norm(y, self.norms[2]), self.out)
        gate, up = F.linear(norm(x, self.norms[1]), self.gate_up).chunk(2, -1)
        return x + F.linear(norm(torch.relu(gate).square() * up, self.norms[3]), self.down)


def norm(x, gain):
    return F.rms_norm(x, x.shape[-1:], gain, 1e-5)


def turn(x, angles):
    cos, sin = angles
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Model:
    def __init__(self, shape, device):
        layers, hidden, ffn, heads, kv_heads, vocab = SHAPES[shape]
        dim = hidden // heads

        def new(rows, cols):
            return torch.randn(rows, cols, dtype=torch.bfloat16, device=device) * cols**-0.5

        new.device = device
        self.device, self.kv_heads, self.dim, self.vocab = device, kv_heads, dim, vocab
        self.embedding = new(vocab, hidden)
        self.norm = torch.ones(hidden, dtype=torch.bfloat16, device=device)
        self.layers = [Layer(hidden, ffn, heads, kv_heads, dim, new) for _ in range(layers)]
        self.inverse = 500_000.0 ** (-torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)

    def forward(self, tokens, start, caches, slot):
        """The next token of each sequence; tokens [batch, tokens]."""
        positions = torch.arange(start, start + tokens.shape[1], device=self.device, dtype=torch.float32)
        angles = positions[:, None] * self.inverse
        angles = (angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16))
        x = self.embedding[tokens]
        for layer, cache in zip(self.layers, caches or [(None, None)] * len(self.layers)):
            x = layer.forward(x, angles, *cache, slot)
        return F.linear(norm(x[:, -1:], self.norm), self.embedding).argmax(-1)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def measure(device, tokens, run):
    """Tokens per second of the median run, and the extremes."""
    run()
    seconds = []
    for _ in range(RUNS):
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    seconds.sort()
    speed = {"tok_s": seconds[RUNS // 2], "tok_s_min": seconds[-1], "tok_s_max": seconds[0]}
    return {name: tokens / value for name, value in speed.items()}


def decode(model, batch, context, steps):
    shape = (batch, model.kv_heads, context, model.dim)
    caches = [
        tuple(torch.randn(shape, dtype=torch.bfloat16, device=model.device) for _ in range(2)) for _ in model.layers
    ]
    tokens = torch.arange(batch, device=model.device)[:, None] % model.vocab
    slot = torch.tensor([context - 1], device=model.device)

    def step():
        tokens.copy_(model.forward(tokens, context - 1, caches, slot))

    if model.device == "cuda":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        step = graph.replay
    return measure(model.device, batch * steps, lambda: [step() for _ in range(steps)])


def main():
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--batch", type=numbers, default=[1, 32, 256, 8, 64, 128])
    parser.add_argument("-c", "--context", type=numbers, default=[128, 1024])
    parser.add_argument("-n", "--decode", type=int, default=64)
    parser.add_argument("-p", "--prefill", type=numbers, default=[2048, 512, 8192])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", choices=SHAPES, default="2b4t")
    args = parser.parse_args()
    name = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    about = {"model": f"bf16:{args.shape}", "device": name, "torch": torch.__version__}
    print(json.dumps(about), flush=True)
    with torch.inference_mode():
        model = Model(args.shape, args.device)
        for context in args.context:
            for batch in args.batch:
                speed = decode(model, batch, context, args.decode)
                print(json.dumps({"batch": batch, "context": context, **speed}), flush=True)
        for length in args.prefill:
            tokens = torch.arange(length, device=args.device)[None] % model.vocab
            speed = measure(args.device, length, lambda: model.forward(tokens, 0, None, None))
            first = 1e3 * length / speed["tok_s"]
            print(json.dumps({"tokens": length, **speed, "first_token_ms": first}), flush=True)


if __name__ == "__main__":
    main()
