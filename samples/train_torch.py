"""Train a small model with sequence parallelism, in plain torch.

    torchrun --nproc-per-node 2 samples/train_torch.py

Runs on CPU (gloo) as on GPUs. Every rank reads the same batch; the compiler cuts it.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from llama import build

import autosp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--inner", default="eager", help="inductor is faster, and compiles longer")
    options = parser.parse_args()

    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    dist.init_process_group()
    if device.type != "cpu":
        torch.accelerator.set_device_index(dist.get_rank() % torch.accelerator.device_count())
    torch.manual_seed(0)  # the same model and the same batch on every rank
    model = build(tiny=True).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compiled = torch.compile(model, backend=autosp.backend(inner=options.inner))
    tokens = torch.randint(0, 128, (2, options.seq)).to(device)  # learned by heart: losses fall
    for step in range(options.steps):
        loss = compiled(tokens, labels=tokens)
        loss.backward()
        autosp.average_gradients(model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
