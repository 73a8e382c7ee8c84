"""Rows of a sharded decoder, made by hand: what a drawing gets to see, without a trace file."""

from __future__ import annotations

from dataclasses import replace

from autosp_inspector.rows import CollectiveRow, NodeRow, RunRow

SEQUENCE = "S(1:seq)"
HEADS = "S(2:head)"


def make_run(**changes: object) -> RunRow:
    run = RunRow(
        path="model.autosp",
        schema_version=1,
        autosp_version="0.1.0",
        torch_version="2.13.0",
        mode="dry_run",
        rank=0,
        world_size=4,
        mesh={"dp": 1, "sp": 4},
        model="decoder.py:build",
        config={"seq": 8192, "batch": 1, "dtype": "bfloat16"},
        gradient_convention="mean over sp",
        hardware=None,
        status="ok",
        message="",
        duration_ns=1,
    )
    return replace(run, **changes)  # type: ignore[arg-type]


class ProgramRows:
    """Appends nodes one by one, as a graph would list them."""

    def __init__(self) -> None:
        self.nodes: list[NodeRow] = []
        self.collectives: list[CollectiveRow] = []

    def add(
        self,
        target: str,
        *inputs: str,
        module: str = "",
        module_class: str = "",
        op: str = "call_function",
        role: str = "compute",
        placement: str | None = SEQUENCE,
        global_shape: tuple[int, ...] | None = (1, 8192, 768),
        local_shape: tuple[int, ...] | None = (1, 2048, 768),
        name: str = "",
    ) -> str:
        position = len(self.nodes)
        name = name or f"{target.split('.')[-2] if '.' in target else target}_{position}"
        self.nodes.append(
            NodeRow(
                id=position,
                graph="program",
                position=position,
                name=name,
                op=op,
                target=target,
                inputs=inputs,
                role=role,
                phase="forward",
                dtype="bfloat16",
                global_shape=global_shape,
                local_shape=local_shape,
                placement=placement,
                local_bytes=None,
                module=module,
                module_class=module_class,
                source=None,
                origins=(),
                saved=False,
                recomputed=False,
                reason="",
                born_pass=0,
                died_pass=None,
            )
        )
        return name

    def all_to_all(self, value: str, *, source: str, target: str, module: str) -> str:
        """Pack, collective, wait and unpack; returns the unpacked value."""
        common = {"module": module, "global_shape": None}
        pack = self.add("aten.clone.default", value, role="pack", placement=None, **common)
        start = self.add(
            "_c10d_functional.all_to_all_single.default",
            pack,
            role="collective",
            placement=None,
            **common,
        )
        wait = self.add(
            "_c10d_functional.wait_tensor.default", start, role="wait", placement=None, **common
        )
        self.collectives.append(
            CollectiveRow(
                name=start,
                graph="program",
                kind="all_to_all",
                phase="forward",
                module=module,
                origin="implicit",
                axis="sp",
                group_size=4,
                bytes=2048 * 768 * 2,
                dtype="bfloat16",
                cause=value,
                reason=f"attention needs {target}",
                source_placement=source,
                target_placement=target,
                start_ns=None,
                duration_ns=None,
                exposed_ns=None,
            )
        )
        return self.add("aten.view.default", wait, role="unpack", placement=target, module=module)


def decoder_rows(*, num_layers: int = 12, odd_layer: int | None = None) -> ProgramRows:
    """A decoder with Ulysses attention; ``odd_layer`` has one operator more than the rest."""
    rows = ProgramRows()
    ids = rows.add(
        "input_ids",
        op="placeholder",
        role="input",
        placement="R",
        global_shape=(1, 8192),
        local_shape=(1, 8192),
        name="input_ids",
    )
    weight = rows.add(
        "embedding.weight", op="placeholder", role="input", placement="R", name="embedding_weight"
    )
    cut = rows.add("aten.slice.Tensor", ids, role="slice", global_shape=(1, 8192))
    value = rows.add(
        "aten.embedding.default", weight, cut, module="embedding", module_class="Embedding"
    )
    for index in range(num_layers):
        value = _layer(rows, value, path=f"layers.{index}", is_odd=index == odd_layer)
    value = rows.add("aten.rms_norm.default", value, module="norm", module_class="RMSNorm")
    value = rows.add("aten.linear.default", value, module="head", module_class="Linear")
    loss = rows.add(
        "aten.cross_entropy_loss.default",
        value,
        placement="P(sum)",
        global_shape=(),
        local_shape=(),
    )
    rows.add("output", loss, op="output", role="output", placement=None, global_shape=None)
    return rows


def _layer(rows: ProgramRows, value: str, *, path: str, is_odd: bool) -> str:
    residual = value
    normed = rows.add(
        "aten.rms_norm.default", value, module=f"{path}.norm1", module_class="RMSNorm"
    )
    attention = f"{path}.attention"
    carried = []
    for projection in ("wq", "wk", "wv"):
        projected = rows.add(
            "aten.linear.default",
            normed,
            module=f"{attention}.{projection}",
            module_class="Linear",
        )
        viewed = rows.add(
            "aten.view.default", projected, module=attention, module_class="Attention"
        )
        carried.append(rows.all_to_all(viewed, source=SEQUENCE, target=HEADS, module=attention))
    attended = rows.add(
        "aten.scaled_dot_product_attention.default",
        *carried,
        module=attention,
        module_class="Attention",
        placement=HEADS,
    )
    back = rows.all_to_all(attended, source=HEADS, target=SEQUENCE, module=attention)
    projected = rows.add(
        "aten.linear.default", back, module=f"{attention}.wo", module_class="Linear"
    )
    value = rows.add("aten.add.Tensor", residual, projected, module=path, module_class="Block")
    if is_odd:
        value = rows.add("aten.mul.Tensor", value, module=path, module_class="Block")
    normed = rows.add(
        "aten.rms_norm.default", value, module=f"{path}.norm2", module_class="RMSNorm"
    )
    hidden = rows.add("aten.linear.default", normed, module=f"{path}.mlp.up", module_class="Linear")
    gelu = rows.add("aten.gelu.default", hidden, module=f"{path}.mlp", module_class="MLP")
    down = rows.add("aten.linear.default", gelu, module=f"{path}.mlp.down", module_class="Linear")
    return rows.add("aten.add.Tensor", value, down, module=path, module_class="Block")
