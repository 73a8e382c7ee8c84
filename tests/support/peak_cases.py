"""Pairs of a model and a configuration whose peak lies in a chosen part of the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from autosp.cost.optimizer import OptimizerModel
from samples import gpt, hf_llama, llama
from tests.support.profiled_training import Partitioner

NO_OPTIMIZER = OptimizerModel(name="none")


@dataclass(frozen=True)
class PeakCase:
    """``where`` is a pattern that the peak's phase, node and module must match."""

    name: str
    build: Callable[[], nn.Module]
    batch: int
    length: int
    vocab: int
    where: str
    partitioner: Partitioner = "min_cut"
    optimizer: OptimizerModel = NO_OPTIMIZER
    attention: str = "auto"

    def inputs(self) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, self.vocab, (self.batch, self.length))
        return {"input_ids": tokens, "labels": tokens.clone()}

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer | None:
        model = self.optimizer
        if model.name == "none":
            return None
        foreach, fused = model.implementation == "foreach", model.implementation == "fused"
        if model.name == "adamw":
            return torch.optim.AdamW(parameters, foreach=foreach, fused=fused)
        momentum, weight_decay = 0.9 * model.momentum, 0.1 * model.weight_decay
        return torch.optim.SGD(parameters, momentum=momentum, weight_decay=weight_decay)


def small_gpt(
    *, vocab: int, width: int = 128, layers: int = 2, tie_head: bool = False, dropout: float = 0.0
) -> nn.Module:
    return gpt.build(
        vocab_size=vocab,
        max_positions=1024,
        num_layers=layers,
        num_heads=4,
        width=width,
        tie_head=tie_head,
        dropout=dropout,
    )


def small_llama(
    *, vocab: int, dtype: str, hidden: int = 352, width: int = 128, tie_head: bool = False
) -> nn.Module:
    return llama.build(
        vocab_size=vocab,
        num_layers=2,
        width=width,
        num_heads=4,
        num_kv_heads=2,
        hidden=hidden,
        tie_head=tie_head,
        dtype=dtype,
    )


def small_hf_llama(
    *, vocab: int, dtype: str, intermediate: int = 352, attention: str = "sdpa"
) -> nn.Module:
    model = hf_llama.build(
        vocab_size=vocab,
        hidden_size=128,
        intermediate_size=intermediate,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        dtype=dtype,
    )
    model.set_attn_implementation(attention)
    return model


ADAMW = OptimizerModel(name="adamw")
ADAMW_FOREACH = OptimizerModel(name="adamw", implementation="foreach")
ADAMW_FUSED = OptimizerModel(name="adamw", implementation="fused")
SGD = OptimizerModel(name="sgd", momentum=True, weight_decay=True)

CASES: tuple[PeakCase, ...] = (
    PeakCase("gpt, loss", lambda: small_gpt(vocab=2000), 2, 256, 2000, "log_softmax"),
    PeakCase(
        "gpt, loss, default partition, bf16",
        lambda: small_gpt(vocab=2000).bfloat16(),
        2,
        256,
        2000,
        "log_softmax|mm head",
        "default",
    ),
    PeakCase("gpt, mlp", lambda: small_gpt(vocab=64), 1, 512, 64, "mlp"),
    PeakCase(
        "gpt, mlp, bf16, default partition",
        lambda: small_gpt(vocab=64).bfloat16(),
        2,
        512,
        64,
        "mlp",
        "default",
    ),
    PeakCase("gpt, dropout", lambda: small_gpt(vocab=64, dropout=0.1), 1, 512, 64, "backward"),
    PeakCase(
        "llama, loss", lambda: small_llama(vocab=2000, dtype="float32"), 2, 256, 2000, "softmax"
    ),
    PeakCase(
        "llama, mlp, bf16",
        lambda: small_llama(vocab=64, dtype="bfloat16", hidden=2048),
        1,
        512,
        64,
        "layers",
    ),
    PeakCase(
        "llama, flash attention, bf16",
        lambda: small_llama(vocab=64, dtype="bfloat16", hidden=32, width=32),
        1,
        1024,
        64,
        "attention",
    ),
    PeakCase(
        "llama, flash attention, default partition",
        lambda: small_llama(vocab=16, dtype="float32", hidden=16, width=16),
        1,
        1024,
        16,
        "attention",
        "default",
    ),
    PeakCase(
        "hf llama, attention with square scores",
        lambda: small_hf_llama(vocab=64, dtype="float32", intermediate=32, attention="eager"),
        1,
        256,
        64,
        "self_attn",
    ),
    PeakCase(
        "hf llama, attention with square scores, bf16",
        lambda: small_hf_llama(vocab=64, dtype="bfloat16", attention="eager"),
        1,
        256,
        64,
        "self_attn",
        "default",
    ),
    PeakCase(
        "hf llama, loss, bf16",
        lambda: small_hf_llama(vocab=2000, dtype="bfloat16"),
        2,
        256,
        2000,
        "softmax",
        "default",
    ),
    PeakCase(
        "hf llama, mlp, bf16",
        lambda: small_hf_llama(vocab=64, dtype="bfloat16", intermediate=2048),
        1,
        256,
        64,
        "mlp",
    ),
    PeakCase(
        "gpt, AdamW",
        lambda: small_gpt(vocab=2000),
        1,
        32,
        2000,
        "optimizer",
        optimizer=ADAMW,
    ),
    PeakCase(
        "gpt, sum of the gradients of a tied head",
        lambda: small_gpt(vocab=4000, tie_head=True),
        1,
        32,
        4000,
        "backward add",
        optimizer=ADAMW,
    ),
    PeakCase(
        "llama, AdamW foreach, bf16",
        lambda: small_llama(vocab=2000, dtype="bfloat16"),
        1,
        32,
        2000,
        "optimizer",
        optimizer=ADAMW_FOREACH,
    ),
    PeakCase(
        "gpt, AdamW fused",
        lambda: small_gpt(vocab=2000),
        1,
        64,
        2000,
        "backward",
        optimizer=ADAMW_FUSED,
    ),
    PeakCase(
        "llama, SGD",
        lambda: small_llama(vocab=2000, dtype="float32"),
        1,
        16,
        2000,
        "optimizer",
        optimizer=SGD,
    ),
)
