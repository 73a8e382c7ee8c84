"""A small, realistic and deterministic trace, made without torch.

A transformer of ``num_layers`` layers is "compiled" for ``sp`` ranks: captured with an
S x S mask, made functional, its mask proved causal, sharded with Ulysses attention,
differentiated, and partitioned; then memory, time and costs are "estimated". The figures
are plausible, not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autosp.events import (
    MEMORY_CATEGORIES,
    Alternative,
    CollectiveKind,
    CollectiveRecord,
    Decision,
    EstimateSummary,
    Finding,
    GraphName,
    GraphSnapshot,
    LiveTensor,
    MemoryPoint,
    NodeCost,
    NodeRecord,
    NodeRole,
    PassFinished,
    PassStarted,
    Phase,
    Recorder,
    RunFinished,
    RunStarted,
    SourceLocation,
    TimelineEvent,
)
from autosp_inspector.recorder import TraceRecorder

BATCH, SEQ, WIDTH, HEADS, VOCAB = 1, 4096, 512, 8, 32000
HEAD_WIDTH = WIDTH // HEADS
ELEMENT_BYTES = {"bfloat16": 2, "float32": 4, "int64": 8, "bool": 1}
MODEL_FILE = "samples/gpt.py"
_LINES = {
    "forward": (61, "def forward(self, input_ids, labels):"),
    "mask": (64, "mask = torch.tril(torch.ones(seq, seq, dtype=torch.bool))"),
    "embedding": (66, "x = self.embed(input_ids)"),
    "norm": (40, "h = self.norm1(x)"),
    "q": (22, "q = self.q_proj(x).view(b, s, self.heads, -1).transpose(1, 2)"),
    "k": (23, "k = self.k_proj(x).view(b, s, self.heads, -1).transpose(1, 2)"),
    "v": (24, "v = self.v_proj(x).view(b, s, self.heads, -1).transpose(1, 2)"),
    "sdpa": (25, "y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)"),
    "o": (26, "return self.o_proj(y.transpose(1, 2).reshape(b, s, -1))"),
    "residual": (41, "x += self.attn(h, mask)"),
    "up": (51, "h = F.gelu(self.up(self.norm2(x)))"),
    "down": (52, "return self.down(h)"),
    "head": (69, "logits = self.lm_head(x)"),
    "loss": (70, "return F.cross_entropy(logits.flatten(0, 1), labels.flatten())"),
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
    functional = _functionalise(captured)
    causal = _prove_causal(functional)
    sharded = _shard(causal, sp)
    joint = _differentiate(sharded)
    forward, backward = _partition(joint)
    _record_passes(recorder, captured, functional, causal, sharded, joint, forward, backward)
    _record_estimates(recorder, forward, backward, sp)
    if finished:
        recorder.record(RunFinished("ok", 5_250_000_000))


@dataclass(slots=True)
class _Program:
    """A graph under construction with its collectives."""

    nodes: list[NodeRecord] = field(default_factory=list)
    collectives: list[CollectiveRecord] = field(default_factory=list)

    def snapshot(self, pass_index: int, graph: GraphName) -> GraphSnapshot:
        return GraphSnapshot(pass_index, graph, tuple(self.nodes), tuple(self.collectives))


def _source(key: str) -> SourceLocation:
    line, text = _LINES[key]
    return SourceLocation(MODEL_FILE, line, "forward", text)


def _size(shape: Sequence[int] | None, dtype: str | None) -> int | None:
    if shape is None or dtype is None:
        return None
    total = ELEMENT_BYTES[dtype]
    for length in shape:
        total *= length
    return total


def _node(
    name: str,
    target: str,
    inputs: Sequence[str],
    shape: tuple[int, ...],
    *,
    role: NodeRole = "compute",
    op: str = "call_function",
    dtype: str = "bfloat16",
    module: str = "",
    module_class: str = "GPT",
    line: str | None = None,
) -> NodeRecord:
    """A node as captured: no placement yet, the local shape is the global one."""
    return NodeRecord(
        name=name,
        op=op,
        target=target,
        inputs=tuple(inputs),
        role=role,
        phase="forward",
        dtype=dtype,
        global_shape=shape,
        local_shape=shape,
        local_bytes=_size(shape, dtype),
        module=module,
        module_class=module_class,
        source=_source(line) if line else None,
        origins=(name,),
    )


def captured_program(num_layers: int) -> list[NodeRecord]:
    """The forward graph as the user wrote it, with its S x S mask."""
    nodes = [_weight("embed.weight", (VOCAB, WIDTH))]
    for layer in range(num_layers):
        nodes += _layer_weights(layer)
    nodes += [
        _weight("lm_head.weight", (VOCAB, WIDTH)),
        _node("input_ids", "input_ids", (), (BATCH, SEQ), role="input", op="placeholder", dtype="int64"),
        _node("labels", "labels", (), (BATCH, SEQ), role="input", op="placeholder", dtype="int64"),
        _node("ones", "aten.ones.default", (), (SEQ, SEQ), dtype="bool", line="mask"),
        _node("tril", "aten.tril.default", ("ones",), (SEQ, SEQ), dtype="bool", line="mask"),
        _node(
            "embedding", "aten.embedding.default", ("embed_weight", "input_ids"),
            (BATCH, SEQ, WIDTH), module="embed", module_class="Embedding", line="embedding",
        ),
    ]  # fmt: skip
    residual = "embedding"
    for layer in range(num_layers):
        block, residual = _layer(layer, residual)
        nodes += block
    return nodes + _head(residual)


def _weight(path: str, shape: tuple[int, ...]) -> NodeRecord:
    module = path.rpartition(".")[0]
    name = path.replace(".", "_")
    return _node(name, path, (), shape, role="input", op="placeholder", module=module)


def _layer_weights(layer: int) -> list[NodeRecord]:
    prefix = f"layers.{layer}"
    square = [_weight(f"{prefix}.attn.{key}_proj.weight", (WIDTH, WIDTH)) for key in "qkvo"]
    return [
        _weight(f"{prefix}.norm1.weight", (WIDTH,)),
        *square,
        _weight(f"{prefix}.norm2.weight", (WIDTH,)),
        _weight(f"{prefix}.mlp.up.weight", (4 * WIDTH, WIDTH)),
        _weight(f"{prefix}.mlp.down.weight", (WIDTH, 4 * WIDTH)),
    ]


def _layer(layer: int, residual: str) -> tuple[list[NodeRecord], str]:
    """The nodes of one layer and the name of its result."""
    at = f"layers.{layer}"
    tag = f"_{layer}"
    token = (BATCH, SEQ, WIDTH)
    heads = (BATCH, HEADS, SEQ, HEAD_WIDTH)
    nodes = [
        _node("rms_norm_a" + tag, "aten.rms_norm.default", (residual, f"layers_{layer}_norm1_weight"),
              token, module=f"{at}.norm1", module_class="RMSNorm", line="norm"),
    ]  # fmt: skip
    attention = {"module": f"{at}.attn", "module_class": "Attention"}
    for key in "qkv":
        nodes += [
            _node(f"linear_{key}{tag}", "aten.linear.default",
                  ("rms_norm_a" + tag, f"layers_{layer}_attn_{key}_proj_weight"), token,
                  module=f"{at}.attn.{key}_proj", module_class="Linear", line=key),
            _node(f"view_{key}{tag}", "aten.view.default", (f"linear_{key}{tag}",),
                  (BATCH, SEQ, HEADS, HEAD_WIDTH), line=key, **attention),
            _node(f"transpose_{key}{tag}", "aten.transpose.int", (f"view_{key}{tag}",),
                  heads, line=key, **attention),
        ]  # fmt: skip
    nodes += [
        _node("sdpa" + tag, "aten.scaled_dot_product_attention.default",
              (*(f"transpose_{key}{tag}" for key in "qkv"), "tril"), heads, line="sdpa", **attention),
        _node("transpose_y" + tag, "aten.transpose.int", ("sdpa" + tag,),
              (BATCH, SEQ, HEADS, HEAD_WIDTH), line="o", **attention),
        _node("reshape" + tag, "aten.reshape.default", ("transpose_y" + tag,), token, line="o", **attention),
        _node("linear_o" + tag, "aten.linear.default",
              ("reshape" + tag, f"layers_{layer}_attn_o_proj_weight"), token,
              module=f"{at}.attn.o_proj", module_class="Linear", line="o"),
        _node("add_a" + tag, "aten.add_.Tensor", (residual, "linear_o" + tag), token,
              module=at, module_class="Block", line="residual"),
        _node("rms_norm_b" + tag, "aten.rms_norm.default", ("add_a" + tag, f"layers_{layer}_norm2_weight"),
              token, module=f"{at}.norm2", module_class="RMSNorm", line="up"),
        _node("linear_up" + tag, "aten.linear.default", ("rms_norm_b" + tag, f"layers_{layer}_mlp_up_weight"),
              (BATCH, SEQ, 4 * WIDTH), module=f"{at}.mlp.up", module_class="Linear", line="up"),
        _node("gelu" + tag, "aten.gelu.default", ("linear_up" + tag,), (BATCH, SEQ, 4 * WIDTH),
              module=f"{at}.mlp", module_class="MLP", line="up"),
        _node("linear_down" + tag, "aten.linear.default", ("gelu" + tag, f"layers_{layer}_mlp_down_weight"),
              token, module=f"{at}.mlp.down", module_class="Linear", line="down"),
        _node("add_b" + tag, "aten.add_.Tensor", ("add_a" + tag, "linear_down" + tag), token,
              module=at, module_class="Block", line="down"),
    ]  # fmt: skip
    return nodes, "add_b" + tag


def _head(residual: str) -> list[NodeRecord]:
    return [
        _node("linear_head", "aten.linear.default", (residual, "lm_head_weight"), (BATCH, SEQ, VOCAB),
              module="lm_head", module_class="Linear", line="head"),
        _node("flatten", "aten.flatten.using_ints", ("linear_head",), (BATCH * SEQ, VOCAB), line="loss"),
        _node("flatten_labels", "aten.flatten.using_ints", ("labels",), (BATCH * SEQ,), dtype="int64", line="loss"),
        _node("cross_entropy", "aten.cross_entropy_loss.default", ("flatten", "flatten_labels"), (),
              dtype="float32", role="loss", line="loss"),
        _node("output", "output", ("cross_entropy",), (), dtype="float32", role="output", op="output"),
    ]  # fmt: skip


def _functionalise(nodes: list[NodeRecord]) -> list[NodeRecord]:
    """``add_`` becomes ``add``."""
    return [
        replace(node, target="aten.add.Tensor") if node.target == "aten.add_.Tensor" else node
        for node in nodes
    ]


def _prove_causal(nodes: list[NodeRecord]) -> list[NodeRecord]:
    """The mask tensors go, attention becomes causal by itself."""
    return [
        replace(node, inputs=node.inputs[:3], reason="the mask is causal: is_causal=True")
        if node.name.startswith("sdpa")
        else node
        for node in nodes
        if node.name not in ("ones", "tril")
    ]


def _shard(nodes: list[NodeRecord], sp: int) -> _Program:
    """Everything that has a sequence dim is cut; attention is wrapped in all-to-alls."""
    program = _Program()
    renamed: dict[str, str] = {}
    for node in nodes:
        local = _localise(node, sp)
        inputs = tuple(renamed.get(name, name) for name in local.inputs)
        if node.name.startswith("flatten_labels"):
            program.nodes.append(_slice(node, sp))
            inputs = ("labels_slice",)
        program.nodes.append(local if inputs == local.inputs else replace(local, inputs=inputs))
        if node.name.startswith(("transpose_q", "transpose_k", "transpose_v")):
            renamed[node.name] = _redistribute(program, local, "S(2:seq)", "S(1:head)", sp)
        if node.name.startswith("sdpa"):
            renamed[node.name] = _redistribute(program, local, "S(1:head)", "S(2:seq)", sp)
        if node.name == "cross_entropy":
            renamed[node.name] = _reduce_loss(program, local, sp)
    return program


def _localise(node: NodeRecord, sp: int) -> NodeRecord:
    shape = node.global_shape or ()
    if node.role in ("input", "output"):
        return replace(node, placement="R")
    if node.name == "cross_entropy":
        return replace(node, placement="P(sum)")
    if node.name.startswith("sdpa"):
        dim, label = 1, "head"
    else:
        dim, label = next((d for d, n in enumerate(shape) if n == SEQ), 0), "seq"
    local = tuple(n // sp if d == dim else n for d, n in enumerate(shape))
    return replace(
        node,
        placement=f"S({dim}:{label})",
        local_shape=local,
        local_bytes=_size(local, node.dtype),
    )


def _slice(node: NodeRecord, sp: int) -> NodeRecord:
    return replace(
        node,
        name="labels_slice",
        target="autosp.slice.default",
        inputs=("labels",),
        role="slice",
        global_shape=(BATCH, SEQ),
        local_shape=(BATCH, SEQ // sp),
        local_bytes=_size((BATCH, SEQ // sp), "int64"),
        placement="S(1:seq)",
        origins=("labels",),
        reason="labels meet the sharded logits: each rank keeps its own tokens",
    )


def _redistribute(program: _Program, node: NodeRecord, before: str, after: str, sp: int) -> str:
    """Append pack, all-to-all, wait and unpack behind ``node``; the name of the last."""
    shape = (
        (BATCH, HEADS // sp, SEQ, HEAD_WIDTH)
        if after == "S(1:head)"
        else (BATCH, HEADS, SEQ // sp, HEAD_WIDTH)
    )
    wanted = "whole sequences" if after == "S(1:head)" else "all heads of its tokens"
    reason = f"{before} -> {after}: what follows needs {wanted} on each rank"
    return _collective(
        program,
        node,
        kind="all_to_all",
        shape=shape,
        placements=(before, after),
        sp=sp,
        reason=reason,
    )


def _reduce_loss(program: _Program, node: NodeRecord, sp: int) -> str:
    return _collective(
        program, node, kind="all_reduce", shape=(), placements=("P(sum)", "R"), sp=sp,
        reason="the loss is the mean over the tokens of all ranks",
    )  # fmt: skip


def _collective(
    program: _Program,
    node: NodeRecord,
    *,
    kind: CollectiveKind,
    shape: tuple[int, ...],
    placements: tuple[str, str],
    sp: int,
    reason: str,
) -> str:
    size = _size(shape, node.dtype) or 0
    steps: list[tuple[str, NodeRole, str]] = [
        ("pack", "pack", "autosp.pack.default"),
        (kind, "collective", f"_c10d_functional.{kind}.default"),
        ("wait", "wait", "_c10d_functional.wait_tensor.default"),
        ("unpack", "unpack", "autosp.unpack.default"),
    ]
    if kind == "all_reduce":
        steps = steps[1:3]
    previous = node.name
    for prefix, role, target in steps:
        name = f"{prefix}_{node.name}"
        program.nodes.append(
            replace(
                node,
                name=name,
                target=target,
                inputs=(previous,),
                role=role,
                global_shape=None,
                local_shape=shape,
                local_bytes=size,
                placement=None,
                reason=reason,
            )  # fmt: skip
        )
        previous = name
    program.nodes[-1] = replace(
        program.nodes[-1], global_shape=node.global_shape, placement=placements[1]
    )
    program.collectives.append(
        CollectiveRecord(
            node=f"{kind}_{node.name}",
            kind=kind,
            phase=node.phase,
            origin="implicit",
            axis="sp",
            group_size=sp,
            bytes=size,
            dtype=node.dtype or "",
            module=node.module,
            cause=node.origins[0],
            reason=reason,
            source_placement=placements[0],
            target_placement=placements[1],
        )  # fmt: skip
    )
    return previous


def _differentiate(program: _Program) -> _Program:
    """The forward nodes followed by one gradient node each, in reverse order."""
    joint = _Program(list(program.nodes[:-1]), list(program.collectives))
    gradient_of: dict[str, str] = {}
    for node in reversed(program.nodes[:-1]):
        if node.role in ("input", "slice") or node.name == "flatten_labels":
            continue
        name = f"grad_{node.name}"
        users = [gradient_of[user] for user in gradient_of if user == node.name]
        inputs = (*users, *(joint.nodes[-1:] and (joint.nodes[-1].name,)), *node.inputs[:1])
        joint.nodes.append(
            replace(
                node,
                name=name,
                phase="backward",
                inputs=inputs,
                target=node.target if node.role != "compute" else f"{node.target}_backward",
            )  # fmt: skip
        )
        gradient_of[node.name] = name
    for record in program.collectives:
        joint.collectives.append(
            replace(
                record,
                node=f"grad_{record.node}",
                phase="backward",
                source_placement=record.target_placement,
                target_placement=record.source_placement,
                reason="the gradient goes back the way the value came",
            )  # fmt: skip
        )
    gradients = tuple(node.name for node in joint.nodes if node.phase == "backward")
    joint.nodes.append(replace(program.nodes[-1], inputs=("cross_entropy", *gradients[-2:])))
    return joint


def _partition(joint: _Program) -> tuple[_Program, _Program]:
    """The two halves; forward values that the backward reads are saved."""
    backward_nodes = [node for node in joint.nodes if node.phase == "backward"]
    needed = {name for node in backward_nodes for name in node.inputs}
    forward = _Program(
        [
            replace(node, saved=True)
            if node.name in needed and node.role in ("compute", "unpack")
            else node
            for node in joint.nodes
            if node.phase == "forward"
        ],
        [record for record in joint.collectives if record.phase == "forward"],
    )
    saved = [
        replace(node, op="placeholder", role="input", inputs=(), target=node.name, phase="backward")
        for node in forward.nodes
        if node.saved
    ]
    backward = _Program(
        saved + backward_nodes,
        [record for record in joint.collectives if record.phase == "backward"],
    )
    return forward, backward


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
    sharded: _Program,
    joint: _Program,
    forward: _Program,
    backward: _Program,
) -> None:
    _record_pass(recorder, 0, "capture", "model and inputs to the forward graph",
                 [("program", _Program(captured))])  # fmt: skip
    _record_pass(recorder, 1, "functionalise", "in-place operations become functional",
                 [("program", _Program(functional))])  # fmt: skip
    _record_pass(recorder, 2, "causal-mask", "prove masks causal and drop them",
                 [("program", _Program(causal))], _mask_decisions(causal))  # fmt: skip
    _record_pass(recorder, 3, "shard", "place every node and insert redistributions",
                 [("program", sharded)], _shard_decisions(sharded), [_warning()])  # fmt: skip
    _record_pass(recorder, 4, "joint", "differentiate", [("joint", joint)])
    _record_pass(recorder, 5, "partition", "split into forward and backward",
                 [("forward", forward), ("backward", backward)],
                 [_partition_decision()])  # fmt: skip


def _record_pass(
    recorder: Recorder,
    index: int,
    name: str,
    description: str,
    graphs: Sequence[tuple[GraphName, _Program]],
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
            2, "applied", "mask", node.name, "is_causal=True",
            "tril(ones(S, S)) is the causal mask", "mask.causal (autosp/sharding/mask.py:88)",
            (Alternative("keep the mask", "it is S x S on every rank", "16.0 MiB"),),
        )
        for node in nodes
        if node.name.startswith("sdpa")
    ]  # fmt: skip


def _shard_decisions(program: _Program) -> list[Decision]:
    decisions = [
        Decision(3, "applied", "seed", "embedding", "S(1:seq)",
                 "first floating tensor that carries the sequence of the attention",
                 "seed.trace_back (autosp/sharding/seed.py:31)"),
        Decision(3, "analysis", "padding", "", "no padding",
                 f"{SEQ} tokens divide evenly", "padding (autosp/sharding/seed.py:77)"),
        Decision(3, "missed", "loss", "linear_head", "logits stay whole per rank",
                 "the loss reads them at once and no chunk size was given",
                 "loss.chunk (autosp/sharding/loss.py:52)",
                 (Alternative("chunked loss", "--chunks is 1", "62.5 MiB less"),)),
    ]  # fmt: skip
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
                )  # fmt: skip
            )
    decisions += [
        Decision(3, "applied", "redistribute", record.cause, f"{record.kind} {record.target_placement}",
                 record.reason, "redistribute (autosp/sharding/redistribute.py:12)")
        for record in program.collectives
    ]  # fmt: skip
    return decisions


def _partition_decision() -> Decision:
    return Decision(
        5, "applied", "partition", "", "min-cut", "fewest saved bytes",
        "partition (autosp/passes/partition.py:20)",
        (Alternative("default", "saves every activation", "3.1 MiB more"),),
    )  # fmt: skip


def _warning() -> Finding:
    return Finding(
        code="large-logits",
        severity="warning",
        message="the logits are the largest tensor of the step",
        node="linear_head",
        module="lm_head",
        source=_source("head"),
        hint="pass --chunks 4 to compute the loss in parts",
    )


def _record_estimates(recorder: Recorder, forward: _Program, backward: _Program, sp: int) -> None:
    events, times = _timeline(forward, backward)
    for graph, program in (("forward", forward), ("backward", backward)):
        for node in program.nodes:
            if node.role == "compute":
                size = node.local_bytes or 0
                recorder.record(
                    NodeCost(
                        graph,
                        node.name,
                        size * WIDTH,
                        3 * size,
                        _duration(node),  # type: ignore[arg-type]
                        "roofline: memory bound, 2.0e12 B/s (A100 data sheet)",
                    )  # fmt: skip
                )
    for event in events:
        recorder.record(event)
    points = _memory_curve(forward, backward)
    for point in points:
        recorder.record(point)
    peak = max(points, key=lambda point: point.live_bytes)
    for tensor in _live_tensors(forward, peak):
        recorder.record(tensor)
    recorder.record(_estimate(peak, times, sp))


def _duration(node: NodeRecord) -> int:
    return 2_000 + (node.local_bytes or 0) // 500


def _timeline(forward: _Program, backward: _Program) -> tuple[list[TimelineEvent], dict[str, int]]:
    """Program order on two lanes: a collective runs beside compute until its wait."""
    events: list[TimelineEvent] = []
    times = {"compute": 0, "communication": 0, "exposed": 0}
    now = 0
    pending_end = 0
    pending_exposed = {"first": 1, "second": 2}
    for node in [*forward.nodes, *backward.nodes]:
        if node.role in ("input", "output", "slice", "wait"):
            if node.role == "wait":
                now = max(now, pending_end)
            continue
        duration = _duration(node)
        stream = "comm:sp" if node.role == "collective" else "compute"
        exposed = duration // pending_exposed["second"] if stream == "comm:sp" else None
        start = max(now - duration // 2, pending_end) if exposed is not None else now
        events.append(
            TimelineEvent(
                len(events),
                stream,
                node.phase,
                node.name,
                node.target,
                start,
                duration,
                exposed,
                node.module,
            )
        )
        if exposed is not None:
            pending_end = start + duration
            times["communication"] += duration
            times["exposed"] += exposed
        else:
            now = start + duration
            times["compute"] += duration
    times["step"] = max(now, pending_end)
    return events, times


def _memory_curve(forward: _Program, backward: _Program) -> list[MemoryPoint]:
    """Saved tensors pile up, peak at the loss, and go in the backward."""
    parameters = sum(n.local_bytes or 0 for n in forward.nodes if n.target.endswith(".weight"))
    saved = 0
    gradients = 0
    points: list[MemoryPoint] = []
    total_saved = sum(n.local_bytes or 0 for n in forward.nodes if n.saved)
    num_backward = sum(1 for n in backward.nodes if n.op != "placeholder")
    for node in [*forward.nodes, *backward.nodes]:
        if node.op in ("placeholder", "output"):
            continue
        size = node.local_bytes or 0
        live = dict.fromkeys(MEMORY_CATEGORIES, 0)
        if node.phase == "forward":
            saved += size if node.saved else 0
        else:
            saved = max(saved - total_saved // num_backward, 0)
            gradients += parameters // num_backward
        live |= {
            "parameters": parameters,
            "optimizer": 4 * parameters,
            "inputs": 2 * BATCH * SEQ * 8,
            "saved": saved,
            "gradients": gradients,
        }
        kind = _memory_kind(node)
        live[kind] += 0 if node.saved else size
        points.append(
            MemoryPoint(len(points), node.phase, node.name, node.module, sum(live.values()), live)
        )
    return points


def _memory_kind(node: NodeRecord) -> str:
    if node.role in ("collective", "pack", "wait", "unpack"):
        return "all_to_all"
    if "linear_head" in node.name or "cross_entropy" in node.name or "flatten" in node.name:
        return "logits_loss"
    return "activations"


def _live_tensors(forward: _Program, peak: MemoryPoint) -> list[LiveTensor]:
    tensors = []
    for node in forward.nodes:
        if not (node.saved or node.target.endswith(".weight") or node.name == peak.node):
            continue
        category = "parameters" if node.role == "input" else "saved"
        tensors.append(
            LiveTensor(
                node.name,
                node.phase,
                "logits_loss" if "head" in node.name and node.saved else category,
                node.local_bytes or 0,
                node.dtype or "",
                node.local_shape or (),
                node.module,
                node.source,
                f"grad_{node.name}",
            )  # fmt: skip
        )
    return tensors


def _estimate(peak: MemoryPoint, times: dict[str, int], sp: int) -> EstimateSummary:
    allocated = peak.live_bytes + peak.live_bytes // 50
    phase: Phase = peak.phase
    return EstimateSummary(
        peak_live_bytes=peak.live_bytes,
        peak_phase=phase,
        peak_node=peak.node,
        peak_module=peak.module,
        peak_source=_source("loss"),
        peak_categories=peak.categories,
        peak_index=peak.index,
        allocated_bytes=allocated,
        reserved_bytes=None,
        device_bytes=None,
        capacity_bytes=80 * 1024**3,
        fits=True,
        step_ns=times["step"],
        compute_ns=times["compute"],
        communication_ns=times["communication"],
        exposed_ns=times["exposed"],
        hidden_ns=times["communication"] - times["exposed"],
        sharded_flops_fraction=0.998 if sp > 1 else 0.0,
        sharded_saved_bytes_fraction=0.97 if sp > 1 else 0.0,
        not_modelled=("reserved", "device"),
    )
