"""A Llama of the transformers library, by default in the shape of Llama 3.1 8B.

Labels are passed to the model, which shifts them and computes its own loss.
Run it by itself to train on random tokens: ``python hf_llama.py``.
"""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


def build(
    *,
    vocab_size: int = 128256,
    hidden_size: int = 4096,
    intermediate_size: int = 14336,
    num_hidden_layers: int = 32,
    num_attention_heads: int = 32,
    num_key_value_heads: int = 8,
    max_position_embeddings: int = 131072,
    rope_theta: float = 500000.0,
    tie_word_embeddings: bool = False,
    attention_dropout: float = 0.0,
    dtype: str = "bfloat16",
    tiny: bool = False,
) -> LlamaForCausalLM:
    """``tiny`` is for tests and always float32."""
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
        max_position_embeddings=max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        rms_norm_eps=1e-5,
        tie_word_embeddings=tie_word_embeddings,
        attention_dropout=attention_dropout,
        use_cache=False,
    )
    return AutoModelForCausalLM.from_config(
        config, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    ).train()


def main() -> None:
    torch.manual_seed(0)
    model = build(tiny=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 128, (4, 128))
    for step in range(20):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
