"""The command palette: every command that works now, the theme, and nodes by name."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.dom import DOMNode
from textual.markup import escape
from textual.types import IgnoreReturnCallbackType

from autosp_inspector.queries.nodes import list_nodes
from autosp_tui.bindings import Command, commands_of
from autosp_tui.present import clean
from autosp_tui.screens.view import View
from autosp_tui.snapshots import GRAPH_ORDER

_MAX_NODES = 20
_MIN_SEARCH = 2


class CommandProvider(Provider):
    """The commands of the focused pane, the view and the application."""

    def _commands(self) -> Iterator[tuple[Command, DOMNode]]:
        screen = self.screen
        pane = screen.focused_pane if isinstance(screen, View) else None
        owners: list[tuple[str, DOMNode]] = []
        if pane is not None and isinstance(pane, DOMNode):
            owners += [(scope, pane) for scope in pane.PANE]
        if isinstance(screen, View):
            owners += [(screen.NAME, screen), ("view", screen)]
        for scope, owner in [*owners, ("app", self.app)]:
            for command in commands_of(scope):
                if command.in_palette:
                    yield command, owner

    def _run(self, command: Command, owner: DOMNode) -> IgnoreReturnCallbackType:
        return partial(self.app.run_action, command.action, default_namespace=owner)

    async def discover(self) -> Hits:
        for command, owner in self._commands():
            yield DiscoveryHit(
                Content(f"{command.label}  ({command.shown})"),
                self._run(command, owner),
                help=command.help,
            )

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command, owner in self._commands():
            title = f"{command.label}: {command.help}"
            score = matcher.match(title)
            if score > 0:
                yield Hit(score, matcher.highlight(title), self._run(command, owner), text=title)


class NodeProvider(Provider):
    """Nodes whose name, operator, module or source contains the text."""

    async def search(self, query: str) -> Hits:
        screen = self.screen
        if not isinstance(screen, View) or len(query) < _MIN_SEARCH:
            return
        found = await screen.session.read(
            lambda trace: list_nodes(trace, graph="program", text=query, limit=_MAX_NODES)
        )
        for node in found:
            name = clean(node.name)
            open_node = partial(screen.post_message, View.OpenNode(node.name, GRAPH_ORDER))
            yield Hit(
                0.5, Content(f"node {name}"), open_node, text=name, help=escape(clean(node.module))
            )
