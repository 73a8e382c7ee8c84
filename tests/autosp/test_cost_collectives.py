"""Alpha-beta times against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosp.cost.collectives import Group, LinkRates, collective_ns, link_rates
from autosp.errors import HardwareError
from autosp.events import CollectiveKind
from autosp.hardware import A100_80GB, H100, MI300X

MIB = 2**20
IN_NODE = Group(size=8, ranks_per_node=8)
TWO_NODES = Group(size=16, ranks_per_node=8)
RATES = LinkRates(all_to_all=370e9, ring=360e9, pair=370e9, network=None, latency_ns=0)
NETWORK_RATES = replace(RATES, network=48e9)


@pytest.mark.parametrize(
    ("kind", "payload_bytes", "milliseconds"),
    [
        ("all_to_all", 512 * MIB, 1.2696),  # 512 MiB x 7/8 / 370 GB/s
        ("all_to_all", 128 * MIB, 0.3174),
        ("all_gather", 512 * MIB, 1.3049),  # 512 MiB x 7/8 / 360 GB/s
        ("reduce_scatter", 512 * MIB, 1.3049),
        ("all_reduce", 512 * MIB, 2.6098),  # twice an all-gather
        ("broadcast", 512 * MIB, 1.4913),
        ("send_recv", 512 * MIB, 1.4510),
    ],
)
def test_times_in_one_node(kind: CollectiveKind, payload_bytes: int, milliseconds: float) -> None:
    found = collective_ns(kind, payload_bytes, group=IN_NODE, rates=RATES)
    assert found / 1e6 == pytest.approx(milliseconds, rel=1e-3)


def test_all_to_all_takes_half_of_an_all_reduce_at_the_same_rate() -> None:
    rates = replace(RATES, ring=370e9)
    whole = collective_ns("all_reduce", 512 * MIB, group=IN_NODE, rates=rates)
    half = collective_ns("all_to_all", 512 * MIB, group=IN_NODE, rates=rates)
    assert whole == pytest.approx(2 * half, abs=2)


def test_all_to_all_over_two_nodes_is_bound_by_one_adapter_per_gpu() -> None:
    # 8 of 16 peers are elsewhere: 256 of 512 MiB through 48 GB/s
    found = collective_ns("all_to_all", 512 * MIB, group=TWO_NODES, rates=NETWORK_RATES)
    assert found / 1e6 == pytest.approx(256 * MIB / 48e9 * 1e3, rel=1e-6)


def test_a_ring_over_nodes_uses_all_adapters_of_a_node() -> None:
    # 8 x 48 GB/s = 384 GB/s, so the links inside stay the bottleneck
    found = collective_ns("all_gather", 512 * MIB, group=TWO_NODES, rates=NETWORK_RATES)
    assert found / 1e6 == pytest.approx(512 * MIB * 15 / 16 / 360e9 * 1e3, rel=1e-6)
    # one rank per node: 48 GB/s
    lonely = Group(size=2, ranks_per_node=1)
    found = collective_ns("all_gather", 512 * MIB, group=lonely, rates=NETWORK_RATES)
    assert found / 1e6 == pytest.approx(512 * MIB / 2 / 48e9 * 1e3, rel=1e-6)


def test_latency_is_paid_once_and_nothing_for_a_single_rank() -> None:
    rates = replace(RATES, latency_ns=33_500)
    assert collective_ns("all_reduce", 0, group=IN_NODE, rates=rates) == 33_500
    alone = Group(size=1, ranks_per_node=1)
    assert collective_ns("all_reduce", 512 * MIB, group=alone, rates=rates) == 0


def test_rates_of_devices() -> None:
    assert link_rates(H100, IN_NODE).all_to_all == pytest.approx(370e9)
    assert link_rates(A100_80GB, IN_NODE).all_to_all == pytest.approx(234.9e9)
    assert link_rates(H100, IN_NODE).network is None
    assert link_rates(H100, TWO_NODES).network == pytest.approx(48.5e9)


def test_paired_links_limit_small_groups() -> None:
    # 7 links of 64 GB/s, 48 of them usable: 2 GPUs share one link
    assert link_rates(MI300X, Group(size=2, ranks_per_node=2)).all_to_all == pytest.approx(48e9)
    assert link_rates(MI300X, IN_NODE).all_to_all == pytest.approx(336e9)


def test_a_missing_link_rate_refuses() -> None:
    device = replace(H100, network_fraction=None)
    assert link_rates(device, IN_NODE).network is None
    with pytest.raises(HardwareError, match="network_fraction"):
        link_rates(device, TWO_NODES)
