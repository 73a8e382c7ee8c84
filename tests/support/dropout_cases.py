"""Models with dropout for the gloo tests; every rank calls the same functions."""

from __future__ import annotations

import torch
import torch.distributed as dist

import autosp
from tests.support.gloo_cases import Subject, sample_model
from tests.support.programs import SmallModel, tokens

DROPOUT = 0.1
"""GPT-2's default, of embeddings, attention and residuals alike."""


def gpt(*, batch: int = 2, length: int = 13, dtype: str = "float64") -> Subject:
    """The GPT-2-like sample with all of its dropouts."""
    torch.manual_seed(0)
    model = sample_model("gpt", tiny=True, dropout=DROPOUT).to(getattr(torch, dtype)).train()
    ids = torch.randint(0, 128, (batch, length))
    return Subject(model, kwargs={"input_ids": ids, "labels": ids.clone()})


def dropped(model: SmallModel, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.5)


def ranks_with_other_seeds() -> list[float]:
    """Losses of the ranks, and of two steps, where every rank has seeded torch differently."""
    compiled = autosp.compile(SmallModel(after=dropped), inner="eager")
    torch.manual_seed(dist.get_rank())
    losses: list[float] = []
    for _ in range(2):
        loss = compiled(*tokens(2, 7)).detach()
        gathered = [torch.zeros_like(loss) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, loss)
        losses.extend(float(item) for item in gathered)
    return losses


def whole_output_of_two_groups() -> float:
    """Share of elements that two data-parallel groups with one seed and one batch drop alike."""
    mesh = autosp.Mesh(sp=1, dp=2)
    compiled = torch.compile(
        Masks(), backend=autosp.backend(mesh, inner="eager"), fullgraph=True, dynamic=False
    )
    torch.manual_seed(3)
    mine = compiled(torch.ones(64, 64)).detach()
    both = [torch.zeros_like(mine) for _ in range(2)]
    dist.all_gather(both, mine)
    return float((both[0] == both[1]).double().mean())


class Masks(torch.nn.Module):
    """Dropout alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x * self.weight, 0.5)
