"""The cost of a look-up of a group's engine in Ray Serve: from Serve's list in the gateway's process, or chosen by Serve.

    python benchmarks/serve_picker.py [--at-once 32] [--requests 2000] [--rounds 5]

A Ray of its own with the environment that the fleet gives it, an engine that Serve lists, and an actor that looks it up in
both ways in turn, in its event loop, as the gateway's replica does: so many at once. Prints the processor time of the
actor's process per look-up, the median of the rounds, and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from paced.gateway_replica import APP, Engine, own_ray

URL = "http://127.0.0.1:9"


class Measurer:
    """Looks an engine up in both ways."""

    async def measure(self, at_once: int, requests: int, rounds: int) -> tuple[float, float]:
        """Microseconds of processor time of a look-up in the list, and of one that Serve makes.

        Raises ValueError if Serve's list does not have the engine.
        """
        from ray import serve

        from sparkfleet.gateway.engine.serve_picker import ServePicker
        from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry

        groups = (GroupEntry(app=APP),)
        entry = ModelEntry(name="fake", groups=groups, deployment="group", state="ready")
        picker = ServePicker(lambda mark: "0" * 64, serve.get_deployment_handle)
        await picker.prepare(entry.deployment, APP)
        listed = picker._listed(groups[0])
        if listed is None or listed.url != URL:
            raise ValueError("Ray Serve's list does not have the engine")

        async def pick() -> object:
            return await picker.pick(entry, groups, exclude=frozenset())

        async def choose() -> object:
            return await picker._choose(APP, entry.deployment)

        async def several(way: Callable[[], Awaitable[object]]) -> None:
            for _ in range(requests // at_once):
                await way()

        found: dict[Callable[[], Awaitable[object]], list[float]] = {pick: [], choose: []}
        for _ in range(rounds):
            for way, times in found.items():
                began = time.process_time()
                await asyncio.gather(*(several(way) for _ in range(at_once)))
                times.append((time.process_time() - began) / (requests // at_once * at_once) * 1e6)
        return statistics.median(found[pick]), statistics.median(found[choose])


def main() -> int:
    """Start Ray and Serve, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with own_ray():
        import ray
        from ray import serve

        group = serve.deployment(name="group", ray_actor_options={"num_cpus": 0})(Engine)
        serve.run(group.bind(URL), name=APP, route_prefix=None)
        measurer = ray.remote(Measurer).options(num_cpus=0).remote()
        call = measurer.measure.remote(given.at_once, given.requests, given.rounds)
        listed, chosen = ray.get(call)
    print(
        f"from the list {listed:.1f} µs, chosen by Serve {chosen:.1f} µs: {chosen / listed:.0f} times as much"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
