"""Hooks that transformers puts on a model in its first forward, put on it before.

Models that hand on hidden states of their parts (vision towers) install them behind a lock,
which dynamo cannot trace. A first forward outside the compiler installs them too.
"""

from __future__ import annotations

import sys

import torch

MODULE = "transformers.utils.output_capturing"
HINT = (
    "transformers installs hooks in a model's first forward: run one before the model is compiled"
)


def install_output_hooks(model: torch.nn.Module) -> None:
    """Install the hooks on every model of transformers inside ``model``."""
    library = sys.modules.get(MODULE)
    install = getattr(library, "maybe_install_capturing_hooks", None)
    if install is None:
        return
    for part in model.modules():
        if hasattr(part, "_can_record_outputs"):
            install(part)
