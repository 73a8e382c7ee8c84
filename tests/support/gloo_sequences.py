"""A model whose rows move along the sequence, for real processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.gloo_cases import Subject
from tests.support.programs import VOCABULARY, WIDTH, SmallModel, tokens


def moving_rows(model: SmallModel, x: Tensor) -> Tensor:
    """A token shift, a causal convolution, a scan, a pooled state and the first token.

    The means of all tokens and of all but the last are the same on ranks without padding.
    """
    kernel = model.weight[:, :3].reshape(WIDTH, 1, 3)
    shifted = torch.cat([x[:, :1], x[:, :-1]], 1)
    convolved = F.conv1d(x.mT, kernel, model.bias, padding=2, groups=WIDTH)[..., : x.shape[1]].mT
    pooled = x.amax(1, keepdim=True) + x.std(1, keepdim=True) + x[:, :1]
    means = x.mean(1, keepdim=True) + x[:, :-1].mean(1, keepdim=True).sin() + x[:, 1:].mean()
    return shifted + convolved.sin() + x.cumsum(1).tanh() + pooled + means


def mean_loss(model: SmallModel, x: Tensor) -> Any:
    logits = model.logits(x).transpose(1, 2)
    weight = torch.linspace(0.5, 2, VOCABULARY, dtype=x.dtype)
    return F.cross_entropy(logits, model.labels, weight)


def moving(*, batch: int, length: int) -> Subject:
    return Subject(SmallModel(after=moving_rows, loss=mean_loss), tokens(batch, length))
