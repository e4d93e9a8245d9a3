"""The check after start: a real token, then how fast real tokens come. `/health` alone proves neither."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from sparkfleet.errors import EngineError
from sparkfleet.values import Value

PROMPT = "Hello"
MEASURED_TOKENS = 64
"""Long enough that a rate means something, short enough (8 s at the slowest published decode, 8 tok/s) to wait for."""


class Measured(Value):
    """One stream, alone on the engine, as its client saw it."""

    ttft_ms: float
    decode_tps: float
    """Tokens per second after the first one."""
    tokens: int

    def values(self) -> dict[str, float]:
        """The numbers by name."""
        return {"ttft_ms": self.ttft_ms, "decode_tps": self.decode_tps}


class Probe:
    """Talks to one engine directly, with its internal token.

    Args:
        session: shared by everything that talks to this engine.
        url: e.g. `http://127.0.0.1:41234`.
        model: the served name.
        token: the internal bearer token.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str, token: str) -> None:
        self._session = session
        self._url = url
        self._model = model
        self._headers = {"authorization": f"Bearer {token}"}

    async def healthy(self, path: str) -> bool:
        """Whether the server answers 200 on its health path."""
        try:
            async with self._session.get(self._url + path, timeout=_seconds(5)) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def one_token(self, timeout_s: float = 120.0) -> None:
        """Generate one token.

        Raises:
            EngineError: the engine answered with something else, or not within `timeout_s`.
        """
        body = {"model": self._model, "prompt": PROMPT, "max_tokens": 1, "temperature": 0}
        try:
            async with self._session.post(
                self._url + "/v1/completions", json=body, headers=self._headers, timeout=_seconds(timeout_s)
            ) as response:
                text = await response.text()
                if response.status == 200 and json.loads(text)["usage"]["completion_tokens"] >= 1:
                    return
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError) as error:
            raise _no_token(repr(error)) from error
        raise _no_token(f"HTTP {response.status}: {text[:300]}")

    async def measure(self, tokens: int = MEASURED_TOKENS, timeout_s: float = 120.0) -> Measured:
        """Stream `tokens` tokens and time them. Raises EngineError where the stream ends early."""
        body = {
            "model": self._model,
            "prompt": PROMPT,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began = time.perf_counter()
        arrivals: list[float] = []
        counted = 0
        try:
            async with self._session.post(
                self._url + "/v1/completions", json=body, headers=self._headers, timeout=_seconds(timeout_s)
            ) as response:
                async for event in _events(response):
                    if event.get("choices"):
                        arrivals.append(time.perf_counter())
                    counted = (event.get("usage") or {}).get("completion_tokens", counted)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _no_token(repr(error)) from error
        if len(arrivals) < 2 or counted < 2:
            raise _no_token(f"a stream of {tokens} tokens brought {counted}")
        span = max(arrivals[-1] - arrivals[0], 1e-6)
        return Measured(ttft_ms=(arrivals[0] - began) * 1e3, decode_tps=(counted - 1) / span, tokens=counted)

    async def gauges(self, path: str, names: tuple[str, ...]) -> dict[str, float]:
        """Sums of the named series on the engine's metrics page; empty where it does not answer."""
        try:
            async with self._session.get(self._url + path, timeout=_seconds(5)) as response:
                page = await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return {}
        return sum_series(page, names)


def sum_series(page: str, names: tuple[str, ...]) -> dict[str, float]:
    """Sum of each named series over its labels, from a Prometheus text page."""
    sums = dict.fromkeys(names, 0.0)
    for line in page.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in sums:
            sums[name] += float(line.rpartition(" ")[2])
    return sums


async def wait_healthy(probe: Probe, path: str, every_s: float = 0.1) -> None:
    """Return when the server answers on its health path. Cancel it to give up."""
    while not await probe.healthy(path):
        await asyncio.sleep(every_s)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    if response.status != 200:
        raise _no_token(f"HTTP {response.status}: {(await response.text())[:300]}")
    async for line in response.content:
        if line.startswith(b"data:") and b"[DONE]" not in line:
            yield json.loads(line[5:])


def _seconds(total: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total)


def _no_token(detail: str) -> EngineError:
    return EngineError(
        f"The engine is up but did not generate: {detail}.",
        means="Its /health said 200; a completion is the only proof, and it failed.",
        do="See the rank's log: `sparkfleet logs NAME`.",
    )
