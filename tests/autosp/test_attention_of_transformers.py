"""transformers with ``flex_attention``; the tests of architectures have ``sdpa`` and ``eager``."""

from __future__ import annotations

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


def test_gemma_2_with_flex_attention_is_right_on_three_ranks():
    config = transformers.Gemma2Config(
        **SIZES,
        sliding_window=4,
        attn_logit_softcapping=5.0,
        query_pre_attn_scalar=4,
        attn_implementation="flex_attention",
        use_cache=False,
    )
    torch.manual_seed(0)
    model = transformers.Gemma2ForCausalLM(config).double().train()
    ids = torch.randint(3, 32, (1, 7))
    report = check_module(model, (), {"input_ids": ids, "labels": ids}, num_ranks=3)
    assert report.ok, report
    assert report.num_fallbacks == 0, report
