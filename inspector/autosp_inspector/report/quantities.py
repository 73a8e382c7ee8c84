"""Numbers, shapes and places as a reader wants them. Unknown is ``-``, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autosp_inspector.rows import Source

UNKNOWN = "-"
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIME_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns"))


def bytes_text(value: int | None) -> str:
    """``1.50 GiB``."""
    if value is None:
        return UNKNOWN
    size = float(value)
    for unit in _BINARY_UNITS[:-1]:
        if abs(size) < 1024:
            return f"{value} B" if unit == "B" else f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} {_BINARY_UNITS[-1]}"


def time_text(value_ns: int | None) -> str:
    """``12.3 ms``."""
    if value_ns is None:
        return UNKNOWN
    for unit_ns, unit in _TIME_UNITS:
        if abs(value_ns) >= unit_ns:
            return f"{value_ns / unit_ns:.4g} {unit}"
    return "0 ns"


def fraction_text(value: float | None) -> str:
    """``98.5 %``."""
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


def share_text(part: int | None, whole: int | None) -> str:
    """``part`` as a share of ``whole``."""
    if part is None or not whole:
        return UNKNOWN
    return fraction_text(part / whole)


def count_text(count: int, singular: str, plural: str = "") -> str:
    """``1 node``, ``3 nodes``, ``12,345 nodes``."""
    word = singular if count == 1 else plural or f"{singular}s"
    return f"{count:,} {word}"


def shape_text(shape: tuple[int, ...] | None, dtype: str | None = None) -> str:
    """``bfloat16[1, 4096, 512]``."""
    if shape is None:
        return UNKNOWN
    return f"{dtype or ''}[{', '.join(map(str, shape))}]"


def source_text(source: Source | None) -> str:
    """``samples/gpt.py:42``; empty if not known."""
    return f"{source.file}:{source.line}" if source is not None else ""


def place_text(source: Source | None) -> str:
    """As :func:`source_text`, for reading.

    A file of an installed package begins with the package, another one below the current
    folder is relative to that.
    """
    if source is None:
        return ""
    path = Path(source.file)
    if "site-packages" in path.parts:
        path = Path(*path.parts[path.parts.index("site-packages") + 1 :])
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}:{source.line}"


def mesh_text(mesh: Mapping[str, int]) -> str:
    """``dp 2 x sp 4``, without axes of one rank unless all are."""
    axes = {name: size for name, size in mesh.items() if size > 1} or dict(mesh)
    return " x ".join(f"{name} {size}" for name, size in axes.items())
