"""Compares gateways side by side, in one run, before the same paced engine: latency, processor time, requests per second.

    python benchmarks/gateway.py                                # what is installed of all contenders
    python benchmarks/gateway.py --streams 64 256 --rounds 3 --json
    python benchmarks/gateway.py --litellm VENV/bin/litellm --vllm-router VENV/bin/vllm-router --only sparkfleet nginx
    python benchmarks/gateway.py --memory 1000000               # of sparkfleet's gateway, per 100,000 requests
    python benchmarks/gateway.py --url-gateway http://spark1:8000 --key sk-sf-… --model qwen3-235b \\
                                 --url-direct http://127.0.0.1:8001 --key-direct …   # a fleet that is running

sparkfleet is the gateway of a fleet: its replica on a Ray Serve of its own, which lists the engine, with a table that never
changes. Each round goes through every contender in turn, so that what else the machine does falls on all. A stream is a
request of an OpenAI client for a chat's answer of 64 tokens with its usage; the engine sends each token by the clock, 5 ms
after the one before, later if the streams together had more than `--rate` tokens per second. Added: the difference to the
bare engine, in the same run. CPU: user and system time of the contender's processes, of sparkfleet the replica and what it
starts, without Ray's own; what a gateway takes without a request is part of it. Small requests are not paced: as many as are
answered, on 32 connections. The client and the engine take part of the machine too: compare the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import uvloop
from paced.client import Samples, Side, mixed_requests, small_requests, streams
from paced.contenders import OTHERS, Contender, NotHere, ours

from sparkfleet.gateway.access.keys import digest, generate

STREAMS = (1, 8, 32, 64, 256, 1000)
TTFT_S = 0.04
ITL_S = 0.005
TOKENS = 64
RATE = 12_800
"""Tokens per second of all streams together, at most: 64 streams with 5 ms between tokens."""
ENOUGH = 128
"""Answers of each contender in a round, at least; a stream has as many as that takes, up to `_MOST_EACH`."""
_MOST_EACH = 8
SMALL_CLIENTS = 32
MEMORY_EACH = 100_000
MEMORY_TOKENS = 4


@dataclass(frozen=True)
class Load:
    """Streams that are open at once, and their pace."""

    streams: int
    itl_s: float
    answers: int

    @property
    def answer_s(self) -> float:
        return TTFT_S + self.itl_s * TOKENS


@dataclass(frozen=True)
class Line:
    """Result of one contender at one load. Times in ms, `added` to the bare engine's."""

    contender: str
    streams: int
    answers: int
    failed: int
    added_ttft_p50_ms: float
    added_ttft_p99_ms: float
    added_itl_p99_ms: float
    cpu_s_per_1000: float


@dataclass(frozen=True)
class SmallRequests:
    """Rate of one contender's small requests, and its processor time for them."""

    per_s: float
    cpu_s_per_1000: float


@dataclass(frozen=True)
class Comparison:
    """Result of one run."""

    lines: list[Line]
    idle_cpu_ms_per_s: dict[str, float]
    small: dict[str, SmallRequests]


