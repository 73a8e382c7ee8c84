"""What the first 100 bytes of a file say, before SQLite touches it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autosp_inspector.errors import TraceError
from autosp_inspector.partial_file import explain
from autosp_inspector.schema import APPLICATION_ID, SCHEMA_VERSION

_MAGIC = b"SQLite format 3\x00"
_HEADER_BYTES = 100
"""Offsets below: https://www.sqlite.org/fileformat.html, "The Database Header"."""


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """The header fields that matter here."""

    schema_version: int
    has_log: bool
    """A write-ahead log or rollback journal lies beside it: it is being written, or its
    writer died."""


def read_header(path: Path) -> TraceHeader:
    """Check that ``path`` is a whole trace file.

    Raises:
        TraceError: missing, a folder, empty, not a trace, or shorter than it says.
    """
    try:
        if path.is_dir():
            raise TraceError(f"{path} is a folder, not a trace file")
        if not path.is_file():
            raise TraceError(f"no such trace file: {path}")
        size = path.stat().st_size
        with path.open("rb") as stream:
            header = stream.read(_HEADER_BYTES)
    except (OSError, ValueError) as error:
        raise TraceError(f"cannot read {path}: {explain(error)}") from error
    if size == 0:
        raise TraceError(f"{path} is empty")
    if not header.startswith(_MAGIC) or len(header) < _HEADER_BYTES:
        raise TraceError(f"{path} is not an AutoSP trace (not a SQLite database)")
    if _integer(header, 68) != APPLICATION_ID:
        raise TraceError(f"{path} is a SQLite database, but not an AutoSP trace")
    has_log = any(_is_filled(path, suffix) for suffix in ("-wal", "-journal"))
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    if not has_log and size < page_bytes * _integer(header, 28):
        raise TraceError(f"{path} is damaged: it is cut off after {size} bytes")
    return TraceHeader(_integer(header, 60), has_log)


def check_version(path: Path, version: int) -> None:
    """Refuse a schema that this package cannot read.

    Raises:
        TraceError: newer (needs another package) or older (needs an upgrade).
    """
    if version > SCHEMA_VERSION:
        raise TraceError(
            f"{path} has trace schema {version}; this version reads up to {SCHEMA_VERSION}",
            hint="Upgrade the package: pip install --upgrade autosp-inspector",
        )
    if version < 1:
        raise TraceError(f"{path} is damaged: it has no schema version")
    if version < SCHEMA_VERSION:
        raise TraceError(
            f"{path} has the older trace schema {version}; this version reads {SCHEMA_VERSION}",
            hint=f"Upgrade the file: autosp-inspect upgrade {path}",
        )


def _integer(header: bytes, offset: int) -> int:
    return int.from_bytes(header[offset : offset + 4], "big")


def _is_filled(path: Path, suffix: str) -> bool:
    companion = path.with_name(path.name + suffix)
    return companion.is_file() and companion.stat().st_size > 0
