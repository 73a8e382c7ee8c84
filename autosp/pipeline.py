"""Passes and the pipeline that runs, checks, times and reports them.

A pass is a frozen dataclass: ``name`` is data, options are fields, so that the command
line, the trace and the tests speak of it in the same words. The pipeline has one hole
for observers (the recorder) and knows none of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, Protocol

from torch.fx import GraphModule

from autosp.attention_choice import AttentionChoice
from autosp.dynamic_sizes import DynamicSizes
from autosp.events import (
    Alternative,
    Decision,
    DecisionStatus,
    Finding,
    GraphSnapshot,
    PassFinished,
    PassStarted,
    Recorder,
    SilentRecorder,
)
from autosp.mesh import Mesh

Progress = Callable[[str], None]


@dataclass(slots=True)
class PassContext:
    """What a pass may use: the mesh, options of the compilation, and ways to report.

    One context serves one compilation; pass indices go on counting over compilations.
    """

    mesh: Mesh
    recorder: Recorder = field(default_factory=SilentRecorder)
    group_name: str = "autosp-dry-run"
    padding_fill: str = "last"
    """Which valid row fills padding rows: ``last`` or ``first``. Results never depend on
    it, which the oracle checks by running both."""
    attention: AttentionChoice = "auto"
    """Ulysses, a ring, or what suits each attention: see the attention plan."""
    allow_breaks: bool = False
    """Each piece of a program that dynamo broke is compiled as a program of its own."""
    in_pieces: bool = False
    """Whether dynamo did break it: what enters and leaves a piece goes to other pieces."""
    sizes: DynamicSizes = field(default_factory=DynamicSizes)
    """What stays dynamic in the program that is compiled."""
    progress: Progress | None = None
    compilation: int = 0
    next_pass_index: int = 0
    current_pass: int = -1
    findings: list[Finding] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    @property
    def wants_graphs(self) -> bool:
        return bool(getattr(self.recorder, "wants_graphs", True))

    def decide(
        self,
        status: DecisionStatus,
        topic: str,
        node: str,
        chosen: str,
        reason: str,
        *,
        rule: str = "",
        alternatives: tuple[Alternative, ...] = (),
        figures: Mapping[str, Any] | None = None,
    ) -> None:
        """Record a choice at the place where it is made."""
        decision = Decision(
            self.current_pass, status, topic, node, chosen, reason, rule, alternatives, figures
        )
        self.decisions.append(decision)
        self.recorder.record(decision)

    def find(self, finding: Finding) -> None:
        """Record something the user should know."""
        self.findings.append(finding)
        self.recorder.record(finding)

    @contextmanager
    def running(self, name: str, description: str, options: dict[str, Any]) -> Iterator[int]:
        """Frame a pass: started, timed, finished (also when it raises)."""
        index = self.current_pass = self.next_pass_index
        self.next_pass_index += 1
        if self.progress is not None:
            self.progress(name)
        self.recorder.record(PassStarted(index, name, description, options, self.compilation))
        started = time.perf_counter_ns()
        try:
            yield index
        except Exception as error:
            elapsed = time.perf_counter_ns() - started
            self.recorder.record(PassFinished(index, elapsed, "failed", str(error)))
            raise
        self.recorder.record(PassFinished(index, time.perf_counter_ns() - started))

    def snapshot(self, build: Callable[[], GraphSnapshot]) -> None:
        """Hand the state of a graph to the recorder, if it wants any."""
        if self.wants_graphs:
            self.recorder.record(build())


class Pass(Protocol):
    """A rewrite of the user's program; returns the program after it."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    def run(self, program: GraphModule, context: PassContext) -> GraphModule: ...


def pass_options(item: object) -> dict[str, Any]:
    """The options of a pass: its dataclass fields but for name and description."""
    assert is_dataclass(item) and not isinstance(item, type)
    hidden = ("name", "description")
    return {
        option.name: getattr(item, option.name)
        for option in fields(item)
        if option.name not in hidden
    }


Snapshotter = Callable[[GraphModule, PassContext], GraphSnapshot]
Verifier = Callable[[GraphModule, str], None]


def run_passes(
    program: GraphModule,
    passes: Iterable[Pass],
    context: PassContext,
    *,
    snapshot: Snapshotter,
    verify: Verifier,
) -> GraphModule:
    """Run ``passes`` in order; after each, verify the program and record it."""
    for item in passes:
        with context.running(item.name, item.description, pass_options(item)):
            program = item.run(program, context)
            verify(program, item.name)
            context.snapshot(partial(snapshot, program, context))
    return program
