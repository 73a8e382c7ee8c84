"""Every attention of the program: its form, its mask, and the work of every rank."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autosp_inspector.queries.pieces import list_pieces
from autosp_inspector.rows import AttentionRow
from autosp_inspector.trace import Trace

_ATTENTION = """
SELECT node.value, module.value, decision.chosen, decision.reason, figures.value,
       pass.compilation
FROM decision
JOIN figures AS written ON written.decision_id = decision.id
JOIN text AS figures ON figures.id = written.value_text
JOIN text AS node ON node.id = decision.node_text
JOIN text AS module ON module.id = decision.module_text
LEFT JOIN pass ON pass.pass_index = decision.pass_index
WHERE decision.topic = 'attention' AND (?1 IS NULL OR pass.compilation = ?1)
ORDER BY decision.id
"""


def list_attention(trace: Trace) -> tuple[AttentionRow, ...]:
    """Attentions in program order; none in traces of schema 3 and older, which lack figures."""
    pieces = {piece.compilation: piece for piece in list_pieces(trace)}
    found = []
    for node, module, chosen, reason, text, compilation in trace.fetch(
        _ATTENTION, (trace.compilation,)
    ):
        piece = pieces.get(compilation)
        figures: Mapping[str, Any] = json.loads(text)
        found.append(
            AttentionRow(
                node=node,
                module=module,
                chosen=chosen,
                reason=reason,
                form=figures["form"],
                mask=figures["mask"],
                num_ulysses=figures["num_ulysses"],
                num_ring=figures["num_ring"],
                ring_rank=figures["rank"],
                num_heads=figures["num_heads"],
                num_kv_heads=figures["num_kv_heads"],
                heads_per_rank=figures["heads_per_rank"],
                query_length=figures["query_length"],
                key_length=figures["key_length"],
                pairs_of_a_block=figures["pairs_of_a_block"],
                work=_numbers(figures["work"]),
                tokens=tuple(figures["tokens"]),
                kept_bytes=figures["kept_bytes"],
                in_flight_bytes=figures["in_flight_bytes"],
                order=figures.get("order", ""),
                other_order=figures.get("other_order", ""),
                other_work=_numbers(figures.get("other_work", [])),
                other_tokens=tuple(figures.get("other_tokens", ())),
                piece=None if piece is None else piece.number,
            )
        )
    return tuple(found)


def _numbers(work: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(steps) for steps in work)
