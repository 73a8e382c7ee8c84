"""A Llama written by hand: grouped-query attention, rotary positions, RMSNorm, SwiGLU.

Run it by itself to train on random tokens: ``python llama.py``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(at_least_float32(x.dtype))
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight


def rotary_table(length: int, head_dim: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[length, head_dim]`` in the dtype of ``like``."""
    dtype = at_least_float32(like.dtype)
    exponents = torch.arange(0, head_dim, 2, device=like.device, dtype=dtype) / head_dim
    positions = torch.arange(length, device=like.device, dtype=dtype)
    angles = positions[:, None] * theta**-exponents
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, width: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = width // num_heads
        self.wq = nn.Linear(width, num_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(width, num_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(width, num_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(num_heads * self.head_dim, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.wq(x).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(batch, length, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(batch, length, self.num_kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        grouped = self.num_kv_heads != self.num_heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.wo(y.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(
        self, width: int, num_heads: int, num_kv_heads: int, hidden: int, eps: float
    ) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(width, eps)
        self.attention = Attention(width, num_heads, num_kv_heads)
        self.ffn_norm = RMSNorm(width, eps)
        self.feed_forward = FeedForward(width, hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(
        self,
        vocab_size: int,
        num_layers: int,
        width: int,
        num_heads: int,
        num_kv_heads: int,
        hidden: int,
        rope_theta: float,
        eps: float,
        tie_head: bool,
    ) -> None:
        super().__init__()
        self.head_dim = width // num_heads
        self.rope_theta = rope_theta
        self.embedding = nn.Embedding(vocab_size, width)
        self.layers = nn.ModuleList(
            Block(width, num_heads, num_kv_heads, hidden, eps) for _ in range(num_layers)
        )
        self.norm = RMSNorm(width, eps)
        self.output = nn.Linear(width, vocab_size, bias=False)
        self.apply(self._init_weights)
        if tie_head:
            self.output.weight = self.embedding.weight

    @staticmethod
    def _init_weights(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits ``[batch, length, vocab]``; with ``labels``, the mean loss.

        ``labels`` are the input tokens themselves (-100 is ignored): the model shifts.
        """
        x = self.embedding(input_ids)
        cos, sin = rotary_table(input_ids.shape[1], self.head_dim, self.rope_theta, x)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = self.output(self.norm(x))
        if labels is None:
            return logits
        predictions = logits[:, :-1].reshape(-1, logits.shape[-1])
        return F.cross_entropy(predictions, labels[:, 1:].reshape(-1), ignore_index=-100)


def build(
    *,
    vocab_size: int = 128256,
    num_layers: int = 16,
    width: int = 2048,
    num_heads: int = 32,
    num_kv_heads: int = 8,
    hidden: int = 8192,
    rope_theta: float = 500000.0,
    eps: float = 1e-5,
    tie_head: bool = True,
    dtype: str = "bfloat16",
    tiny: bool = False,
) -> Llama:
    """The shape of Llama 3.2 1B; ``tiny`` is for tests and always float32."""
    if tiny:
        vocab_size, num_layers, width, num_heads, num_kv_heads, hidden = 128, 2, 64, 8, 4, 176
        dtype = "float32"
    model = Llama(
        vocab_size,
        num_layers,
        width,
        num_heads,
        num_kv_heads,
        hidden,
        rope_theta,
        eps,
        tie_head,
    )
    return model.to(getattr(torch, dtype))


def main() -> None:
    torch.manual_seed(0)
    model = build(tiny=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 128, (4, 128))
    for step in range(20):
        loss = model(tokens, labels=tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
