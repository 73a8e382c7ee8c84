"""Collectives of the per-rank program against those that torch's derived graphs execute.

Each collective that the compiler inserted must come out of AOTAutograd once, and each of the
joint graph must be in the forward or in the backward. One that is in both is run twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Graph, Node

from autosp.checkpoint_report import SAVING_HINT
from autosp.checks.subject import Subject, counted, size_text
from autosp.events import Finding
from autosp.graph import (
    collective_kind,
    is_unclassified_collective,
    local_origin,
    node_bytes,
    shape_of,
)
from autosp.records import phase_of


def check_collectives(subject: Subject) -> Iterator[Finding]:
    """Lost, doubled, recomputed and unknown collectives."""
    yield from _lost_or_doubled_in_joint(subject)
    yield from _lost_in_partition(subject)
    yield from _recomputed(subject)
    yield from _unclassified(subject)


def collectives_of(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if collective_kind(node) is not None]


def _lost_or_doubled_in_joint(subject: Subject) -> Iterator[Finding]:
    joint = subject.compilation.graphs.joint
    if joint is None:
        return
    copies: dict[str, int] = {}
    for node in collectives_of(joint.graph):
        origin = local_origin(node)
        if origin is not None and phase_of(node, "joint") == "forward":
            copies[origin] = copies.get(origin, 0) + 1
    for node in collectives_of(subject.rank_graph):
        found = copies.get(node.name, 0)
        if found == 0:
            if not _merged_with_an_equal(node, joint.graph):
                yield _lost(subject, node, "the joint graph")
        elif found > 1:
            yield subject.finding(
                node,
                "duplicated-collective",
                "warning",
                f"this {collective_kind(node)} is in the joint graph {found} times",
                "Report it with the model that shows it",
                cost_bytes=(found - 1) * node_bytes(node),
            )


def _merged_with_an_equal(collective: Node, joint: Graph) -> bool:
    """Torch computes equal expressions once: what reads this one may read its equal instead.

    What does not lead to any node of the joint graph was read by nobody.
    """
    derived: dict[str, list[Node]] = {}
    for node in joint.nodes:
        derived.setdefault(local_origin(node) or "", []).append(node)
    frontier, visited = list(collective.users), set(collective.users)
    while frontier:
        reader = frontier.pop()
        twins = [
            twin for twin in derived.get(reader.name, ()) if phase_of(twin, "joint") != "backward"
        ]
        if twins:
            return any(_is_like(collective, found) for found in _nearest_collectives(twins))
        frontier.extend(user for user in reader.users if user not in visited)
        visited.update(reader.users)
    return True


def _nearest_collectives(nodes: list[Node]) -> Iterator[Node]:
    """The collectives that nodes read from, without those behind them."""
    frontier, visited = list(nodes), set(nodes)
    while frontier:
        for source in frontier.pop().all_input_nodes:
            if collective_kind(source) is not None:
                yield source
            elif source not in visited:
                visited.add(source)
                frontier.append(source)


def _is_like(first: Node, second: Node) -> bool:
    return collective_kind(first) == collective_kind(second) and shape_of(first) == shape_of(second)


def _lost_in_partition(subject: Subject) -> Iterator[Finding]:
    """What the backward does not need may go; what an output or a gradient needs may not."""
    graphs = subject.compilation.graphs
    if graphs.joint is None or graphs.backward is None:
        return
    kept = {node.name for _, module in subject.derived() for node in module.graph.nodes}
    for node in collectives_of(graphs.joint.graph):
        if node.name not in kept and node.users:
            yield _lost(subject, node, "the forward and the backward")


def _lost(subject: Subject, node: Node, where: str) -> Finding:
    return subject.finding(
        node,
        "dropped-collective",
        "error",
        f"{collective_kind(node)} {node.name} was inserted by the compiler and is missing in "
        f"{where}: the ranks would disagree",
        "Do not train with this program; report it with the model that shows it",
        cost_bytes=node_bytes(node),
    )


def _recomputed(subject: Subject) -> Iterator[Finding]:
    """Collectives that run in the forward and again in the backward: one finding for all."""
    graphs = subject.compilation.graphs
    if graphs.forward is None or graphs.backward is None:
        return
    forward = {node.name for node in collectives_of(graphs.forward.graph)}
    again = [node for node in collectives_of(graphs.backward.graph) if node.name in forward]
    if not again:
        return
    total = sum(map(node_bytes, again))
    asked_for = bool(subject.compilation.captured.checkpoints)
    yield subject.finding(
        again[0],
        "recomputed-collective",
        "info" if asked_for else "warning",
        f"{counted(len(again), 'collective')} of the forward run again in the backward "
        f"({size_text(total)} sent twice by each rank), because what they bring is not saved",
        SAVING_HINT if asked_for else "Report it with the model that shows it",
        cost_bytes=total,
        cost_ns=subject.duration_ns("backward", again),
    )


def _unclassified(subject: Subject) -> Iterator[Finding]:
    for _, module in subject.derived():
        for node in module.graph.nodes:
            if is_unclassified_collective(node):
                yield subject.finding(
                    node,
                    "unclassified-collective",
                    "warning",
                    f"{node.target} communicates, but the compiler does not know how: it is in no "
                    "count of collectives and has no price",
                    "Report it with the model that uses it",
                    cost_bytes=node_bytes(node),
                )
