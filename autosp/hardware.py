"""Devices as plain data: every figure with where it comes from. Standard library only.

A figure that nobody has published is ``None``. An estimate that needs it raises
:class:`HardwareError` and names it; it never counts as zero. A figure taken over from
another device says so (``kind`` is ``assumed``).

Sources that several rows share:

* ml-engineering: https://github.com/stas00/ml-engineering, snapshot of 2026-08 (best
  measured matrix product, "MAMF"; collective benchmarks)
* Azure: https://github.com/Azure/AI-benchmarking-guide, ``Azure_Results/ND_*_results.md``
* FlashAttention-2: https://github.com/Dao-AILab/flash-attention, benchmark figures
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

from autosp.errors import HardwareError

GIB = 2**30

FigureKind = Literal["data sheet", "measured", "assumed", "option"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and where it comes from."""

    value: float
    kind: FigureKind
    source: str


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator and the node it sits in.

    Fractions are of the peak beside them. Link rates are per GPU and direction. With
    ``peer_bytes_per_s`` the GPUs of a node are wired in pairs, so that a small group
    cannot use all links; None means a switch.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    peak_flops: Mapping[str, Figure]
    """Dense FLOP/s by torch dtype name; ``tfloat32`` where matrix units have it."""
    matmul_fraction: Figure | None
    attention_fraction: Figure | None
    memory_bytes_per_s: Figure | None
    memory_fraction: Figure | None
    capacity_bytes: Figure | None
    link_bytes_per_s: Figure | None
    peer_bytes_per_s: Figure | None
    all_to_all_fraction: Figure | None
    ring_fraction: Figure | None
    network_bytes_per_s: Figure | None
    """To other nodes, per GPU: one network adapter each."""
    network_fraction: Figure | None
    collective_latency_ns: Figure | None
    launch_ns: Figure | None
    gpus_per_node: Figure | None

    def require(self, constant: str) -> float:
        """The value of a figure.

        Raises:
            HardwareError: the row does not have it.
        """
        figure: Figure | None = getattr(self, constant)
        if figure is None:
            raise HardwareError(
                f"{self.name} has no figure for {constant}, which this estimate needs",
                hint="Leave out --gpu for memory alone, or choose another device",
            )
        return figure.value

    def peak(self, dtype: str) -> float:
        """Dense peak FLOP/s for a torch dtype name such as ``bfloat16``.

        Raises:
            HardwareError: the row has no figure for this type.
        """
        if dtype not in self.peak_flops:
            known = ", ".join(self.peak_flops)
            raise HardwareError(
                f"{self.name} has no peak_flops for {dtype}", hint=f"It has {known}"
            )
        return self.peak_flops[dtype].value

    def with_gpus_per_node(self, count: int) -> Device:
        """The same device in nodes of another size.

        Raises:
            HardwareError: a count below 1.
        """
        if count < 1:
            raise HardwareError(f"--gpus-per-node is {count}; a node has at least 1 GPU")
        return replace(self, gpus_per_node=Figure(count, "option", "--gpus-per-node"))

    def as_dict(self) -> dict[str, object]:
        """JSON-able: every figure with its kind and source."""
        return asdict(self)

    def assumed(self) -> tuple[str, ...]:
        """Names of the figures that are neither published nor measured for this device."""
        return tuple(
            name
            for name, value in asdict(self).items()
            if isinstance(value, dict) and value.get("kind") == "assumed"
        )


def find_device(name: str) -> Device:
    """The device of that name or alias, whatever its case.

    Raises:
        HardwareError: unknown name; the closest ones and all of them are listed.
    """
    wanted = _plain(name)
    by_name = {_plain(key): item for item in DEVICES for key in (item.name, *item.aliases)}
    if wanted in by_name:
        return by_name[wanted]
    closest = difflib.get_close_matches(wanted, by_name, n=3, cutoff=0.5)
    suggestions = list(dict.fromkeys(by_name[key].name for key in closest))
    all_names = ", ".join(item.name for item in DEVICES)
    hint = f"Did you mean {' or '.join(suggestions)}? " if suggestions else ""
    raise HardwareError(f"unknown GPU {name!r}", hint=f"{hint}Known: {all_names}")


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def _sheet(value: float, source: str) -> Figure:
    return Figure(value, "data sheet", source)


