"""Time and traffic of `sparkfleet doctor` against the number of nodes, over real SSH to simulated Sparks.

    python benchmarks/doctor.py [--nodes 2 8 32] [--rounds 3] [--json]

Needs root, as the lab does. All nodes share this machine's processors, so what a fleet's nodes do at the same time is done
here one after the other: near-flat would show on hardware, here it shows as seconds a node that do not grow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path

from sparkfleet.doctor.collect import gather, with_context
from sparkfleet.doctor.registry import examine
from sparkfleet.lab import Lab
from sparkfleet.remote.open_channel import open_channels
from sparkfleet.specs.load import parse_inventory


def sent(name: str) -> int:
    """Bytes received and sent by the one netdev through which this machine reaches a lab."""
    directory = Path("/sys/class/net") / name / "statistics"
    return sum(int((directory / f"{way}_bytes").read_text()) for way in ("rx", "tx"))


async def one(lab: Lab, netdev: str) -> tuple[float, int, int]:
    """Seconds, bytes and findings of one look at the whole fleet, connections included."""
    inventory = parse_inventory(lab.inventory())
    channels = open_channels(inventory)
    before, began = sent(netdev), time.perf_counter()
    try:
        view = with_context(await gather(inventory, channels), sparkfleet="benchmark")
        findings = examine(view)
        return time.perf_counter() - began, sent(netdev) - before, len(findings)
    finally:
        await asyncio.gather(*(channel.close() for channel in channels.values()))


def measure(nodes: int, rounds: int) -> dict[str, float]:
    """Medians of `rounds` looks at a fleet of so many nodes."""
    with Lab.up(nodes=nodes, topology="switch" if nodes > 2 else None) as lab:
        netdev = f"sfl-{lab.name}"
        looks = [asyncio.run(one(lab, netdev)) for _ in range(rounds)]
    seconds = statistics.median(look[0] for look in looks)
    return {
        "nodes": nodes,
        "seconds": round(seconds, 2),
        "seconds_a_node": round(seconds / nodes, 3),
        "kilobytes_a_node": round(statistics.median(look[1] for look in looks) / nodes / 1e3, 1),
        "findings": looks[-1][2],
    }


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [measure(count, given.rounds) for count in given.nodes]
    for row in rows:
        row["ratio"] = round(row["seconds"] / rows[0]["seconds"], 2)
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'nodes':>6} {'seconds':>8} {'× first':>8} {'s a node':>9} {'kB a node':>10}")
    for row in rows:
        print(
            f"{row['nodes']:6} {row['seconds']:8.2f} {row['ratio']:8.2f}"
            f" {row['seconds_a_node']:9.3f} {row['kilobytes_a_node']:10.1f}"
        )


if __name__ == "__main__":
    main()
