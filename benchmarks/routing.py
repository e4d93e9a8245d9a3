"""Compares the choice of an engine side by side: the same requests through each gateway to the same two engines.

    python benchmarks/routing.py                              # what is installed of all contenders
    python benchmarks/routing.py --loads unlike --vllm-router VENV/bin/vllm-router
    python benchmarks/routing.py --only "sparkfleet" "nginx least_conn" --seed 2 --json

The loads are those of `paced/loads.py`, each with two engines of its own for each contender; `hit rate` is the share of
prompt tokens that the engine had cached. The best possible for `agents` is that of one engine for all (`one engine`).

The gateways and the HTTP are real; the engines (`paced/prefix_engine.py`) wait as long as a prompt's uncached part and the
answer would take, on a clock that runs `--scale` times as fast. Seconds are those of the engines' clock. An answer's speed
beside others falls by the curve that sparkfleet assumes: those with a wrong plan and with none show it without that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter

import aiohttp
import uvloop
from gateway import process
from paced.client import Side
from paced.contenders import Contender, NotHere, nginx, ours_alone, vllm_router
from paced.fixed_picker import FixedPicker
from paced.loads import LOADS, Conversation, Load, SentRequest
from paced.prefix_engine import EngineSpeed

from sparkfleet.gateway.access.keys import digest, generate
from sparkfleet.gateway.admission import slot
from sparkfleet.gateway.admission.slot import LEARN_S
from sparkfleet.gateway.app import GatewayApp
from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.http.http_server import serve
from sparkfleet.gateway.routing_table import GroupEntry, GroupSpeed, KeyEntry, ModelEntry, RoutingTable

REQUEST_S = 120.0


@dataclass
class RequestOutcome:
    """Outcome of one request. Seconds of the engines' clock."""

    kind: str
    status: int = 0
    ttft_s: float = 0.0
    total_s: float = 0.0
    prompt: int = 0
    cached: int = 0


@dataclass(frozen=True)
class Line:
    """Result of one contender with one load. Seconds of the engines' clock."""

    load: str
    contender: str
    answered: int
    refused: int
    """Requests with an error, each of which one of the engines could have served."""
    ttft_s: float
    completion_s: float
    hit_rate: float
    by_kind: dict[str, float] = field(default_factory=dict)
    """Mean completion of each kind of request."""


class Clients:
    """The clients of one contender.

    Args:
        contender: answers.
        scale: speed of the engines' clock.
    """

    def __init__(self, contender: Contender, scale: float) -> None:
        self._side = contender.side
        self._scale = scale
        self.outcomes: list[RequestOutcome] = []

    async def run(self, load: Load) -> list[RequestOutcome]:
        limit = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            connector=limit, timeout=aiohttp.ClientTimeout(REQUEST_S)
        ) as session:
            await asyncio.gather(*(self._converse(session, one) for one in load.conversations))
        return self.outcomes

    async def _converse(self, session: aiohttp.ClientSession, turns: Conversation) -> None:
        for one in turns:
            await asyncio.sleep(one.at / self._scale)
            outcome = RequestOutcome(one.kind)
            self.outcomes.append(outcome)
            await self._ask(session, one, outcome)

    async def _ask(self, session: aiohttp.ClientSession, one: SentRequest, outcome: RequestOutcome) -> None:
        body = {
            "model": "fake",
            "messages": one.messages,
            "max_tokens": one.answer,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"authorization": f"Bearer {self._side.key}"} if self._side.key else {}
        begun = perf_counter()
        url = f"{self._side.url}/v1/chat/completions"
        async with session.post(url, json=body, headers=headers) as answer:
            async for line in answer.content:
                if not outcome.ttft_s and b'"content"' in line:
                    outcome.ttft_s = (perf_counter() - begun) * self._scale
                if b'"cached_tokens"' in line:
                    usage = json.loads(line.removeprefix(b"data: "))["usage"]
                    outcome.prompt = usage["prompt_tokens"]
                    outcome.cached = usage["prompt_tokens_details"]["cached_tokens"]
            outcome.status = answer.status
        outcome.total_s = (perf_counter() - begun) * self._scale


