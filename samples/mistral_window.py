"""Sliding-window attention: a Mistral of transformers, rows padded to one length.

Run it by itself to train on random tokens: ``python mistral_window.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM


def build(
    *,
    vocab_size: int = 32000,
    hidden_size: int = 4096,
    intermediate_size: int = 14336,
    num_hidden_layers: int = 32,
    num_attention_heads: int = 32,
    num_key_value_heads: int = 8,
    sliding_window: int = 4096,
    dtype: str = "bfloat16",
    tiny: bool = False,
) -> MistralForCausalLM:
    """In the shape of Mistral 7B v0.1; ``tiny`` is for tests and always float32."""
    if tiny:
        vocab_size, hidden_size, intermediate_size, num_hidden_layers = 128, 64, 176, 2
        num_attention_heads, num_key_value_heads, sliding_window, dtype = 8, 4, 8, "float32"
    config = MistralConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=num_attention_heads,
        num_key_value_heads=num_key_value_heads,
        sliding_window=sliding_window,
        use_cache=False,
    )
    return AutoModelForCausalLM.from_config(
        config, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    ).train()


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    """Random tokens, the first row padded on its right."""
    ids = torch.randint(0, 128, (batch, seq))
    mask = torch.ones(batch, seq, dtype=torch.long)
    mask[0, seq - seq // 8 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


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
