"""Measures a deployment's speed over the endpoint, under the loads that its plan predicts: bursts of new prompts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.tables.bench_table import (
    BenchLoad,
    BenchResult,
    BenchSetup,
    LoadSpeeds,
    bench_setup_of,
)
from sparkfleet.errors import ControlError, SpecError
from sparkfleet.fleet.clients.bench_prompts import BenchPrompts
from sparkfleet.fleet.clients.endpoint import AnswerTimes, ask_at
from sparkfleet.fleet.clients.passing_key import key_for
from sparkfleet.fleet.deployments.status import find_now
from sparkfleet.fleet.node_programs import who
from sparkfleet.fleet.planning.group_measurements import rung_of
from sparkfleet.fleet.session import Session
from sparkfleet.group.report import GroupPhase
from sparkfleet.perf.workload import predicted_content, usual
from sparkfleet.planner.types.plan import Rung
from sparkfleet.specs.deployment import Deployment
from sparkfleet.units import plural

if TYPE_CHECKING:
    from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus

ROUNDS = 3
"""Rounds of a load, so that one that is disturbed does not move the median: the first of several requests at once often is,
by kernels that are compiled for that many."""
KEY_S = 7200.0
"""Longest measurement: three answers of 4,096 tokens at 8 tok/s, the slowest published decode, take 26 minutes."""
LONGER = 1.75
"""Longest prompt over the wanted length: of 200 for the tiny model, whose tokenizer knows few words, it was 1.71 times."""
LOOK_S = 1.0
QUIET_S = 5.0
"""Seconds within which the engines' counters, reported every 2 s, forget requests that have ended."""


class BenchGroups(NamedTuple):
    """The groups of a deployment that serve, as they are measured."""

    number: int
    concurrency: int
    """Requests at once that each serves."""
    context: int
    rung: Rung | None
    """The rung of all of them; None if they are at unlike ones, or at one of another plan: nothing is predicted then."""
    ends_at_length: bool = True
    """True if their engines can be requested to give an answer its full length: the API of a custom one is not known."""

    @property
    def setup(self) -> BenchSetup | None:
        """The setup of all of them."""
        return None if self.rung is None else bench_setup_of(self.rung.candidate)


class BenchSpeeds(LoadSpeeds):
    """Speeds of a measurement, with its rounds."""

    rounds: int


class Bench(NamedTuple):
    """Speeds of a deployment."""

    groups: BenchGroups
    measured: tuple[BenchSpeeds, ...]
    disturbed: str
    """Requests of others meanwhile, in words; "" for none."""
    kept: bool
    """True if further plans use it."""


async def bench(
    session: Session,
    name: str,
    key: str = "",
    *,
    concurrency: Sequence[int] = (),
    prompt: int | None = None,
    answer: int | None = None,
    on_load: Callable[[str], None] = lambda _: None,
) -> Bench:
    """Measure a deployment, and keep the speeds for further plans if nothing else ran on its nodes.

    Args:
        name: the deployment's.
        key: an API key; "": one of its own.
        concurrency: requests at once on each group, one load for each number; (): one, and as many as it was planned for.
        prompt: tokens of a prompt; None: as predicted.
        answer: tokens of an answer at most; None: as predicted.
        on_load: called with each load before it runs, in words.

    Raises:
        ControlError: the fleet is down, the deployment does not serve, or an answer is refused or too short for a rate.
        SpecError: the context or the concurrency is too small for such requests.
    """
    client = await session.controller()
    async with client.again() as asking:
        status = await find_now(asking, name)
    groups, spec = _groups(status), Deployment.model_validate_json(status.spec)
    content = predicted_content(spec.content)
    counts = tuple(dict.fromkeys(concurrency or (1, groups.concurrency)))
    loads = [_load(groups, content, count, prompt, answer) for count in counts]
    trust = await session.endpoint.trust(client)
    at_most = max(counts) * groups.number
    async with session.endpoint.url(client) as url, key_for(client, key, at_most, KEY_S) as used:

        async def ask(text: str, tokens: int) -> AnswerTimes:
            return await ask_at(
                url, name, text, used, max_tokens=tokens, trust=trust, full_length=groups.ends_at_length
            )

        runner = _Runner(ask, groups.number)
        measured: list[BenchSpeeds] = []
        disturbances: list[str] = []
        for load in loads:
            on_load(_words(load, groups.number))
            async with _watched(client, name, load.concurrency * groups.number, disturbances):
                measured.append(await runner.measure(load))
    disturbed = disturbances[0] if disturbances else ""
    results = [] if disturbed else list(_results(groups, measured))
    if results:
        async with client.again() as asking:
            await asking.keep_bench(name, results, who())
    return Bench(groups, tuple(measured), disturbed, bool(results))


