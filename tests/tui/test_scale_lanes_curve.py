"""The arithmetic of the timeline and of the memory curve."""

from __future__ import annotations

from autosp_inspector.rows import MemoryRow, TimelineRow
from autosp_tui.widgets.curve import buckets_of, column_cells
from autosp_tui.widgets.lanes import (
    EXPOSED_FILL,
    HIDDEN_FILL,
    IDLE_FILL,
    PARTLY_EXPOSED_FILL,
    column_fill,
    lanes_of,
)
from autosp_tui.widgets.scale import Window


def _event(
    index: int, stream: str, start_ns: int, duration_ns: int, exposed_ns: int | None = None
) -> TimelineRow:
    return TimelineRow(
        index=index,
        stream=stream,
        phase="forward",
        node=f"n{index}",
        label=f"n{index}",
        start_ns=start_ns,
        duration_ns=duration_ns,
        exposed_ns=exposed_ns,
        module="",
    )


def _point(index: int, live_bytes: int) -> MemoryRow:
    return MemoryRow(index, "forward", f"n{index}", "", live_bytes, {"saved": live_bytes})


def test_zooming_keeps_the_centre_in_place_and_stays_inside() -> None:
    whole = Window.whole(1000, 100)
    close = whole.zoomed(1, 250)
    assert (close.start, close.end) == (125, 625)
    assert close.column_of(250) == whole.column_of(250)
    assert close.zoomed(-1, 250) == whole
    assert whole.zoomed(-1, 500) == whole


def test_panning_stops_at_the_ends() -> None:
    window = Window.whole(1000, 100).zoomed(1, 0)
    assert window.panned(-1).start == 0
    assert window.panned(1).panned(1).panned(1).end == 1000


def test_computation_is_the_first_lane() -> None:
    lanes = lanes_of([_event(0, "comm:sp", 0, 5, 0), _event(1, "compute", 0, 5)])
    assert [lane.stream for lane in lanes] == ["compute", "comm:sp"]


def test_exposed_communication_is_never_covered_by_hidden_communication() -> None:
    (lane,) = lanes_of([_event(0, "comm:sp", 0, 90, 0), _event(1, "comm:sp", 90, 10, 5)])
    (fill, _), event = column_fill(lane, Window.whole(1000, 10), 0)
    assert fill == PARTLY_EXPOSED_FILL
    assert event == 1


def test_the_exposed_part_is_the_end_of_its_bar() -> None:
    (lane,) = lanes_of([_event(0, "comm:sp", 0, 80, 40)])
    fills = [column_fill(lane, Window.whole(100, 10), column)[0][0] for column in range(10)]
    assert fills == [HIDDEN_FILL] * 4 + [EXPOSED_FILL] * 4 + [IDLE_FILL] * 2


def test_the_peak_survives_when_points_share_a_column() -> None:
    rows = [_point(index, 100) for index in range(1000)]
    rows[617] = _point(617, 900)
    buckets = buckets_of(rows, 40)
    assert len(buckets) == 40
    assert max(bucket.highest.live_bytes for bucket in buckets) == 900


def test_a_column_stacks_categories_from_the_bottom() -> None:
    cells = column_cells({"parameters": 50, "saved": 25}, ("parameters", "saved"), 4, 100)
    assert [text for text, _ in cells] == ["█", "█", "░", " "]
    assert [tone for _, tone in cells][:3] == [
        "category_parameters",
        "category_parameters",
        "category_saved",
    ]
