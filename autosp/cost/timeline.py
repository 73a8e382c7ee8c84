"""Streams of one rank in program order. Plain records in, plain records out.

Compute runs in order on one stream. A collective is issued when the program reaches its
start and runs on the stream of its mesh axis, after what was issued there before. A wait
stops compute until the collective is done. The time compute stands still is *exposed* and
belongs to the collectives that run meanwhile on the stream it waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from autosp.events import Phase, TimelineEvent

COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class Work:
    """One step of the program.

    ``start`` puts a collective on ``stream``; ``wait`` blocks compute on the collective
    whose node is ``waits_for``; ``compute`` occupies the compute stream.
    """

    kind: Literal["compute", "start", "wait"]
    node: str
    label: str
    phase: Phase
    module: str = ""
    stream: str = COMPUTE
    duration_ns: int = 0
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Bars in the order of their start, and totals.

    ``exposed_ns + hidden_ns`` is ``communication_ns``; ``compute_ns + exposed_ns`` is
    ``step_ns``.
    """

    events: tuple[TimelineEvent, ...]
    step_ns: int
    compute_ns: int
    communication_ns: int
    exposed_ns: int
    hidden_ns: int


@dataclass(slots=True)
class _Bar:
    work: Work
    start_ns: int
    end_ns: int
    exposed_ns: int = 0


@dataclass(slots=True)
class _Streams:
    now_ns: int = 0
    bars: list[_Bar] = field(default_factory=list)
    free_ns: dict[str, int] = field(default_factory=dict)
    started: dict[tuple[Phase, str], _Bar] = field(default_factory=dict)
    by_stream: dict[str, list[_Bar]] = field(default_factory=dict)

    def compute(self, work: Work) -> None:
        end = self.now_ns + work.duration_ns
        if work.duration_ns:
            self.bars.append(_Bar(work, self.now_ns, end))
        self.now_ns = end

    def start(self, work: Work) -> None:
        begin = max(self.now_ns, self.free_ns.get(work.stream, 0))
        bar = _Bar(work, begin, begin + work.duration_ns)
        self.free_ns[work.stream] = bar.end_ns
        self.bars.append(bar)
        self.by_stream.setdefault(work.stream, []).append(bar)
        self.started[work.phase, work.node] = bar

    def wait(self, bar: _Bar) -> None:
        """Stand still until ``bar`` is done."""
        for running in reversed(self.by_stream[bar.work.stream]):
            if running.end_ns <= self.now_ns:
                break
            begin, end = max(running.start_ns, self.now_ns), min(running.end_ns, bar.end_ns)
            running.exposed_ns += max(0, end - begin)
        self.now_ns = max(self.now_ns, bar.end_ns)


def simulate(program: Iterable[Work]) -> Timeline:
    """Run the program on its streams. Collectives nobody waits for end with the step."""
    streams = _Streams()
    for work in program:
        if work.kind == "compute":
            streams.compute(work)
        elif work.kind == "start":
            streams.start(work)
        else:
            bar = streams.started.get((work.phase, work.waits_for))
            if bar is not None:
                streams.wait(bar)
    for bars in streams.by_stream.values():
        streams.wait(bars[-1])
    return _timeline(streams.bars, streams.now_ns)


def _timeline(bars: Sequence[_Bar], step_ns: int) -> Timeline:
    ordered = sorted(bars, key=lambda bar: bar.start_ns)
    communication = [bar for bar in bars if bar.work.stream != COMPUTE]
    communication_ns = sum(bar.end_ns - bar.start_ns for bar in communication)
    exposed_ns = sum(bar.exposed_ns for bar in communication)
    return Timeline(
        events=tuple(_event(index, bar) for index, bar in enumerate(ordered)),
        step_ns=step_ns,
        compute_ns=sum(bar.work.duration_ns for bar in bars if bar.work.stream == COMPUTE),
        communication_ns=communication_ns,
        exposed_ns=exposed_ns,
        hidden_ns=communication_ns - exposed_ns,
    )


def _event(index: int, bar: _Bar) -> TimelineEvent:
    work = bar.work
    return TimelineEvent(
        index=index,
        stream=work.stream,
        phase=work.phase,
        node=work.node,
        label=work.label,
        start_ns=bar.start_ns,
        duration_ns=work.duration_ns,
        exposed_ns=None if work.stream == COMPUTE else bar.exposed_ns,
        module=work.module,
    )
