"""``docs/masks.md``: which masks are right under which form of attention, from the proofs.

``python -m tests.support.mask_page`` proves all and writes the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from autosp.attention_choice import AttentionChoice
from autosp.errors import ShardingError
from autosp.events import Decision
from autosp.mesh import Mesh
from autosp.oracle.check import FILLS
from autosp.passes.factor_masks import FactorMasks
from autosp.pipeline import PassContext
from tests.support.masks import (
    FACTORED,
    KEPT,
    MaskBuilder,
    attention_under,
    masked_tokens,
    sample_ids,
)
from tests.support.programs import Case, SmallModel, prove

PAGE = Path(__file__).parents[2] / "docs" / "masks.md"

BATCH, LENGTH = 2, 13
FORMS: dict[str, tuple[AttentionChoice, tuple[int, ...]]] = {
    "Ulysses": ("ulysses", (2, 4)),
    "ring": ("ring", (2, 4)),
    "Ulysses x ring": ("hybrid", (4, 8)),
}
"""Column -> how it is asked for, and on how many ranks it is proved."""

ROWS = (
    "causal and left or right padding",
    "padding alone",
    "packed documents",
    "packed documents by positions",
    "sliding window",
    "window to both sides",
    "window in documents",
    "chunked",
    "prefix",
    "prefix of each row",
    "image blocks",
)
"""Masks of the page; the others of ``FACTORED`` are spellings of these."""
KEPT_ROWS = ("a bias", "distance", "least number and padding", "sum over pairs")


@dataclass(frozen=True)
class Row:
    mask: str
    meaning: str
    outcomes: tuple[str, ...]
    """One for each of :data:`FORMS`."""


@lru_cache(maxsize=1)
def rows() -> tuple[Row, ...]:
    """Everything proved anew; a wrong form raises."""
    factored = {name: FACTORED[name] for name in ROWS}
    kept = {name: KEPT[name][0] for name in KEPT_ROWS}
    for choice, ranks in FORMS.values():
        masks = factored | kept if choice == "ulysses" else factored
        _prove(masks, choice, ranks)
    found = [Row(name, f"`{_decision(build).chosen}`", ("equal",) * len(FORMS))
             for name, build in factored.items()]  # fmt: skip
    for name, build in kept.items():
        refused = _refusal(build)  # before a ring and a hybrid are told apart
        outcomes = ("equal, S x S mask", refused, refused)
        found.append(Row(name, _decision(build).reason.partition(": ")[2], outcomes))
    return tuple(found)


def _prove(
    masks: Mapping[str, MaskBuilder], choice: AttentionChoice, ranks: tuple[int, ...]
) -> None:
    cases: list[Case] = [(BATCH, LENGTH, num_ranks) for num_ranks in ranks]
    model = SmallModel(attention=attention_under(dict(masks)))
    fills = FILLS if choice == "ring" else FILLS[:1]  # there padding rows meet the mask
    for proof in prove(model, inputs=masked_tokens, cases=cases, attention=choice, fills=fills):
        assert proof.report.ok, f"--attention {choice}: {proof}"
        assert proof.report.num_cotangents_checked > len(masks), proof


def _refusal(build: MaskBuilder) -> str:
    model = SmallModel(attention=attention_under({"": build}))
    try:
        prove(model, inputs=masked_tokens, cases=[(BATCH, LENGTH, 4)], attention="ring")
    except ShardingError as error:
        assert "a ring takes masks" in str(error), error
        return "refused"
    raise AssertionError("a ring took a mask that is no predicate")


def _decision(build: MaskBuilder) -> Decision:
    def attention(*inputs: object) -> object:
        q, k, v, ids = inputs
        return F.scaled_dot_product_attention(q, k, v, attn_mask=build(ids))

    ids = sample_ids(BATCH, LENGTH)
    heads = ids.double()[:, None, :, None]
    program = make_fx(attention, tracing_mode="fake", pre_dispatch=True)(heads, heads, heads, ids)
    context = PassContext(Mesh(sp=1))
    FactorMasks().run(program, context)
    (decision,) = context.decisions
    return decision


HEAD = f"""# Masks and forms of attention

Which masks are right under which form of [attention](attention.md). This page is written by
`python -m tests.support.mask_page`; a test proves every cell and fails when the page is not
what it finds. The lock-step oracle compares every value and every cotangent of the ranks with
the model's own, for {BATCH} rows of {LENGTH} tokens:

| form | ranks |
|---|---|
"""
TABLE_HEAD = """
A mask that is *said by* a predicate exists nowhere: `q0`, ... are vectors of the queries,
`k0`, ... of the keys, of as many elements as there are tokens. *equal, S x S mask*: right, and
the mask is a tensor of all pairs on every rank.

| mask | said by, or what is in the way | {columns} |
|---|---|{lines}
"""


def render(found: tuple[Row, ...]) -> str:
    """The page for these rows."""
    forms = "".join(
        f"| {name} | {', '.join(map(str, ranks))} |\n" for name, (_, ranks) in FORMS.items()
    )
    head = TABLE_HEAD.format(columns=" | ".join(FORMS), lines="---|" * len(FORMS))
    body = "".join(
        f"| {row.mask} | {row.meaning} | {' | '.join(row.outcomes)} |\n" for row in found
    )
    return f"{HEAD}{forms}{head}{body}"


def main() -> None:
    PAGE.write_text(render(rows()), encoding="utf-8")


if __name__ == "__main__":
    main()
