"""BitNet b1.58 for quantisation-aware training, computed as transformers' `BitNetForCausalLM` computes it.

Parameters carry transformers' names, so that `state_dict()` is the checkpoint's master weights.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


# The text is read several times over: without it the last passes are learnt by heart.
DROPOUT = 0.08


@dataclass
class Config:
    vocab: int = 2048
    hidden: int = 256
    ffn: int = 704
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    eps: float = 1e-5
    rope_theta: float = 10000.0

    @property
    def head_dim(self):
        return self.hidden // self.heads


def ternarise(weight):
    """(trits as floats, scale): s = mean|w|, round half to even, s rounded to the bf16 that the file stores."""
    weight = weight.float()
    scale = weight.abs().mean().clamp(min=1e-5)
    return (weight / scale).round().clamp(-1, 1), scale.bfloat16().float()


class TernaryMatmul(torch.autograd.Function):
    """y = (sum x_i8 * t) * s_x * s_w; gradients pass straight through both roundings.

    int8 values, trits and their sums are exact in f32, so the product is the integer product.
    """

    @staticmethod
    def forward(ctx, x, weight):
        trits, weight_scale = ternarise(weight)
        x = x.float()
        scale = 127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
        x_int = (x * scale).round().clamp(-128, 127)
        ctx.save_for_backward(x_int, scale, trits, weight_scale)
        return F.linear(x_int, trits) * (weight_scale / scale)

    @staticmethod
    def backward(ctx, grad):
        x_int, scale, trits, weight_scale = ctx.saved_tensors
        grad_x = (grad @ trits) * weight_scale
        x = x_int / scale
        grad_w = grad.flatten(0, -2).T @ x.flatten(0, -2)
        return grad_x, grad_w


class BitLinear(nn.Module):
    def __init__(self, inputs, outputs, std):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * std)

    def forward(self, x):
        return TernaryMatmul.apply(x, self.weight)


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        x = x.float()
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Attention(nn.Module):
    def __init__(self, c, std, residual_std):
        super().__init__()
        self.c = c
        self.q_proj = BitLinear(c.hidden, c.heads * c.head_dim, std)
        self.k_proj = BitLinear(c.hidden, c.kv_heads * c.head_dim, std)
        self.v_proj = BitLinear(c.hidden, c.kv_heads * c.head_dim, std)
        self.o_proj = BitLinear(c.hidden, c.hidden, residual_std)
        self.attn_sub_norm = RMSNorm(c.hidden, c.eps)

    def forward(self, x, cos, sin):
        c, (batch, length, _) = self.c, x.shape
        heads = lambda y: y.view(batch, length, -1, c.head_dim).transpose(1, 2)
        q, k, v = heads(self.q_proj(x)), heads(self.k_proj(x)), heads(self.v_proj(x))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        groups = c.heads // c.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(self.attn_sub_norm(y.transpose(1, 2).reshape(batch, length, -1)))


class MLP(nn.Module):
    def __init__(self, c, std, residual_std):
        super().__init__()
        self.gate_proj = BitLinear(c.hidden, c.ffn, std)
        self.up_proj = BitLinear(c.hidden, c.ffn, std)
        self.down_proj = BitLinear(c.ffn, c.hidden, residual_std)
        self.ffn_sub_norm = RMSNorm(c.ffn, c.eps)

    def forward(self, x):
        return self.down_proj(self.ffn_sub_norm(F.relu(self.gate_proj(x)).square() * self.up_proj(x)))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        std = 0.02
        residual_std = std / (2 * c.layers) ** 0.5
        self.self_attn = Attention(c, std, residual_std)
        self.mlp = MLP(c, std, residual_std)
        self.input_layernorm = RMSNorm(c.hidden, c.eps)
        self.post_attention_layernorm = RMSNorm(c.hidden, c.eps)

    def forward(self, x, cos, sin):
        x = x + F.dropout(self.self_attn(self.input_layernorm(x), cos, sin), DROPOUT, self.training)
        return x + F.dropout(self.mlp(self.post_attention_layernorm(x)), DROPOUT, self.training)


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.hidden, c.eps)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)


class BitNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.model = Body(c)

    def forward(self, ids):
        """Logits, [batch][length][vocab]."""
        c = self.c
        frequency = c.rope_theta ** (-torch.arange(0, c.head_dim, 2).float() / c.head_dim)
        angle = torch.outer(torch.arange(ids.shape[1]).float(), frequency)
        angle = torch.cat((angle, angle), -1)
        cos, sin = angle.cos(), angle.sin()
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)

    def loss(self, ids, reduction="mean"):
        logits = self(ids[:, :-1]).float()
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction=reduction)
