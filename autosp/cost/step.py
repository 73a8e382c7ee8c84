"""The compiled training step that the estimates read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.fx

InputKind = Literal["parameter", "buffer", "input"]


@dataclass(frozen=True)
class CompiledStep:
    """Forward and backward ATen graphs of one rank, after the AOTAutograd partition.

    Every node carries ``meta["val"]`` (fake tensors with *local* shapes). The forward
    placeholders come first to last in the order of ``input_kinds``, ``input_names`` and
    ``trainable``; the forward returns ``num_forward_outputs`` user outputs, then what it
    saves for the backward. The backward takes the saved values in the same order and
    then the cotangents, and returns one gradient (or None) per forward placeholder.
    """

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule | None
    input_kinds: tuple[InputKind, ...]
    input_names: tuple[str, ...]
    trainable: tuple[bool, ...]
    num_forward_outputs: int

    def __post_init__(self) -> None:
        counts = {len(self.input_kinds), len(self.input_names), len(self.trainable)}
        placeholders = len(self.forward.graph.find_nodes(op="placeholder"))
        assert counts == {placeholders}, (
            f"{placeholders} forward placeholders, but {sorted(counts)} descriptions of them"
        )
