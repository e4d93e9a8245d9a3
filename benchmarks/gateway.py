"""What the gateway adds to the time of the first token and of every further one, against the bare engine.

    python benchmarks/gateway.py                          # a fake engine and a gateway, each a process of its own
    python benchmarks/gateway.py --concurrency 1 8 32 --rounds 6 --json
    python benchmarks/gateway.py --url-gateway http://spark1:8000 --key sk-sf-… --model qwen3-235b \\
                                 --url-direct http://127.0.0.1:8001 --key-direct …   # a fleet that is running

Rounds through the gateway and past it alternate, so that what else the machine does falls on both. A round is one
stream per unit of concurrency, all started together. The fake engine paces its tokens by the clock: without anything
in between, a token is late by what the engine and this client need; through the gateway, by what that needs too.
`late` is that delay. `cpu` is the gateway's own processor time per chunk, which a busy machine does not blur.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import uvloop

from sparkfleet.gateway.access.keys import digest, generate
from sparkfleet.gateway.app import GatewayApp
from sparkfleet.gateway.engine.endpoints import StaticPicker, Target
from sparkfleet.gateway.http_server import serve
from sparkfleet.gateway.routing_table import GroupEntry, KeyEntry, ModelEntry, RoutingTable

TTFT_MS = 40.0
ITL_MS = 20.0
"""50 tok/s per stream: as fast as a Spark decodes a small model for one user."""
ANSWER_S = 120.0


@dataclass(frozen=True)
class Side:
    """One of the two ways to the engine."""

    url: str
    key: str


@dataclass
class Samples:
    """Seconds."""

    ttft: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)

    def add(self, sent: float, arrivals: Sequence[float], pace: tuple[float, float] | None) -> None:
        self.ttft.append(arrivals[0] - sent)
        self.gaps += [b - a for a, b in pairwise(arrivals)]
        if pace is not None:
            ttft, itl = pace
            self.late += [at - sent - ttft - index * itl for index, at in enumerate(arrivals)]


async def one_stream(
    session: aiohttp.ClientSession, side: Side, model: str, tokens: int
) -> tuple[float, list[float]]:
    """When the request was sent, and when each chunk with a token in it came."""
    body = {
        "model": model,
        "prompt": "Tell me about the cable.",
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    sent = perf_counter()
    arrivals: list[float] = []
    async with session.post(
        side.url + "/v1/completions", json=body, headers={"authorization": f"Bearer {side.key}"}
    ) as response:
        if response.status != 200:
            raise SystemExit(f"{side.url}: {response.status}: {(await response.text())[:300]}")
        async for chunk in response.content.iter_any():
            now = perf_counter()
            arrivals += [now] * chunk.count(b'"text"')
    if not arrivals:
        raise SystemExit(f"{side.url}: a stream without tokens")
    return sent, arrivals


async def one_round(side: Side, model: str, streams: int, tokens: int) -> list[tuple[float, list[float]]]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(ANSWER_S)) as session:
        await asyncio.gather(
            *(one_stream(session, side, model, 1) for _ in range(streams))
        )  # connections are open
        return await asyncio.gather(*(one_stream(session, side, model, tokens) for _ in range(streams)))


async def measure(
    sides: dict[str, Side], arguments: argparse.Namespace, streams: int, gateway_pid: int | None
) -> dict[str, Any]:
    """One line of the table."""
    pace = None if arguments.url_gateway else (arguments.ttft_ms / 1e3, arguments.itl_ms / 1e3)
    samples = {name: Samples() for name in sides}
    cpu, chunks = 0.0, 0
    for number in range(arguments.rounds):
        order = list(sides) if number % 2 else list(reversed(sides))
        for name in order:
            before = cpu_seconds(gateway_pid)
            results = await one_round(sides[name], arguments.model, streams, arguments.tokens)
            if name == "gateway":
                cpu += cpu_seconds(gateway_pid) - before
                chunks += sum(len(arrivals) for _, arrivals in results) + streams
            for sent, arrivals in results:
                samples[name].add(sent, arrivals, pace)
    line: dict[str, Any] = {"concurrency": streams, **compare(samples["direct"], samples["gateway"])}
    if gateway_pid is not None:
        line["cpu_us_per_chunk"] = cpu / chunks * 1e6
    return line


def compare(direct: Samples, gateway: Samples) -> dict[str, Any]:
    line: dict[str, Any] = {}
    for name in ("ttft", "gaps", "late"):
        bare, through = getattr(direct, name), getattr(gateway, name)
        if not bare:
            continue
        for label, statistic in (("mean", statistics.fmean), ("p50", statistics.median), ("p99", p99)):
            a, b = statistic(bare), statistic(through)
            line[f"{name}_{label}"] = {
                "direct_s": a,
                "gateway_s": b,
                "added_us": (b - a) * 1e6,
                "ratio": b / a if a else None,  # nothing to compare with: the clock was too coarse
            }
    return line


def p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]


def cpu_seconds(pid: int | None) -> float:
    """User and system time of a process; 0 for one that is not ours."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# Processes


