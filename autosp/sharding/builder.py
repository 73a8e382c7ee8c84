"""Builds the per-rank program: each operator runs on local fake tensors as it is emitted.

Running while building makes every slip visible at once: an operator that is given the
wrong local shapes fails here, and :mod:`autosp.sharding.propagate` compares the result
with what the placement promises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from autosp.events import NodeRole
from autosp.graph import CUSTOM_KEY, TAG_KEY, CollectiveTag, LocalTag, functional, meta_of
from autosp.mesh import Mesh
from autosp.placement import Placement
from autosp.sharding.attention_plan import AttentionPlan
from autosp.sharding.size_nodes import size_node
from autosp.sizes import is_symbolic, key_of


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the user's program as it exists on the ranks."""

    node: Node
    placement: Placement
    shape: tuple[int, ...]
    """Global shape."""

    @property
    def local(self) -> torch.Tensor:
        """The fake tensor one rank holds."""
        tensor: torch.Tensor = self.node.meta["val"]
        return tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.local.dtype


@dataclass(slots=True)
class ProgramBuilder:
    """Appends nodes to the per-rank graph on behalf of one node of the user's program."""

    graph: Graph
    mesh: Mesh
    group_name: str
    padding_fill: str
    attention: AttentionPlan = field(default_factory=lambda: AttentionPlan({}))
    origin: Node | None = None
    _sizes: dict[Any, Node] = field(default_factory=dict)
    """Nodes that compute the sizes which depend on the length."""
    input_sizes: list[Node] = field(default_factory=list)
    """The inputs that give lengths."""
    _suffix: str = ""
    _role: NodeRole = "compute"
    _reason: str = ""

    @property
    def num_ranks(self) -> int:
        return self.mesh.sp

    @property
    def rank(self) -> int:
        return self.mesh.sp_rank

    @contextmanager
    def on_behalf_of(self, origin: Node, suffix: str = "") -> Iterator[None]:
        """Nodes emitted inside belong to ``origin`` and inherit its source and module.

        They have its name too, and ``suffix``.
        """
        before = (self.origin, self._suffix)
        self.origin, self._suffix = origin, suffix
        try:
            yield
        finally:
            self.origin, self._suffix = before

    @contextmanager
    def role(self, role: NodeRole, reason: str = "") -> Iterator[None]:
        """Nodes emitted inside play ``role``, for ``reason``."""
        before = (self._role, self._reason)
        self._role, self._reason = role, reason or self._reason
        try:
            yield
        finally:
            self._role, self._reason = before

    def emit(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Append one operator and run it on the local fakes."""
        given = map_aggregate((args, kwargs), self._size_node)
        node = self.graph.call_function(target, *given, name=self._name())
        fake_args, fake_kwargs = map_aggregate((args, kwargs), _fake_value)
        node.meta["val"] = target(*fake_args, **fake_kwargs)
        self.tag(node)
        return node

    def input_size(self, node: Node) -> None:
        """``node`` is the input that gives a length when the program runs."""
        self._sizes[key_of(node.meta["val"])] = node
        self.input_sizes.append(node)

    def _size_node(self, argument: Any) -> Any:
        """Sizes are computed in the program; numbers stay as they are."""
        if not isinstance(argument, torch.SymInt):
            return argument
        return self._computed_size(argument) if is_symbolic(argument) else int(argument)

    def _computed_size(self, size: torch.SymInt) -> Node:
        key = key_of(size)
        if key not in self._sizes:
            self._sizes[key] = size_node(self.graph, size, self._sizes)
        return self._sizes[key]

    def collective(self, tag: CollectiveTag, target: Any, *args: Any) -> Node:
        """Emit a functional collective on packed data, tagged, and its wait."""
        with self.role("collective"):
            started = self.emit(target, *args)
            self.amend(started, collective=tag)
        with self.role("wait"):
            return self.emit(functional.wait_tensor.default, started)

    def tag(self, node: Node, **changes: Any) -> None:
        """Attach what is known of a node: its origin's source and module, role, reason."""
        assert self.origin is not None
        node.meta.update(meta_of(self.origin))
        tag = LocalTag(origin=self.origin.name, role=self._role, reason=self._reason)
        node.meta[TAG_KEY] = replace(tag, **changes) if changes else tag
        node.meta["custom"] = {CUSTOM_KEY: node.name}

    def amend(self, node: Node, **changes: Any) -> None:
        """Change fields of a node's tag."""
        node.meta[TAG_KEY] = replace(node.meta[TAG_KEY], **changes)

    def _name(self) -> str | None:
        if self._role in ("compute", "loss") and self.origin is not None:
            return self.origin.name + self._suffix
        return None


def _fake_value(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, Node) else argument