def _measured(value: float, source: str) -> Figure:
    return Figure(value, "measured", source)


def _assumed(value: float, source: str) -> Figure:
    return Figure(value, "assumed", source)


_A100_SHEET = "NVIDIA A100 80GB SXM data sheet"
_H100_SHEET = "NVIDIA H100 SXM data sheet"
_MI300X_SHEET = "AMD Instinct MI300X data sheet"
_AZURE_A100 = "Azure ND A100 v4 results (NCCL 2.18.5, PyTorch 2.4.1)"
_AZURE_H100 = "Azure ND H100 v5 results (NCCL 2.18.5, PyTorch 2.4.0)"
_AZURE_MI300X = "Azure ND MI300X v5 results (RCCL 2.22.3)"
_NULL_KERNEL = (
    "time of a null kernel, about 3 us on recent GPUs: "
    "https://forums.developer.nvidia.com/t/too-much-time-for-kernel-launch-latency/233645"
)

A100_80GB = Device(
    name="a100-80gb",
    title="NVIDIA A100 80GB SXM",
    aliases=("a100", "a100-sxm", "a100-80gb-sxm", "a100-sxm4-80gb"),
    peak_flops={
        "bfloat16": _sheet(312e12, _A100_SHEET),
        "float16": _sheet(312e12, _A100_SHEET),
        "tfloat32": _sheet(156e12, _A100_SHEET),
        "float32": _sheet(19.5e12, f"{_A100_SHEET}; torch's default, without TF32"),
        "float64": _sheet(19.5e12, f"{_A100_SHEET}, tensor cores"),
    },
    matmul_fraction=_measured(
        271.2 / 312, "ml-engineering MAMF, bf16: 271.2 of 312 TFLOP/s; used for every type"
    ),
    attention_fraction=_measured(
        189 / 312, "FlashAttention-2, forward + backward, 16K causal, head 128: 189 TFLOP/s"
    ),
    memory_bytes_per_s=_sheet(2.039e12, _A100_SHEET),
    memory_fraction=_measured(1.70 / 2.039, f"{_AZURE_A100}: BabelStream triad 1.70 TB/s"),
    capacity_bytes=_sheet(80 * GIB, f"{_A100_SHEET}; the driver shows about 1 % less"),
    link_bytes_per_s=_sheet(300e9, f"{_A100_SHEET}: NVLink 3, 600 GB/s in both directions"),
    peer_bytes_per_s=None,
    all_to_all_fraction=_measured(
        234.9 / 300,
        "ml-engineering: all-reduce bus bandwidth 234.9 GB/s on 8 GPUs, taken for all-to-all",
    ),
    ring_fraction=_measured(
        231.58 / 300, f"{_AZURE_A100}: all-reduce bus bandwidth 231.58 GB/s at 8 GB"
    ),
    network_bytes_per_s=_sheet(25e9, "HDR InfiniBand, 200 Gb/s, one adapter per GPU"),
    network_fraction=_measured(
        183 / 200, "NVIDIA/nccl#1138: all-to-all on 2 nodes moves 183 of 200 Gb/s per adapter"
    ),
    collective_latency_ns=_measured(
        41_900, f"{_AZURE_A100}: all-reduce of 32 KB on 8 GPUs at 1.37 GB/s, for every collective"
    ),
    launch_ns=_measured(3_000, _NULL_KERNEL),
    gpus_per_node=_sheet(8, "NVIDIA HGX A100 8-GPU board"),
)

