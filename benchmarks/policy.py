"""Time of one routing decision: the forecast of a request on every group, and the order of the groups.

    python benchmarks/policy.py                     # 16 groups, a prompt of 40,000 characters, warm caches
    python benchmarks/policy.py --groups 1 4 16 --characters 400000 --json

`decide` is what a request pays; `record` is what sending it adds (its prefix is noted); `parse` is the prefix's own part of
reading the body; `wait` is what each of 1,000 requests pays that come at once while all groups are full. Processor time, so
that what else the machine does counts little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from time import thread_time
from typing import Any

from sparkfleet.gateway.admission.model_queue import ModelQueues
from sparkfleet.gateway.candidate_groups import CandidateGroups
from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.request.prefix_blocks import prefix_of
from sparkfleet.gateway.request.requirements import Requirements
from sparkfleet.gateway.routing_table import GroupEntry, GroupSpeed, ModelEntry

_CALLS = 20
_WAITING = 1000


def median_us(call: Callable[[], object], rounds: int) -> float:
    """Median of the processor time of a call, over `rounds` rounds of 20, microseconds."""
    samples = []
    for _ in range(rounds):
        before = thread_time()
        for _ in range(_CALLS):
            call()
        samples.append((thread_time() - before) / _CALLS)
    return statistics.median(samples) * 1e6


async def wait_us(entries: Sequence[GroupEntry], observed: ObservedGroups, needs: Requirements) -> float:
    """Processor time of a request that begins to wait, mean over 1,000, microseconds."""
    for entry in entries:
        while observed.has_room(entry):
            observed.begin(entry.app)
    model = ModelEntry(name="m", groups=tuple(entries), deployment="engine", state="ready")
    queues = ModelQueues()
    candidates = CandidateGroups(model, tuple(entries), needs, observed)
    before = thread_time()
    waiting = [asyncio.create_task(queues.enter(lambda: candidates)) for _ in range(_WAITING)]
    while queues.waiting("m") < _WAITING:
        await asyncio.sleep(0)
    found = (thread_time() - before) / _WAITING
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return found * 1e6


def measure(groups: int, characters: int, rounds: int) -> dict[str, Any]:
    """One line of the table."""
    drawn = random.Random(1)
    speed = GroupSpeed(prefill_tps=2000, alone_tps=40, together_tps=200, concurrency=16)
    entries = [
        GroupEntry(
            app=f"group-{number}", concurrency=16, context=131072, speed=speed, vision=True, tools=True
        )
        for number in range(groups)
    ]
    observed = ObservedGroups()
    text = "".join(drawn.choices("abcdefgh ", k=characters))
    prefix = prefix_of([text])
    needs = Requirements(
        tools=True,
        tokens=characters // 3,
        prompt_tokens=characters // 3,
        characters=characters,
        prefix=prefix,
    )
    for number, entry in enumerate(entries):
        observed.caches.add(entry, prefix[: len(prefix) * number // groups])
        for _ in range(number % 4):
            observed.begin(entry.app, 100)
    return {
        "groups": groups,
        "characters": characters,
        "blocks": len(prefix),
        "decide_us": median_us(lambda: observed.forecasts(entries, needs, "m"), rounds),
        "record_us": median_us(lambda: observed.caches.add(entries[0], prefix), rounds),
        "parse_us": median_us(lambda: prefix_of([text]), rounds),
        "wait_us": asyncio.run(wait_us(entries, observed, needs)),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--characters", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    lines = [measure(groups, arguments.characters, arguments.rounds) for groups in arguments.groups]
    if arguments.json:
        print(json.dumps({"version": 1, "lines": lines}, indent=2))
        return 0
    for line in lines:
        print(
            f"{line['groups']:>3} groups, {line['blocks']} blocks: decide {line['decide_us']:.1f} µs,"
            f" record {line['record_us']:.1f} µs, parse {line['parse_us']:.1f} µs,"
            f" wait {line['wait_us']:.0f} µs"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
