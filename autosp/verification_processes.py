"""Starts gloo processes on this machine, runs one function on all, brings rank 0's result.

A child that fails or hangs ends the run with one clear line; no process is left behind.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from autosp.errors import AutoSPError, RankError

TIMEOUT_S = 900.0
POLL_S = 0.05
COLLECTIVE_TIMEOUT = timedelta(minutes=5)

PRELOADED = ["torch._dynamo", "autosp.verification"]
"""What every rank imports: the server that ranks are forked from has it imported already."""

OnEveryRank = Callable[[], Any]


def run_on_ranks(function: OnEveryRank, *, num_ranks: int, timeout_s: float = TIMEOUT_S) -> Any:
    """Call ``function`` in ``num_ranks`` processes joined by gloo over loopback.

    Args:
        function: picklable (a module's function or a ``functools.partial`` of one).
        num_ranks: processes to start; each uses one thread.
        timeout_s: after so many seconds all are ended.

    Returns:
        What rank 0 returned.

    Raises:
        RankError: a rank raised an error (its first line), died, or the time is over.
    """
    with tempfile.TemporaryDirectory(prefix="autosp-verify-") as folder:
        context = _context()
        processes = [
            context.Process(
                target=_rank_main, args=(rank, num_ranks, folder, function), daemon=True
            )
            for rank in range(num_ranks)
        ]
        for process in processes:
            process.start()
        try:
            _wait(processes, Path(folder), time.monotonic() + timeout_s)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
        return _load(_result_file(Path(folder)))


def _context() -> ForkServerContext | SpawnContext:
    """Ranks are forked from a server that has imported torch once and done nothing with it.

    A rank that imports torch by itself spends seconds on that. macOS has system libraries that
    do not outlive a fork: there each rank starts afresh.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _wait(processes: Sequence[BaseProcess], folder: Path, deadline: float) -> None:
    while any(process.is_alive() for process in processes):
        if any(process.exitcode not in (None, 0) for process in processes):
            break
        if time.monotonic() > deadline:
            raise RankError("the processes did not finish in time", hint="Is a collective hanging?")
        time.sleep(POLL_S)
    for rank in range(len(processes)):
        error = _error_file(folder, rank)
        if error.exists():
            raise RankError(_load(error))
    for rank, process in enumerate(processes):
        if process.exitcode != 0:
            raise RankError(f"the process of rank {rank} died (exit code {process.exitcode})")


def _rank_main(rank: int, num_ranks: int, folder: str, function: OnEveryRank) -> None:
    """A child: one thread, loopback only."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/rendezvous",
            rank=rank,
            world_size=num_ranks,
            timeout=COLLECTIVE_TIMEOUT,
        )
        result = function()
        if rank == 0:
            _result_file(Path(folder)).write_bytes(pickle.dumps(result))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:
        _store(_error_file(Path(folder), rank), _in_one_line(rank, error))
        os._exit(1)  # the others may wait in a collective: do not join them


def _in_one_line(rank: int, error: BaseException) -> str:
    if isinstance(error, AutoSPError):
        return str(error)
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, AutoSPError):
        return str(inner)
    first_line = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"rank {rank}: {type(error).__name__}: {first_line}"


def _result_file(folder: Path) -> Path:
    return folder / "result"


def _error_file(folder: Path, rank: int) -> Path:
    return folder / f"error-{rank}"


def _store(path: Path, message: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(pickle.dumps(message))
    unfinished.replace(path)


def _load(path: Path) -> Any:
    return pickle.loads(path.read_bytes())
