"""The table of sharding rules: operator -> rule, one family a module.

An operator that is not here, not pointwise and not composed of others takes the recorded
all-gather path.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from autosp.flex_attention import is_flex_attention
from autosp.sharding import (
    along_dim,
    attention,
    convolution,
    factories,
    formula,
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
from autosp.sharding.formula import RuleOrFormula
from autosp.sharding.operation import Rule

RULES: dict[Any, RuleOrFormula] = {
    **pointwise.RULES,
    **views.RULES,
    **shapes.RULES,
    **shifts.RULES,
    **convolution.RULES,
    **pooling.RULES,
    **linear_algebra.RULES,
    **along_dim.RULES,
    **orderings.RULES,
    **reductions.RULES,
    **scans.RULES,
    **factories.RULES,
    **indexing.RULES,
    **index_writes.RULES,
    **loss.RULES,
    **attention.RULES,
    **mutation.RULES,
    **randomness.RULES,
    **handwritten.RULES,
}


def rule_for(target: Any) -> Rule | None:
    """The rule of an operator, or None."""
    rule = _own_rule(target)
    return None if rule is None else partial(formula.apply_rule, rule, rule_for)


def _own_rule(target: Any) -> RuleOrFormula | None:
    if target in RULES:
        return RULES[target]
    if is_flex_attention(target):
        return attention.flex_attention
    if pointwise.is_pointwise(target):
        return pointwise.pointwise
    return formula.composite if formula.is_composite(target) else None


def rule_name(rule: Any) -> str:
    """``linear_algebra.linear``: the module of the rule and its function."""
    function = rule.args[0] if isinstance(rule, partial) else rule  # see rules.rule_for
    function = getattr(function, "func", function)
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
