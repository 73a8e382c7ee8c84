"""Applies folding to a whole tree: which nodes are drawn, and for whom each stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autosp_inspector.export.folding import Repeat, align_members, find_repeats
from autosp_inspector.export.module_tree import Scope
from autosp_inspector.rows import CollectiveRow, NodeRow


@dataclass(frozen=True, slots=True)
class Folds:
    """The repeats of a drawing, by the path of the module that is drawn for them."""

    repeats: Mapping[str, Repeat]
    drawn_for: Mapping[str, str]
    """Node of a folded module -> the drawn node that stands for it."""
    within: Mapping[str, frozenset[str]]
    """Folded or drawn node -> paths of the repeats it belongs to."""

    def resolve(self, name: str) -> str:
        """The drawn node for any node."""
        while name in self.drawn_for:
            name = self.drawn_for[name]
        return name

    def inputs_of(self, node: NodeRow) -> Sequence[str]:
        """Inputs of a drawn node, without those that come from an earlier repetition."""
        own = self.within.get(node.name, frozenset())
        return tuple(
            self.resolve(name)
            for name in node.inputs
            if name not in self.drawn_for or not own & self.within.get(name, frozenset())
        )

    def multiplicity(self, scope: Scope) -> int:
        """How many times a module occurs, with the repeats around it."""
        count = 1
        current: Scope | None = scope
        while current is not None:
            repeat = self.repeats.get(current.path)
            count *= repeat.count if repeat else 1
            current = current.parent
        return count


def fold_layers(
    root: Scope,
    *,
    is_open: Callable[[Scope], bool],
    collectives: Mapping[str, CollectiveRow],
    keep_apart: frozenset[str],
) -> Folds:
    """Find the repeats of every opened module, also inside a layer drawn for others."""
    repeats: dict[str, Repeat] = {}
    drawn_for: dict[str, str] = {}
    within: dict[str, set[str]] = {}

    def visit(scope: Scope) -> None:
        found = find_repeats(scope.children, collectives=collectives, keep_apart=keep_apart)
        folded: set[str] = set()
        for repeat in found:
            repeats[repeat.first.path] = repeat
            drawn_for.update(align_members(repeat))
            folded.update(member.path for member in repeat.members[1:])
            for member in repeat.members:
                for node in member.subtree_nodes():
                    within.setdefault(node.name, set()).add(repeat.first.path)
        for child in scope.children:
            if child.path not in folded and is_open(child):
                visit(child)

    if is_open(root):
        visit(root)
    frozen = {name: frozenset(paths) for name, paths in within.items()}
    return Folds(repeats=repeats, drawn_for=drawn_for, within=frozen)
