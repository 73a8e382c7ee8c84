"""Time of collectives: alpha-beta, plain numbers in and out.

With ``n`` ranks, ``m`` of them on one node, payload ``B`` bytes (see
``autosp.events.CollectiveRecord.bytes``) and latency ``alpha``::

    all_to_all       alpha + max(B (m-1)/n / link, B (n-m)/n / network)
    all_gather       alpha + B (n-1)/n / ring
    reduce_scatter   alpha + B (n-1)/n / ring
    all_reduce       alpha + 2 B (n-1)/n / ring
    broadcast        alpha + B / ring
    send_recv        alpha + B / (network if n > m else one pair's link)

The bytes are those of nccl-tests, doc/PERFORMANCE.md ("bus bandwidth"). An all-to-all
sends each peer its own ``B/n``: it is not a ring and takes half of an all-reduce. Its part
for other nodes goes through one network adapter per GPU (NVIDIA/nccl-tests#130). A ring
over several nodes is as fast as its slowest hop; it crosses between nodes on as many
adapters as it has ranks there, so ``ring = min(link, m network)``.
"""

from __future__ import annotations

from dataclasses import dataclass

from autosp.events import CollectiveKind
from autosp.hardware import Device

NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of a collective: how many, and how many of them share a node."""

    size: int
    ranks_per_node: int

    @property
    def spans_nodes(self) -> bool:
        return self.ranks_per_node < self.size


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Achieved rates, bytes/s per GPU and direction, and the fixed time per collective.

    ``network`` is only read where the group spans nodes.
    """

    all_to_all: float
    ring: float
    pair: float
    network: float | None
    latency_ns: float


def link_rates(device: Device, group: Group) -> LinkRates:
    """What ``group`` gets out of ``device``'s links.

    Raises:
        HardwareError: the row lacks a constant.
    """
    link = device.require("link_bytes_per_s")
    pair = link
    if device.peer_bytes_per_s is not None:
        pair = device.peer_bytes_per_s.value
        link = min(link, pair * max(1, group.ranks_per_node - 1))
    network = None
    if group.spans_nodes:
        network = device.require("network_bytes_per_s") * device.require("network_fraction")
    all_to_all = device.require("all_to_all_fraction")
    return LinkRates(
        all_to_all=link * all_to_all,
        ring=link * device.require("ring_fraction"),
        pair=pair * all_to_all,
        network=network,
        latency_ns=device.require("collective_latency_ns"),
    )


def collective_ns(
    kind: CollectiveKind, payload_bytes: int, *, group: Group, rates: LinkRates
) -> int:
    """Nanoseconds of one collective; see the module docstring for the formulas."""
    if group.size == 1:
        return 0
    seconds = {
        "all_to_all": _all_to_all,
        "all_gather": _ring,
        "reduce_scatter": _ring,
        "all_reduce": _all_reduce,
        "broadcast": _broadcast,
        "send_recv": _send_recv,
    }[kind](payload_bytes, group, rates)
    return round(rates.latency_ns + seconds * NANOSECONDS)


def _all_to_all(payload: int, group: Group, rates: LinkRates) -> float:
    inside = payload * (group.ranks_per_node - 1) / group.size / rates.all_to_all
    outside = payload * (group.size - group.ranks_per_node) / group.size
    return max(inside, outside / rates.network if rates.network else 0.0)


def _ring_rate(group: Group, rates: LinkRates) -> float:
    if rates.network is None:
        return rates.ring
    return min(rates.ring, rates.network * group.ranks_per_node)


def _ring(payload: int, group: Group, rates: LinkRates) -> float:
    return payload * (group.size - 1) / group.size / _ring_rate(group, rates)


def _all_reduce(payload: int, group: Group, rates: LinkRates) -> float:
    return 2 * _ring(payload, group, rates)


def _broadcast(payload: int, group: Group, rates: LinkRates) -> float:
    return payload / _ring_rate(group, rates)


def _send_recv(payload: int, group: Group, rates: LinkRates) -> float:
    return payload / (rates.network or rates.pair)
