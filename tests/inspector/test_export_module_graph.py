"""What the module-level drawing holds: folding, opening, grouping, collectives, links."""

from __future__ import annotations

from dataclasses import replace
from graphlib import TopologicalSorter

import pytest

from autosp_inspector.errors import ExportError
from autosp_inspector.export.adoption import adopt_orphans
from autosp_inspector.export.draw_modules import draw_modules
from autosp_inspector.export.module_graph import Box, ModuleGraph
from tests.support.model_rows import HEADS, SEQUENCE, ProgramRows, decoder_rows, make_run


def draw(rows: ProgramRows, *, depth: int | None = None, module: str = "") -> ModuleGraph:
    return draw_modules(
        rows.nodes,
        collectives=rows.collectives,
        run=make_run(),
        totals={},
        depth=depth,
        module=module,
    )


def titles(graph: ModuleGraph) -> list[str]:
    return [box.title for box in graph.boxes]


def frame_titles(graph: ModuleGraph) -> list[str]:
    return [frame.title for frame in graph.frames]


def linked(graph: ModuleGraph) -> set[tuple[str, str]]:
    title_of = {box.id: box.title for box in graph.boxes}
    return {(title_of[link.source], title_of[link.target]) for link in graph.links}


def box_named(graph: ModuleGraph, title: str) -> Box:
    (found,) = [box for box in graph.boxes if box.title == title]
    return found


def test_depth_one_draws_closed_modules_and_folds_equal_layers() -> None:
    graph = draw(decoder_rows(num_layers=12), depth=1)

    assert titles(graph) == [
        "input_ids",
        "local slice",
        "embedding",
        "layers.0–11",
        "norm",
        "head",
        "cross_entropy_loss",
        "output",
    ]
    layers = box_named(graph, "layers.0–11")
    assert (layers.own_repeat, layers.subtitle, layers.placement) == (12, "Block", SEQUENCE)
    assert layers.inner_placements == (HEADS,)
    assert graph.frames == ()


def test_a_closed_module_counts_the_collectives_inside_it() -> None:
    layers = box_named(draw(decoder_rows(num_layers=3), depth=1), "layers.0–2")

    (total,) = layers.collectives
    assert (total.kind, total.count, total.bytes) == ("all_to_all", 4, 4 * 2048 * 768 * 2)


def test_an_index_and_its_container_are_one_level() -> None:
    graph = draw(decoder_rows(num_layers=2), depth=2)

    assert frame_titles(graph) == ["layers.0–1"]
    assert graph.frames[0].repeat == 2
    assert "attention" in titles(graph)
    assert "wq" not in titles(graph)


def test_collectives_stand_between_modules_with_the_copies_around_them() -> None:
    graph = draw(decoder_rows(num_layers=2), depth=3)

    to_heads = box_named(graph, "3 all-to-all over sp")
    to_sequence = box_named(graph, "all-to-all over sp")
    assert to_heads.subtitle == f"{SEQUENCE} → {HEADS}"
    assert to_heads.placement == HEADS
    assert to_heads.collectives[0].count == 3
    assert to_sequence.subtitle == f"{HEADS} → {SEQUENCE}"
    assert to_heads.repeat == 2
    assert {
        ("wq", "3 all-to-all over sp"),
        ("wv", "3 all-to-all over sp"),
        ("3 all-to-all over sp", "scaled_dot_product_attention"),
        ("scaled_dot_product_attention", "all-to-all over sp"),
        ("all-to-all over sp", "wo"),
    } <= linked(graph)
    assert not {"clone", "view", "wait_tensor"} & set(titles(graph))


def test_folded_layers_are_linked_to_their_surroundings_only() -> None:
    graph = draw(decoder_rows(num_layers=5), depth=2)

    assert ("embedding", "norm1") in linked(graph)
    adds = [box.id for box in graph.boxes if box.title == "add"]
    norm = box_named(graph, "norm").id
    assert [link.source for link in graph.links if link.target == norm] == [adds[-1]]
    first_norm = box_named(graph, "norm1").id
    assert all(link.source not in adds for link in graph.links if link.target == first_norm)


def test_the_residual_leads_past_the_attention() -> None:
    graph = draw(decoder_rows(num_layers=2), depth=2)

    assert ("embedding", "add") in linked(graph)
    assert ("attention", "add") in linked(graph)