def load_of(count: int, rate: float) -> Load:
    each = max(1, min(_MOST_EACH, -(-ENOUGH // count)))
    return Load(count, max(ITL_S, count / rate), each)


# Measuring


async def measure(contenders: Sequence[Contender], arguments: argparse.Namespace, load: Load) -> list[Line]:
    """A line for each contender. One that takes longer than `--limit-s` for a round is left out of the next."""
    samples = {one.name: Samples() for one in contenders}
    cpu = dict.fromkeys(samples, 0.0)
    left = list(contenders)
    for number in range(arguments.rounds):
        for one in left if number % 2 else left[::-1]:
            before, begun = one.cpu_s(), perf_counter()
            found = await streams(one.side, load.streams, load.answers, arguments.tokens, load.answer_s)
            cpu[one.name] += one.cpu_s() - before
            _add(samples[one.name], found)
            if perf_counter() - begun > arguments.limit_s:
                left = [other for other in left if other is not one]
    bare = samples["direct"]
    return [_line(one.name, load, samples[one.name], bare, cpu[one.name]) for one in contenders]


def _add(total: Samples, more: Samples) -> None:
    total.ttft += more.ttft
    total.gaps += more.gaps
    total.answers += more.answers
    total.failed += more.failed


def _line(name: str, load: Load, found: Samples, bare: Samples, cpu_s: float) -> Line:
    for why in found.failed[:2]:
        print(f"{name}, {load.streams} streams: {why}", file=sys.stderr)
    return Line(
        contender=name,
        streams=load.streams,
        answers=found.answers,
        failed=len(found.failed),
        added_ttft_p50_ms=_added(found.ttft, bare.ttft, 50),
        added_ttft_p99_ms=_added(found.ttft, bare.ttft, 99),
        added_itl_p99_ms=_added(found.gaps, bare.gaps, 99),
        cpu_s_per_1000=cpu_s / max(1, found.answers) * 1e3,
    )


def _added(found: Sequence[float], bare: Sequence[float], percent: int) -> float:
    return (percentile(found, percent) - percentile(bare, percent)) * 1e3


def percentile(values: Sequence[float], percent: int) -> float:
    """Seconds; NaN of no values."""
    if len(values) < 2:
        return values[0] if values else float("nan")
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


async def measure_small(
    contenders: Sequence[Contender], seconds: float, rounds: int
) -> dict[str, SmallRequests]:
    """The median of the rounds of each contender."""
    found: dict[str, list[SmallRequests]] = {one.name: [] for one in contenders}
    for _ in range(rounds):
        for one in contenders:
            before = one.cpu_s()
            per_s, failed = await small_requests(one.side, SMALL_CLIENTS, seconds)
            cpu_s = one.cpu_s() - before
            if failed:
                print(f"{one.name}: {failed} small requests failed", file=sys.stderr)
            found[one.name].append(SmallRequests(per_s, cpu_s / max(1.0, per_s * seconds) * 1e3))
    return {name: _median(several) for name, several in found.items()}


def _median(several: Sequence[SmallRequests]) -> SmallRequests:
    return SmallRequests(
        per_s=statistics.median(one.per_s for one in several),
        cpu_s_per_1000=statistics.median(one.cpu_s_per_1000 for one in several),
    )


async def measure_idle(contenders: Sequence[Contender], seconds: float) -> dict[str, float]:
    """Processor time of each contender without a request, in ms per second: it is part of its CPU at every load."""
    before = [one.cpu_s() for one in contenders]
    await asyncio.sleep(seconds)
    used = (one.cpu_s() - earlier for one, earlier in zip(contenders, before, strict=True))
    return {one.name: cpu_s / seconds * 1e3 for one, cpu_s in zip(contenders, used, strict=True)}


async def measure_memory(gateway: Contender, total: int, each: int) -> list[tuple[int, float]]:
    """Resident memory of the gateway, MiB, after each so many requests: half of them streams, each on a new connection."""
    assert gateway.serving is not None
    found = []
    for done in range(each, total + each, each):
        failed = await mixed_requests(gateway.side, SMALL_CLIENTS, each, MEMORY_TOKENS)
        if failed:
            print(f"{failed} requests failed", file=sys.stderr)
        found.append((done, rss_mib(gateway.serving)))
        print(f"{done:>9} requests: {found[-1][1]:.1f} MiB", file=sys.stderr)
    return found


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    (line,) = (
        one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS:")
    )
    return int(line.split()[1]) / 1024


# Processes


@contextmanager
def process(*argv: str) -> Iterator[tuple[str, int]]:
    """A child whose first line ends with its URL. Yields the URL and the pid."""
    command = [sys.executable, *argv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent) as child:
        try:
            assert child.stdout is not None
            yield child.stdout.readline().split()[-1], child.pid
        finally:
            child.terminate()


@contextmanager
def paced_engine() -> Iterator[str]:
    """The engine's URL."""
    with process("-m", "paced.engine") as (url, _):
        yield url


def set_pace(engine: str, load: Load, tokens: int, ttft_s: float = TTFT_S) -> None:
    body = json.dumps({"ttft": ttft_s, "itl": load.itl_s, "tokens": tokens}).encode()
    with urllib.request.urlopen(urllib.request.Request(engine + "/pace", body, method="PUT")) as answer:
        answer.read()


def start_all(engine: str, arguments: argparse.Namespace, stack: ExitStack) -> list[Contender]:
    """Those that start; the others are reported."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    key, _ = generate("bench")
    starts = {
        name: (lambda name=name: OTHERS[name]([engine], folder, getattr(arguments, name.replace("-", "_"))))
        for name in OTHERS
    }
    starts["sparkfleet"] = lambda: ours(engine, folder, key, digest(key.encode()))
    found = [Contender("direct", Side(engine))]
    for name, start in starts.items():
        if arguments.only and name not in arguments.only:
            continue
        try:
            found.append(start())
        except NotHere as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        stack.callback(found[-1].end)
    return found


# Output


def show(found: Comparison) -> None:
    print(f"{'streams':>7}  {'':12}{'added TTFT ms':>20}{'added ITL ms':>14}{'CPU s':>9}{'failed':>8}")
    print(f"{'':7}  {'':12}{'p50':>10}{'p99':>10}{'p99':>14}{'/1000':>9}")
    for line in found.lines:
        print(
            f"{line.streams:>7}  {line.contender:12}{line.added_ttft_p50_ms:>10.2f}{line.added_ttft_p99_ms:>10.2f}"
            f"{line.added_itl_p99_ms:>14.2f}{line.cpu_s_per_1000:>9.2f}{line.failed:>8}"
        )
    for name, value in found.idle_cpu_ms_per_s.items():
        print(f"{value:>9.1f} ms of CPU per second without a request  {name}")
    for name, one in found.small.items():
        print(f"{one.per_s:>9.0f} small requests/s, {one.cpu_s_per_1000:.2f} s of CPU per 1000  {name}")
    for text in ratios(found.lines, found.small):
        print(text)


def ratios(lines: Sequence[Line], small: dict[str, SmallRequests]) -> Iterator[str]:
    """sparkfleet against each other contender."""
    mine = {line.streams: line for line in lines if line.contender == "sparkfleet"}
    for line in lines:
        if line.contender in ("direct", "sparkfleet") or line.streams not in mine or not line.answers:
            continue
        own = mine[line.streams]
        yield (
            f"sparkfleet / {line.contender} at {line.streams} streams: TTFT p50 "
            f"{_ratio(own.added_ttft_p50_ms, line.added_ttft_p50_ms)}, p99 "
            f"{_ratio(own.added_ttft_p99_ms, line.added_ttft_p99_ms)}, ITL p99 "
            f"{_ratio(own.added_itl_p99_ms, line.added_itl_p99_ms)}, CPU "
            f"{_ratio(own.cpu_s_per_1000, line.cpu_s_per_1000)}"
        )
    for name, one in small.items():
        if name not in ("direct", "sparkfleet") and "sparkfleet" in small:
            own = small["sparkfleet"]
            yield (
                f"sparkfleet / {name}: {_ratio(own.per_s, one.per_s)} small requests/s, "
                f"CPU {_ratio(own.cpu_s_per_1000, one.cpu_s_per_1000)}"
            )


def _ratio(a: float, b: float) -> str:
    return f"{a / b:.2f}×" if a > 0 and b > 0 else "–"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, nargs="*", default=list(STREAMS), help="open at once")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of every answer")
    parser.add_argument("--rate", type=float, default=RATE, help="tokens per second of all streams, at most")
    parser.add_argument("--idle-s", type=float, default=10.0, help="seconds without a request")
    parser.add_argument("--small-s", type=float, default=2.0, help="seconds of small requests; 0: none")
    parser.add_argument("--memory", type=int, default=0, metavar="REQUESTS", help="only sparkfleet's memory")
    parser.add_argument("--memory-each", type=int, default=MEMORY_EACH, help="requests between two readings")
    parser.add_argument("--limit-s", type=float, default=20.0, help="longest round of a contender")
    parser.add_argument("--only", nargs="*", default=[], help="contenders beside the bare engine")
    for name in OTHERS:
        parser.add_argument(f"--{name}", default="", metavar="PROGRAM")
    parser.add_argument("--model", default="fake")
    parser.add_argument("--url-gateway", default="", help="a gateway that is running")
    parser.add_argument("--url-direct", default="", help="the engine behind it")
    parser.add_argument("--key", default="", help="API key of the gateway")
    parser.add_argument("--key-direct", default="", help="bearer token of the engine")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    if bool(arguments.url_gateway) != bool(arguments.url_direct):
        parser.error("--url-gateway and --url-direct go together")
    return arguments


async def run(arguments: argparse.Namespace) -> Comparison:
    gc.freeze()
    if arguments.url_gateway:
        return await compare_running(arguments)
    with ExitStack() as stack:
        engine = stack.enter_context(paced_engine())
        contenders = start_all(engine, arguments, stack)
        idle = await measure_idle(contenders, arguments.idle_s)
        lines = []
        for count in arguments.streams:
            load = load_of(count, arguments.rate)
            set_pace(engine, load, arguments.tokens)
            begun = perf_counter()
            lines += await measure(contenders, arguments, load)
            print(f"{count} streams: {perf_counter() - begun:.0f} s", file=sys.stderr)
        small = {}
        if arguments.small_s > 0:
            small = await measure_small(contenders, arguments.small_s, arguments.rounds)
        return Comparison(lines, idle, small)


async def run_memory(arguments: argparse.Namespace) -> list[tuple[int, float]]:
    """The readings, with the count of requests before each."""
    arguments.only = ["sparkfleet"]
    with ExitStack() as stack:
        engine = stack.enter_context(paced_engine())
        gateway = start_all(engine, arguments, stack)[-1]
        if gateway.name != "sparkfleet":
            return []
        set_pace(engine, Load(SMALL_CLIENTS, 0.0, 1), MEMORY_TOKENS, ttft_s=0.0)
        return await measure_memory(gateway, arguments.memory, arguments.memory_each)


async def compare_running(arguments: argparse.Namespace) -> Comparison:
    """A fleet's gateway and its engine, which has its own pace."""
    direct = Contender("direct", Side(arguments.url_direct, arguments.key_direct, arguments.model))
    gateway = Contender("sparkfleet", Side(arguments.url_gateway, arguments.key, arguments.model))
    loads = [load_of(count, arguments.rate) for count in arguments.streams]
    lines = [line for load in loads for line in await measure([direct, gateway], arguments, load)]
    return Comparison(lines, {}, {})


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    if arguments.memory:
        print(json.dumps({"version": 1, "rss_mib": uvloop.run(run_memory(arguments))}))
        return 0
    found = uvloop.run(run(arguments))
    if arguments.json:
        print(json.dumps({"version": 3, **asdict(found)}, indent=2))
    else:
        show(found)
    return 1 if any(line.failed for line in found.lines if line.contender == "sparkfleet") else 0


if __name__ == "__main__":
    sys.exit(main())
