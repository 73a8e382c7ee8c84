"""The options that shape a compilation; every command that takes a model has them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from autosp.attention_choice import ATTENTION_CHOICES, AttentionChoice
from autosp_inspector.cli.number_types import (
    MAX_BATCH,
    MAX_RANKS,
    MAX_SEQUENCE,
    CountType,
    DtypeType,
    GpuType,
)
from autosp_inspector.target.arguments import split_argument
from autosp_inspector.target.loaded import TargetRecipe
from autosp_inspector.target.specification import ModelTarget

DEFAULT_SP = 4
DEFAULT_GPU = "a100-80gb"


@dataclass(frozen=True, slots=True)
class Layout:
    """How to compile a model: the values of the options."""

    sp: int
    dp: int
    zero: int
    seq: int | None
    batch: int
    dtype: str | None
    gpu: str
    gpus_per_node: int | None
    backend: str
    optimizer: str
    partitioner: str
    attention: AttentionChoice
    allow_breaks: bool
    arguments: tuple[tuple[str, str], ...]
    given: tuple[str, ...]
    """The options that were given, as words of a command line."""

    def recipe(self, target: ModelTarget) -> TargetRecipe:
        """How to build ``target`` under these options."""
        return TargetRecipe(
            target, arguments=self.arguments, batch=self.batch, seq=self.seq, dtype=self.dtype
        )

    @property
    def given_text(self) -> str:
        return shlex.join(self.given)


def layout_parameters() -> list[click.Parameter]:
    """Fresh click options, in the order of the help."""
    return [
        click.Option(
            ["--sp"],
            type=CountType(MAX_RANKS),
            default=DEFAULT_SP,
            show_default=True,
            help="Sequence-parallel ranks: they share one batch, each with a part of the tokens.",
        ),
        click.Option(
            ["--dp"],
            type=CountType(MAX_RANKS),
            default=1,
            show_default=True,
            help="Data-parallel groups, each of --sp ranks and with a batch of its own.",
        ),
        click.Option(
            ["--zero"],
            type=click.IntRange(0, 3),
            default=0,
            show_default=True,
            help="ZeRO stage: shard optimizer state (1), gradients (2), parameters (3) over "
            "all ranks.",
        ),
        click.Option(
            ["--seq"],
            type=CountType(MAX_SEQUENCE),
            help="Sequence length in tokens, such as 131072 or 128k.  "
            "[default: 4096, or what the model has positions for]",
        ),
        click.Option(
            ["--batch"],
            type=CountType(MAX_BATCH),
            default=1,
            show_default=True,
            help="Sequences per data-parallel group.",
        ),
        click.Option(
            ["--dtype"],
            type=DtypeType(),
            help="Cast the parameters: bf16, fp16, fp32 or fp64.  [default: as the model has them]",
        ),
        click.Option(
            ["--gpu"],
            type=GpuType(),
            default=DEFAULT_GPU,
            show_default=True,
            help="Device to estimate for; `autosp-inspect hardware` lists them.",
        ),
        click.Option(
            ["--gpus-per-node"],
            type=CountType(MAX_RANKS),
            help="GPUs that share fast links.  [default: as the device is sold]",
        ),
        click.Option(
            ["--backend"],
            type=click.Choice(["eager", "aot_eager", "inductor"]),
            default="eager",
            show_default=True,
            help="Compiler of the two graphs in training; a dry run records it and runs neither.",
        ),
        click.Option(
            ["--optimizer"],
            type=click.Choice(["adamw", "sgd", "none"]),
            default="adamw",
            show_default=True,
            help="Optimizer whose state and step the memory estimate includes.",
        ),
        click.Option(
            ["--partitioner"],
            type=click.Choice(["min-cut", "default"]),
            default="min-cut",
            show_default=True,
            help="How the joint graph is cut: recompute what is cheap and save less, or save all.",
        ),
        click.Option(
            ["--attention"],
            type=click.Choice(ATTENTION_CHOICES),
            default="auto",
            show_default=True,
            help="How attention meets the whole sequence: deal heads out to the ranks (ulysses), "
            "pass keys and values round them (ring), or both (hybrid). auto: ulysses where the "
            "heads allow it, else what sends least.",
        ),
        click.Option(
            ["--allow-breaks"],
            is_flag=True,
            help="Where torch cannot trace the forward, compile each piece instead of stopping. "
            "Memory and time of several pieces are not estimated.",
        ),
        click.Option(
            ["--arg", "arguments"],
            multiple=True,
            metavar="NAME=VALUE",
            help="Keyword argument of the model's factory, or field of a config.json; may be "
            "repeated.",
        ),
    ]


def take_layout(ctx: click.Context) -> Layout:
    """The layout of a command; its parameters are taken out of ``ctx.params``."""
    names = [parameter.name for parameter in layout_parameters()]
    values = {name: ctx.params.pop(name) for name in names if name is not None}
    given = _given_words(ctx, values)
    pairs = tuple(split_argument(text) for text in values.pop("arguments"))
    return Layout(**values, arguments=pairs, given=given)


def _given_words(ctx: click.Context, values: Mapping[str, Any]) -> tuple[str, ...]:
    words: list[str] = []
    for parameter in layout_parameters():
        name = parameter.name
        assert name is not None
        if ctx.get_parameter_source(name) is ParameterSource.DEFAULT:
            continue
        value = values[name]
        if value is True:  # a flag
            words.append(parameter.opts[0])
            continue
        items: Sequence[object] = value if isinstance(value, tuple) else (value,)
        for item in items:
            words += [parameter.opts[0], str(item)]
    return tuple(words)
