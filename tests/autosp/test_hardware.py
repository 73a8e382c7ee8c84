"""The device table: lookups, missing constants, sources."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from autosp.errors import HardwareError
from autosp.hardware import A100_80GB, DEVICES, H100, Figure, find_device


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a100-80gb", "a100-80gb"),
        ("A100", "a100-80gb"),
        ("A100_80GB", "a100-80gb"),
        ("H100-SXM", "h100"),
        ("MI300X", "mi300x"),
    ],
)
def test_devices_are_found_by_name_and_alias_in_any_case(name: str, expected: str) -> None:
    assert find_device(name).name == expected


def test_an_unknown_device_lists_the_closest_and_all_names() -> None:
    with pytest.raises(HardwareError) as raised:
        find_device("h1000")
    assert str(raised.value) == (
        "unknown GPU 'h1000'. Did you mean h100? Known: a100-80gb, h100, mi300x"
    )


def test_nothing_similar_lists_all_names_only() -> None:
    with pytest.raises(HardwareError) as raised:
        find_device("zzzz")
    assert str(raised.value) == "unknown GPU 'zzzz'. Known: a100-80gb, h100, mi300x"


def test_a_missing_constant_refuses_and_names_itself() -> None:
    device = replace(A100_80GB, link_bytes_per_s=None)
    with pytest.raises(HardwareError, match="a100-80gb has no figure for link_bytes_per_s"):
        device.require("link_bytes_per_s")


def test_a_type_without_a_peak_refuses_and_lists_the_known_ones() -> None:
    with pytest.raises(HardwareError, match="no peak_flops for int4.*bfloat16, float16"):
        H100.peak("int4")


def test_every_figure_of_every_device_has_a_source_and_a_positive_value() -> None:
    figures = [
        figure
        for device in DEVICES
        for item in fields(device)
        for figure in (
            device.peak_flops.values()
            if item.name == "peak_flops"
            else [getattr(device, item.name)]
        )
        if isinstance(figure, Figure)
    ]
    assert len(figures) > 3 * 15
    assert all(figure.source and figure.value > 0 for figure in figures)


def test_fractions_are_between_zero_and_one() -> None:
    for device in DEVICES:
        for item in fields(device):
            if item.name.endswith("_fraction"):
                assert 0 < device.require(item.name) <= 1, (device.name, item.name)


def test_published_figures() -> None:
    assert A100_80GB.peak("bfloat16") == 312e12
    assert H100.peak("bfloat16") == 989.4e12
    assert find_device("mi300x").require("memory_bytes_per_s") == 5.3e12
    assert H100.require("link_bytes_per_s") * H100.require("all_to_all_fraction") == 370e9


def test_another_node_size_is_marked_as_an_option() -> None:
    device = H100.with_gpus_per_node(4)
    assert device.gpus_per_node == Figure(4, "option", "--gpus-per-node")
    with pytest.raises(HardwareError, match="--gpus-per-node is 0"):
        H100.with_gpus_per_node(0)


def test_a_row_is_json_and_names_what_is_assumed() -> None:
    assert json.loads(json.dumps(H100.as_dict()))["launch_ns"]["kind"] == "measured"
    assert H100.assumed() == ()
    assert find_device("mi300x").assumed() == ("network_fraction", "launch_ns")
