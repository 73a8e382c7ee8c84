"""What running the compiled program against the single-process model gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autosp_inspector.report.report import Facts, Lines, Report, Table, left, right

SHOWN_GRADIENTS = 8


def verification_report(data: Mapping[str, Any]) -> Report:
    """``data`` has the fields of the JSON output."""
    loss = data["loss"]
    gradients: Sequence[Mapping[str, Any]] = data["gradients"]
    facts = [
        ("verdict", "EQUAL" if data["ok"] else "DIFFERENT"),
        ("ranks", f"{data['ranks']} processes, {data['dtype']}"),
        ("reference", str(data.get("reference", "the model in one process"))),
        ("loss", f"{loss['compiled']!r} compiled, {loss['reference']!r} reference"),
        ("loss error", _compared(loss["rel_error"], data.get("loss_tolerance"))),
        ("gradient error", _compared(data["max_rel_error"], data.get("tolerance"))),
    ]
    if data.get("parameter_error") is not None:
        facts.append(("parameter error", _error(data["parameter_error"])))
    worst = sorted(gradients, key=lambda gradient: -_sortable(gradient["rel_error"]))
    rows = tuple((str(g["name"]), _error(g["rel_error"])) for g in worst[:SHOWN_GRADIENTS])
    blocks: list[Facts | Lines | Table] = [Facts(tuple(facts))]
    if rows:
        columns = (left("parameter"), right("error"))
        blocks.append(Table(columns, rows, f"Largest errors of {len(gradients)} gradients"))
    wrong = data.get("first_wrong")
    if wrong:
        blocks.append(Facts(tuple(_wrong_facts(wrong)), "First wrong node"))
    elif data.get("first_wrong_node"):
        blocks.append(Lines((f"First wrong node: {data['first_wrong_node']}",)))
    if data.get("first_wrong_detail") and not wrong:
        blocks.append(Lines(tuple(str(data["first_wrong_detail"]).splitlines())))
    return Report(tuple(blocks), data, gradients, problems=0 if data["ok"] else 1)


def _wrong_facts(wrong: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The node at which the ranks' parts stop combining to what the model computes."""
    yield "node", f"{wrong['node']}, its {wrong['quantity']}"
    yield "operator", f"{wrong['operator']}, placed {wrong['placement']}"
    if wrong["module"]:
        yield "module", wrong["module"]
    if wrong["source"]:
        yield "source", f"{wrong['source']}  {wrong['source_text']}".rstrip()
    if wrong["detail"]:
        yield "what", wrong["detail"]
    if wrong["expected"]:
        yield "expected", _values(wrong["expected"])
        yield "got", _values(wrong["actual"])
    yield "error", _error(wrong["rel_error"])
    if wrong["padding_fill"]:
        yield "padding rows", f"filled with the {wrong['padding_fill']} valid row"
    yield "next", f"autosp-inspect explain TARGET {wrong['node']}"


def _values(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def _compared(value: float | None, tolerance: float | None) -> str:
    return _error(value) if tolerance is None else f"{_error(value)}, allowed {tolerance:.0e}"


def _error(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2e}"


def _sortable(value: float | None) -> float:
    """An error that is not a number is the worst."""
    return float("inf") if value is None or value != value else value
