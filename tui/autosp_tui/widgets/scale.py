"""Mapping a stretch of time, or of indices, to columns of the screen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """The part of ``[0, total]`` that is shown in ``columns`` cells."""

    start: float
    end: float
    total: float
    columns: int

    @classmethod
    def whole(cls, total: float, columns: int) -> Window:
        """All of it."""
        return cls(0.0, max(total, 1.0), max(total, 1.0), max(columns, 1))

    @property
    def span(self) -> float:
        return self.end - self.start

    def column_of(self, value: float) -> int:
        """The column a value falls in; outside the window, less than 0 or too large."""
        return int((value - self.start) / self.span * self.columns // 1)

    def bounds_of(self, column: int) -> tuple[float, float]:
        """The values at the left and right edge of a column."""
        width = self.span / self.columns
        return self.start + column * width, self.start + (column + 1) * width

    def resized(self, columns: int) -> Window:
        """The same stretch in another number of columns."""
        return Window(self.start, self.end, self.total, max(columns, 1))

    def zoomed(self, direction: int, centre: float) -> Window:
        """Half (or twice) the stretch, with ``centre`` staying where it is."""
        factor = 0.5 if direction > 0 else 2.0
        smallest = min(self.total, float(self.columns))
        span = min(self.total, max(smallest, self.span * factor))
        ratio = (centre - self.start) / self.span if self.start <= centre <= self.end else 0.5
        return self._placed(centre - span * ratio, span)

    def panned(self, direction: int) -> Window:
        """Half a window earlier or later."""
        return self._placed(self.start + direction * self.span / 2, self.span)

    def showing(self, start: float, end: float) -> Window:
        """Moved, if need be, so that the stretch ``start..end`` is in view."""
        if start >= self.start and end <= self.end:
            return self
        middle = start if end - start > self.span else (start + end) / 2
        return self._placed(middle - self.span / 2, self.span)

    def _placed(self, start: float, span: float) -> Window:
        start = max(0.0, min(start, self.total - span))
        return Window(start, start + span, self.total, self.columns)
