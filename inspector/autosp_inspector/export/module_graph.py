"""What the module-level drawing shows, as plain data: boxes, frames around them, links.

A *box* is a closed module, a few operators of an opened module, one or more like
collectives, or an input or output of the program. A *frame* is an opened module. A *link*
says that values flow from one box to another. Layers that are the same are drawn once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BoxKind = Literal["module", "operators", "collective", "input", "output"]


@dataclass(frozen=True, slots=True)
class CollectiveTotal:
    """Collectives of one kind; ``bytes`` is their sum on one rank."""

    kind: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Box:
    id: str
    """Unique in the drawing, made of letters and digits only."""
    kind: BoxKind
    frame: str
    """Id of the frame it stands in; empty for the whole drawing."""
    title: str
    subtitle: str = ""
    """The class of a module; where a collective leads from and to."""
    placement: str | None = None
    """Of the values that leave the box (the most frequent, if several)."""
    inner_placements: tuple[str, ...] = ()
    """Other placements inside a closed module, most frequent first."""
    dtype: str | None = None
    global_shape: tuple[int, ...] | None = None
    local_shape: tuple[int, ...] | None = None
    collectives: tuple[CollectiveTotal, ...] = ()
    """Inside a closed module, or what a collective box stands for; for one repetition."""
    repeat: int = 1
    """How many times the box occurs, with the repeated layers around it."""
    own_repeat: int = 1
    """How many equal modules the box itself stands for."""
    notes: tuple[str, ...] = ()
    """Short remarks, such as the name of a value used in many places."""
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    id: str
    parent: str
    title: str
    module_class: str
    path: str
    repeat: int
    """How many equal modules are drawn as this one."""
    collectives: tuple[CollectiveTotal, ...]
    """Inside the module, for one repetition."""


@dataclass(frozen=True, slots=True)
class Link:
    source: str
    target: str
    placement: str | None


@dataclass(frozen=True, slots=True)
class ModuleGraph:
    """One drawing. Frames come parents first."""

    phase: str
    title: str
    facts: tuple[str, ...]
    """Short lines under the title: mesh, sequence, batch, dtype."""
    depth: int
    boxes: tuple[Box, ...]
    frames: tuple[Frame, ...]
    links: tuple[Link, ...]
    placements: tuple[str, ...]
    """Every placement in the drawing, for the legend."""
    totals: dict[str, tuple[CollectiveTotal, ...]]
    """Phase -> collectives of the whole step in that phase."""
