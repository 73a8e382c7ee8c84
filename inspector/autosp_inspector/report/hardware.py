"""The devices estimates can be made for: every figure with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autosp_inspector.report.report import Facts, Report, Table, left, right, wrapped

if TYPE_CHECKING:
    from autosp.hardware import Device

_UNITS = (("_bytes_per_s", "B/s"), ("_bytes", "B"), ("_ns", "ns"), ("flops", "FLOP/s"))


def hardware_report(devices: Sequence[Device]) -> Report:
    """One table per device."""
    blocks: list[Facts | Table] = []
    records: list[dict[str, Any]] = []
    for device in devices:
        values = device.as_dict()
        aliases = f"  (also {', '.join(device.aliases)})" if device.aliases else ""
        rows = tuple(
            (name, _number(name, figure["value"]), figure["kind"], figure["source"])
            for name, figure in _figures(values)
        )
        columns = (left("figure"), right("value"), left("kind"), wrapped("source"))
        blocks.append(Table(columns, rows, f"{device.name}: {device.title}{aliases}"))
        records.extend(
            {"device": device.name, "figure": name, **figure} for name, figure in _figures(values)
        )
    data = {"devices": [device.as_dict() for device in devices]}
    return Report(tuple(blocks), data, records)


def _figures(values: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, value in values.items():
        if not isinstance(value, Mapping):
            continue
        if "value" in value:
            yield name, value
        else:
            for key, figure in value.items():
                yield f"{name} {key}", figure


def _number(name: str, value: float) -> str:
    if name.endswith("fraction"):
        return f"{value:.3f}"
    unit = next((unit for ending, unit in _UNITS if ending in name), "")
    return f"{value:,.6g} {unit}".rstrip()
