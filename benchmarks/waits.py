"""Processor time and delay of a reader of vLLM's message queue, with vLLM's own waits and with the bounds of
`sparkfleet/engines/vllm_plugins/bounded_waits.py`.

    python benchmarks/waits.py                      # a message every 25 ms, as a step of a model at 40 tok/s
    python benchmarks/waits.py --every-ms 8 --json

Both are measured in turn, a process for each, over the queue by which an engine core gives a step to the worker on its node.
The delay is from the message to the reader's return. Needs vLLM in this environment.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
SPIN_S = "0.002"
"""As the rule vllm-spins-between-steps sets it."""


def read(handle: Any, messages: int, bounded: bool, out: Connection) -> None:
    """Take so many messages; send the processor's seconds, the clock's seconds, and each delay in µs."""
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    if bounded:
        from sparkfleet.engines.vllm_plugins import bounded_waits

        os.environ[bounded_waits.SPIN] = SPIN_S
        bounded_waits.register()
    queue = MessageQueue.create_from_handle(handle, 0)
    queue.wait_until_ready()  # type: ignore[no-untyped-call]
    queue.dequeue(indefinite=True)
    began, busy = time.monotonic(), time.process_time()
    delays = [1e6 * -(queue.dequeue(indefinite=True) - time.monotonic()) for _ in range(messages)]
    out.send((time.process_time() - busy, time.monotonic() - began, delays))


def measure(messages: int, every_s: float, *, bounded: bool) -> tuple[float, list[float]]:
    """Share of a core that the reader takes, and the delays in µs."""
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    queue = MessageQueue(1, 1)
    end, out = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(
        target=read, args=(queue.export_handle(), messages, bounded, out)
    )
    process.start()
    queue.wait_until_ready()  # type: ignore[no-untyped-call]
    for _ in range(messages + 1):
        queue.enqueue(time.monotonic())
        time.sleep(every_s)
    busy, lasted, delays = end.recv()
    process.join()
    return busy / lasted, delays


def main() -> int:
    """Measure both, and print a line for each and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--every-ms", type=float, default=25.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    found: dict[str, list[tuple[float, list[float]]]] = {"vllm": [], "bounded": []}
    for _ in range(wanted.rounds):
        for name, rounds in found.items():
            rounds.append(measure(wanted.messages, wanted.every_ms / 1e3, bounded=name == "bounded"))
    rows = {
        name: {
            "core_share": statistics.median(share for share, _ in rounds),
            "delay_us": statistics.median(delay for _, delays in rounds for delay in delays),
        }
        for name, rounds in found.items()
    }
    ratio = rows["bounded"]["core_share"] / rows["vllm"]["core_share"]
    if wanted.json:
        print(json.dumps({"version": 1, "every_ms": wanted.every_ms, **rows, "core_share_ratio": ratio}))
        return 0
    print(f"a message every {wanted.every_ms:g} ms, {wanted.messages} messages, {wanted.rounds} rounds")
    for name, row in rows.items():
        print(f"{name:8} {100 * row['core_share']:5.1f} % of a core   delay {row['delay_us']:4.0f} µs")
    print(f"bounded / vllm: {ratio:.2f} of the processor time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
