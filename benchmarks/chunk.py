"""Processor time of each step that a part of a stream takes through the gateway, without its two system calls.

    python benchmarks/chunk.py                 # a chat's tokens, one a part, as vLLM sends them
    python benchmarks/chunk.py --tokens-each 4 --json

`failure` looks for the engine's report that it failed; `usage` takes out a usage that the client did not ask for; `loops`
and `record` run only if the deployment has `loop_tokens` or `replay`. Processor time, so that what else the machine does
counts little; the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from time import perf_counter, thread_time
from typing import Any

from sparkfleet.engines.fake.apis import ChatApi, Job
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.engine.failure_event import FailureWatch
from sparkfleet.gateway.engine.loop_detector import LoopDetector
from sparkfleet.gateway.engine.replay import StreamRecord, continuable_request
from sparkfleet.gateway.engine.usage import UsageMeter
from sparkfleet.gateway.engine.usage_event import UsageHider

WORDS = ("the ", "spark ", "hums ", "and ", 'an "error" ', "of ", "one ", "in ")


def parts_of(tokens: int, each: int, *, ids: bool) -> list[bytes]:
    """A stream in parts of `each` tokens."""
    words = tuple(WORDS[number * 7 % len(WORDS)] + str(number) for number in range(tokens))
    job = Job(
        "chatcmpl-0123456789abcdef0123456789abcdef",
        "qwen3-235b",
        9,
        words,
        has_usage=True,
        has_ids=ids,
        prompt_ids=(1, 2, 3),
        ids=tuple(range(tokens)),
    )
    api = ChatApi()
    events = [api.token(job, number) for number in range(tokens)]
    parts = [b"".join(events[start : start + each]) for start in range(0, tokens, each)]
    return [*api.opening(job), *parts, *api.closing(job)]


def median_us(make: Callable[[], Callable[[bytes], object]], parts: Sequence[bytes], rounds: int) -> float:
    """Median over rounds of the processor time for a part, microseconds."""
    found = []
    for _ in range(rounds):
        feed = make()
        begun = thread_time()
        for part in parts:
            feed(part)
        found.append((thread_time() - begun) / len(parts))
    return statistics.median(found) * 1e6


def _record() -> Callable[[bytes], object]:
    asked = {"model": "m", "messages": [{"role": "user", "content": "a"}], "temperature": 0, "stream": True}
    plan = continuable_request("/v1/chat/completions", RequestBody(json.dumps(asked).encode()))
    assert plan is not None
    return StreamRecord(plan).feed


def measure(tokens: int, each: int, rounds: int) -> dict[str, Any]:
    """Microseconds for each part."""
    parts, with_ids = parts_of(tokens, each, ids=False), parts_of(tokens, each, ids=True)
    steps: dict[str, Callable[[], Callable[[bytes], object]]] = {
        "count": lambda: UsageMeter(perf_counter(), lambda _: None).feed,
        "failure": lambda: FailureWatch().feed,
        "usage": lambda: UsageHider(nulls=False).feed,
        "loops": lambda: LoopDetector(256).feed,
    }
    found = {name: median_us(make, parts, rounds) for name, make in steps.items()}
    return {
        "parts": len(parts),
        "bytes": sum(map(len, parts)) // len(parts),
        **found,
        "record": median_us(_record, with_ids, rounds),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--tokens-each", type=int, default=1, help="of a part")
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    found = measure(arguments.tokens, arguments.tokens_each, arguments.rounds)
    if arguments.json:
        print(json.dumps({"version": 1, **found}, indent=2))
        return 0
    print(f"{found['parts']} parts of {found['bytes']} bytes, µs of processor time for each:")
    for name in ("count", "failure", "usage", "loops", "record"):
        print(f"{name:>8} {found[name]:6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