def line_of(load: str, contender: str, outcomes: Sequence[RequestOutcome]) -> Line:
    good = [one for one in outcomes if one.status == 200]
    kinds = sorted({one.kind for one in good})
    return Line(
        load=load,
        contender=contender,
        answered=len(good),
        refused=len(outcomes) - len(good),
        ttft_s=mean([one.ttft_s for one in good]),
        completion_s=mean([one.total_s for one in good]),
        hit_rate=sum(one.cached for one in good) / max(1, sum(one.prompt for one in good)),
        by_kind={kind: mean([one.total_s for one in good if one.kind == kind]) for kind in kinds},
    )


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else float("nan")


# Processes


async def run_gateway(engines: str, port: int, key_sha256: str) -> None:
    """The gateway, in this process, until it is ended. `engines`: JSON, URLs with their speeds."""
    groups, targets = [], []
    for number, (url, given) in enumerate(json.loads(engines)):
        speed = EngineSpeed(**given)
        slot.LEARN_S = LEARN_S / speed.scale  # on the engines' clock, as all speeds
        groups.append(group_of(f"engine{number}", speed))
        targets.append(EngineEndpoint(url=url, app=f"engine{number}", token="bench"))
    entry = ModelEntry(name="fake", groups=tuple(groups), deployment="fake", state="ready")
    key = KeyEntry(id="key-bench", name="bench", sha256=key_sha256)
    app = GatewayApp(FixedPicker(targets), table=RoutingTable(version=1, models={"fake": entry}, keys=(key,)))
    await serve(app, "127.0.0.1", port, connections=4096)
    await asyncio.Event().wait()


def group_of(app: str, speed: EngineSpeed) -> GroupEntry:
    """The engine as the controller's table has it. A speed of 0: the plan predicts none."""
    predicted = GroupSpeed(
        prefill_tps=speed.prefill_tps * speed.scale or 1,
        alone_tps=speed.alone_tps * speed.scale or 1,
        together_tps=speed.together_tps * speed.scale,
        concurrency=speed.concurrency,
    )
    return GroupEntry(
        app=app,
        vision=speed.vision,
        context=speed.context,
        concurrency=speed.concurrency,
        speed=predicted if speed.alone_tps else None,
    )


Start = Callable[[Sequence[str], Sequence[EngineSpeed], Path, argparse.Namespace], Contender]


def _sparkfleet(
    urls: Sequence[str],
    speeds: Sequence[EngineSpeed],
    folder: Path,
    arguments: argparse.Namespace,
    *,
    factors: Sequence[float] = (),
) -> Contender:
    """`factors`: the plan's speeds over the true ones; 0: it predicts none."""
    known = [
        replace(
            speed,
            prefill_tps=speed.prefill_tps * factor,
            alone_tps=speed.alone_tps * factor,
            together_tps=speed.together_tps * factor,
        )
        for speed, factor in zip(speeds, factors or [1.0] * len(speeds), strict=True)
    ]
    key, _ = generate("bench")
    engines = json.dumps([(url, asdict(speed)) for url, speed in zip(urls, known, strict=True)])
    return ours_alone(engines, folder, __file__, key, digest(key.encode()))


def _vllm_router(
    urls: Sequence[str],
    speeds: Sequence[EngineSpeed],
    folder: Path,
    arguments: argparse.Namespace,
    *,
    policy: str,
) -> Contender:
    return vllm_router(urls, folder, arguments.vllm_router, policy=policy)


def _nginx(
    urls: Sequence[str], speeds: Sequence[EngineSpeed], folder: Path, arguments: argparse.Namespace
) -> Contender:
    return nginx(urls, folder, arguments.nginx, balance="least_conn;")


CONTENDERS: dict[str, Start] = {
    "sparkfleet": _sparkfleet,
    "sparkfleet, plan 2x off": partial(_sparkfleet, factors=(2.0, 0.5)),
    "sparkfleet, no plan": partial(_sparkfleet, factors=(0.0, 0.0)),
    "nginx least_conn": _nginx,
    "vllm-router round_robin": partial(_vllm_router, policy="round_robin"),
    "vllm-router power_of_two": partial(_vllm_router, policy="power_of_two"),
    "vllm-router cache_aware": partial(_vllm_router, policy="cache_aware"),
}


