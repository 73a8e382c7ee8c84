"""Packed documents: a Llama of transformers that is told where documents begin.

Several documents lie in one row; their position ids begin anew at 0, and attention stays
within a document. Run it by itself to train on random tokens: ``python packed.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

DOCUMENT = 2048
"""Tokens of a document of :func:`example_inputs`."""


def build(
    *,
    vocab_size: int = 128256,
    hidden_size: int = 2048,
    intermediate_size: int = 8192,
    num_hidden_layers: int = 16,
    num_attention_heads: int = 32,
    num_key_value_heads: int = 8,
    dtype: str = "bfloat16",
    tiny: bool = False,
) -> LlamaForCausalLM:
    """In the shape of Llama 3.2 1B; ``tiny`` is for tests and always float32."""
    if tiny:
        vocab_size, hidden_size, intermediate_size, num_hidden_layers = 128, 64, 176, 2
        num_attention_heads, num_key_value_heads, dtype = 8, 4, "float32"
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=num_attention_heads,
        num_key_value_heads=num_key_value_heads,
        max_position_embeddings=131072,
        use_cache=False,  # with a cache transformers does not look for documents
    )
    return AutoModelForCausalLM.from_config(
        config, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    ).train()


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    """Random tokens in documents; the last is shorter where it must be."""
    ids = torch.randint(0, 128, (batch, seq))
    length = min(DOCUMENT, max(2, seq // 3))
    positions = (torch.arange(seq) % length).expand(batch, seq).contiguous()
    return {"input_ids": ids, "position_ids": positions, "labels": ids.clone()}


def main() -> None:
    torch.manual_seed(0)
    model = build(tiny=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = example_inputs(4, 128)
    for step in range(20):
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
