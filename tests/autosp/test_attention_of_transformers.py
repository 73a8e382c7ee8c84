"""``attn_implementation`` of transformers: every spelling is sharded, nothing is gathered.

The tests of architectures have more of ``sdpa`` and ``eager``.
"""

from __future__ import annotations

import pytest
import torch
import transformers

from autosp.oracle import check_module

SIZES = {
    "vocab_size": 32,
    "hidden_size": 24,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS = {
    "Llama": {},
    "Gemma2": {"sliding_window": 4, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 4},
}


@pytest.mark.parametrize(("name", "spelling"), [("Llama", "eager"), ("Gemma2", "flex_attention")])
def test_is_right_on_three_ranks(name, spelling):
    config = getattr(transformers, f"{name}Config")(
        **SIZES, **MODELS[name], attn_implementation=spelling, use_cache=spelling == "eager"
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).double().train()
    ids = torch.randint(3, 32, (1, 7))
    report = check_module(model, (), {"input_ids": ids, "labels": ids}, num_ranks=3)
    assert report.ok, report
    assert report.num_fallbacks == 0, report
