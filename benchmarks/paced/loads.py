"""Loads of `routing.py`: requests of clients, and the engines that they are for.

- `unlike`: one engine is slow, with vision and a long context, the other quick, with 8K; short and long prompts, images.
- `agents`: conversations that grow with each turn, on two equal engines.
- `shared`: one prefix in all prompts, which harmed a router (sgl-project/sglang#21199).
- `queue`: more short requests than the quick one of two unlike engines can serve.
- `clients`: six clients that ask without a pause, on two equal engines with four slots each.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paced.prefix_engine import EngineSpeed

CAREFUL = EngineSpeed(prefill_tps=900, alone_tps=14, together_tps=60, vision=True)
QUICK = EngineSpeed(prefill_tps=4000, alone_tps=45, together_tps=220, concurrency=16, context=8192)
EQUAL = EngineSpeed(prefill_tps=2000, alone_tps=40, together_tps=160)
FOUR_SLOTS = EngineSpeed(prefill_tps=2000, alone_tps=40, together_tps=110, concurrency=4)
BUSY = EngineSpeed(prefill_tps=12_000, alone_tps=60, together_tps=1000, concurrency=36)
IMAGE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"


@dataclass(frozen=True)
class SentRequest:
    """One request."""

    messages: tuple[dict[str, Any], ...]
    answer: int
    """Tokens."""
    kind: str
    at: float = 0.0
    """Seconds after the begin of the load, or after the answer before it in its conversation."""


Conversation = Sequence[SentRequest]
"""Requests of which each is sent after the answer of the one before."""


@dataclass(frozen=True)
class Load:
    """Requests, and the engines that they are for."""

    engines: tuple[EngineSpeed, ...]
    conversations: tuple[Conversation, ...]


def words(drawn: random.Random, tokens: int) -> str:
    """Text of so many tokens."""
    return "".join(f"{drawn.randrange(16**3):03x} " for _ in range(tokens))


def arrivals(drawn: random.Random, rate: float, count: int) -> Iterator[float]:
    at = 0.0
    for _ in range(count):
        yield (at := at + drawn.expovariate(rate))


def unlike(drawn: random.Random, count: int) -> Load:
    """8 of 10 requests fit both engines."""
    found = []
    for at in arrivals(drawn, 0.3, count):
        kind, content = drawn.random(), None
        if kind < 0.8:
            name, prompt, answer = "short", drawn.randrange(100, 3000), drawn.randrange(50, 300)
        elif kind < 0.9:
            name, prompt, answer = "long", drawn.randrange(9000, 16_000), drawn.randrange(50, 200)
        else:
            name, prompt, answer = "vision", 800, 150
            content = [{"type": "image_url", "image_url": {"url": IMAGE}}]
        text = words(drawn, prompt)
        message = {
            "role": "user",
            "content": text if content is None else [{"type": "text", "text": text}, *content],
        }
        found.append([SentRequest((message,), answer, name, at)])
    return Load((CAREFUL, QUICK), tuple(found))


def agents(drawn: random.Random, count: int) -> Load:
    """12 conversations with a common system prompt of 500 tokens; each turn adds 200 to 1,500 tokens to it."""
    system = {"role": "system", "content": words(drawn, 500)}
    found = []
    for _ in range(12):
        messages, turns = [system], []
        for turn in range(max(1, count // 12)):
            messages.append({"role": "user", "content": words(drawn, drawn.randrange(200, 1500))})
            pause = drawn.uniform(0, 40) if turn == 0 else drawn.expovariate(1 / 20)
            turns.append(SentRequest(tuple(messages), drawn.randrange(50, 200), "turn", pause))
            messages.append({"role": "assistant", "content": words(drawn, 100)})
        found.append(turns)
    return Load((EQUAL, EQUAL), tuple(found))


def shared(drawn: random.Random, count: int) -> Load:
    """9,800 tokens, of which 2,548 are common; 430 of answer; 3 a second."""
    common = words(drawn, 2548)
    found = [
        [SentRequest(({"role": "user", "content": common + words(drawn, 9800 - 2548)},), 430, "shared", at)]
        for at in arrivals(drawn, 3.0, count)
    ]
    return Load((BUSY, BUSY), tuple(found))


def queue(drawn: random.Random, count: int) -> Load:
    """1.4 a second; the quick engine decodes 1.3 of them."""
    found = []
    for at in arrivals(drawn, 1.4, count):
        message = {"role": "user", "content": words(drawn, drawn.randrange(100, 1000))}
        found.append([SentRequest((message,), drawn.randrange(50, 300), "short", at)])
    return Load((CAREFUL, QUICK), tuple(found))


def clients(drawn: random.Random, count: int) -> Load:
    """Short prompts, long answers."""
    found = [
        [
            SentRequest(({"role": "user", "content": words(drawn, 50)},), 450, "client")
            for _ in range(max(1, count // 6))
        ]
        for _ in range(6)
    ]
    return Load((FOUR_SLOTS, FOUR_SLOTS), tuple(found))


LOADS: dict[str, Callable[[random.Random, int], Load]] = {
    "unlike": unlike,
    "agents": agents,
    "shared": shared,
    "queue": queue,
    "clients": clients,
}
