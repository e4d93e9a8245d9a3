"""The benchmark runs, and prints all of its results."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gateway.py"
QUICK = ("--concurrency", "1", "3", "--rounds", "1", "--tokens", "4", "--ttft-ms", "2", "--itl-ms", "1")


async def run(*arguments: str) -> str:
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), *QUICK, *arguments, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    assert child.returncode == 0
    return out.decode()


async def test_it_measures_both_ways() -> None:
    report = json.loads(await run("--json"))
    assert report["version"] == 1
    assert [line["concurrency"] for line in report["lines"]] == [1, 3]
    for line in report["lines"]:
        for name in ("ttft_p50", "ttft_p99", "gaps_mean", "late_p50"):
            measured = line[name]
            added = (measured["gateway_s"] - measured["direct_s"]) * 1e6
            assert abs(measured["added_us"] - added) < 1e-3
            assert measured["direct_s"] >= 0
        assert line["ttft_p50"]["direct_s"] >= 0.002
        assert line["cpu_us_per_chunk"] >= 0
