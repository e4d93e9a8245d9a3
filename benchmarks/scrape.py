"""Cost of Prometheus' scrapes on a large fleet: series, bytes and CPU of the controller's and of the gateway's page.

    python benchmarks/scrape.py                               # 8 nodes, 16 groups, 20 keys
    python benchmarks/scrape.py --nodes 8 --groups 128 --keys 20 --json

The controller, its store (SQLite in a temporary directory), the registries and the rendering are the real ones; nodes and
groups are values with every reading. The share of a core is that of the interval that `observe config` writes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import process_time

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from large_fleet import busy_gateway, large_fleet
from prometheus_client import CollectorRegistry, generate_latest

from sparkfleet.telemetry.observe_files import EVERY

CHAT = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions")
"""Paths that a model is asked on."""


def measure(page: str, registry: CollectorRegistry, rounds: int) -> dict[str, float | str]:
    """One line of the table; the CPU is the least of `rounds` pages: neighbours on a core only add to it."""
    text, took = b"", []
    for _ in range(rounds):
        before = process_time()
        text = generate_latest(registry)
        took.append(process_time() - before)
    series = sum(1 for line in text.splitlines() if line and not line.startswith(b"#"))
    spent = min(took)
    every = float(EVERY.removesuffix("s"))
    return {
        "page": page,
        "series": series,
        "bytes": len(text),
        "cpu_ms": round(spent * 1e3, 1),
        "core_percent": round(spent / every * 100, 2),
    }


async def run(nodes: int, groups: int, keys: int, rounds: int) -> list[dict[str, float | str]]:
    """Both pages."""
    with tempfile.TemporaryDirectory() as directory:
        world = await large_fleet(Path(directory), nodes, groups)
        models = [f"model-{index}" for index in range(groups)]
        gateway = busy_gateway(models, keys, CHAT)
        return [
            measure("controller", world.metrics.registry, rounds),
            measure("gateway", gateway.registry, rounds),
        ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 if a page takes more than 1 % of a core."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    rows = asyncio.run(run(args.nodes, args.groups, args.keys, args.rounds))
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        print(f"{args.nodes} nodes, {args.groups} groups, {args.keys} keys, a scrape every {EVERY}")
        for row in rows:
            print("  ".join(f"{name} {value}" for name, value in row.items()))
    return int(any(float(row["core_percent"]) > 1 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