def test_a_layer_that_differs_is_drawn_apart() -> None:
    graph = draw(decoder_rows(num_layers=6, odd_layer=2), depth=1)

    assert [t for t in titles(graph) if t.startswith("layers")] == [
        "layers.0–1",
        "layers.2",
        "layers.3–5",
    ]


def test_layers_with_another_placement_are_not_folded() -> None:
    rows = decoder_rows(num_layers=3)
    rows.nodes = [
        replace(node, placement="R") if node.module == "layers.1.norm1" else node
        for node in rows.nodes
    ]
    graph = draw(rows, depth=1)

    assert [t for t in titles(graph) if t.startswith("layers")] == [
        "layers.0",
        "layers.1",
        "layers.2",
    ]


def test_a_pattern_opens_what_it_names_operator_by_operator() -> None:
    graph = draw(decoder_rows(num_layers=6), depth=1, module="layers.3.attention")

    assert frame_titles(graph) == ["layers.3", "attention"]
    assert {"layers.0–2", "layers.4–5"} <= set(titles(graph))
    assert titles(graph).count("all-to-all over sp") == 4
    assert "clone" in titles(graph)
    assert {"wq", "wk", "wv", "wo", "mlp"} <= set(titles(graph))


def test_a_star_opens_everything_below() -> None:
    graph = draw(decoder_rows(num_layers=4), depth=1, module="layers.0.*")

    assert {"norm1", "attention", "wq", "mlp", "up"} <= set(frame_titles(graph))


def test_a_pattern_may_leave_out_leading_components() -> None:
    rows = decoder_rows(num_layers=3)
    rows.nodes = [
        replace(node, module=f"model.{node.module}" if node.module else "") for node in rows.nodes
    ]

    graph = draw(rows, depth=1, module="layers.1.attention")

    assert [frame.path for frame in graph.frames] == [
        "model",
        "model.layers.1",
        "model.layers.1.attention",
    ]


def test_a_pattern_without_a_match_names_modules_that_exist() -> None:
    with pytest.raises(ExportError, match=r"no module matches 'layer\.0\.attention'.*layers\."):
        draw(decoder_rows(), module="layer.0.attention")


def test_every_opened_module_ends_when_the_drawing_would_be_too_large() -> None:
    rows = decoder_rows(num_layers=40)
    rows.nodes = [
        replace(node, local_shape=(1, index, 768)) if node.module.endswith("norm1") else node
        for index, node in enumerate(rows.nodes)
    ]

    graph = draw(rows)

    assert graph.depth == 1
    assert "layers.39" in titles(graph)


def test_the_default_depth_shows_the_insides_of_folded_layers() -> None:
    graph = draw(decoder_rows(num_layers=80))

    assert graph.depth == 3
    assert "wq" in titles(graph)
    assert len(graph.boxes) < 30


def test_parameters_are_not_drawn() -> None:
    assert not any("weight" in title for title in titles(draw(decoder_rows())))


def test_switches_of_grad_mode_are_not_drawn() -> None:
    rows = decoder_rows(num_layers=1)
    before = titles(draw(rows))
    switch = replace(
        rows.nodes[-1],
        name="_set_grad_enabled",
        op="call_function",
        target="_set_grad_enabled",
        role="compute",
        inputs=(),
        local_shape=None,
        global_shape=None,
    )
    rows.nodes.append(switch)
    assert titles(draw(rows)) == before


def test_the_legend_has_the_same_order_in_every_drawing() -> None:
    first = draw(decoder_rows(num_layers=1)).placements
    assert first.index(SEQUENCE) < first.index(HEADS)
    rows = decoder_rows(num_layers=1)
    rows.nodes = [
        replace(node, placement=HEADS) if node.placement == SEQUENCE and number % 5 else node
        for number, node in enumerate(rows.nodes)
    ]
    assert draw(rows).placements == first


def test_a_value_used_in_many_places_is_named_there() -> None:
    rows = ProgramRows()
    table = rows.add("aten.cos.default", module="rotary", placement="R")
    for index in range(9):
        rows.add("aten.mul.Tensor", table, module=f"part{index}x")
    graph = draw(rows, depth=1)

    assert graph.links == ()
    assert all(box.notes == ("uses rotary",) for box in graph.boxes if box.title != "rotary")


