"""The cost of reading the status of Ray Serve's applications: as the controller does it every second, and by `serve.status`.

    python benchmarks/app_statuses.py [--apps 8] [--rounds 20]

A Ray of its own with the environment that the fleet gives it. Both ways take turns. Prints the processor time of each, in
this process and in that of Serve's controller, the median of the rounds, and their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from paced.gateway_replica import Engine, own_ray, process_titled


def measure(read: Callable[[], object], controller: int) -> tuple[float, float]:
    """Milliseconds of processor time of one reading here and in the process `controller`."""
    here, there = time.process_time(), cpu_s(controller)
    read()
    return (time.process_time() - here) * 1e3, (cpu_s(controller) - there) * 1e3


def cpu_s(pid: int) -> float:
    """Processor time of a process so far, from the nanoseconds that the scheduler counts."""
    return sum(
        int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()
    ) / 1e9  # fmt: skip


def main() -> int:
    """Start Ray and Serve, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--apps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    with own_ray() as paths:
        from ray import serve

        from sparkfleet.controlplane.ray.ray_serve_backend import app_statuses

        group = serve.deployment(name="group", ray_actor_options={"num_cpus": 0})(Engine)
        for number in range(given.apps):
            serve.run(group.bind("http://127.0.0.1:9"), name=f"fake--g1-{number}", route_prefix=None)
        controller = process_titled("ray::ServeController", paths.label)
        ways: dict[str, Callable[[], object]] = {"controller": app_statuses, "serve.status": serve.status}
        found = {
            name: [measure(read, controller) for _ in range(given.rounds)] for name, read in ways.items()
        }
    totals = {}
    for name, times in found.items():
        here, there = (statistics.median(one) for one in zip(*times, strict=True))
        totals[name] = here + there
        print(f"{name}: {here:.1f} ms here, {there:.1f} ms in Serve's controller, {given.apps} applications")
    print(f"serve.status takes {totals['serve.status'] / totals['controller']:.0f} times as much")
    return 0


if __name__ == "__main__":
    sys.exit(main())
