"""The tree of modules that a graph's nodes name, and which of them a drawing opens.

Levels are counted as a reader of the model sees them: an indexed container and its index
are one level, so ``layers.0`` is at level 1 and ``layers.0.attention`` at level 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from autosp_inspector.rows import NodeRow

_INDEXED = re.compile(r"^(?P<container>.*?)\.?(?P<index>\d+)$")


@dataclass(slots=True, eq=False)
class Scope:
    """One module with the nodes traced directly in it and the modules inside it."""

    path: str
    label: str
    """The path below the parent: ``attention``, ``layers.0``."""
    level: int
    """0 is the whole model."""
    parent: Scope | None
    module_class: str = ""
    own_nodes: list[NodeRow] = field(default_factory=list)
    children: list[Scope] = field(default_factory=list)
    """In the order of their first nodes."""

    def subtree_nodes(self) -> list[NodeRow]:
        """Every node in this module or below, in graph order."""
        return sorted(self._walk_nodes(), key=lambda node: node.position)

    def _walk_nodes(self) -> Iterable[NodeRow]:
        yield from self.own_nodes
        for child in self.children:
            yield from child._walk_nodes()

    def walk(self) -> Iterable[Scope]:
        """This module and everything below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def container_index(self) -> tuple[str, int] | None:
        """``("layers", 3)`` for ``layers.3``; None for a module with a name."""
        match = _INDEXED.match(self.label)
        if match is None:
            return None
        return match["container"], int(match["index"])


def build_module_tree(nodes: Iterable[NodeRow]) -> Scope:
    """The tree of the modules of ``nodes``, which come in graph order."""
    nodes = tuple(nodes)
    occupied = {node.module for node in nodes}
    root = Scope(path="", label="", level=0, parent=None)
    scopes: dict[str, Scope] = {"": root}
    for node in nodes:
        scope = _scope_of(node.module, scopes=scopes, occupied=occupied)
        scope.module_class = scope.module_class or node.module_class
        scope.own_nodes.append(node)
    return root


def _scope_of(path: str, *, scopes: dict[str, Scope], occupied: set[str]) -> Scope:
    if path in scopes:
        return scopes[path]
    parent_path = path.rpartition(".")[0]
    is_index = path[len(parent_path) :].lstrip(".").isdigit()
    if is_index and parent_path not in occupied:
        # A container of layers runs no code of its own: its index belongs to its name.
        parent_path = parent_path.rpartition(".")[0]
    parent = _scope_of(parent_path, scopes=scopes, occupied=occupied)
    label = path[len(parent_path) :].lstrip(".")
    scope = Scope(path=path, label=label, level=parent.level + 1, parent=parent)
    parent.children.append(scope)
    scopes[path] = scope
    return scope


def matches(path: str, pattern: str) -> bool:
    """Whether a module path matches a glob, which may leave out leading components.

    ``layers.0.*`` matches ``layers.0.attention`` and ``model.layers.0.attention``.
    """
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"*.{pattern}")


def opened_paths(root: Scope, *, depth: int, pattern: str = "") -> frozenset[str]:
    """Modules whose insides are drawn: those above ``depth``, and what ``pattern`` names.

    A module that contains a match is opened too, or the match would stay hidden.
    """
    opened = {scope.path for scope in root.walk() if scope.level < depth}
    if pattern:
        for scope in root.walk():
            if scope.path and matches(scope.path, pattern):
                opened.update(_path_to_root(scope))
    return frozenset(opened)


def matched_paths(root: Scope, pattern: str) -> frozenset[str]:
    """Modules that ``pattern`` names."""
    if not pattern:
        return frozenset()
    return frozenset(s.path for s in root.walk() if s.path and matches(s.path, pattern))


def _path_to_root(scope: Scope) -> Iterable[str]:
    current: Scope | None = scope
    while current is not None:
        yield current.path
        current = current.parent


def deepest_level(root: Scope) -> int:
    """The level of the innermost module."""
    return max(scope.level for scope in root.walk())


def visible_scopes(root: Scope, is_open: Callable[[Scope], bool]) -> Iterable[Scope]:
    """Opened modules and the closed ones directly inside them, outermost first."""
    yield root
    if is_open(root):
        for child in root.children:
            yield from visible_scopes(child, is_open)
