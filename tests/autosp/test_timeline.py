"""Streams in program order: what is hidden, what is exposed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autosp.cost.timeline import Timeline, Work, simulate


def _compute(duration_ns: int, node: str = "matmul") -> Work:
    return Work("compute", node, node, "forward", duration_ns=duration_ns)


def _start(node: str, duration_ns: int, axis: str = "sp") -> Work:
    return Work(
        "start", node, "all_to_all", "forward", stream=f"comm:{axis}", duration_ns=duration_ns
    )


def _wait(node: str) -> Work:
    return Work("wait", f"wait_{node}", "wait", "forward", waits_for=node)


def _exposed(timeline: Timeline) -> dict[str, int | None]:
    return {event.node: event.exposed_ns for event in timeline.events if event.stream != "compute"}


def test_a_wait_right_after_the_start_exposes_everything() -> None:
    timeline = simulate([_compute(5), _start("a", 10), _wait("a"), _compute(5)])
    assert timeline.step_ns == 20
    assert (timeline.exposed_ns, timeline.hidden_ns) == (10, 0)
    assert [(event.start_ns, event.duration_ns) for event in timeline.events] == [
        (0, 5), (5, 10), (15, 5),
    ]  # fmt: skip


def test_compute_between_start_and_wait_hides() -> None:
    timeline = simulate([_start("a", 10), _compute(4), _wait("a")])
    assert (timeline.step_ns, timeline.exposed_ns, timeline.hidden_ns) == (10, 6, 4)
    timeline = simulate([_start("a", 10), _compute(25), _wait("a")])
    assert (timeline.step_ns, timeline.exposed_ns, timeline.hidden_ns) == (25, 0, 10)


def test_collectives_of_one_axis_queue_and_share_the_exposure() -> None:
    timeline = simulate([_start("a", 10), _start("b", 10), _compute(4), _wait("b")])
    assert timeline.step_ns == 20
    assert _exposed(timeline) == {"a": 6, "b": 10}


def test_collectives_of_two_axes_run_at_once() -> None:
    program = [_start("a", 10), _start("b", 10, axis="dp"), _wait("a"), _wait("b")]
    timeline = simulate(program)
    assert timeline.step_ns == 10
    assert _exposed(timeline) == {"a": 10, "b": 0}


def test_a_collective_that_nobody_waits_for_ends_with_the_step() -> None:
    timeline = simulate([_compute(3), _start("a", 10), _compute(2)])
    assert (timeline.step_ns, timeline.exposed_ns) == (13, 8)


def test_work_without_duration_leaves_no_bar() -> None:
    assert simulate([_compute(0, "view"), _compute(2)]).events[0].node == "matmul"


def test_forward_and_backward_collectives_of_one_name_are_two() -> None:
    backward = Work("start", "a", "all_to_all", "backward", stream="comm:sp", duration_ns=7)
    wait = Work("wait", "w", "wait", "backward", waits_for="a")
    timeline = simulate([_start("a", 10), _wait("a"), backward, wait])
    assert (timeline.step_ns, timeline.communication_ns) == (17, 17)


_PROGRAMS = st.lists(
    st.one_of(
        st.integers(0, 20).map(_compute),
        st.tuples(st.sampled_from("abcd"), st.integers(0, 20), st.sampled_from(["sp", "dp"])).map(
            lambda item: _start(*item)
        ),
        st.sampled_from("abcd").map(_wait),
    ),
    max_size=30,
)


@given(_PROGRAMS)
def test_totals_always_add_up(program: list[Work]) -> None:
    timeline = simulate(program)
    assert timeline.compute_ns + timeline.exposed_ns == timeline.step_ns
    assert timeline.exposed_ns + timeline.hidden_ns == timeline.communication_ns
    for event in timeline.events:
        assert event.exposed_ns is None or 0 <= event.exposed_ns <= event.duration_ns
