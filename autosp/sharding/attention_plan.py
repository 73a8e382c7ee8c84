"""Which form each attention takes: Ulysses, a ring, or both on a split of the ranks.

Decided before the walk, because a causal ring wants the tokens of the whole program in zigzag
order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from autosp.attention_choice import AttentionChoice
from autosp.cost.attention_traffic import AttentionShape, exchange_bytes, ring_bytes
from autosp.errors import AutoSPError, HeadCountError, ShardingError
from autosp.events import Alternative
from autosp.flex_attention import is_flex_attention
from autosp.graph import is_operator, shape_of, source_location, tensor_of
from autosp.head_map import HeadMap
from autosp.placement import BlockOrder, padding_of
from autosp.runtime import keyed_random
from autosp.runtime.block_attention import wide_type
from autosp.runtime.masked_attention import MASKED_ATTENTION
from autosp.sizes import examples, is_symbolic

aten = torch.ops.aten

ATTENTION = (
    aten.scaled_dot_product_attention.default,
    keyed_random.ATTENTION,
    MASKED_ATTENTION,
)
HEAD_DIM, SEQUENCE_DIM = 1, 2
"""Dims of ``[batch, heads, sequence, head size]``."""


def is_attention(node: Node) -> bool:
    """Whether a node is an attention, ``flex_attention`` among them."""
    return is_operator(node, *ATTENTION) or is_flex_attention(node.target)


@dataclass(frozen=True, slots=True)
class SitePlan:
    """``num_ulysses`` neighbouring ranks exchange heads; ``num_ring`` such groups form a ring."""

    num_ulysses: int
    num_ring: int
    reason: str
    rejected: tuple[Alternative, ...] = ()
    refusal: AutoSPError | None = None
    """Why there is no form for this attention; the numbers mean nothing then."""

    @property
    def name(self) -> str:
        return form_name(self.num_ulysses, self.num_ring)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The forms of all attentions with ``[batch, heads, sequence, head size]`` operands."""

    sites: Mapping[Node, SitePlan]
    choice: AttentionChoice = "auto"
    order: BlockOrder = "contiguous"
    """How the program's tokens are dealt out to the ranks."""


def form_name(num_ulysses: int, num_ring: int) -> str:
    if num_ring == 1:
        return "Ulysses"
    return "ring" if num_ulysses == 1 else f"Ulysses {num_ulysses} x ring {num_ring}"


def plan_attention(graph: Graph, choice: AttentionChoice, num_ranks: int) -> AttentionPlan:
    """Choose a form for every attention of the user's program."""
    sites = [node for node in graph.nodes if is_attention(node)]
    plans = {
        site: plan for site in sites if (plan := plan_site(site, choice, num_ranks)) is not None
    }
    is_zigzag = any(plan.num_ring > 1 and is_causal(site) for site, plan in plans.items())
    return AttentionPlan(plans, choice, "zigzag" if is_zigzag else "contiguous")


def legal_sp_degrees(num_heads: int) -> list[int]:
    """SP degrees that Ulysses can use with this number of query heads."""
    return [degree for degree in range(1, num_heads + 1) if num_heads % degree == 0]


def is_causal(site: Node) -> bool:
    return is_operator(site, *ATTENTION) and bool(_argument(site, 5, "is_causal", False))


def plan_site(site: Node, choice: AttentionChoice, num_ranks: int) -> SitePlan | None:
    """The form of one attention; None if it is not [batch, heads, sequence, head size]."""
    mask = _argument(site, 3, "attn_mask", None)
    if any(len(shape_of(_operand(site, index))) != 4 for index in range(3)):
        return None
    if isinstance(mask, Node) and len(shape_of(mask)) > 4:
        return None
    obstacle = ring_obstacle(site)
    fits = num_ranks in legal_sp_degrees(_head_counts(site)[0])
    if choice == "ulysses" or (choice == "auto" and (fits or obstacle)):
        return _ulysses(site, choice, num_ranks, fits, obstacle)
    forms = [form for form in _forms(site, num_ranks) if _is_wanted(form, choice)]
    if obstacle or not forms:
        return _refused(site, choice, num_ranks, obstacle)
    costs = {form: _bytes(site, *form) for form in forms}
    best = min(costs, key=lambda form: costs[form])
    reason = f"{_size(costs[best])} sent per rank and step"
    if choice == "auto":
        reason += f", the least; {_why_not_ulysses(site, num_ranks)}"
    else:
        reason += f"; --attention {choice} asks for it"
    others = [
        Alternative(form_name(*form), "sends more", f"{_size(cost)} per rank and step")
        for form, cost in costs.items()
        if form != best
    ]
    if fits:
        cost = f"{_size(_bytes(site, num_ranks, 1))} per rank and step"
        others.append(Alternative("Ulysses", f"--attention {choice}", cost))
    elif choice != "auto":
        others.append(Alternative("Ulysses", _why_not_ulysses(site, num_ranks)))
    return SitePlan(*best, reason, tuple(others))