def measure(name: str, load: Load, arguments: argparse.Namespace) -> list[Line]:
    """A line for each contender that starts."""
    found = []
    if name == "agents":
        slots = sum(one.concurrency for one in load.engines)
        alone = Load((replace(load.engines[0], concurrency=slots),), load.conversations)
        found.append(_measure(name, "one engine", alone, _bare, arguments))
    for contender, start in CONTENDERS.items():
        if arguments.only and contender not in arguments.only:
            continue
        try:
            found.append(_measure(name, contender, load, start, arguments))
        except NotHere as error:
            print(f"{contender} is left out: {error}", file=sys.stderr)
    return found


def _measure(name: str, contender: str, load: Load, start: Start, arguments: argparse.Namespace) -> Line:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        speeds = [replace(one, scale=arguments.scale) for one in load.engines]
        urls = [
            stack.enter_context(process("-m", "paced.prefix_engine", json.dumps(asdict(one))))[0]
            for one in speeds
        ]
        one = start(urls, speeds, folder, arguments)
        stack.callback(one.end)
        return line_of(name, contender, uvloop.run(Clients(one, arguments.scale).run(load)))


def _bare(
    urls: Sequence[str], speeds: Sequence[EngineSpeed], folder: Path, arguments: argparse.Namespace
) -> Contender:
    return Contender("direct", Side(urls[0]))


# Output


def show(lines: Sequence[Line]) -> None:
    print(
        f"{'load':8}{'':26}{'answered':>9}{'refused':>9}{'TTFT s':>9}{'mean s':>9}{'hit rate':>10}  mean s by kind"
    )
    for line in lines:
        kinds = ", ".join(f"{kind} {seconds:.1f}" for kind, seconds in line.by_kind.items())
        print(
            f"{line.load:8}{line.contender:26}{line.answered:>9}{line.refused:>9}{line.ttft_s:>9.2f}"
            f"{line.completion_s:>9.2f}{line.hit_rate:>10.1%}  {kinds}"
        )
    for text in ratios(lines):
        print(text)


def ratios(lines: Sequence[Line]) -> Iterator[str]:
    """Each other contender against sparkfleet."""
    mine = {line.load: line for line in lines if line.contender == "sparkfleet"}
    for line in lines:
        own = mine.get(line.load)
        if own is None or line is own:
            continue
        kind = "short" if "short" in own.by_kind and "short" in line.by_kind else ""
        ratio = line.by_kind[kind] / own.by_kind[kind] if kind else line.completion_s / own.completion_s
        yield (
            f"{line.load}: {line.contender} / sparkfleet: completion{f' of {kind} requests' if kind else ''} {ratio:.2f}×,"
            f" TTFT {line.ttft_s / own.ttft_s:.2f}×, hit rate {(line.hit_rate - own.hit_rate) * 100:+.1f} points"
        )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loads", nargs="*", default=list(LOADS), choices=list(LOADS))
    parser.add_argument("--requests", type=int, default=240, help="of each load")
    parser.add_argument("--scale", type=float, default=20.0, help="speed of the engines' clock")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="contenders")
    parser.add_argument("--nginx", default="", metavar="PROGRAM")
    parser.add_argument("--vllm-router", default="", metavar="PROGRAM")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--run-gateway", default="", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--key", default="", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    if arguments.run_gateway:
        uvloop.run(run_gateway(arguments.run_gateway, arguments.port, arguments.key))
        return 0
    lines = []
    for name in arguments.loads:
        load = LOADS[name](random.Random(arguments.seed), arguments.requests)
        lines += measure(name, load, arguments)
    if arguments.json:
        print(json.dumps({"version": 1, "lines": [asdict(line) for line in lines]}, indent=2))
    else:
        show(lines)
    return 1 if any(line.refused for line in lines if line.contender.startswith("sparkfleet")) else 0


if __name__ == "__main__":
    sys.exit(main())
