"""Writes by index reach the rows they name, on whichever rank they are, and no others."""

from __future__ import annotations

import torch

from tests.support.programs import WIDTH, SmallModel, assert_right

ROWS = torch.tensor([0, 3, -1])
PADDED = ((2, 5, 4),)
"""Rows of padding, and a rank that holds nothing else."""


def test_assignments_to_rows_of_the_sequence():
    def body(model, x):
        batch = torch.arange(x.shape[0])
        last = (model.ids != 3).sum(1) - 1
        listed, last_rows, fixed = x * 1, x * 2, x * 3
        listed[:, [0, 3, 1]] = model.bias.sin()
        last_rows[batch, last] = model.bias
        fixed[:, ROWS] = model.weight[: len(ROWS)]
        flat = x.flatten(0, 1).index_put((torch.tensor([2, 4]),), model.weight[:2])
        return listed.sin(), last_rows.sin(), fixed.sin(), flat.sin()

    assert_right(SmallModel(after=body), cases=PADDED)


def test_rows_that_are_filled_copied_and_added():
    def body(model, x):
        rows = model.bias.expand(x.shape[0], 3, WIDTH) * x[:, :3]
        return (
            x.index_fill(1, ROWS % x.shape[1], 0.5).sin(),
            x.index_copy(1, ROWS % x.shape[1], rows).sin(),
            x.index_add(1, torch.tensor([0, 3, 3]), rows, alpha=2).sin(),
            x.index_put((torch.tensor([[0], [0]]), ROWS), model.bias, accumulate=True).sin(),
        )

    assert_right(SmallModel(after=body), cases=PADDED)


def test_writes_to_features_stay_with_their_rows():
    def body(model, x):
        some = torch.tensor([0, 3, 3])
        return (
            x.index_add(2, some, x[..., :3] * 2).sin(),
            x.index_copy(2, some[:2], x[..., 4:6]).sin(),
            x.index_fill(2, some, 0.5).sin(),
            x.index_put((some[:1, None], some[None], some[:1]), model.bias[:1]).sin(),
            x.mT.index_put((torch.arange(len(x))[:, None], some[:2]), x[:, None, :, 0]).sin(),
        )

    assert_right(SmallModel(after=body), cases=PADDED)


def test_scattering_along_the_sequence():
    def body(model, x):
        places = (model.ids % x.shape[1])[..., None].expand_as(x)
        order = model.ids.argsort(1)[..., None].expand_as(x)
        return (
            x.scatter(1, places[:, :1], 0.5).sin(),
            x.scatter(1, order, x.sin()).cos(),
            x.scatter_add(1, places, x.sin()).cos(),
            x.scatter_reduce(1, places, x.sin(), "amax").cos(),
            x.scatter_reduce(1, places, x.sin(), "mean", include_self=False).cos(),
        )

    assert_right(SmallModel(after=body), cases=PADDED)


def test_sums_over_segments_of_the_sequence():
    """Each rank adds its own rows; padding adds nothing."""

    def body(model, x):
        segment = model.ids % 3
        table = model.weight[:3] * 1
        ones = torch.ones_like(x[..., 0])
        sums = x.new_zeros(len(x), 3, WIDTH)
        sums = sums.scatter_add(1, segment[..., None].expand_as(x), x.sin())
        counts = x.new_zeros(len(x), 3).scatter_add(1, segment, ones)
        return (
            sums / counts.clamp(min=1)[..., None],
            table.index_add(0, segment.flatten(), x.flatten(0, 1)).sin(),
            table.scatter_reduce(0, segment[0][:, None].expand_as(x[0]), x[0].sin(), "sum"),
        )

    assert_right(SmallModel(after=body), cases=((2, 5, 2), (2, 7, 4)))


def test_values_chosen_by_a_mask_of_rows():
    def body(model, x):
        one, many, added, later = x * 1, x * 2, x * 3, x * 4
        mask = model.ids == model.ids[:, :1]  # one a row of the batch
        one[mask] = model.bias
        many[mask] = model.weight[: len(x)]
        added.index_put_((mask,), model.bias, accumulate=True)
        later[:, mask[0]] = x[:, :1] * 2
        return one.sin(), many.sin(), added.sin(), later.sin()

    assert_right(SmallModel(after=body), cases=PADDED)


def test_padding_rows_never_keep_zeros_that_are_overwritten():
    def body(model, x):
        order = model.ids[0].argsort()
        moved = torch.zeros_like(x).index_put((torch.zeros_like(order), order), x[0])[:1]
        scattered = torch.zeros_like(x).scatter(1, order[None, :, None].expand_as(x), x)
        return moved / moved.norm(dim=-1, keepdim=True), scattered / scattered.norm(dim=-1)[
            ..., None
        ]

    assert_right(SmallModel(after=body), cases=((1, 5, 4), (2, 5, 3)))
