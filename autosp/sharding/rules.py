"""The table of sharding rules: operator -> rule, one family a module.

An operator that is not here and not pointwise takes the recorded all-gather path.
"""

from __future__ import annotations

from typing import Any

from autosp.sharding import (
    along_dim,
    attention,
    handwritten,
    indexing,
    linear_algebra,
    loss,
    pointwise,
    views,
)
from autosp.sharding.operation import Rule, RuleTable

RULES: RuleTable = {
    **pointwise.RULES,
    **views.RULES,
    **linear_algebra.RULES,
    **along_dim.RULES,
    **indexing.RULES,
    **loss.RULES,
    **attention.RULES,
    **handwritten.RULES,
}


def rule_for(target: Any) -> Rule | None:
    """The rule of an operator, or None."""
    rule = RULES.get(target)
    if rule is None and pointwise.is_pointwise(target):
        return pointwise.pointwise
    return rule
