"""Attention sites against the all-to-alls that were inserted for them.

Ulysses needs an all-to-all for the queries, keys and values (one less where keys are the
values, none where they are whole) and one for the output; as many in the backward. A ring
needs none, nor do queries that meet keys which are whole on every rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch.fx import Graph, Node

from autosp.checks.subject import Subject, counted
from autosp.compilation import recomputed_nodes
from autosp.events import Finding, GraphName
from autosp.graph import collective_kind, is_operator, local_tag, node_bytes, shape_of, tensor_of
from autosp.runtime.ring_attention import RING_ATTENTION
from autosp.sharding.attention_plan import SEQUENCE_DIM, is_attention
from autosp.sharding.seeds import attention_sites

FEWEST_PER_SITE = 2
"""Queries to head shards, the output back."""

MOST_PER_SITE = 4
"""Queries, keys, values and output."""


def check_attention(subject: Subject) -> Iterator[Finding]:
    """All-to-alls of every attention: too few, too many, or other than its like has."""
    program = _exchanges(subject, subject.rank_graph)
    own_queries = _with_own_queries(subject)
    sites: list[Node] = []
    for site in attention_sites(subject.user_graph):
        count = len(program.get(site.name, ()))
        if count < FEWEST_PER_SITE and site.name not in own_queries:
            yield _too_few(subject, site, count)
        else:
            sites.append(site)
    for name, module in subject.derived():
        again = _recomputed(subject) if name == "backward" else frozenset()
        exchanges = _exchanges(subject, module.graph, leave_out=again)
        for site in sites:
            yield from _too_many(subject, site, name, exchanges.get(site.name, []))
        yield from _unlike_others(subject, sites, name, exchanges)


def _exchanges(
    subject: Subject, graph: Graph, leave_out: frozenset[str] = frozenset()
) -> dict[str, list[Node]]:
    """User's node -> the all-to-alls inserted for its sake."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if collective_kind(node) != "all_to_all" or node.name in leave_out:
            continue
        tag = subject.tag(node)
        if tag is not None:
            found.setdefault(tag.origin, []).append(node)
    return found


def _with_own_queries(subject: Subject) -> frozenset[str]:
    """Attentions that each rank computes for the queries of its own tokens."""
    found: set[str] = set()
    user_nodes = {node.name: node for node in attention_sites(subject.user_graph)}
    for node in subject.rank_graph.nodes:
        tag = local_tag(node)
        site = user_nodes.get(tag.origin) if tag is not None else None
        if site is None or not (is_operator(node, RING_ATTENTION) or is_attention(node)):
            continue
        held, whole = node.args[0], site.args[0]
        assert isinstance(held, Node) and isinstance(whole, Node)
        if shape_of(held)[SEQUENCE_DIM] < shape_of(whole)[SEQUENCE_DIM]:
            found.add(site.name)
    return frozenset(found)


def _recomputed(subject: Subject) -> frozenset[str]:
    graphs = subject.compilation.graphs
    if graphs.forward is None or graphs.backward is None:
        return frozenset()
    return recomputed_nodes(graphs.forward, graphs.backward)


def _too_few(subject: Subject, site: Node, count: int) -> Finding:
    what = "no all-to-all was" if count == 0 else "only one all-to-all was"
    return subject.finding(
        site,
        "attention-not-sharded",
        "error",
        f"this attention runs whole on every rank: {what} inserted around it",
        "See `autosp-inspect explain` of this node for the placement of its query",
        cost_bytes=node_bytes(site),
    )


def _too_many(
    subject: Subject, site: Node, graph: GraphName, exchanges: list[Node]
) -> Iterator[Finding]:
    extra = exchanges[MOST_PER_SITE:]
    if extra:
        yield subject.finding(
            site,
            "excess-all-to-alls",
            "warning",
            f"{len(exchanges)} all-to-alls in the {graph} of this attention; queries, keys, "
            f"values and output need {MOST_PER_SITE}",
            f"See `autosp-inspect collectives --phase {graph}` for the reason of each",
            cost_bytes=sum(map(node_bytes, extra)),
            cost_ns=subject.duration_ns(graph, extra),
        )


def _unlike_others(
    subject: Subject, sites: list[Node], graph: GraphName, exchanges: dict[str, list[Node]]
) -> Iterator[Finding]:
    """Sites with equal inputs should need equally many."""
    alike: dict[object, list[Node]] = {}
    for site in sites:
        alike.setdefault(_signature(site), []).append(site)
    for group in alike.values():
        counts = {site: len(exchanges.get(site.name, ())) for site in group}
        usual, _ = Counter(counts.values()).most_common(1)[0]
        unlike = [site for site, count in counts.items() if count != usual]
        if not unlike:
            continue
        first = unlike[0]
        yield subject.finding(
            first,
            "uneven-all-to-alls",
            "warning",
            f"{counts[first]} all-to-alls in the {graph} of this attention, {usual} in most of "
            f"{counted(len(group), 'attention')} with the same shapes"
            + (f"; {counted(len(unlike), 'site')} differ" if len(unlike) > 1 else ""),
            "Compare `autosp-inspect explain` of this node with that of another layer",
        )


def _signature(site: Node) -> object:
    """Shapes, types and options of an attention, and which of its inputs are one tensor."""
    sources = site.all_input_nodes
    inputs = [(shape_of(node), str(node.meta["val"].dtype)) for node in sources if tensor_of(node)
              is not None]  # fmt: skip
    pattern = [sources.index(a) if isinstance(a, Node) else repr(a) for a in site.args]
    return repr((inputs, pattern, sorted(map(str, site.kwargs))))
