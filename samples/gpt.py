"""A GPT-2-like decoder: learned positions, pre-norm blocks, a head that may be tied.

Run it by itself to train on random tokens: ``python gpt.py``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = width // num_heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q = q.view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(batch, length, width)
        return self.proj(y)


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(
        self,
        vocab_size: int,
        max_positions: int,
        num_layers: int,
        num_heads: int,
        width: int,
        dropout: float,
        tie_head: bool,
    ) -> None:
        super().__init__()
        self.max_positions = max_positions
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.position_embedding = nn.Embedding(max_positions, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, num_heads, dropout) for _ in range(num_layers))
        self.final_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        self.apply(self._init_weights)
        if tie_head:
            self.head.weight = self.token_embedding.weight

    @staticmethod
    def _init_weights(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits ``[batch, length, vocab]``; with ``labels``, the mean loss.

        ``labels[b, t]`` is the token that follows ``input_ids[b, t]``; -100 is ignored.
        """
        length = input_ids.shape[1]
        if length > self.max_positions:
            raise ValueError(f"{length} tokens, but only {self.max_positions} positions")
        positions = torch.arange(length, device=input_ids.device)
        x = self.dropout(self.token_embedding(input_ids) + self.position_embedding(positions))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.final_norm(x))
        if labels is None:
            return logits
        return F.cross_entropy(
            logits.view(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=-100
        )


def build(
    *,
    vocab_size: int = 50304,
    max_positions: int = 16384,
    num_layers: int = 12,
    num_heads: int = 12,
    width: int = 768,
    dropout: float = 0.0,
    tie_head: bool = True,
    tiny: bool = False,
) -> GPT:
    """GPT-2 small with a longer context; ``tiny`` is for tests."""
    if tiny:
        vocab_size, max_positions, num_layers, num_heads, width = 128, 1024, 2, 8, 64
    return GPT(vocab_size, max_positions, num_layers, num_heads, width, dropout, tie_head)


def main() -> None:
    torch.manual_seed(0)
    model = build(tiny=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 128, (4, 129))
    for step in range(20):
        loss = model(tokens[:, :-1], labels=tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
