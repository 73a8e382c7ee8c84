"""Names of a user's inputs and parameters never reach the code that Inductor writes."""

from __future__ import annotations

import torch
import torch.distributed as dist

import autosp


class Hostile(torch.nn.Module):
    """Its names are those of variables in Inductor's own code."""

    def __init__(self) -> None:
        super().__init__()
        self.buf0 = torch.nn.Linear(4, 4)
        self.primals_1 = torch.nn.Parameter(torch.ones(4))

    def forward(self, args: torch.Tensor, buf1: torch.Tensor) -> torch.Tensor:
        return (self.buf0(args) * self.primals_1 + buf1).tanh().sum()


def test_inputs_named_like_variables_of_inductor_compile() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        model = Hostile()
        inputs = torch.randn(3, 4), torch.randn(3, 4)
        compiled = torch.compile(model, backend=autosp.backend(inner="inductor"))
        loss = compiled(*inputs)
        loss.backward()
        found = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        expected = model(*inputs)
        expected.backward()
        torch.testing.assert_close(loss, expected)
        for gradient, parameter in zip(found, model.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad)
    finally:
        torch._dynamo.reset()
        dist.destroy_process_group()
