"""The fingerprint that the ranks of a group compare."""

from __future__ import annotations

import pytest
import torch

from autosp.runtime.same_inputs import fingerprint

TENSORS = {
    "ids": torch.arange(12).reshape(3, 4),
    "row": torch.arange(5),
    "one": torch.tensor(3),
    "mask": torch.eye(4, dtype=torch.bool),
    "floats": torch.randn(2, 3, 4),
    "halves": torch.randn(4, 6).to(torch.bfloat16),
    "strided": torch.randn(4, 6).T,
    "complex": torch.randn(3, 2, dtype=torch.complex64),
    "doubles": torch.randn(7, dtype=torch.float64),
}


@pytest.mark.parametrize("name", TENSORS)
def test_copies_have_one_fingerprint(name: str) -> None:
    tensor = TENSORS[name]
    assert torch.equal(fingerprint(tensor), fingerprint(tensor.clone().contiguous()))
    assert fingerprint(tensor).shape == (2,)


@pytest.mark.parametrize("name", TENSORS)
def test_every_element_counts(name: str) -> None:
    tensor = TENSORS[name].contiguous()
    for index in range(tensor.numel()):
        other = tensor.clone()
        flat = other.view(-1)
        flat[index] = ~flat[index] if tensor.dtype is torch.bool else flat[index] + 1
        assert not torch.equal(fingerprint(tensor), fingerprint(other)), index


@pytest.mark.parametrize("name", ["ids", "floats", "halves", "doubles", "row"])
def test_places_count(name: str) -> None:
    tensor = TENSORS[name].contiguous()
    assert not torch.equal(fingerprint(tensor), fingerprint(tensor.flip(-1)))
    assert not torch.equal(fingerprint(tensor), fingerprint(tensor.roll(1, 0)))


def test_nothing_has_a_fingerprint_too() -> None:
    assert fingerprint(torch.empty(0, 4)).tolist() == [0, 0]


def test_a_negative_zero_and_a_nan_are_values_like_others() -> None:
    assert not torch.equal(fingerprint(torch.zeros(2)), fingerprint(torch.tensor([0.0, -0.0])))
    nans = torch.full((2, 2), float("nan"))
    assert torch.equal(fingerprint(nans), fingerprint(nans.clone()))
