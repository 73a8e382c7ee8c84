"""``docs/models.md``: what becomes of each architecture, written from the outcomes.

``python -m tests.support.architecture_page`` judges all and writes the page.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.support.architecture_check import BATCH, LENGTH, RANKS, Outcome, outcome_of
from tests.support.architectures import ARCHITECTURES, Architecture

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
ROW = re.compile(r"^\| (?P<name>[^|]+) \| (?P<verdict>[^|]+) \|", re.MULTILINE)

HEAD = f"""# Models

What becomes of {len(ARCHITECTURES)} architectures of the transformers library, built small from
their configurations, without weights and without dropout, in float64 where they can. This
page is written by `python -m tests.support.architecture_page`; a test fails when an outcome
changes.

Each model computes its own loss for {BATCH} rows of {LENGTH} tokens, which
{RANKS[0]} and {RANKS[1]} ranks do not divide. The lock-step oracle compares every value
and every cotangent of the ranks with the model's own.

| verdict | means |
|---|---|
| **pass** | right; 95 % of FLOPs and of saved bytes sharded; no all-gather in a layer |
| **correct but replicated** | right, but more is replicated or gathered |
| **refused** | one error names the operator or construct; nothing is computed |

Right means: the loss within 1e-6, and every gradient within 1e-12 of its largest magnitude,
or of a thousandth of the largest of all gradients if that is more.

Models that compute parts in float32 whatever their own type may differ by three times what
their gradients move when the rows of the batch trade places, or must agree within 1e-12
once these parts are computed in float64. Shares are those of a dry run on {RANKS[0]} ranks;
with two layers, what is done once per model (patches, convolutions before the first layer,
pooling) weighs more than in a full model.
"""

TABLE_HEAD = """
| architecture | verdict | FLOPs sharded | saved bytes sharded | operators run replicated |
|---|---|---|---|---|
"""


def render(outcomes: Sequence[tuple[Architecture, Outcome]]) -> str:
    """The page for these outcomes."""
    counts = Counter(outcome.verdict for _, outcome in outcomes)
    tally = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    rows = "".join(_row(architecture, outcome) for architecture, outcome in outcomes)
    refusals = "".join(
        f"\n- **{architecture.name}**: {_one_line(outcome.detail)}"
        for architecture, outcome in outcomes
        if outcome.verdict == "refused"
    )
    return f"{HEAD}\n{tally}.\n{TABLE_HEAD}{rows}\n## Refusals\n{refusals}\n"


def verdicts_on(page: str) -> dict[str, str]:
    """Architecture -> verdict, as the page says."""
    rows = page.partition(TABLE_HEAD)[2]
    return {match["name"]: match["verdict"] for match in ROW.finditer(rows)}


def _row(architecture: Architecture, outcome: Outcome) -> str:
    fallbacks = ", ".join(f"`{name}` x{n}" for name, n in sorted(outcome.fallbacks.items()))
    cells = (
        architecture.name,
        outcome.verdict,
        _percent(outcome.sharded_flops),
        _percent(outcome.sharded_saved_bytes),
        fallbacks or "-",
    )
    return "| " + " | ".join(cells) + " |\n"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _one_line(text: str) -> str:
    """Without the place where the library is installed."""
    return re.sub(r"\S*/site-packages/", "", " ".join(text.split()))


def main() -> None:
    outcomes = [(architecture, outcome_of(architecture.name)) for architecture in ARCHITECTURES]
    PAGE.write_text(render(outcomes), encoding="utf-8")
    for architecture, outcome in outcomes:
        if outcome.verdict != architecture.verdict:
            print(f"{architecture.name}: {outcome.verdict}, the table says {architecture.verdict}")


if __name__ == "__main__":
    main()
