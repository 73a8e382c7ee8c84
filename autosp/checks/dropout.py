"""Attention with dropout: its probabilities are in the open, one S x S matrix a head."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from torch.fx import Node

from autosp.checks.subject import Subject, counted, size_text
from autosp.checks.whole_tensors import LONG_SEQUENCE, SHORT_SEQUENCE
from autosp.events import Finding, Severity
from autosp.graph import shape_of, tensor_of


def check_attention_dropout(subject: Subject) -> Iterator[Finding]:
    """One finding for all sites: the probabilities that a rank holds for each."""
    sites = subject.attention_with_dropout
    if not sites:
        return
    num_ranks = subject.compilation.context.mesh.sp
    largest = max(sites, key=_num_bytes)
    length = shape_of(largest)[-2]
    severity: Severity = "error" if length >= LONG_SEQUENCE else "warning"
    held = _num_bytes(largest) // num_ranks
    yield subject.finding(
        largest,
        "attention-dropout",
        severity if length >= SHORT_SEQUENCE else "info",
        f"{counted(len(sites), 'attention site')} with dropout {largest.args[4]} compute their "
        f"probabilities {_probabilities(largest)} in the open: {size_text(held)} on every rank for "
        "each, several times in the step",
        "The fused attention kernels draw random numbers of their own, which would differ from "
        "rank to rank: set the attention dropout to 0",
        cost_bytes=held,
    )


def _num_bytes(site: Node) -> int:
    """Bytes of the probabilities of all heads."""
    tensor = tensor_of(site)
    assert tensor is not None
    return prod(_probabilities(site)) * tensor.element_size()


def _probabilities(site: Node) -> list[int]:
    """Global shape of the probabilities of keyed attention."""
    size = site.kwargs["size"]
    assert isinstance(size, (list, tuple))
    return [int(rows) for rows in size]  # type: ignore[arg-type]