H100 = Device(
    name="h100",
    title="NVIDIA H100 80GB SXM",
    aliases=("h100-sxm", "h100-80gb", "h100-sxm5", "h100-80gb-sxm"),
    peak_flops={
        "bfloat16": _sheet(989.4e12, _H100_SHEET),
        "float16": _sheet(989.4e12, _H100_SHEET),
        "tfloat32": _sheet(494.7e12, _H100_SHEET),
        "float32": _sheet(66.9e12, f"{_H100_SHEET}; torch's default, without TF32"),
        "float64": _sheet(66.9e12, f"{_H100_SHEET}, tensor cores"),
    },
    matmul_fraction=_measured(
        794.5 / 989.4, "ml-engineering MAMF, bf16: 794.5 of 989 TFLOP/s; used for every type"
    ),
    attention_fraction=_measured(
        328 / 989.4, "FlashAttention-2, forward + backward, 16K causal, head 128: 328 TFLOP/s"
    ),
    memory_bytes_per_s=_sheet(3.35e12, _H100_SHEET),
    memory_fraction=_measured(2.97 / 3.35, f"{_AZURE_H100}: BabelStream triad 2.97 TB/s"),
    capacity_bytes=_sheet(80 * GIB, f"{_H100_SHEET}; the driver shows about 1 % less"),
    link_bytes_per_s=_sheet(450e9, f"{_H100_SHEET}: NVLink 4, 900 GB/s in both directions"),
    peer_bytes_per_s=None,
    all_to_all_fraction=_measured(
        370 / 450, "NVIDIA/nccl-tests#212 (maintainer): 370 of 450 GB/s beside all-reduce"
    ),
    ring_fraction=_measured(
        361.4 / 450, "ml-engineering, 8 H200 with the same NVLink 4: all-gather 361.4 GB/s"
    ),
    network_bytes_per_s=_sheet(50e9, "NDR InfiniBand, 400 Gb/s, one adapter per GPU"),
    network_fraction=_measured(
        48.5 / 50, "NVIDIA/nccl-tests#130, #267 (maintainer): 48-49 GB/s per adapter"
    ),
    collective_latency_ns=_measured(
        33_500, f"{_AZURE_H100}: all-reduce of 32 KB on 8 GPUs at 1.71 GB/s, for every collective"
    ),
    launch_ns=_measured(3_000, _NULL_KERNEL),
    gpus_per_node=_sheet(8, "NVIDIA HGX H100 8-GPU board"),
)

MI300X = Device(
    name="mi300x",
    title="AMD Instinct MI300X",
    aliases=("mi300", "amd-mi300x", "instinct-mi300x"),
    peak_flops={
        "bfloat16": _sheet(1307.4e12, _MI300X_SHEET),
        "float16": _sheet(1307.4e12, _MI300X_SHEET),
        "tfloat32": _sheet(653.7e12, _MI300X_SHEET),
        "float32": _sheet(163.4e12, _MI300X_SHEET),
        "float64": _sheet(163.4e12, f"{_MI300X_SHEET}, matrix cores"),
    },
    matmul_fraction=_measured(
        668.4 / 1307.4, "ml-engineering MAMF, bf16: 668.4 TFLOP/s; used for every type"
    ),
    attention_fraction=_measured(
        328.6 / 1307.4, f"{_AZURE_MI300X}: FlashAttention-2, head 64, 8K: 328.6 TFLOP/s"
    ),
    memory_bytes_per_s=_sheet(5.3e12, _MI300X_SHEET),
    memory_fraction=_measured(4.09 / 5.3, f"{_AZURE_MI300X}: BabelStream triad 4.09 TB/s"),
    capacity_bytes=_sheet(192 * GIB, _MI300X_SHEET),
    link_bytes_per_s=_sheet(448e9, f"{_MI300X_SHEET}: 7 Infinity Fabric links of 64 GB/s"),
    peer_bytes_per_s=_sheet(64e9, f"{_MI300X_SHEET}: one link between each two GPUs"),
    all_to_all_fraction=_measured(
        48 / 64,
        "AMD, 2025-03-02: 48 of 64 GB/s usable per link, "
        "https://rocm.blogs.amd.com/software-tools-optimization/mi300x-rccl-xgmi/README.html",
    ),
    ring_fraction=_measured(
        316.82 / 448, f"{_AZURE_MI300X}: all-reduce bus bandwidth 316.82 GB/s at 8 GB"
    ),
    network_bytes_per_s=_sheet(50e9, "NDR InfiniBand or 400 Gb/s Ethernet, one adapter per GPU"),
    network_fraction=_assumed(48.5 / 50, "that of the h100 row: the same class of adapter"),
    collective_latency_ns=_measured(
        50_700,
        f"{_AZURE_MI300X}: all-reduce of 32 KB on 8 GPUs at 1.13 GB/s, for every collective",
    ),
    launch_ns=_assumed(3_000, f"that of the NVIDIA rows ({_NULL_KERNEL})"),
    gpus_per_node=_sheet(8, "AMD Instinct MI300X platform, 8 GPUs"),
)

DEVICES: tuple[Device, ...] = (A100_80GB, H100, MI300X)
