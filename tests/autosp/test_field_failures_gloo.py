"""Known failures of sequence parallelism that only several processes can show."""

from __future__ import annotations

from functools import partial

import pytest

from autosp.verification_processes import run_on_ranks
from tests.support import field_cases
from tests.support.gloo_cases import run_cases

CASES = {
    case.__name__: case
    for case in (
        field_cases.engine_averages,
        field_cases.data_parallel_engine,
        field_cases.another_mesh,
        field_cases.unfit_meshes,
        field_cases.regions_in_a_row,
        field_cases.lengths_of_a_run,
    )
}
EXACT = 1e-12


@pytest.fixture(scope="module")
def results():
    found = run_on_ranks(partial(run_cases, CASES), num_ranks=2)
    failed = {name: result for name, result in found.items() if isinstance(result, str)}
    assert failed == {}
    return found


def test_an_engine_that_averages_over_the_group_gives_the_gradient(results):
    errors = results["engine_averages"]
    assert errors["averaged"] < EXACT
    assert errors["summed"] > 0.5  # off by the factor P


def test_ddp_around_the_compiled_model_and_inside_it(results):
    assert max(results["data_parallel_engine"].values()) < EXACT


def test_a_second_compilation_with_another_mesh_uses_the_new_one(results):
    assert max(results["another_mesh"]) < EXACT


def test_a_mesh_that_does_not_cover_the_processes_is_refused(results):
    said = results["unfit_meshes"]
    assert "4 ranks but 2 processes run" in said["too large"]
    assert "1 ranks but 2 processes run" in said["too small"]
    assert "1 of 2 processes" in said["device mesh of one rank"]
    assert not any("\n" in text for text in said.values())


def test_a_compiled_region_that_reads_the_output_of_another(results):
    assert results["regions_in_a_row"] < EXACT


def test_changing_lengths_compile_once_each_and_stay_right(results):
    assert results["lengths_of_a_run"]["gradients"] < EXACT
    assert results["lengths_of_a_run"]["compilations"] == 3
