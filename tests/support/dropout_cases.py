"""Models with dropout for the gloo tests; every rank calls the same functions."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import autosp
from autosp.mesh import Mesh
from tests.support.gloo_cases import Subject


def gpt2(*, batch: int = 2, length: int = 13) -> Subject:
    """GPT-2 with all of its dropouts at the default of 0.1; labels as in training."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2,
        n_head=4,
        n_embd=16,
        vocab_size=32,
        n_positions=32,
        bos_token_id=0,
        eos_token_id=0,
    )
    assert config.attn_pdrop == config.embd_pdrop == config.resid_pdrop == 0.1
    model = GPT2LMHeadModel(config).double().train()
    model.loss_type = "ForCausalLM"  # without it the forward warns, which breaks the graph
    ids = torch.randint(0, 32, (batch, length))
    return Subject(model, kwargs={"input_ids": ids, "labels": ids.clone()})