def _groups(status: DeploymentStatus) -> BenchGroups:
    """The groups that serve. Raises ControlError if there is none."""
    ready = [one for one in status.groups if one.phase is GroupPhase.READY]
    if not ready:
        do = f"`sparkfleet load {status.name}` starts it." if status.state == "unloaded" else ""
        raise ControlError(
            f"{status.name} is {status.state}: there is nothing to measure.",
            do=do or f"`sparkfleet describe {status.name}` shows the reason.",
        )
    rungs = [rung_of(status, one) for one in ready]
    found = [one for one in rungs if one is not None]
    if not found:
        raise ControlError(
            f"{status.name} serves with an older plan, whose context is not known.",
            do="The same command again once its update has ended: `sparkfleet status`.",
        )
    alike = len(found) == len(ready) and len({bench_setup_of(one.candidate) for one in found}) == 1
    return BenchGroups(
        number=len(ready),
        concurrency=min(one.candidate.concurrency for one in found),
        context=min(one.candidate.context for one in found),
        rung=found[0] if alike else None,
        ends_at_length=all(one.engine != "custom" for one in ready),
    )


def _load(
    groups: BenchGroups, content: str, requests: int, prompt: int | None, answer: int | None
) -> BenchLoad:
    if requests > groups.concurrency:
        raise SpecError(
            f"{requests} requests at once: each group serves {groups.concurrency}, so that others would wait.",
            do="Pass fewer with --concurrency, or raise `concurrency` of the deployment.",
        )
    predicted = usual(groups.context, requests)
    if answer is None:
        answer = predicted.generate
    most = int((groups.context - answer) / LONGER)
    if prompt is None:
        prompt = max(1, min(predicted.prompt, most))
    if prompt > most:
        raise SpecError(
            f"A prompt of {prompt} tokens and an answer of {answer} may exceed the context of {groups.context}.",
            means=f"Prompts are up to {LONGER} times as long, as each is another text.",
            do=f"Pass --prompt-tokens {max(1, most)} or less, or a shorter --answer-tokens.",
        )
    return BenchLoad(content=content, prompt=prompt, answer=answer, concurrency=requests)


def _words(load: BenchLoad, groups: int) -> str:
    """`2 rounds of 4 requests at once, prompts of 2,048 tokens, answers of 256`."""
    each = "1 request" if load.concurrency * groups == 1 else f"{load.concurrency * groups} requests at once"
    return f"{ROUNDS} rounds of {each}, prompts of {load.prompt:,} tokens, answers of {load.answer:,}"


