"""The tree of modules of a graph, with totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from autosp_inspector.queries.graph_view import GraphView, graph_view
from autosp_inspector.queries.node_rows import load_nodes
from autosp_inspector.rows import ModuleRow, NodeRow
from autosp_inspector.trace import Trace

_TOTALS = """
WITH totals AS (
    SELECT module_text, placement_text, role_text, count(*) AS num_nodes,
           min(order_key) AS first_key, max(module_class_text) AS class_text
    FROM node
    WHERE graph_id = ?1 AND born_pass <= ?2 AND (died_pass IS NULL OR died_pass > ?2)
    GROUP BY module_text, placement_text, role_text
)
SELECT module.value, class.value, totals.num_nodes, placement.value, role.value
FROM totals
JOIN text AS module ON module.id = totals.module_text
JOIN text AS class ON class.id = totals.class_text
JOIN text AS role ON role.id = totals.role_text
LEFT JOIN text AS placement ON placement.id = totals.placement_text
ORDER BY totals.first_key
"""

_COLLECTIVES = """
SELECT module.value, count(*), sum(collective.bytes)
FROM collective JOIN text AS module ON module.id = collective.module_text
WHERE collective.graph_id = ?1 AND collective.born_pass <= ?2
  AND (collective.died_pass IS NULL OR collective.died_pass > ?2)
GROUP BY collective.module_text
"""


@dataclass(slots=True)
class _Module:
    """Totals of a module and everything below it."""

    module_class: str = ""
    num_nodes: int = 0
    num_collectives: int = 0
    collective_bytes: int = 0
    placements: Counter[str] = field(default_factory=Counter)
    children: dict[str, None] = field(default_factory=dict)
    """Paths of the direct children, in the order of the graph."""


def child_modules(
    trace: Trace, path: str, *, graph: str = "program", pass_index: int | None = None
) -> tuple[ModuleRow, ...]:
    """Direct children of module ``path`` (empty: the root) in the order of the graph."""
    tree = _tree(trace, graph, pass_index)
    parent = tree.get(path)
    return () if parent is None else tuple(_row(child, tree[child]) for child in parent.children)


def module_nodes(
    trace: Trace, path: str, *, graph: str, pass_index: int | None = None
) -> tuple[NodeRow, ...]:
    """The nodes whose module is exactly ``path``, in graph order."""
    view = graph_view(trace, graph, pass_index)
    if view is None:
        return ()
    positions = view.positions
    rows = trace.fetch(
        "SELECT node.id FROM node JOIN text ON text.id = node.module_text"
        " WHERE node.graph_id = ? AND text.value = ?",
        (view.graph_id, path),
    )
    ids = [number for (number,) in rows if number in positions]
    return load_nodes(trace, sorted(ids, key=positions.__getitem__), positions.__getitem__)


def _row(path: str, module: _Module) -> ModuleRow:
    return ModuleRow(
        path=path,
        module_class=module.module_class,
        depth=path.count(".") + 1,
        num_nodes=module.num_nodes,
        num_collectives=module.num_collectives,
        collective_bytes=module.collective_bytes,
        has_children=bool(module.children),
        placements=tuple(name for name, _ in module.placements.most_common()),
    )


def _tree(trace: Trace, graph: str, pass_index: int | None) -> Mapping[str, _Module]:
    view = graph_view(trace, graph, pass_index)
    if view is None:
        return {}
    return trace.cached(
        ("modules", view.graph_id, view.pass_index), lambda: _read_tree(trace, view)
    )


def _read_tree(trace: Trace, view: GraphView) -> dict[str, _Module]:
    tree: dict[str, _Module] = {"": _Module()}
    where = (view.graph_id, view.pass_index)
    for path, module_class, count, placement, role in trace.fetch(_TOTALS, where):
        for module in _chain(tree, path):
            module.num_nodes += count
            if placement is not None and role == "compute":
                module.placements[placement] += count
        tree[path].module_class = tree[path].module_class or module_class
    for path, count, total_bytes in trace.fetch(_COLLECTIVES, where):
        for module in _chain(tree, path):
            module.num_collectives += count
            module.collective_bytes += total_bytes
    return tree


def _chain(tree: dict[str, _Module], path: str) -> list[_Module]:
    """The module ``path`` and all above it, made where they are missing."""
    chain = [tree[""]]
    if not path:
        return chain
    parts = path.split(".")
    parent = ""
    for depth in range(1, len(parts) + 1):
        current = ".".join(parts[:depth])
        if current not in tree:
            tree[current] = _Module()
        tree[parent].children.setdefault(current)
        chain.append(tree[current])
        parent = current
    return chain
