"""Models as fine-tuning wraps them: low-rank adapters, frozen weights, tied heads, autocast."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from tests.support.checkpointed import VOCABULARY, Decoder, plainly


class LowRank(nn.Module):
    """A frozen linear layer with trained low-rank factors beside it, as peft writes it."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        weight = base.weight
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base.out_features, bias=False)})
        self.lora_dropout = nn.ModuleDict({"default": nn.Identity()})
        self.scaling = {"default": 2.0}
        self.active_adapters = ["default"]
        for module in (*self.lora_A.values(), *self.lora_B.values()):
            module.to(weight.dtype)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result = self.base_layer(x, *args, **kwargs)
        before = result.dtype
        for name in self.active_adapters:
            factor_a, factor_b = self.lora_A[name], self.lora_B[name]
            own = x.to(factor_a.weight.dtype)
            result = result + factor_b(factor_a(self.lora_dropout[name](own))) * self.scaling[name]
        return result.to(before)


class Adapted(Decoder):
    """Everything is frozen but the adapters of the projections."""

    def __init__(self, **options: Any) -> None:
        super().__init__(plainly, **options)
        self.requires_grad_(False)
        self.mixing = nn.ModuleList(LowRank(layer) for layer in self.mixing)
        self.down = nn.ModuleList(LowRank(layer) for layer in self.down)


class Tied(Decoder):
    """The head is the embedding; some layers are frozen."""

    def __init__(self, **options: Any) -> None:
        super().__init__(plainly, **options)
        self.head.weight = self.table.weight
        self.up.requires_grad_(False)
        self.head.bias.requires_grad_(False)


class PartlyInHalf(Decoder):
    """Attention in bfloat16 by a region of autocast, the rest and the loss in float32."""

    def __init__(self, **options: Any) -> None:
        super().__init__(plainly, **options)

    def attend(self, index: int, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = super().attend(index, x)
        with torch.autocast("cpu", enabled=False):
            return y.float() * 1

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(input_ids)
        for index in range(2):
            x = self.layer(index, x)
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.head(x)
        return F.cross_entropy(logits.float().view(-1, VOCABULARY), labels.view(-1))


def peft_adapters(sample: nn.Module, *, dropout: float = 0.0) -> nn.Module:
    """The sample llama as the peft library wraps it; the head is trained as a whole."""
    options = LoraConfig(
        r=4, lora_alpha=8, lora_dropout=dropout, target_modules=["wq", "wv", "w2"],
        modules_to_save=["output"],
    )  # fmt: skip
    model: nn.Module = get_peft_model(sample, options).to(torch.float64)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at first: what flows into lora_A would be nothing
            parameter.data.normal_(generator=generator)
    return model
