"""The difference between two snapshots of one graph: who was born, died or moved.

Nodes are matched by name. The order of a graph is kept by *order keys*: integers with
wide gaps, so that a node inserted in the middle gets a key between its neighbours' and
nobody else is touched. A node whose place relative to the others changed gets a new key;
as few nodes as possible do (those outside a longest increasing run of old keys).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from autosp.events import NodeRecord

ORDER_GAP = 1 << 32
"""Distance of neighbours' keys at first: 31 halvings before a renumbering, and room for
2**31 nodes in SQLite's 64-bit integers."""


@dataclass(slots=True)
class LiveNode:
    """A node version that is alive after the latest pass."""

    node_id: int
    order_key: int
    record: NodeRecord


@dataclass(frozen=True, slots=True)
class GraphDelta:
    """What one pass did to one graph. ``added`` and ``changed`` are both born versions."""

    added: list[LiveNode] = field(default_factory=list)
    changed: list[LiveNode] = field(default_factory=list)
    died_ids: list[int] = field(default_factory=list)
    """Versions that end: the removed nodes and the old versions of changed ones."""
    num_removed: int = 0
    moved: list[LiveNode] = field(default_factory=list)
    """Versions that live on with a new order key."""


class GraphState:
    """The latest snapshot of one graph, by name."""

    def __init__(self, *, order_gap: int = ORDER_GAP) -> None:
        self.nodes: dict[str, LiveNode] = {}
        self._order_gap = order_gap

    def advance(self, records: Sequence[NodeRecord], *, next_id: int) -> GraphDelta:
        """Go to the snapshot ``records``; new versions are numbered from ``next_id``.

        Raises:
            ValueError: two nodes have the same name.
        """
        previous = self.nodes
        added: list[LiveNode] = []
        changed: list[LiveNode] = []
        died_ids: list[int] = []
        current: dict[str, LiveNode] = {}
        old_keys: list[int | None] = []
        for record in records:
            old = previous.get(record.name)
            if old is None:
                node = LiveNode(next_id, 0, record)
                next_id += 1
                added.append(node)
                old_keys.append(None)
            elif old.record is record or old.record == record:
                node = old
                old_keys.append(old.order_key)
            else:
                node = LiveNode(next_id, old.order_key, record)
                next_id += 1
                changed.append(node)
                died_ids.append(old.node_id)
                old_keys.append(old.order_key)
            current[record.name] = node
        if len(current) != len(records):
            raise ValueError("two nodes of a graph have the same name")
        removed_ids = [node.node_id for name, node in previous.items() if name not in current]
        moved = self._assign_keys(list(current.values()), old_keys, {n.node_id for n in changed})
        self.nodes = current
        return GraphDelta(added, changed, died_ids + removed_ids, len(removed_ids), moved)

    def _assign_keys(
        self, nodes: list[LiveNode], old_keys: list[int | None], changed_ids: set[int]
    ) -> list[LiveNode]:
        """Give each node its key; returns the unchanged nodes whose key is another now."""
        new_keys = spread_keys(old_keys, gap=self._order_gap)
        moved: list[LiveNode] = []
        for node, old_key, new_key in zip(nodes, old_keys, new_keys, strict=True):
            if old_key == new_key:
                continue
            node.order_key = new_key
            if old_key is not None and node.node_id not in changed_ids:
                moved.append(node)
        return moved


def spread_keys(old_keys: Sequence[int | None], *, gap: int = ORDER_GAP) -> list[int]:
    """Strictly increasing keys that keep as many of ``old_keys`` as possible.

    ``None`` marks a new node. When a gap is too narrow for the nodes that go into it,
    all keys are numbered afresh.
    """
    keys = _keep_increasing(old_keys)
    start = 0
    while start < len(keys):
        if keys[start] is not None:
            start += 1
            continue
        end = start
        while end < len(keys) and keys[end] is None:
            end += 1
        step, first = _step_between(
            keys[start - 1] if start else None,
            keys[end] if end < len(keys) else None,
            end - start,
            gap,
        )
        if step < 1:
            return [(position + 1) * gap for position in range(len(keys))]
        for offset in range(end - start):
            keys[start + offset] = first + offset * step
        start = end
    return [key for key in keys if key is not None]


def _step_between(low: int | None, high: int | None, count: int, gap: int) -> tuple[int, int]:
    """Step and first key of ``count`` keys between two neighbours; None is "no neighbour"."""
    if low is None:
        low = 0 if high is None else high - (count + 1) * gap
    if high is None:
        return gap, low + gap
    step = (high - low) // (count + 1)
    return step, low + step


def _keep_increasing(old_keys: Sequence[int | None]) -> list[int | None]:
    """``old_keys`` with None wherever a key is not part of a longest increasing run."""
    known = [key for key in old_keys if key is not None]
    if all(a < b for a, b in zip(known, known[1:], strict=False)):
        return list(old_keys)
    kept = _longest_increasing(known)
    return [key if key in kept else None for key in old_keys]


def _longest_increasing(keys: Sequence[int]) -> set[int]:
    """The members of one longest strictly increasing subsequence (keys are distinct)."""
    tails: list[int] = []
    tail_positions: list[int] = []
    before: list[int] = []
    for position, key in enumerate(keys):
        length = bisect_left(tails, key)
        before.append(tail_positions[length - 1] if length else -1)
        if length == len(tails):
            tails.append(key)
            tail_positions.append(position)
        else:
            tails[length] = key
            tail_positions[length] = position
    kept: set[int] = set()
    position = tail_positions[-1] if tail_positions else -1
    while position >= 0:
        kept.add(keys[position])
        position = before[position]
    return kept
