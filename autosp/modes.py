"""Global switches of torch that a program flips while it is traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_AUTOCAST_DEVICES = ("cpu", "cuda")


@contextmanager
def restored_modes() -> Iterator[None]:
    """Grad mode and autocast are afterwards as before, whatever happens inside.

    Nodes that switch them take effect on the nodes after them while a graph is rebuilt;
    an error between the two switches of a region would leave autocast on.
    """
    gradients = torch.is_grad_enabled()
    autocast = {
        device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in _AUTOCAST_DEVICES
    }
    cache = torch.is_autocast_cache_enabled()
    nesting = _autocast_nesting()
    try:
        yield
    finally:
        torch.set_grad_enabled(gradients)
        for device, (enabled, dtype) in autocast.items():
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(cache)
        while _autocast_nesting() > nesting:
            torch.autocast_decrement_nesting()


def _autocast_nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()