def _ulysses(
    site: Node, choice: AttentionChoice, num_ranks: int, fits: bool, obstacle: str
) -> SitePlan:
    if not fits:
        return SitePlan(num_ranks, 1, "", refusal=_unfit_heads(site, choice, num_ranks, obstacle))
    cost = f"{_size(_bytes(site, num_ranks, 1))} sent per rank and step"
    reason = f"the heads can be dealt out to the ranks; {cost}"
    why = obstacle or "blocks of keys are computed one by one, and sent again in the backward"
    rejected = [
        Alternative(
            form_name(*form), why, "" if obstacle else f"{_size(_bytes(site, *form))} per step"
        )
        for form in _forms(site, num_ranks)
        if form[0] == 1
    ]
    return SitePlan(num_ranks, 1, reason, tuple(rejected))


def _forms(site: Node, num_ranks: int) -> Iterator[tuple[int, int]]:
    """All splits of the ranks with a ring, the pure ring first."""
    num_heads, num_kv_heads = _head_counts(site)
    for degree in legal_sp_degrees(num_heads):
        is_even = HeadMap(num_heads, num_kv_heads, degree).is_even
        if degree < num_ranks and num_ranks % degree == 0 and is_even:
            yield degree, num_ranks // degree


def _is_wanted(form: tuple[int, int], choice: AttentionChoice) -> bool:
    return choice == "auto" or (form[0] == 1) == (choice == "ring")


def ring_obstacle(site: Node) -> str:
    """Why this attention cannot run in a ring; empty if it can."""
    query, key = shape_of(_operand(site, 0)), shape_of(_operand(site, 1))
    if is_flex_attention(site.target):
        return "a ring does not run the score_mod and mask_mod of flex_attention"
    if any(map(is_symbolic, (*query, *key))):
        return "a ring serves one length, and a size of the inputs stays dynamic"
    if isinstance(_argument(site, 3, "attn_mask", None), Node):
        return "a ring takes masks that vectors of the sequence say, and this mask is none"
    if _argument(site, 4, "dropout_p", 0.0):
        return "a ring does not drop probabilities"
    if is_causal(site) and query[SEQUENCE_DIM] != key[SEQUENCE_DIM]:
        return "a causal ring needs as many keys as queries"
    return ""


def _refused(site: Node, choice: AttentionChoice, num_ranks: int, obstacle: str) -> SitePlan:
    num_heads, num_kv_heads = _head_counts(site)
    if obstacle:
        error = ShardingError(
            f"--attention {choice}: {obstacle}",
            where=_where(site),
            hint="Use --attention ulysses, or auto; `autosp-inspect decisions --topic mask` says "
            "what keeps a mask from being said by vectors",
        )
    else:
        error = ShardingError(
            f"--attention hybrid: {num_ranks} ranks have no split into Ulysses and ring for "
            f"{num_heads} query heads and {num_kv_heads} key/value heads",
            where=_where(site),
            hint="Use --attention ring, or a number of ranks that shares a divisor with the heads",
        )
    return SitePlan(1, 1, "", refusal=error)


def _unfit_heads(
    site: Node, choice: AttentionChoice, num_ranks: int, obstacle: str
) -> HeadCountError:
    num_heads, num_kv_heads = _head_counts(site)
    legal = ", ".join(map(str, legal_sp_degrees(num_heads)))
    other = "--attention ring takes any degree" if not obstacle else f"No ring instead: {obstacle}"
    return HeadCountError(
        f"SP degree {num_ranks} does not fit attention with {num_heads} query heads and "
        f"{num_kv_heads} key/value heads",
        where=_where(site),
        hint=f"Ulysses can use SP degree {legal}. {other}",
    )


def _why_not_ulysses(site: Node, num_ranks: int) -> str:
    return f"{_head_counts(site)[0]} query heads cannot be dealt out to {num_ranks} ranks"


def _bytes(site: Node, num_ulysses: int, num_ring: int) -> int:
    shape = attention_shape(site, num_ulysses * num_ring)
    ring = ring_bytes(shape, num_ulysses=num_ulysses, num_ring=num_ring) if num_ring > 1 else 0
    return exchange_bytes(shape, num_ulysses=num_ulysses) + ring


def attention_shape(site: Node, num_ranks: int) -> AttentionShape:
    """What the formulas of its traffic need."""
    query, key, value = (examples(shape_of(_operand(site, index))) for index in range(3))
    tensor = tensor_of(_operand(site, 0))
    assert tensor is not None
    rows, key_rows = (
        (shape[SEQUENCE_DIM] + padding_of(shape[SEQUENCE_DIM], num_ranks)) // num_ranks
        for shape in (query, key)
    )
    return AttentionShape(
        batch=query[0],
        num_heads=query[HEAD_DIM],
        num_kv_heads=key[HEAD_DIM],
        query_rows=rows,
        key_rows=key_rows,
        key_size=key[-1],
        value_size=value[-1],
        element_bytes=tensor.dtype.itemsize,
        wide_bytes=wide_type(tensor.dtype).itemsize,
    )


def _head_counts(site: Node) -> tuple[int, int]:
    return shape_of(_operand(site, 0))[HEAD_DIM], shape_of(_operand(site, 1))[HEAD_DIM]


def _operand(site: Node, index: int) -> Node:
    operand = site.args[index]
    assert isinstance(operand, Node)
    return operand


def _argument(site: Node, index: int, name: str, default: Any) -> Any:
    return site.args[index] if len(site.args) > index else site.kwargs.get(name, default)


def _where(site: Node) -> str:
    where = source_location(site)
    return f"{where.file}:{where.line}" if where else ""


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