async def run_gateway(engine: str, model: str, key_sha256: str) -> None:
    """The gateway, in this process, until it is killed."""
    entry = ModelEntry(name=model, groups=(GroupEntry(app="fake"),), deployment="fake", state="ready")
    key = KeyEntry(id="key-bench", name="bench", sha256=key_sha256)
    table = RoutingTable(version=1, models={model: entry}, keys=(key,))
    picker = StaticPicker([Target(url=engine, app="fake")])
    server = await serve(GatewayApp(picker, table=table), "127.0.0.1", 0)
    print(f"gateway on {server.url}", flush=True)
    await asyncio.Event().wait()


@contextlib.contextmanager
def process(*argv: str) -> Iterator[tuple[str, int]]:
    """A child that says its URL as the last word of its first line. Yields the URL and the pid."""
    with subprocess.Popen([sys.executable, *argv], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield child.stdout.readline().split()[-1], child.pid
        finally:
            child.terminate()


@contextlib.asynccontextmanager
async def both_sides(arguments: argparse.Namespace) -> AsyncIterator[tuple[dict[str, Side], int | None]]:
    """The two URLs, and the gateway's pid where it is ours."""
    if arguments.url_gateway:
        yield (
            {
                "direct": Side(arguments.url_direct.rstrip("/"), arguments.key_direct),
                "gateway": Side(arguments.url_gateway.rstrip("/"), arguments.key),
            },
            None,
        )
        return
    pace = (
        "--ttft-ms",
        str(arguments.ttft_ms),
        "--itl-ms",
        str(arguments.itl_ms),
        "--tokens",
        str(arguments.tokens),
    )
    key, _ = generate("bench")
    with (
        process("-m", "sparkfleet.engines.fake", "--model", arguments.model, *pace) as (engine, _),
        process(
            __file__, "--run-gateway", engine, "--model", arguments.model, "--key", digest(key.encode())
        ) as (
            gateway,
            pid,
        ),
    ):
        yield {"direct": Side(engine, ""), "gateway": Side(gateway, key)}, pid


# Output


def show(lines: Sequence[dict[str, Any]]) -> None:
    print(f"{'streams':>7}  {'':9} {'direct ms':>10} {'gateway ms':>10} {'added µs':>9} {'ratio':>7}")
    for line in lines:
        for name, value in line.items():
            if isinstance(value, dict):
                print(
                    f"{line['concurrency']:>7}  {name:9} {value['direct_s'] * 1e3:>10.3f} "
                    f"{value['gateway_s'] * 1e3:>10.3f} {value['added_us']:>9.0f} {value['ratio'] or math.nan:>7.4f}"
                )
        if "cpu_us_per_chunk" in line:
            print(
                f"{line['concurrency']:>7}  cpu       {line['cpu_us_per_chunk']:.0f} µs of the gateway per chunk"
            )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=6, help="through the gateway, and as many past it")
    parser.add_argument("--tokens", type=int, default=100, help="of every stream")
    parser.add_argument("--ttft-ms", type=float, default=TTFT_MS)
    parser.add_argument("--itl-ms", type=float, default=ITL_MS)
    parser.add_argument("--model", default="fake")
    parser.add_argument("--url-gateway", default="", help="a gateway that is running")
    parser.add_argument("--url-direct", default="", help="the engine behind it")
    parser.add_argument("--key", default="", help="API key of the gateway")
    parser.add_argument("--key-direct", default="", help="bearer token of the engine")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--run-gateway", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if bool(arguments.url_gateway) != bool(arguments.url_direct):
        parser.error("--url-gateway and --url-direct go together")
    return arguments


async def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    async with both_sides(arguments) as (sides, pid):
        for side in sides.values():
            await one_round(side, arguments.model, 1, 2)  # warm both
        return [await measure(sides, arguments, streams, pid) for streams in arguments.concurrency]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    if arguments.run_gateway:
        uvloop.run(run_gateway(arguments.run_gateway, arguments.model, arguments.key))
        return 0
    lines = uvloop.run(run(arguments))
    if arguments.json:
        print(json.dumps({"version": 1, "lines": lines}, indent=2))
    else:
        show(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
