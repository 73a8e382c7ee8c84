"""Did sequence parallelism happen, and is anything suspicious: findings of a compilation.

===========================  ========  =================================================
code                         severity  meaning
===========================  ========  =================================================
``attention-not-sharded``    error     an attention lacks the collectives around it
``excess-all-to-alls``       warning   an attention has more all-to-alls than it needs
``uneven-all-to-alls``       warning   equal attentions have unequal numbers of them
``dropped-collective``       error     an inserted collective is not executed
``duplicated-collective``    warning   an inserted collective is executed more often
``recomputed-collective``    warning   collectives run again in the backward (info where
                                       torch.utils.checkpoint asks for it)
``unclassified-collective``  warning   a communication operator that is not understood
``square-tensor``            error     a tensor with two dims of at least the sequence
                                       length, at 16k tokens or more (warning below)
``attention-dropout``        error     attention probabilities in the open, S x S a head
                                       (warning below 16k tokens, info below 1k)
``replicated-sequence``      info      large tensors of the whole sequence are on every
                                       rank (warning where shards were gathered)
``replicated-work``          warning   a share of the FLOPs is computed on every rank
``replicated-saved``         warning   a share of the saved bytes is on every rank
``partial-input-gradient``   warning   an input's gradient is that of a rank's own tokens
``loss-outside``             warning   a loss outside reads the whole output
``gathered-operator``        warning   an operator ran replicated for want of a rule
``nothing-to-train``         error     no parameter needs a gradient: there is no backward
``graph-break``              warning   dynamo ended a piece of the program here (allowed)
``read-between-pieces``      warning   code between pieces gathers a sharded tensor
``unknown-value``            warning   code between pieces reads a number, which a dry run
                                       takes for 0
``does-not-fit``             error     the estimated peak exceeds the device's memory
``close-to-capacity``        warning   the estimated peak is within a fifth of it
===========================  ========  =================================================
"""

from __future__ import annotations

from collections.abc import Iterator

from autosp.checks.attention import check_attention
from autosp.checks.collectives import check_collectives
from autosp.checks.convention import check_convention
from autosp.checks.dropout import check_attention_dropout
from autosp.checks.replicated_work import check_replicated_work
from autosp.checks.subject import Subject
from autosp.checks.whole_tensors import check_square_tensors, check_whole_tensors
from autosp.estimate import StepEstimate
from autosp.events import EstimateSummary, Finding
from autosp.lowering import RankCompilation


def check_compilation(
    compilation: RankCompilation, estimate: StepEstimate | None
) -> Iterator[Finding]:
    """All findings of the checks; those of the passes were recorded as they arose."""
    subject = Subject(compilation, estimate)
    if compilation.context.mesh.sp > 1:
        yield from check_attention(subject)
        yield from check_whole_tensors(subject)
        yield from check_replicated_work(subject)
        yield from check_convention(subject)
    yield from check_attention_dropout(subject)
    yield from check_square_tensors(subject)
    yield from check_collectives(subject)
    if compilation.graphs.backward is None and estimate is not None:
        yield _nothing_to_train()
    if estimate is not None and estimate.summary.fits is False:
        yield _does_not_fit(estimate)
    if estimate is not None and is_close(estimate.summary):
        yield _close_to_capacity(estimate)


def _nothing_to_train() -> Finding:
    return Finding(
        code="nothing-to-train",
        severity="error",
        message="the loss depends on no parameter that needs a gradient: there is no backward",
        hint="Look for torch.no_grad() or requires_grad_(False) around the whole model",
    )


def is_close(summary: EstimateSummary) -> bool:
    """Whether what is not modelled decides if the step fits the device."""
    return summary.capacity_bytes is not None and summary.fits is None


def _close_to_capacity(estimate: StepEstimate) -> Finding:
    summary = estimate.summary
    capacity = summary.capacity_bytes or 1
    return Finding(
        code="close-to-capacity",
        severity="warning",
        message=f"the estimated live peak of {summary.peak_live_bytes / 2**30:.1f} GiB is "
        f"{summary.peak_live_bytes / capacity:.0%} of the device's {capacity / 2**30:.1f} GiB: "
        "whether it fits depends on what is not modelled",
        node=summary.peak_node,
        module=summary.peak_module,
        source=summary.peak_source,
        hint="Make it smaller (--sp, --seq, --zero), or run a step: allocator, context and "
        "communication buffers come on top",
    )


def _does_not_fit(estimate: StepEstimate) -> Finding:
    summary = estimate.summary
    capacity = summary.capacity_bytes or 0
    parts = summary.peak_categories
    states = sum(parts.get(name, 0) for name in ("parameters", "gradients", "optimizer"))
    tokens = summary.peak_live_bytes - states
    return Finding(
        code="does-not-fit",
        severity="error",
        message=f"the estimated live peak of {summary.peak_live_bytes / 2**30:.1f} GiB exceeds "
        f"the device's {capacity / 2**30:.1f} GiB",
        node=summary.peak_node,
        module=summary.peak_module,
        source=summary.peak_source,
        hint=f"{tokens / 2**30:.1f} GiB of it grow with the tokens of a rank (raise --sp, "
        f"shorten --seq); {states / 2**30:.1f} GiB are model states (shard them with --zero "
        "up to 3)",
        cost_bytes=summary.peak_live_bytes - capacity,
    )
