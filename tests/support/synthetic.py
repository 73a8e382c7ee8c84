"""A small, realistic and deterministic trace, made without torch.

A transformer of ``num_layers`` layers is "compiled" for ``sp`` ranks: captured with an
S x S mask, made functional, its mask proved causal, sharded with Ulysses attention,
differentiated, and partitioned; then memory, time and costs are "estimated". The figures
are plausible, not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autosp.events import (
    Alternative,
    Decision,
    Finding,
    GraphName,
    NodeRecord,
    PassFinished,
    PassStarted,
    Recorder,
    RunFinished,
    RunStarted,
)
from autosp_inspector.recorder import TraceRecorder
from tests.support.synthetic_estimates import record_estimates
from tests.support.synthetic_program import (
    BATCH,
    HEADS,
    MODEL_FILE,
    SEQ,
    Program,
    captured_program,
    differentiate,
    functionalise,
    partition,
    prove_causal,
    shard,
    source_of,
)

ULYSSES_FIGURES = {
    "form": "Ulysses",
    "mask": "causal",
    "num_ulysses": 4,
    "num_ring": 1,
    "rank": 0,
    "num_heads": HEADS,
    "num_kv_heads": HEADS,
    "heads_per_rank": HEADS // 4,
    "query_length": SEQ,
    "key_length": SEQ,
    "pairs_of_a_block": SEQ * SEQ,
    "work": [[SEQ * (SEQ + 1) // 2]],
    "tokens": [SEQ],
    "kept_bytes": 4 * SEQ * (HEADS // 4) * 64 * 2,
    "in_flight_bytes": 0,
}


def write_synthetic_trace(
    path: Path, *, num_layers: int = 2, sp: int = 4, rank: int = 0, finished: bool = True
) -> Path:
    """Write the trace to ``path`` and return where it is.

    ``finished=False`` leaves out the end of the run: the file is then the partial one.
    """
    recorder = TraceRecorder(path)
    record_synthetic_run(recorder, num_layers=num_layers, sp=sp, rank=rank, finished=finished)
    return recorder.close()


def record_synthetic_run(
    recorder: Recorder, *, num_layers: int = 2, sp: int = 4, rank: int = 0, finished: bool = True
) -> None:
    """Send the events of the run to ``recorder``; every kind of event occurs."""
    recorder.record(_run_started(num_layers, sp, rank))
    captured = captured_program(num_layers)
    functional = functionalise(captured)
    causal = prove_causal(functional)
    sharded = shard(causal, sp)
    joint = differentiate(sharded)
    forward, backward = partition(joint)
    _record_passes(recorder, captured, functional, causal, sharded, joint, forward, backward)
    record_estimates(recorder, forward, backward, sp)
    if finished:
        recorder.record(RunFinished("ok", 5_250_000_000))


def _run_started(num_layers: int, sp: int, rank: int) -> RunStarted:
    return RunStarted(
        autosp_version="0.1.0",
        torch_version="2.13.0",
        mode="dry_run",
        rank=rank,
        world_size=sp,
        mesh={"dp": 1, "sp": sp},
        model=f"{MODEL_FILE}:build",
        config={
            "seq": SEQ,
            "batch": BATCH,
            "dtype": "bfloat16",
            "zero": 0,
            "optimizer": "adamw",
            "backend": "eager",
            "gpu": "a100-80gb",
            "num_layers": num_layers,
        },
        gradient_convention="mean over the SP group",
        hardware={"name": "a100-80gb", "memory_bytes": 80 * 1024**3, "source": "data sheet"},
    )


def _record_passes(
    recorder: Recorder,
    captured: list[NodeRecord],
    functional: list[NodeRecord],
    causal: list[NodeRecord],
    sharded: Program,
    joint: Program,
    forward: Program,
    backward: Program,
) -> None:
    _record_pass(
        recorder,
        0,
        "capture",
        "model and inputs to the forward graph",
        [("program", Program(captured))],
    )
    _record_pass(
        recorder,
        1,
        "functionalise",
        "in-place operations become functional",
        [("program", Program(functional))],
    )
    _record_pass(
        recorder,
        2,
        "causal-mask",
        "prove masks causal and drop them",
        [("program", Program(causal))],
        _mask_decisions(causal),
    )
    _record_pass(
        recorder,
        3,
        "shard",
        "place every node and insert redistributions",
        [("program", sharded)],
        _shard_decisions(sharded),
        [_warning()],
    )
    _record_pass(recorder, 4, "joint", "differentiate", [("joint", joint)])
    _record_pass(
        recorder,
        5,
        "partition",
        "split into forward and backward",
        [("forward", forward), ("backward", backward)],
        [_partition_decision()],
    )


def _record_pass(
    recorder: Recorder,
    index: int,
    name: str,
    description: str,
    graphs: Sequence[tuple[GraphName, Program]],
    decisions: Sequence[Decision] = (),
    findings: Sequence[Finding] = (),
) -> None:
    recorder.record(PassStarted(index, name, description, {"level": index} if index == 3 else {}))
    for decision in decisions:
        recorder.record(decision)
    for graph, program in graphs:
        recorder.record(program.snapshot(index, graph))
    for finding in findings:
        recorder.record(finding)
    recorder.record(PassFinished(index, (index + 1) * 120_000_000))


def _mask_decisions(nodes: list[NodeRecord]) -> list[Decision]:
    return [
        Decision(
            2,
            "applied",
            "mask",
            node.name,
            "is_causal=True",
            "tril(ones(S, S)) is the causal mask",
            "mask.causal (autosp/sharding/mask.py:88)",
            (Alternative("keep the mask", "it is S x S on every rank", "16.0 MiB"),),
        )
        for node in nodes
        if node.name.startswith("sdpa")
    ]


def _shard_decisions(program: Program) -> list[Decision]:
    decisions = [
        Decision(
            3,
            "applied",
            "seed",
            "embedding",
            "S(1:seq)",
            "first floating tensor that carries the sequence of the attention",
            "seed.trace_back (autosp/sharding/seed.py:31)",
        ),
        Decision(
            3,
            "analysis",
            "padding",
            "",
            "no padding",
            f"{SEQ} tokens divide evenly",
            "padding (autosp/sharding/seed.py:77)",
        ),
        Decision(
            3,
            "missed",
            "loss",
            "linear_head",
            "logits stay whole per rank",
            "the loss reads them at once and no chunk size was given",
            "loss.chunk (autosp/sharding/loss.py:52)",
            (Alternative("chunked loss", "one pass over the logits", "62.5 MiB less"),),
        ),
    ]
    for node in program.nodes:
        if node.name.startswith("sdpa"):
            decisions.append(
                Decision(
                    3,
                    "applied",
                    "attention",
                    node.name,
                    "ulysses",
                    f"{HEADS} heads can be divided; two all-to-alls move the least",
                    "attention.ulysses (autosp/sharding/attention.py:40)",
                    (
                        Alternative(
                            "ring", "same bytes, but one message per step", "3 send/recv of 2.0 MiB"
                        ),
                        Alternative(
                            "gather", "every rank would hold all keys", "12.0 MiB all-gather"
                        ),
                    ),
                    ULYSSES_FIGURES,
                )
            )
    decisions += [
        Decision(
            3,
            "applied",
            "redistribute",
            record.cause,
            f"{record.kind} {record.target_placement}",
            record.reason,
            "redistribute (autosp/sharding/redistribute.py:12)",
        )
        for record in program.collectives
    ]
    return decisions


def _partition_decision() -> Decision:
    return Decision(
        5,
        "applied",
        "partition",
        "",
        "min-cut",
        "fewest saved bytes",
        "partition (autosp/passes/partition.py:20)",
        (Alternative("default", "saves every activation", "3.1 MiB more"),),
    )


def _warning() -> Finding:
    return Finding(
        code="large-logits",
        severity="warning",
        message="the logits are the largest tensor of the step",
        node="linear_head",
        module="lm_head",
        source=source_of("head"),
        hint="compute the loss in parts inside the model",
    )