class _Runner:
    """Sends the requests of loads.

    Args:
        ask: sends one, given its text and the tokens of its answer.
        groups: that share them.
    """

    def __init__(self, ask: Callable[[str, int], Awaitable[AnswerTimes]], groups: int) -> None:
        self._ask = ask
        self._groups = groups

    async def measure(self, load: BenchLoad) -> BenchSpeeds:
        """Runs one load: a request of each kind that fits the length of its prompts to the tokenizer, then the rounds."""
        content = predicted_content(load.content)
        prompts = BenchPrompts(content, load.prompt, seed=time.time_ns())
        for kind in prompts.kinds:
            first = prompts.of(kind)
            prompts.learn(first, (await self._ask(first.text, 2)).prompt_tokens)
        rounds = []
        for _ in range(ROUNDS):
            made = [prompts.next() for _ in range(load.concurrency * self._groups)]
            rounds.append(await asyncio.gather(*(self._ask(one.text, load.answer) for one in made)))
            for one, answer in zip(made, rounds[-1], strict=True):
                prompts.learn(one, answer.prompt_tokens)
        speeds = [_speeds(one, self._groups) for one in rounds]
        ttft, each, together = (median(values) for values in zip(*speeds, strict=True))
        return BenchSpeeds(load=load, ttft_ms=ttft, request_tps=each, group_tps=together, rounds=len(rounds))


def _speeds(answers: Sequence[AnswerTimes], groups: int) -> tuple[float, float, float]:
    """Mean TTFT in ms, mean tok/s of one answer, and tok/s of all on one group, of one round.

    Raises ControlError if an answer has no rate.
    """
    speeds = [one.speed for one in answers]
    ttfts = [one.ttft_ms for one in speeds if one.ttft_ms is not None]
    rates = [one.decode_tps for one in speeds if one.decode_tps is not None]
    if len(rates) < len(answers) or len(ttfts) < len(answers):
        raise ControlError(
            f"An answer had {min(one.tokens for one in answers)} tokens: too few to measure a rate.",
            means="The model ends its answers early, or they arrive at once. Nothing was kept.",
            do="Pass a longer --answer-tokens.",
        )
    # The tokens of each first chunk are there when the time begins.
    lasted = max(one.arrivals[-1] for one in answers) - min(one.arrivals[0] for one in answers)
    return fmean(ttfts), fmean(rates), sum(one.tokens - one.first_tokens for one in answers) / lasted / groups


def _results(groups: BenchGroups, measured: Sequence[BenchSpeeds]) -> Sequence[BenchResult]:
    setup = groups.setup
    if setup is None:
        return ()
    return [BenchResult(setup=setup, **one.model_dump(exclude={"rounds"})) for one in measured]


@contextlib.asynccontextmanager
async def _watched(client: FleetClient, name: str, own: int, found: list[str]) -> AsyncIterator[None]:
    """Looks for requests of others before and during one load, and adds them to `found`.

    Args:
        own: requests of the load at once.
    """
    async with client.again() as asking:
        until = time.monotonic() + QUIET_S
        while (busy := others(await asking.fleet(), name, 0)) and time.monotonic() < until:
            await asyncio.sleep(LOOK_S)
        if busy:
            found.append(busy)
        watching = asyncio.create_task(_watch(asking, name, own, found))
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait({watching})


async def _watch(client: FleetClient, name: str, own: int, found: list[str]) -> None:
    while not found:
        with contextlib.suppress(ControlError):  # a controller that is replaced answers again
            if busy := others(await client.fleet(), name, own):
                found.append(busy)
        await asyncio.sleep(LOOK_S)


def others(status: FleetStatus, name: str, own: int) -> str:
    """Requests beside a measurement's `own` on the deployment's groups or on their nodes, in words; "" for none. Pure."""
    measured = [one for one in status.groups if one.group[0] == name]
    nodes = {rank.node for one in measured for rank in one.ranks} | {one.node for one in measured}
    more = sum(one.running + one.waiting for one in measured) - own
    if more > 0:
        return f"{plural(more, 'other request')} for {name}"
    beside = [one for one in status.groups if one.group[0] != name and one.running + one.waiting]
    shared = [one for one in beside if nodes & {one.node, *(rank.node for rank in one.ranks)}]
    return f"requests for {shared[0].group[0]} on {shared[0].node}" if shared else ""
