"""Prints docs/operators.md: the rule table of the compiler, a family a section.

python scripts/list_operators.py > docs/operators.md
"""

from __future__ import annotations

from types import ModuleType

from autosp.sharding import (
    along_dim,
    attention,
    convolution,
    factories,
    handwritten,
    index_writes,
    indexing,
    linear_algebra,
    loss,
    mutation,
    orderings,
    pointwise,
    pooling,
    randomness,
    reductions,
    scans,
    shapes,
    shifts,
    views,
)
from autosp.sharding.rules import RULES

FAMILIES: tuple[tuple[str, ModuleType, str], ...] = (
    ("Attention", attention, "Sequence shards become head shards and return at once."),
    ("Matrix products", linear_algebra, "The cut follows its letter; a summed cut is partial."),
    ("Attention by hand", handwritten, "A product of queries and keys moves to head shards."),
    ("Reductions", reductions, "Over the sequence: local results, exchanged. No padding counts."),
    ("Normalisation, softmax", along_dim, "Along the sequence: its statistics, exchanged."),
    (
        "Orderings",
        orderings,
        "Local off the sequence; along it they gather, so that ties fall alike.",
    ),
    ("Scans", scans, "A local scan, and the totals of the ranks before."),
    ("Convolutions", convolution, "Rows of the neighbours, then local; any stride and dilation."),
    ("Pooling", pooling, "Windows of rows, from neighbours where they reach that far."),
    ("Shifts and padding", shifts, "Rows move between neighbours; so do slices and joins."),
    ("Views", views, "Every row stays with its owner, or moves by the rules of shifts."),
    ("Repetition, triangles, channels", shapes, "Local, with the position of the rank's rows."),
    ("Lookups by index", indexing, "Each rank answers for the rows that it holds."),
    ("Writes by index", index_writes, "Each rank writes the rows that it holds."),
    ("Assignments", mutation, "Each rank writes the rows that it holds."),
    ("Random numbers", randomness, "Keyed by position; agreed within the group."),
    ("Losses", loss, "Divided by the counts of the whole batch."),
    ("Constants like another tensor", factories, "Every rank makes its part."),
    ("Pointwise without torch's tag", pointwise, "Local; all operators with the tag are too."),
)

INTRODUCTION = """\
# Operators

What has a sharding rule. Pointwise operators need none of their own, and composite ones
(`einsum`, `kl_div`, `tile`, `diff` ...) are taken apart into what torch says they consist of.
Anything else gets whole inputs, which is correct, and becomes a finding. This page is
printed by `scripts/list_operators.py`.
"""


def page() -> str:
    listed = {target for _, family, _ in FAMILIES for target in family.RULES}
    assert listed == set(RULES), "a family is missing"
    sections = [
        f"## {title}\n\n{text}\n\n{', '.join(f'`{name}`' for name in names(family))}\n"
        for title, family, text in FAMILIES
    ]
    return "\n".join([INTRODUCTION, *sections])


def names(family: ModuleType) -> list[str]:
    """Operators without their overloads."""
    return sorted({target._schema.name.removeprefix("aten::") for target in family.RULES})


if __name__ == "__main__":
    print(page(), end="")
