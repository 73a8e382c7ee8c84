"""Train a small model with sequence parallelism under DeepSpeed.

    torchrun --nproc-per-node 2 samples/train_deepspeed.py --zero 2
    deepspeed --num_gpus 8 samples/train_deepspeed.py --sp 8

Runs on CPU (gloo) as on GPUs. AutoSP is one import and one line.
"""

from __future__ import annotations

import argparse

import deepspeed
import torch
import torch.distributed as dist
from llama import build
from torch.utils.data import DataLoader

import autosp


def config(options: argparse.Namespace) -> dict[str, object]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": options.accumulate,
        "sequence_parallel_size": options.sp,
        "zero_optimization": {"stage": options.zero},
        "bf16": {"enabled": options.bf16},
        "gradient_clipping": 1.0,
        "zero_force_ds_cpu_optimizer": False,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sp", type=int, default=2, help="ranks that share one sequence")
    parser.add_argument("--zero", type=int, default=1, choices=(0, 1, 2))
    parser.add_argument("--accumulate", type=int, default=1, help="micro batches in a step")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--inner", default="eager", help="inductor is faster, and compiles longer")
    parser.add_argument("--local_rank", type=int, help="set by the deepspeed launcher")
    options = parser.parse_args()

    deepspeed.init_distributed()
    torch.manual_seed(0)  # the same model and the same data on every rank
    model = build(tiny=True)
    groups = dist.get_world_size() // options.sp
    dataset = torch.randint(0, 128, (2 * options.accumulate * groups, options.seq))

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config(options))
    engine = autosp.compile(engine, inner=options.inner)  # that is all

    mesh = autosp.Mesh(sp=options.sp, dp=groups)
    sampler = autosp.data_parallel_sampler(dataset, mesh, shuffle=True)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler)
    for epoch in range(options.steps):  # a step is an epoch: losses fall
        sampler.set_epoch(epoch)
        for tokens in loader:
            tokens = tokens.to(engine.device)
            loss = engine(tokens, labels=tokens)
            engine.backward(loss)
            engine.step()
        if dist.get_rank() == 0:
            print(f"step {engine.global_steps}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