def test_the_drawing_of_a_program_without_loops_has_none() -> None:
    graph = draw(decoder_rows(num_layers=3), depth=3)

    sources: dict[str, list[str]] = {box.id: [] for box in graph.boxes}
    for link in graph.links:
        sources[link.target].append(link.source)
    assert len(list(TopologicalSorter(sources).static_order())) == len(graph.boxes)


def test_backward_layers_that_count_down_fold_too() -> None:
    rows = ProgramRows()
    value = rows.add("tangents_1", op="placeholder", role="input", name="tangents_1")
    for index in (3, 2, 1, 0):
        value = rows.add("aten.mul.Tensor", value, module=f"layers.{index}")
    rows.nodes = [replace(node, phase="backward") for node in rows.nodes]

    assert titles(draw(rows, depth=1)) == ["tangents_1", "layers.0–3"]


def test_an_empty_graph_is_refused() -> None:
    with pytest.raises(ExportError, match="no operators to draw"):
        draw(ProgramRows())


def test_a_module_that_is_called_twice_is_two_boxes() -> None:
    rows = ProgramRows()
    value = rows.add("aten.linear.default", module="first")
    value = rows.add("aten.dropout.default", value, module="dropout")
    value = rows.add("aten.linear.default", value, module="second")
    rows.add("aten.dropout.default", value, module="dropout")

    graph = draw(rows, depth=1)

    assert titles(graph) == ["first", "dropout", "second", "dropout"]
    assert ("second", "dropout") in linked(graph)


def test_parts_of_one_call_that_do_not_meet_are_one_box() -> None:
    rows = ProgramRows()
    gradient = rows.add("aten.mul.Tensor", module="loss")
    again = rows.add("aten.mul.Tensor", gradient, module="other")
    rows.add("aten.mm.default", gradient, module="linear")
    rows.add("aten.mm.default", again, module="linear")

    assert titles(draw(rows, depth=1)) == ["loss", "other", "linear"]


def test_recomputed_operators_stand_apart_and_say_so() -> None:
    rows = ProgramRows()
    again = rows.add("aten.linear.default", module="up")
    between = rows.add("aten.gelu_backward.default", again, module="gelu")
    rows.add("aten.mm.default", between, module="up")
    rows.nodes[0] = replace(rows.nodes[0], recomputed=True)

    graph = draw(rows, depth=1)

    assert titles(graph) == ["up", "gelu", "up"]
    assert [box.notes for box in graph.boxes] == [("recomputed forward",), (), ()]


def test_sums_of_gradients_stand_where_the_last_addend_was_computed() -> None:
    rows = ProgramRows()
    above = rows.add("aten.mm.default", module="norm")
    inner = rows.add("aten.mm.default", above, module="layers.1.mlp.up")
    rows.add("aten.add.Tensor", above, inner)
    rows.add("aten.mm.default", module="layers.0")
    adopted = adopt_orphans(rows.nodes)

    assert [node.module for node in adopted] == [
        "norm",
        "layers.1.mlp.up",
        "layers.1.mlp",
        "layers.0",
    ]


def test_sums_around_numbered_modules_stand_in_what_holds_the_list() -> None:
    rows = ProgramRows()
    inner = rows.add("aten.mm.default", module="model.layers.0")
    rows.add("aten.add.Tensor", inner, inner)

    assert [node.module for node in adopt_orphans(rows.nodes)] == ["model.layers.0", "model"]


def test_a_run_without_a_name_is_titled_after_its_file() -> None:
    rows = decoder_rows(num_layers=1)
    graph = draw_modules(
        rows.nodes, collectives=(), run=make_run(model="", path="runs/try.autosp"), totals={}
    )

    assert graph.title == "try"


def test_sums_used_only_where_they_arise_stay_there() -> None:
    rows = ProgramRows()
    wide = rows.add("aten.mul.Tensor", module="layers.0.norm")
    total = rows.add("aten.add.Tensor", wide, wide)
    rows.add("aten.mul.Tensor", total, module="layers.0.norm")

    assert {node.module for node in adopt_orphans(rows.nodes)} == {"layers.0.norm"}
