"""The graphs of the synthetic run: a transformer as each pass leaves it. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autosp.events import (
    CollectiveKind,
    CollectiveRecord,
    GraphName,
    GraphSnapshot,
    NodeRecord,
    NodeRole,
    SourceLocation,
)

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


@dataclass(slots=True)
class Program:
    """A graph under construction with its collectives."""

    nodes: list[NodeRecord] = field(default_factory=list)
    collectives: list[CollectiveRecord] = field(default_factory=list)

    def snapshot(self, pass_index: int, graph: GraphName) -> GraphSnapshot:
        return GraphSnapshot(pass_index, graph, tuple(self.nodes), tuple(self.collectives))


def source_of(key: str) -> SourceLocation:
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
        source=source_of(line) if line else None,
        origins=(name,),
    )


def captured_program(num_layers: int) -> list[NodeRecord]:
    """The forward graph as the user wrote it, with its S x S mask."""
    nodes = [_weight("embed.weight", (VOCAB, WIDTH))]
    for layer in range(num_layers):
        nodes += _layer_weights(layer)
    nodes += [
        _weight("lm_head.weight", (VOCAB, WIDTH)),
        _node(
            "input_ids",
            "input_ids",
            (),
            (BATCH, SEQ),
            role="input",
            op="placeholder",
            dtype="int64",
        ),
        _node("labels", "labels", (), (BATCH, SEQ), role="input", op="placeholder", dtype="int64"),
        _node("ones", "aten.ones.default", (), (SEQ, SEQ), dtype="bool", line="mask"),
        _node("tril", "aten.tril.default", ("ones",), (SEQ, SEQ), dtype="bool", line="mask"),
        _node(
            "embedding",
            "aten.embedding.default",
            ("embed_weight", "input_ids"),
            (BATCH, SEQ, WIDTH),
            module="embed",
            module_class="Embedding",
            line="embedding",
        ),
    ]
    residual = "embedding"
    for layer in range(num_layers):
        block, residual = _layer(layer, residual)
        nodes += block
    return nodes + _head(residual)


def _weight(path: str, shape: tuple[int, ...]) -> NodeRecord:
    module = path.rpartition(".")[0]
    kind = "RMSNorm" if "norm" in module else "Embedding" if module == "embed" else "Linear"
    name = path.replace(".", "_")
    return _node(
        name, path, (), shape, role="input", op="placeholder", module=module, module_class=kind
    )


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
        _node(
            "rms_norm_a" + tag,
            "aten.rms_norm.default",
            (residual, f"layers_{layer}_norm1_weight"),
            token,
            module=f"{at}.norm1",
            module_class="RMSNorm",
            line="norm",
        ),
    ]
    for key in "qkv":
        nodes += [
            _node(
                f"linear_{key}{tag}",
                "aten.linear.default",
                ("rms_norm_a" + tag, f"layers_{layer}_attn_{key}_proj_weight"),
                token,
                module=f"{at}.attn.{key}_proj",
                module_class="Linear",
                line=key,
            ),
            _node(
                f"view_{key}{tag}",
                "aten.view.default",
                (f"linear_{key}{tag}",),
                (BATCH, SEQ, HEADS, HEAD_WIDTH),
                line=key,
                module=f"{at}.attn",
                module_class="Attention",
            ),
            _node(
                f"transpose_{key}{tag}",
                "aten.transpose.int",
                (f"view_{key}{tag}",),
                heads,
                line=key,
                module=f"{at}.attn",
                module_class="Attention",
            ),
        ]
    nodes += [
        _node(
            "sdpa" + tag,
            "aten.scaled_dot_product_attention.default",
            (*(f"transpose_{key}{tag}" for key in "qkv"), "tril"),
            heads,
            line="sdpa",
            module=f"{at}.attn",
            module_class="Attention",
        ),
        _node(
            "transpose_y" + tag,
            "aten.transpose.int",
            ("sdpa" + tag,),
            (BATCH, SEQ, HEADS, HEAD_WIDTH),
            line="o",
            module=f"{at}.attn",
            module_class="Attention",
        ),
        _node(
            "reshape" + tag,
            "aten.reshape.default",
            ("transpose_y" + tag,),
            token,
            line="o",
            module=f"{at}.attn",
            module_class="Attention",
        ),
        _node(
            "linear_o" + tag,
            "aten.linear.default",
            ("reshape" + tag, f"layers_{layer}_attn_o_proj_weight"),
            token,
            module=f"{at}.attn.o_proj",
            module_class="Linear",
            line="o",
        ),
        _node(
            "add_a" + tag,
            "aten.add_.Tensor",
            (residual, "linear_o" + tag),
            token,
            module=at,
            module_class="Block",
            line="residual",
        ),
        _node(
            "rms_norm_b" + tag,
            "aten.rms_norm.default",
            ("add_a" + tag, f"layers_{layer}_norm2_weight"),
            token,
            module=f"{at}.norm2",
            module_class="RMSNorm",
            line="up",
        ),
        _node(
            "linear_up" + tag,
            "aten.linear.default",
            ("rms_norm_b" + tag, f"layers_{layer}_mlp_up_weight"),
            (BATCH, SEQ, 4 * WIDTH),
            module=f"{at}.mlp.up",
            module_class="Linear",
            line="up",
        ),
        _node(
            "gelu" + tag,
            "aten.gelu.default",
            ("linear_up" + tag,),
            (BATCH, SEQ, 4 * WIDTH),
            module=f"{at}.mlp",
            module_class="MLP",
            line="up",
        ),
        _node(
            "linear_down" + tag,
            "aten.linear.default",
            ("gelu" + tag, f"layers_{layer}_mlp_down_weight"),
            token,
            module=f"{at}.mlp.down",
            module_class="Linear",
            line="down",
        ),
        _node(
            "add_b" + tag,
            "aten.add_.Tensor",
            ("add_a" + tag, "linear_down" + tag),
            token,
            module=at,
            module_class="Block",
            line="down",
        ),
    ]
    return nodes, "add_b" + tag


def _head(residual: str) -> list[NodeRecord]:
    return [
        _node(
            "linear_head",
            "aten.linear.default",
            (residual, "lm_head_weight"),
            (BATCH, SEQ, VOCAB),
            module="lm_head",
            module_class="Linear",
            line="head",
        ),
        _node(
            "flatten",
            "aten.flatten.using_ints",
            ("linear_head",),
            (BATCH * SEQ, VOCAB),
            line="loss",
        ),
        _node(
            "flatten_labels",
            "aten.flatten.using_ints",
            ("labels",),
            (BATCH * SEQ,),
            dtype="int64",
            line="loss",
        ),
        _node(
            "cross_entropy",
            "aten.cross_entropy_loss.default",
            ("flatten", "flatten_labels"),
            (),
            dtype="float32",
            role="loss",
            line="loss",
        ),
        _node(
            "output", "output", ("cross_entropy",), (), dtype="float32", role="output", op="output"
        ),
    ]


def functionalise(nodes: list[NodeRecord]) -> list[NodeRecord]:
    """``add_`` becomes ``add``."""
    return [
        node._replace(target="aten.add.Tensor") if node.target == "aten.add_.Tensor" else node
        for node in nodes
    ]


def prove_causal(nodes: list[NodeRecord]) -> list[NodeRecord]:
    """The mask tensors go, attention becomes causal by itself."""
    return [
        node._replace(inputs=node.inputs[:3], reason="the mask is causal: is_causal=True")
        if node.name.startswith("sdpa")
        else node
        for node in nodes
        if node.name not in ("ones", "tril")
    ]


def shard(nodes: list[NodeRecord], sp: int) -> Program:
    """Everything that has a sequence dim is cut; attention is wrapped in all-to-alls."""
    program = Program()
    renamed: dict[str, str] = {}
    for node in nodes:
        local = _localise(node, sp)
        inputs = tuple(renamed.get(name, name) for name in local.inputs)
        if node.name.startswith("flatten_labels"):
            program.nodes.append(_slice(node, sp))
            inputs = ("labels_slice",)
        program.nodes.append(local if inputs == local.inputs else local._replace(inputs=inputs))
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
        return node._replace(placement="R")
    if node.name == "cross_entropy":
        return node._replace(placement="P(sum)")
    if node.name.startswith("sdpa"):
        dim, label = 1, "head"
    else:
        dim, label = next((d for d, n in enumerate(shape) if n == SEQ), 0), "seq"
    local = tuple(n // sp if d == dim else n for d, n in enumerate(shape))
    return node._replace(
        placement=f"S({dim}:{label})",
        local_shape=local,
        local_bytes=_size(local, node.dtype),
    )


def _slice(node: NodeRecord, sp: int) -> NodeRecord:
    return node._replace(
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


def _redistribute(program: Program, node: NodeRecord, before: str, after: str, sp: int) -> str:
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


def _reduce_loss(program: Program, node: NodeRecord, sp: int) -> str:
    return _collective(
        program,
        node,
        kind="all_reduce",
        shape=(),
        placements=("P(sum)", "R"),
        sp=sp,
        reason="the loss is the mean over the tokens of all ranks",
    )


def _collective(
    program: Program,
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
            node._replace(
                name=name,
                target=target,
                inputs=(previous,),
                role=role,
                global_shape=None,
                local_shape=shape,
                local_bytes=size,
                placement=None,
                reason=reason,
            )
        )
        previous = name
    program.nodes[-1] = program.nodes[-1]._replace(
        global_shape=node.global_shape, placement=placements[1]
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
        )
    )
    return previous


def differentiate(program: Program) -> Program:
    """The forward nodes followed by one gradient node each, in reverse order."""
    joint = Program(list(program.nodes[:-1]), list(program.collectives))
    previous: tuple[str, ...] = ()
    for node in reversed(program.nodes[:-1]):
        if (
            node.role in ("input", "slice")
            or "all_reduce" in node.target
            or not _has_gradient(node)
        ):
            continue
        gradient = _gradient(node, previous)
        joint.nodes.append(gradient)
        previous = (gradient.name,)
    joint.collectives += [
        replace(
            record,
            node=f"grad_{record.node}",
            phase="backward",
            source_placement=record.target_placement,
            target_placement=record.source_placement,
            reason="the gradient goes back the way the value came",
        )
        for record in program.collectives
        if record.kind == "all_to_all"
    ]
    joint.nodes.append(program.nodes[-1]._replace(inputs=(*program.nodes[-1].inputs, *previous)))
    return joint


_MIRROR: Mapping[NodeRole, NodeRole] = {
    "pack": "unpack",
    "unpack": "pack",
    "collective": "wait",
    "wait": "collective",
}
"""What the gradient of a step of an all-to-all is."""

_STEP_NAMES: Mapping[NodeRole, tuple[str, str]] = {
    "pack": ("pack", "autosp.pack.default"),
    "collective": ("all_to_all", "_c10d_functional.all_to_all.default"),
    "wait": ("wait", "_c10d_functional.wait_tensor.default"),
    "unpack": ("unpack", "autosp.unpack.default"),
}


def _has_gradient(node: NodeRecord) -> bool:
    return node.dtype != "int64" and not node.name.startswith("wait_cross_entropy")


def _gradient(node: NodeRecord, previous: tuple[str, ...]) -> NodeRecord:
    if node.role in _MIRROR:
        role = _MIRROR[node.role]
        prefix, target = _STEP_NAMES[role]
        name = f"grad_{prefix}_{node.name.removeprefix(_STEP_NAMES[node.role][0] + '_')}"
        inputs = previous
    else:
        role, target = node.role, f"{node.target}_backward"
        name = f"grad_{node.name}"
        inputs = (*previous, *node.inputs[:1])
    return node._replace(
        name=name, target=target, role=role, inputs=inputs, phase="backward", reason=""
    )


def partition(joint: Program) -> tuple[Program, Program]:
    """The two halves; forward values that the backward reads are saved."""
    backward_nodes = [node for node in joint.nodes if node.phase == "backward"]
    needed = {name for node in backward_nodes for name in node.inputs}
    forward = Program(
        [
            node._replace(saved=True)
            if node.name in needed and node.role in ("compute", "unpack")
            else node
            for node in joint.nodes
            if node.phase == "forward"
        ],
        [record for record in joint.collectives if record.phase == "forward"],
    )
    saved = [
        node._replace(op="placeholder", role="input", inputs=(), target=node.name, phase="backward")
        for node in forward.nodes
        if node.saved
    ]
    backward = Program(
        saved + backward_nodes,
        [record for record in joint.collectives if record.phase == "backward"],
    )
    return forward, backward
