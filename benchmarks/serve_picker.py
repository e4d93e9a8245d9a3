"""The cost of a look-up of a group's engine in Ray Serve: from Serve's list in the gateway's process, or chosen by Serve.

    python benchmarks/serve_picker.py [--requests 200] [--rounds 5]

A Ray of its own with one Serve application, whose replica has the metadata of an engine, as a group has it. Both ways take
turns. Prints the processor time of this process per look-up, the median of the rounds, and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

ENGINE = {"url": "http://127.0.0.1:9", "group": "fake/g1/0"}


async def measure(requests: int, rounds: int) -> tuple[float, float]:
    """Microseconds of processor time of a look-up in the list, and of one that Serve makes."""
    from ray import serve

    from sparkfleet.gateway.engine.serve_picker import ServePicker
    from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry

    groups = (GroupEntry(app="fake"),)
    entry = ModelEntry(name="fake", groups=groups, deployment="engine", state="ready")
    picker = ServePicker(lambda mark: "0" * 64, serve.get_deployment_handle)
    await picker.prepare(entry.deployment, "fake")

    async def listed() -> str:
        found = await picker.pick(entry, groups, exclude=frozenset())
        return "" if found is None else found.url

    async def chosen() -> str:
        return str((await picker._choose("fake", entry.deployment))["url"])

    ways: tuple[Callable[[], Awaitable[str]], ...] = (listed, chosen)
    if {await way() for way in ways} != {ENGINE["url"]}:
        raise SystemExit("both ways must find the same engine")
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for way, times in zip(ways, found, strict=True):
            began = time.process_time()
            for _ in range(requests):
                await way()
            times.append((time.process_time() - began) / requests * 1e6)
    return statistics.median(found[0]), statistics.median(found[1])


def main() -> int:
    """Start Ray and Serve, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sf-") as directory:
        token = Path(directory) / "token"
        token.write_text(secrets.token_hex(32))
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        import ray
        from ray import serve

        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=directory,
            object_store_memory=80_000_000,
        )  # fmt: skip
        try:
            serve.start(http_options={"location": "NoServer"})

            class Engine:
                def record_replica_metadata(self) -> dict[str, str]:
                    return ENGINE

            deployed = serve.deployment(name="engine", ray_actor_options={"num_cpus": 0})(Engine)
            serve.run(deployed.bind(), name="fake", route_prefix=None)
            listed, chosen = asyncio.run(measure(given.requests, given.rounds))
        finally:
            serve.shutdown()
            ray.shutdown()
    print(
        f"from the list {listed:.1f} µs, chosen by Serve {chosen:.1f} µs: {chosen / listed:.0f} times as much"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
