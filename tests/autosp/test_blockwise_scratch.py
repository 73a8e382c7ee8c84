"""Memory of attention block by block, against what the profiler sees it take."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from autosp.cost.blockwise_scratch import blockwise_scratch
from autosp.runtime.blockwise_attention import BLOCKWISE_ATTENTION, BLOCKWISE_ATTENTION_BACKWARD
from tests.support.allocation_profile import measure_peak, unique_bytes

MOST_TOO_MUCH = 1.2


def forward(query, key, value, positions, kept):
    return BLOCKWISE_ATTENTION(query, key, value, **mask(positions, kept))


def backward(cotangent, query, key, value, out, lse, positions, kept):
    given = (cotangent, query, key, value, out, lse)
    return BLOCKWISE_ATTENTION_BACKWARD(*given, **mask(positions, kept))


def mask(positions, kept):
    return {
        "query_vectors": [positions],
        "key_vectors": [positions, kept],
        "predicate": "q0 >= k0 and k1",
        "scale": 0.2,
        "density": 0.5,
    }


@pytest.mark.parametrize(
    ("batch", "mask_rows", "kv_heads", "length", "dtype"),
    [
        (2, 1, 4, 1024, torch.float32),
        (2, 2, 2, 1024, torch.float32),
        (1, 1, 2, 300, torch.bfloat16),
    ],
)
def test_a_block_at_a_time(batch, mask_rows, kv_heads, length, dtype):
    tensors = [torch.randn(batch, heads, length, 64).to(dtype) for heads in (4, kv_heads, kv_heads)]
    positions = torch.arange(length)[None]
    vectors = [positions, (positions > 3).expand(mask_rows, length).contiguous()]
    out, lse = forward(*tensors, *vectors)
    assert_measured(forward, [*tensors, *vectors])
    assert_measured(backward, [torch.randn_like(out), *tensors, out, lse, *vectors])


def assert_measured(kernel, arguments):
    outputs = unique_bytes(kernel(*arguments))
    measured = measure_peak(lambda: kernel(*arguments)).peak_bytes - outputs
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(argument) for argument in arguments]
        graph = make_fx(kernel)(*fakes).graph
    expected = max(map(blockwise_scratch, graph.nodes))
    assert measured <= expected <= measured * MOST_TOO_MUCH
