"""The module tree as a table: modules open and shut, nodes are leaves."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message

from autosp_tui.bindings import bindings_of
from autosp_tui.present import Span, format_bytes, operator_words, placement_tone
from autosp_tui.widgets.columns import Column
from autosp_tui.widgets.tree_items import (
    ModuleContents,
    TreeItem,
    collapse,
    expand,
    find_key,
    items_of,
    parent_of,
)
from autosp_tui.widgets.virtual_list import VirtualList


class ModuleTree(VirtualList[TreeItem]):
    """Rows of :class:`TreeItem`; contents arrive when a module is opened."""

    PANE: ClassVar[tuple[str, ...]] = ("tree", "list")
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("tree")

    class Opened(Message):
        """A module is to be opened and its contents are needed."""

        def __init__(self, path: str) -> None:
            self.path = path
            super().__init__()

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(_COLUMNS, empty="no modules", title="Modules", id=id)
        self.items: list[TreeItem] = []

    def show_root(self, contents: ModuleContents) -> None:
        """Start again from the outermost modules."""
        self.items = items_of(contents, 0)
        self.show_rows(self.items)

    def open_module(self, contents: ModuleContents) -> None:
        """Show what is inside a module that is visible and shut."""
        index = find_key(self.items, f"module:{contents.path}")
        if index is None or self.items[index].expanded:
            return
        self.items = expand(self.items, index, contents)
        self.show_rows(self.items, cursor=self.cursor)

    def reveal(self, key: str) -> bool:
        """Put the cursor on a row, if it is visible."""
        index = find_key(self.items, key)
        if index is None:
            return False
        self.cursor = index
        return True

    def action_open(self) -> None:
        item = self.current
        if item is None or item.module is None:
            return
        if item.expanded:
            self.cursor += 1
        else:
            self.post_message(self.Opened(item.module.path))

    def action_shut(self) -> None:
        item = self.current
        if item is None:
            return
        if item.expanded:
            self.items = collapse(self.items, self.cursor)
            self.show_rows(self.items, cursor=self.cursor)
        else:
            self.cursor = parent_of(self.items, self.cursor)

    def action_select(self) -> None:
        item = self.current
        if item is not None and item.module is not None:
            self.action_shut() if item.expanded else self.action_open()
        else:
            super().action_select()

    def copy_text(self) -> str:
        item = self.current
        if item is None:
            return ""
        return item.node.name if item.node else item.module.path if item.module else ""


def _name(item: TreeItem) -> Span:
    indent = "  " * item.depth
    if item.module is not None:
        mark = "▾" if item.expanded else "▸"
        return f"{indent}{mark} {item.module.path.rsplit('.', 1)[-1]}", "module"
    if item.node is not None:
        collective = item.node.role == "collective"
        mark = "⇄" if collective else "·"
        return f"{indent}{mark} {item.node.name}", "collective" if collective else "text"
    return f"{indent}… {item.note}", "muted"


def _what(item: TreeItem) -> Span:
    if item.module is not None:
        return item.module.module_class, "muted"
    node = item.node
    return (operator_words(node.op, node.target) if node else ""), "operator"


def _placement(item: TreeItem) -> Span:
    if item.module is not None:
        first = item.module.placements[0] if item.module.placements else ""
        more = len(item.module.placements) - 1
        return (f"{first} +{more}" if more > 0 else first), placement_tone(first)
    placement = item.node.placement if item.node else None
    return placement or "", placement_tone(placement)


def _collectives(item: TreeItem) -> Span:
    if item.module is None or not item.module.num_collectives:
        return "", "muted"
    return f"{item.module.num_collectives} ⇄", "collective"


def _bytes(item: TreeItem) -> Span:
    if item.module is not None:
        moved = item.module.collective_bytes
        return (format_bytes(moved), "collective") if item.module.num_collectives else ("", "muted")
    if item.node is None or item.node.local_bytes is None:
        return "", "muted"
    return format_bytes(item.node.local_bytes), "text"


_COLUMNS = (
    Column[TreeItem]("module / node", _name, 24, grow=3, keep="ends"),
    Column[TreeItem]("placement", _placement, 13, grow=1),
    Column[TreeItem]("⇄", _collectives, 5, align="right"),
    Column[TreeItem]("bytes", _bytes, 8, align="right"),
    Column[TreeItem]("class / operator", _what, 16, grow=2, from_width=74),
)
