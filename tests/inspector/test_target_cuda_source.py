"""Source written for CUDA is compiled as if for the CPU."""

from __future__ import annotations

import ast

import pytest

from autosp_inspector.target.cuda_source import for_cpu


def rewritten(source: str) -> str:
    return ast.unparse(for_cpu(source.encode(), "model.py"))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("torch.zeros(2, device='cuda')", "torch.zeros(2, device='cpu')"),
        ("x.to('cuda:1')", "x.to('cpu')"),
        ("x.to(f'cuda:{rank}')", "x.to('cpu')"),
        ("x.cuda(non_blocking=True) + 1", "x + 1"),
        ("super().cuda(3)", "super().cuda(3)"),
        ("torch.cuda.is_available()", "True"),
        ("torch.autocast('cuda', dtype=d)", "torch.autocast('cpu', dtype=d)"),
        ("torch.cuda.amp.autocast()", "torch.cpu.amp.autocast()"),
        ("from torch.cuda.amp import autocast", "from torch.cpu.amp import autocast"),
        ("from torch.cuda.amp import custom_fwd", "from torch.cuda.amp import custom_fwd"),
        ("torch.cuda.synchronize()", "pass"),
        ("torch.cuda.nvtx.range_push('x')", "pass"),
        ("n = torch.cuda.device_count()", "n = torch.cuda.device_count()"),
        ("x = 'needs cuda'", "x = 'needs cuda'"),
        ("f'{x} cuda'", "f'{x} cuda'"),
    ],
)
def test_replacements(source: str, expected: str) -> None:
    assert rewritten(source) == expected


def test_lines_stay_where_they_are() -> None:
    source = "import torch\n\n\nx = torch.zeros(\n    2,\n    device='cuda',\n).cuda()\n1 / 0\n"
    tree = for_cpu(source.encode(), "model.py")
    assert [node.lineno for node in tree.body] == [1, 4, 8]


def test_what_is_not_python_is_a_syntax_error() -> None:
    with pytest.raises(SyntaxError):
        for_cpu(b"def cuda(", "model.py")
