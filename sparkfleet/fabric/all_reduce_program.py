"""One rank of an all-reduce over the rails, measured. Sent by `remote/agent.py` into the environment of an engine.

It needs the engine's PyTorch, and nothing else beside the standard library. The request:

    rank, ranks       its number, and how many there are
    address, port     rank 0's address on a rail, and its port; rank 0 itself takes a free one and prints `listening` with it
    backend           nccl on GPUs, gloo on CPUs
    env               variables that pin the traffic to the rails, as the engine has them
    small, large      bytes of the two messages
    rounds            all-reduces of the small one, one after the other; of the large one a twentieth
    seconds           time limit of each call

The result is {"latency_us", "gb_per_s", "moved", "nccl"}: microseconds of a small one, bus bandwidth of a large one
(1e9 bytes per second), bytes that a rank has sent in all large ones, and the version of NCCL.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

WARM_UP = 5
REPEATED = 5
"""Measurements of each size, of which the median counts."""


def main(request: dict[str, Any], emit: Callable[..., None]) -> dict[str, Any]:
    """Carries out the request."""
    os.environ.update(request["env"])
    listener = None
    if request["rank"] == 0:
        family = socket.AF_INET6 if ":" in request["address"] else socket.AF_INET
        listener = socket.create_server((request["address"], 0), family=family)
        emit("listening", port=listener.getsockname()[1])
    stdout = os.dup(1)
    os.dup2(2, 1)  # what NCCL and PyTorch print is no event
    try:
        return measure(request, listener)
    finally:
        os.dup2(stdout, 1)


def measure(request: dict[str, Any], listener: socket.socket | None) -> dict[str, Any]:
    """Meets the other ranks and measures."""
    import torch
    import torch.distributed as dist

    on_gpu, ranks = request["backend"] == "nccl", request["ranks"]
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    limit = timedelta(seconds=request["seconds"])
    store = meet(dist, request, listener, limit)
    dist.init_process_group(
        request["backend"], store=store, rank=request["rank"], world_size=ranks, timeout=limit
    )

    def settle() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    def seconds_of(size: int, rounds: int) -> float:
        """Median seconds of one all-reduce of this size. Raises ArithmeticError if its sum is wrong."""
        message = torch.zeros(size // 4, dtype=torch.float32, device=device)
        taken = []
        for count in (WARM_UP, *[rounds] * REPEATED):
            dist.barrier()
            settle()
            began = time.perf_counter()
            for _ in range(count):
                dist.all_reduce(message)
            settle()
            taken.append((time.perf_counter() - began) / count)
        message.fill_(1.0)
        dist.all_reduce(message)
        if not bool((message == float(ranks)).all()):
            raise ArithmeticError(f"the sum of {ranks} ones is not {ranks} everywhere")
        return statistics.median(taken[1:])

    few = max(1, request["rounds"] // 20)
    small_s = seconds_of(request["small"], request["rounds"])
    large_s = seconds_of(request["large"], few)
    dist.destroy_process_group()
    share = 2 * (ranks - 1) / ranks
    return {
        "latency_us": small_s * 1e6,
        "gb_per_s": share * request["large"] / large_s / 1e9,
        "moved": int(share * request["large"] * (WARM_UP + REPEATED * few + 1)),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else "",
    }


def meet(dist: Any, request: dict[str, Any], listener: socket.socket | None, limit: timedelta) -> Any:
    """The store in which ranks find each other. Rank 0's listens on its rail's address alone."""
    if listener is None:
        return dist.TCPStore(request["address"], request["port"], request["ranks"], False, limit)
    port = listener.getsockname()[1]
    return dist.TCPStore(
        request["address"],
        port,
        request["ranks"],
        True,
        limit,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        use_libuv=False,  # its server takes no open socket in some releases
    )
