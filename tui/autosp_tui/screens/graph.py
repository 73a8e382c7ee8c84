"""Graph: the module tree or a flat list, and everything known of one node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.message import Message
from textual.widget import Widget

from autosp_inspector.queries.nodes import NodeOrder, list_nodes
from autosp_inspector.rows import ModuleRow, NodeRow
from autosp_tui.bindings import bindings_of
from autosp_tui.describe import describe_module, describe_node
from autosp_tui.present import (
    Span,
    format_bytes,
    format_tensor,
    operator_words,
    placement_tone,
    plural,
)
from autosp_tui.screens.view import View
from autosp_tui.snapshots import (
    GraphHeader,
    Location,
    NodeDetail,
    NodePage,
    locate,
    read_graph_header,
    read_module,
    read_module_collectives,
    read_module_path,
    read_node_detail,
    read_nodes,
)
from autosp_tui.widgets.columns import Column
from autosp_tui.widgets.detail import Detail
from autosp_tui.widgets.module_tree import ModuleTree
from autosp_tui.widgets.tree_items import ModuleContents, TreeItem
from autosp_tui.widgets.virtual_list import PAGE_ROWS, VirtualList


def _name(row: NodeRow) -> Span:
    collective = row.role == "collective"
    return ("⇄ " if collective else "· ") + row.name, "collective" if collective else "text"


_NODES = (
    Column[NodeRow]("#", lambda row: (str(row.position), "muted"), 5, align="right"),
    Column[NodeRow]("node", _name, 22, grow=3, keep="ends"),
    Column[NodeRow]("module", lambda row: (row.module, "module"), 14, grow=2, keep="end"),
    Column[NodeRow](
        "placement", lambda row: (row.placement or "", placement_tone(row.placement)), 11
    ),
    Column[NodeRow](
        "bytes",
        lambda row: ("" if row.local_bytes is None else format_bytes(row.local_bytes), "text"),
        8,
        align="right",
    ),
    Column[NodeRow](
        "on a rank",
        lambda row: (format_tensor(row.dtype, row.local_shape or row.global_shape), "text"),
        14,
        grow=1,
        from_width=80,
    ),
    Column[NodeRow](
        "operator",
        lambda row: (operator_words(row.op, row.target), "operator"),
        12,
        grow=1,
        from_width=110,
    ),
)


_ORDERS: dict[NodeOrder, str] = {"graph": "in order", "bytes": "by bytes", "time": "by time"}


class GraphView(View):
    """One graph after one pass."""

    NAME: ClassVar[str] = "graph"
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("graph")
    FILTER_HINT: ClassVar[str] = "find nodes by name, operator, module or source line"

    class ShowPass(Message):
        """The changes of a pass are asked for."""

        def __init__(self, pass_index: int) -> None:
            self.pass_index = pass_index
            super().__init__()

    _header = GraphHeader((), ())
    _graph = "program"
    _pass_index: int | None = None
    _flat = False
    _wanted: tuple[str, tuple[str, ...]] | None = None
    _ready = False
    _last_row: TreeItem | NodeRow | None = None
    _order: NodeOrder = "graph"

    def compose_body(self) -> Iterable[Widget]:
        yield ModuleTree(id="tree")
        yield VirtualList(_NODES, empty="no node matches", title="Nodes", id="nodes")
        yield Detail(title="Node", id="detail")

    def on_mount(self) -> None:
        self.query_one("#nodes").display = False

    def main_pane(self) -> Widget:
        return self.query_one("#nodes" if self._listed else "#tree")

    @property
    def _listed(self) -> bool:
        return self._flat or bool(self.filter_text)

    # -- what is shown

    def read(self) -> None:
        self._ready = False
        self._last_row = None
        self.load(read_graph_header, self._show_header)

    def _show_header(self, header: GraphHeader) -> None:
        self._header = header
        self._ready = True
        if header.graphs and self._graph not in header.graphs:
            self._graph = header.graphs[0]
        if self._pass_index is not None and self._pass_index >= len(header.passes):
            self._pass_index = None
        if self._wanted is not None:
            self.show_node(*self._wanted)
        else:
            self._refill()

    def _refill(self) -> None:
        self._show_state()
        self.query_one("#tree").display = not self._listed
        self.query_one("#nodes").display = self._listed
        self._fill_list() if self._listed else self._fill_tree()
        if not self.query_one("#filter").has_focus:
            self.main_pane().focus()

    def _show_state(self, *more: Span) -> None:
        passes = self._header.passes
        if self._pass_index is None or not passes:
            when = "as it ends up"
        else:
            when = f"after pass {self._pass_index} {passes[self._pass_index].name}"
        self.show_status((self._graph, "strong"), (f" graph {when}", "text"), *more)

    def _fill_tree(self) -> None:
        graph, index, kept = self._graph, self._pass_index, self._kept_row()
        inside = "" if kept is None else module_of(kept)
        self.load(
            lambda trace: read_module_path(trace, inside, graph, index),
            lambda path: self._show_path(path, kept),
        )

    def _kept_row(self) -> TreeItem | None:
        """What the cursor stays on when the same graph is shown another way."""
        row = self._last_row
        return TreeItem(0, node=row) if isinstance(row, NodeRow) else row

    def _show_path(self, path: Sequence[ModuleContents], kept: TreeItem | None) -> None:
        tree = self.query_one("#tree", ModuleTree)
        root = path[0]
        tree.show_root(root)
        for contents in path[1:]:
            tree.open_module(contents)
        if not root.modules and not root.nodes:
            self._nothing_here()
        elif kept is not None:
            tree.reveal(kept.key) or tree.reveal(f"module:{module_of(kept)}")
        elif len(root.modules) == 1:
            self._open(ModuleTree.Opened(root.modules[0].path))

    def _nothing_here(self) -> None:
        self.query_one("#tree", ModuleTree).show_message(
            f"the {self._graph} graph does not exist at this point; f shows another graph"
        )
        self.query_one("#detail", Detail).show(())

    def _fill_list(self) -> None:
        graph, index, text = self._graph, self._pass_index, self.filter_text
        order = self._order
        self.load(
            lambda trace: read_nodes(trace, graph, index, text, PAGE_ROWS, order),
            self._show_nodes,
        )

    def _show_nodes(self, page: NodePage) -> None:
        graph, index, text = self._graph, self._pass_index, self.filter_text
        order = self._order

        async def fetch(offset: int, limit: int) -> Sequence[NodeRow]:
            return await self.session.read(
                lambda trace: list_nodes(
                    trace,
                    graph=graph,
                    pass_index=index,
                    text=text,
                    order=order,
                    offset=offset,
                    limit=limit,
                )
            )

        nodes = self.query_one("#nodes", VirtualList)
        kept = self._last_row.node if isinstance(self._last_row, TreeItem) else self._last_row
        in_order = not text and order == "graph"
        cursor = kept.position if isinstance(kept, NodeRow) and in_order else 0
        nodes.show_source(page.count, page.rows, fetch, cursor=cursor)
        self.title_pane(nodes, f"Nodes · {plural(page.count, 'node')} · {_ORDERS[order]}")
        if not page.rows:
            self.query_one("#detail", Detail).show(())

    def apply_filter(self) -> None:
        self._refill()

    # -- the tree

    @on(ModuleTree.Opened)
    def _open(self, event: ModuleTree.Opened) -> None:
        graph, index = self._graph, self._pass_index
        self.load(
            lambda trace: read_module(trace, event.path, graph, index),
            self.query_one("#tree", ModuleTree).open_module,
        )

    # -- one node

    def show_node(self, name: str, graphs: Sequence[str]) -> None:
        """Put the cursor on a node, in the first of ``graphs`` that has it."""
        if not self._ready:
            self._wanted = (name, tuple(graphs))
            return
        self._wanted = None
        self.load(lambda trace: locate(trace, name, graphs), lambda at: self._go_to(name, at))

    def _go_to(self, name: str, location: Location) -> None:
        node = location.node
        if node is None:
            closest = f"; closest: {', '.join(location.similar)}" if location.similar else ""
            self._refill()
            self.notify(f"no recorded graph has a node {name!r}{closest}", markup=False)
            return
        self._graph, self._flat = node.graph, False
        died = node.died_pass
        self._pass_index = None if died is None else died - 1
        if self.filter_text:
            self.query_one("#filter").display = False
            self.filter_text = ""
        graph, index = self._graph, self._pass_index
        self.load(
            lambda trace: read_module_path(trace, node.module, graph, index),
            lambda path: self._reveal(node, path),
        )

    def _reveal(self, node: NodeRow, path: Sequence[ModuleContents]) -> None:
        self._show_state()
        self.query_one("#tree").display = True
        self.query_one("#nodes").display = False
        tree = self.query_one("#tree", ModuleTree)
        self._show_path(path, TreeItem(0, node=node))
        if tree.current is None or tree.current.node is None:
            self._read_detail(node)  # cut from a very large module: shown all the same
        tree.focus()

    @on(VirtualList.Highlighted)
    def _row_changed(self, event: VirtualList.Highlighted) -> None:
        row = event.row
        if isinstance(row, TreeItem | NodeRow):
            self._last_row = row
        if isinstance(row, TreeItem):
            if row.node is not None:
                self._read_detail(row.node)
            elif row.module is not None:
                self._read_module(row.module)
        elif isinstance(row, NodeRow):
            self._read_detail(row)

    def _read_detail(self, node: NodeRow) -> None:
        self.load(lambda trace: read_node_detail(trace, node), self._show_detail, group="detail")

    def _show_detail(self, detail: NodeDetail) -> None:
        pane = self.query_one("#detail", Detail)
        self.title_pane(pane, "Node")
        pane.show(describe_node(detail))

    def _read_module(self, module: ModuleRow) -> None:
        pane = self.query_one("#detail", Detail)
        self.load(
            lambda trace: read_module_collectives(trace, module.path),
            lambda rows: pane.show(describe_module(module, rows)),
            group="detail",
        )
        self.title_pane(pane, "Module")

    @on(VirtualList.Selected)
    def _row_chosen(self) -> None:
        self.query_one("#detail").focus()

    # -- keys

    def action_back(self) -> None:
        if self.query_one("#detail").has_focus:
            self.main_pane().focus()
        else:
            super().action_back()

    def action_toggle_flat(self) -> None:
        self._flat = not self._flat
        self._refill()

    def action_sort(self) -> None:
        """Another order of the flat list; from the tree, the list by bytes."""
        orders = list(_ORDERS)
        place = orders.index(self._order) + 1 if self._listed else 1
        self._order = orders[place % len(orders)]
        self._flat = True
        self._refill()

    def action_next_graph(self) -> None:
        graphs = self._header.graphs
        if graphs:
            self._graph = graphs[(graphs.index(self._graph) + 1) % len(graphs)]
            self._refill()

    def action_step_pass(self, amount: int) -> None:
        last = len(self._header.passes) - 1
        if last < 0:
            return
        index = last if self._pass_index is None else self._pass_index
        self._pass_index = max(0, min(index + amount, last))
        self._refill()

    def action_diff(self) -> None:
        last = len(self._header.passes) - 1
        self.post_message(self.ShowPass(last if self._pass_index is None else self._pass_index))


def module_of(item: TreeItem) -> str:
    """The module that holds a row of the tree."""
    if item.node is not None:
        return item.node.module
    return item.module.path.rpartition(".")[0] if item.module is not None else ""
