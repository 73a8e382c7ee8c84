"""The visible rows of the module tree, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autosp_inspector.rows import ModuleRow, NodeRow

MAX_NODES_PER_MODULE = 500
"""More nodes than this directly in one module are cut; the flat list has them all."""


@dataclass(frozen=True, slots=True)
class TreeItem:
    """One row: a module, a node, or a note that rows were cut."""

    depth: int
    module: ModuleRow | None = None
    node: NodeRow | None = None
    note: str = ""
    expanded: bool = False

    @property
    def key(self) -> str:
        """What identifies the row across reloads."""
        if self.module is not None:
            return f"module:{self.module.path}"
        return f"node:{self.node.name}" if self.node is not None else ""


@dataclass(frozen=True, slots=True)
class ModuleContents:
    """What is directly inside one module."""

    path: str
    modules: tuple[ModuleRow, ...]
    nodes: tuple[NodeRow, ...]


def items_of(contents: ModuleContents, depth: int) -> list[TreeItem]:
    """Rows for the contents of a module: its modules, then its own nodes."""
    items = [TreeItem(depth, module=module) for module in contents.modules]
    items += [TreeItem(depth, node=node) for node in contents.nodes[:MAX_NODES_PER_MODULE]]
    cut = len(contents.nodes) - MAX_NODES_PER_MODULE
    if cut > 0:
        items.append(TreeItem(depth, note=f"{cut:,} more nodes: m shows the flat list"))
    return items


def expand(items: Sequence[TreeItem], index: int, contents: ModuleContents) -> list[TreeItem]:
    """``items`` with the module at ``index`` opened."""
    opened = replace(items[index], expanded=True)
    inside = items_of(contents, opened.depth + 1)
    return [*items[:index], opened, *inside, *items[index + 1 :]]


def collapse(items: Sequence[TreeItem], index: int) -> list[TreeItem]:
    """``items`` with the module at ``index`` shut."""
    end = end_of(items, index)
    return [*items[:index], replace(items[index], expanded=False), *items[end:]]


def end_of(items: Sequence[TreeItem], index: int) -> int:
    """The first row after ``index`` that is not inside it."""
    depth = items[index].depth
    end = index + 1
    while end < len(items) and items[end].depth > depth:
        end += 1
    return end


def parent_of(items: Sequence[TreeItem], index: int) -> int:
    """The row of the module that holds the row at ``index``; itself at the top."""
    depth = items[index].depth
    for position in range(index - 1, -1, -1):
        if items[position].depth < depth:
            return position
    return index


def find_key(items: Sequence[TreeItem], key: str) -> int | None:
    """The position of a row, if it is visible."""
    for position, item in enumerate(items):
        if item.key == key:
            return position
    return None
