"""Text in drawings: any name gives valid DOT and well-formed SVG, and numbers read well."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosp_inspector.export.dot import dot_source
from autosp_inspector.export.draw_modules import draw_modules
from autosp_inspector.export.labels import (
    shape_text,
    short_dtype,
    size_text,
    visible_text,
    wrap_name,
)
from autosp_inspector.export.layout import draw_svg
from autosp_inspector.export.operators import describe_operators, short_name
from autosp_inspector.export.placement_style import (
    HEADS,
    OTHER_SHARD,
    PARTIAL,
    REPLICATED,
    SEQUENCE,
    UNKNOWN,
    PlacementStyle,
    style_of,
    without_details,
)
from autosp_inspector.export.svg import finish_svg
from tests.support.model_rows import decoder_rows, make_run

AWKWARD = (
    r"{}|<>\"",
    "a,a->a",
    "<B>bold</B>",
    "</TABLE>>",
    "&amp; &bogus; &#0;",
    r"\N \G \l \"",
    "ends with \\",
    "line\nbreak\r\ttab",
    "\x00\x01\x1b[31mred\x7f\x85",
    "\ud800 alone",
    "\u202egnirts\u2066",
    "层.注意力 ×é ∑",
    "<script>alert(1)</script>",
    "",
    " ",
    "x" * 300,
)
anything = st.one_of(st.sampled_from(AWKWARD), st.text(max_size=40))


def svg_with(name: str) -> ElementTree.Element:
    """Parse the SVG of a program in which every free text is ``name``."""
    rows = decoder_rows(num_layers=1)
    nodes = [
        replace(
            node,
            module_class=name,
            placement=name or None,
            dtype=name,
            target=name if node.op == "call_function" else node.target,
            module=node.module.replace("norm1", name.replace(".", "") or "norm1"),
        )
        for node in rows.nodes
    ]
    collectives = [
        replace(row, axis=name, reason=name, target_placement=name) for row in rows.collectives
    ]
    graph = draw_modules(
        nodes, collectives=collectives, run=make_run(model=name, config={"seq": name}), totals={}
    )
    return ElementTree.fromstring(finish_svg(draw_svg(dot_source(graph)), title=name))


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_names_are_drawn_as_text(name: str) -> None:
    svg = svg_with(name)

    words = [element.text or "" for element in svg.iter() if element.tag.endswith("}text")]
    for line in wrap_name(name):
        assert line in words
    tags = {element.tag.rpartition("}")[2] for element in svg.iter()}
    assert tags <= {"svg", "g", "title", "path", "polygon", "polyline", "text"}


@given(name=anything)
def test_any_name_gives_well_formed_svg(name: str) -> None:
    assert svg_with(name).tag.endswith("svg")


@given(text=st.text())
def test_visible_text_holds_only_characters_that_xml_allows(text: str) -> None:
    shown = visible_text(text)

    ElementTree.fromstring(f"<a>{shown.replace('&', '').replace('<', '')}</a>".encode())
    assert "\n" not in shown


def test_characters_that_cannot_be_shown_are_written_as_codes() -> None:
    assert visible_text("a\x1b[31m\u202e\ud800b\nc") == "a\\x1b[31m\\u202e\\ud800b c"


@given(text=st.text(min_size=1, max_size=200), width=st.integers(5, 40))
def test_wrapped_names_keep_to_the_width(text: str, width: int) -> None:
    lines = wrap_name(text, width=width, most_lines=3)

    assert len(lines) <= 3
    assert all(len(line) <= width for line in lines)


def test_names_break_after_a_separator() -> None:
    assert wrap_name("scaled_dot_product_attention", width=26) == (
        "scaled_dot_product_",
        "attention",
    )
    assert wrap_name("add, mul ×4", width=26) == ("add, mul ×4",)


def test_shapes_show_what_one_rank_holds() -> None:
    assert shape_text((1, 8192, 768), (1, 2048, 768)) == "[1, 8192→2048, 768]"
    assert shape_text((2, 3), (2, 3)) == "[2, 3]"
    assert shape_text(None, (4, 5)) == "[4, 5]"
    assert shape_text((), ()) == "[]"
    assert shape_text(None, None) == ""


def test_sizes_are_binary() -> None:
    assert size_text(4) == "4 B"
    assert size_text(1536) == "1.5 KiB"
    assert size_text(36 * 1024**2) == "36.0 MiB"
    assert size_text(5 * 1024**4) == "5.0 TiB"


def test_dtypes_are_short() -> None:
    assert short_dtype("torch.bfloat16") == "bf16"
    assert short_dtype("float8_e4m3fn") == "float8_e4m3fn"
    assert short_dtype(None) == ""


def test_operators_are_named_as_a_user_calls_them() -> None:
    assert short_name("aten.linear.default") == "linear"
    assert short_name("_c10d_functional.all_to_all_single.default") == "all_to_all_single"
    assert short_name("<built-in function getitem>") == "getitem"
    assert short_name("sym_size") == "sym_size"
    assert describe_operators(["aten.mul.Tensor", "aten.add.Tensor", "aten.mul.Tensor"]) == (
        "mul ×2",
        "add",
    )


@pytest.mark.parametrize(
    ("placement", "style"),
    [
        ("S(1:seq)", SEQUENCE),
        ("S(1:seq,pad=3)", SEQUENCE),
        ("S(2:head)", HEADS),
        ("S(0)", OTHER_SHARD),
        ("P(sum)", PARTIAL),
        ("R", REPLICATED),
        ("RS(1:seq)", SEQUENCE),
        ("S(1:seq)R", SEQUENCE),
        ("RR", REPLICATED),
        (None, UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_placements_have_their_style(placement: str | None, style: PlacementStyle) -> None:
    assert style_of(placement) == style


def test_styles_are_readable_and_differ_in_more_than_their_fill() -> None:
    styles = (SEQUENCE, HEADS, OTHER_SHARD, PARTIAL, REPLICATED, UNKNOWN)

    assert len({style.name for style in styles}) == len(styles)
    for style in styles:
        assert contrast(style.ink, style.fill) >= 4.5


def contrast(first: str, second: str) -> float:
    """Contrast ratio of WCAG 2."""
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_legend_leaves_out_padding_and_strides() -> None:
    assert without_details("S(0:seq,outer=2,pad=2)") == "S(0:seq)"
    assert without_details("RP(sum)") == "RP(sum)"
