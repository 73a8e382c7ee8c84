"""The user's source as if it had been written for the CPU.

While a model is traced nothing may intercept its operators: torch.compile would trace the
interception too. So what names CUDA is replaced in the syntax tree before the file is
compiled; the file itself, its lines and its tracebacks stay as they are.

=====================================  ===============================
source                                 what runs
=====================================  ===============================
``"cuda"``, ``"cuda:1"``, ``f"cuda:{i}"``  ``"cpu"``
``x.cuda(...)``                        ``x``
``torch.cuda.is_available()``          ``True``
``torch.cuda.synchronize()`` ...       nothing, as a statement
``torch.cuda.amp.autocast``            ``torch.cpu.amp.autocast``
=====================================  ===============================
"""

from __future__ import annotations

import ast
import re

_DEVICE = re.compile(r"cuda(:\d+)?\Z")
_EFFECTLESS = frozenset({"synchronize", "empty_cache", "ipc_collect", "set_device"})
_AMP_NAMES = frozenset({"autocast", "GradScaler"})


def for_cpu(source: bytes, path: str) -> ast.Module:
    """The syntax tree to compile in place of ``source``.

    Raises:
        SyntaxError: ``source`` is not Python.
    """
    tree = ast.parse(source, filename=path)
    if b"cuda" in source:
        tree = ast.fix_missing_locations(_CudaNames().visit(tree))
    return tree


class _CudaNames(ast.NodeTransformer):
    """See the table of the module."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, str) and _DEVICE.match(node.value):
            return ast.copy_location(ast.Constant("cpu"), node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        first = node.values[0] if node.values else None
        if isinstance(first, ast.Constant) and first.value == "cuda:":
            return ast.copy_location(ast.Constant("cpu"), node)
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if _dotted(node.func) == "torch.cuda.is_available":
            return ast.copy_location(ast.Constant(True), node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
            receiver = node.func.value
            if not (isinstance(receiver, ast.Call) and _dotted(receiver.func) == "super"):
                return receiver
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        if isinstance(node.value, ast.Call):
            module, _, name = _dotted(node.value.func).rpartition(".")
            is_range = module == "torch.cuda.nvtx"
            if is_range or (module == "torch.cuda" and name in _EFFECTLESS):
                return ast.copy_location(ast.Pass(), node)
        self.generic_visit(node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if node.attr in _AMP_NAMES and _dotted(node.value) == "torch.cuda.amp":
            amp = ast.parse(f"torch.cpu.amp.{node.attr}", mode="eval").body
            return ast.copy_location(amp, node)
        self.generic_visit(node)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        names = {alias.name for alias in node.names}
        if node.module == "torch.cuda.amp" and names <= _AMP_NAMES:
            node.module = "torch.cpu.amp"
        return node


def _dotted(node: ast.expr) -> str:
    """``torch.cuda.amp`` of such an expression; empty for any other."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join(reversed([*parts, node.id]))
