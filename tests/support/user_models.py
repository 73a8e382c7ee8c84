"""Model files as a user would write them, as text."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

TINY_MODEL = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, vocab=50, width=8):
            super().__init__()
            self.embed = nn.Embedding(vocab, width)
            self.head = nn.Linear(width, vocab)

        def forward(self, input_ids, labels=None):
            logits = self.head(self.embed(input_ids))
            if labels is None:
                return logits
            return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
"""
"""Defines ``Net``; append a factory."""


def write_model(folder: Path, *parts: str, name: str = "model.py") -> Path:
    """Write a file of the given parts (indentation is removed from each)."""
    path = folder / name
    path.write_text("\n".join(dedent(part).strip("\n") for part in parts) + "\n")
    return path
