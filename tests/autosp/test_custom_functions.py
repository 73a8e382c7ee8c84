"""Custom ``torch.autograd.Function``s: their own backward runs, on the shards."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from autosp.custom_gradients import is_custom_gradient
from autosp.dry_run import dry_run
from autosp.errors import AutoSPError, GraphBreakError, RandomnessError
from autosp.graph import collective_kind, output_node
from autosp.oracle.check import with_captured
from autosp.oracle.lockstep import run_whole
from autosp.verification_processes import run_on_ranks
from tests.support.custom_functions import (
    BODIES,
    Transformed,
    everything,
    gelu,
    some,
    square,
    straight_through,
    subject,
    twice,
    under_autocast,
)
from tests.support.dry_runs import request_for
from tests.support.gloo_cases import run_cases, verification
from tests.support.programs import SmallModel, assert_right, prove, tokens

MIXES_TOKENS = ("mixing", "own_attention")
"""Their backwards may gather."""


@pytest.mark.parametrize("name", BODIES)
def test_values_and_cotangents_are_right(name):
    allowed = None if name in MIXES_TOKENS else 0
    assert_right(SmallModel(after=BODIES[name]), max_fallbacks=allowed)


def test_functions_before_the_attention_with_dropout_between_are_right():
    assert_right(SmallModel(before=twice, after=straight_through))


def test_the_captured_program_has_the_gradients_of_the_eager_model():
    model = SmallModel(after=everything)
    ids, labels = tokens(2, 7)
    expected = torch.autograd.grad(model(ids, labels), list(model.parameters()), allow_unused=True)

    def compare(captured, real):
        values = run_whole(captured.program, real)
        placeholders = captured.program.graph.find_nodes(op="placeholder")
        pairs = zip(captured.inputs, placeholders, strict=True)
        leaves = {given.name: values[node.name] for given, node in pairs if given.trainable}
        (loss,) = values[output_node(captured.program.graph).name]
        gradients = dict(zip(leaves, torch.autograd.grad(loss, leaves.values()), strict=True))
        named = dict(zip(dict(model.named_parameters()), expected, strict=True))
        assert len(gradients) > 5
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, named[name], rtol=1e-10, atol=1e-12)

    with_captured(model, (ids, labels), {}, compare)


def test_the_derivative_of_the_forward_is_not_used():
    """A rounded weight would get no gradient at all."""
    model = SmallModel(after=straight_through)
    (proof,) = prove(model, cases=((2, 5, 4),))
    assert proof.report.ok
    model(*tokens(2, 5)).backward()
    assert model.weight.grad.abs().max() > 0.1


def program_of(after, *, sp=2, length=16, **options):
    class Model(SmallModel):
        def forward(self, input_ids, labels):
            return super().forward(input_ids, labels)

    return dry_run(request_for(lambda: Model(after=after), sp=sp, seq=length, **options))


def collectives(result):
    graphs = result.compilation.graphs
    return [
        collective_kind(node)
        for graph in (graphs.forward.graph, graphs.backward.graph)
        for node in graph.nodes
        if collective_kind(node) is not None
    ]


def test_a_pointwise_function_stays_sharded_and_communicates_nothing():
    custom, plain = program_of(gelu), program_of(lambda m, x: F.gelu(F.linear(x, m.weight)))
    assert collectives(custom) == collectives(plain)
    assert not custom.compilation.sharded.fallbacks
    (node,) = (
        n for n in custom.compilation.sharded.program.graph.nodes if is_custom_gradient(n.target)
    )
    assert [value.shape for value in node.meta["val"]] == [(1, 8, 24)]


def test_an_operator_without_a_rule_in_a_backward_gathers_and_is_a_finding():
    def body(model, x):
        return Transformed.apply(x)

    result = program_of(body)
    (finding,) = (f for f in result.findings if f.code == "gathered-operator")
    assert "fft" in finding.message
    assert finding.source.file.endswith("custom_functions.py")
    program = result.compilation.captured.program.graph
    assert finding.node in {node.name for node in program.nodes}
    assert_right(SmallModel(after=body), max_fallbacks=2)


def test_a_function_under_autocast_is_right():
    assert_right(SmallModel(after=under_autocast, dtype=torch.float32))


def test_an_operator_of_a_library_runs_on_gathered_inputs_with_its_own_backward():
    assert_right(SmallModel(after=lambda m, x: square(x)), max_fallbacks=1)
    (finding,) = program_of(lambda m, x: square(x)).findings
    assert finding.code == "gathered-operator"
    assert "autosp_tests.square" in finding.message


def test_one_rank_runs_the_function_as_it_is():
    result = program_of(gelu, sp=1)
    targets = {node.target for node in result.compilation.graphs.backward.graph.nodes}
    assert torch.ops.aten.div.Scalar not in targets
    assert not collectives(result)


def refused(body, error, *words):
    with pytest.raises(error) as caught:
        prove(SmallModel(after=body), cases=((1, 6, 2),))
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert "\n" not in text


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent + torch.rand_like(cotangent)


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * cotangent


def test_random_numbers_in_a_backward_are_refused():
    refused(lambda m, x: Noisy.apply(x), RandomnessError, "draws random numbers", "functions.py:")


class Untraceable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        torch._dynamo.graph_break()
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


def test_a_function_that_cannot_be_traced_is_refused_at_its_line():
    with pytest.raises(GraphBreakError, match=r"test_custom_functions.py:\d+ in forward.*break"):
        program_of(lambda m, x: Untraceable.apply(x))


def test_a_function_that_writes_to_its_input_is_refused():
    refused(lambda m, x: Dirty.apply(x * 1), AutoSPError, "mark_dirty", "new tensor")


CASES = {
    "eager": verification(partial(subject, everything, batch=2, length=7), ranks=2),
    "inductor": verification(partial(subject, some, batch=1, length=9), ranks=2, inner="inductor"),
}


def test_two_ranks_train_like_one_process():
    found = run_on_ranks(partial(run_cases, CASES), num_ranks=2)
    for name in CASES:
        report = found[name]
        assert not isinstance(report, str), report
        assert report.ok, (report.first_wrong_detail, report.gradients)
        assert len(report.gradients) > 5
