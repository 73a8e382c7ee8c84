"""Formatting."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from autosp_tui.present import (
    clean,
    fit,
    format_bytes,
    format_duration,
    format_fraction,
    format_tensor,
    short_path,
    short_target,
)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (64 * 1024**2, "64.0 MiB"),
        (1002 * 1024**2, "0.98 GiB"),
        (721 * 1024**2, "721 MiB"),
        (80 * 1024**3, "80.0 GiB"),
        (3 * 1024**4, "3.00 TiB"),
        (None, "?"),
    ],
)
def test_bytes_are_binary_with_three_digits(size_bytes: int | None, text: str) -> None:
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0 ns"),
        (850, "850 ns"),
        (12_345, "12.3 µs"),
        (4_560_000, "4.56 ms"),
        (1_230_000_000, "1.23 s"),
        (None, "?"),
    ],
)
def test_durations_choose_their_unit(duration_ns: int | None, text: str) -> None:
    assert format_duration(duration_ns) == text


def test_a_small_share_never_reads_as_nothing() -> None:
    assert format_fraction(0.0004) == "<0.1%"
    assert format_fraction(0.0) == "0.0%"
    assert format_fraction(0.042) == "4.2%"
    assert format_fraction(None) == "?"


def test_tensors_are_written_the_short_way() -> None:
    assert format_tensor("bfloat16", (1, 4096, 4096)) == "bf16[1,4096,4096]"
    assert format_tensor("torch.int64", ()) == "i64[]"
    assert format_tensor(None, None) == ""


def test_operator_names_lose_what_is_the_same_everywhere() -> None:
    assert short_target("aten.linear.default") == "linear"
    assert short_target("aten.add.Tensor") == "add.Tensor"
    assert short_target("_c10d_functional.all_to_all_single.default") == "all_to_all_single"


def test_control_characters_become_visible() -> None:
    assert clean("a\x1b[31mb\nc") == "a\\x1b[31mb\\x0ac"
    assert clean("x\u202ey") == "x\\u202ey"
    assert clean("naïve → µs") == "naïve → µs"


@given(st.text(), st.integers(0, 30), st.sampled_from(["start", "end", "ends"]))
def test_fitted_text_has_exactly_the_width_asked_for(text: str, width: int, keep: str) -> None:
    fitted = fit(clean(text), width, keep=keep)  # type: ignore[arg-type]
    assert cell_len(fitted) == width


def test_fitting_keeps_the_end_that_tells_names_apart() -> None:
    assert fit("layers.10.self_attn.q_proj", 12, keep="end") == "…attn.q_proj"
    assert fit("layers_0_attn_q_proj_weight", 13, keep="ends") == "layers…weight"


def test_a_source_below_the_current_folder_is_relative_to_it() -> None:
    assert short_path(f"{Path.cwd()}/samples/gpt.py") == "samples/gpt.py"
    assert short_path("/elsewhere/gpt.py") == "/elsewhere/gpt.py"
    assert short_path("/x/site-packages/transformers/llama.py") == "transformers/llama.py"
