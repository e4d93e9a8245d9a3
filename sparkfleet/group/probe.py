"""HTTP client of one engine: its health, a token, a timed stream, its probabilities and its metrics."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp

from sparkfleet.engines.base import PositionCounter
from sparkfleet.engines.token_api import COMPLETIONS, Ask, Sampled, Scored, TokenApi
from sparkfleet.engines.token_scores import Score
from sparkfleet.errors import EngineError
from sparkfleet.values import Value

CHATS = "/v1/chat/completions"
PROMPT = "Hello"
FIRST_TOKEN_S = 120.0
"""Time limit of the first token: it waits for kernels to compile, about a minute on two busy cores."""
MEASURE_S = 120.0
"""Time limit of an answer that is requested to measure or to check."""
HEALTH_S = 0.1
"""Seconds between two requests to a health path that does not answer yet."""
HEALTH_ANSWER_S = 5.0
"""Time limit of such a request."""
CHAT_TOKENS = 16
"""Tokens of the chat that is tried: enough for the header of a Harmony message, whose parser may fail on a part of it."""
_BUSY = (429, 503)
"""Statuses of an engine that has too many requests."""
MEASURED_TOKENS = 64
"""Long enough that a rate means something, short enough (8 s at the slowest published decode, 8 tok/s) to wait for."""


class StreamMeasurement(Value):
    """One stream, alone on the engine, measured by its client."""

    ttft_ms: float
    decode_tps: float
    """Tokens per second after the first chunk."""
    tokens: int

    def values(self) -> dict[str, float]:
        """The numbers by name."""
        return {"ttft_ms": self.ttft_ms, "decode_tps": self.decode_tps}


class Probe:
    """Client of one engine, direct and with its internal token.

    Args:
        session: shared by all requests to this engine.
        url: e.g. `http://127.0.0.1:41234`.
        model: the served name.
        token: the internal bearer token.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str, token: str) -> None:
        self._session = session
        self._url = url
        self._model = model
        self._headers = {"authorization": f"Bearer {token}"}
        self.unhealthy = ""
        """The last answer of its health path if it was not 200, in words; "" if it does not listen yet, or is healthy."""

    async def healthy(self, path: str) -> bool:
        """True if the server answers 200 on its health path."""
        try:
            async with self._session.get(
                self._url + path, headers=self._headers, timeout=_seconds(HEALTH_ANSWER_S)
            ) as response:
                is_well = response.status == 200
                self.unhealthy = "" if is_well else f"GET {path} returns {response.status}"
                return is_well
        except TimeoutError:
            self.unhealthy = f"GET {path} takes longer than {HEALTH_ANSWER_S:.0f} s"
        except (aiohttp.ClientError, OSError):
            self.unhealthy = ""
        return False

    async def refuses_strangers(self, *paths: str) -> None:
        """Requests these paths without the token.

        Raises:
            EngineError: one was answered.
        """
        for path in paths:
            try:
                async with self._session.get(self._url + path, timeout=_seconds(5)) as response:
                    status = response.status
            except (aiohttp.ClientError, TimeoutError, OSError):
                continue  # no answer at all
            if status not in (401, 403):
                raise EngineError(
                    f"The engine answers without its token: GET {path} returned {status}.",
                    means="Any machine that reaches its address could use it, so it was stopped.",
                    do="Use another image, or report the engine's release: the check of the token did not take effect.",
                )

    async def one_token(self, timeout_s: float = FIRST_TOKEN_S) -> None:
        """Requests one token.

        Raises:
            EngineError: the answer has no token, or did not arrive within `timeout_s`.
        """
        body = {"model": self._model, "prompt": PROMPT, "max_tokens": 1, "temperature": 0}
        try:
            async with self._session.post(
                self._url + "/v1/completions", json=body, headers=self._headers, timeout=_seconds(timeout_s)
            ) as response:
                text = await response.text()
                if response.status == 200 and json.loads(text)["usage"]["completion_tokens"] >= 1:
                    return
        except TimeoutError:
            raise _no_token(f"no token in {timeout_s:.0f} s") from None
        except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
            raise _no_token(repr(error)) from error
        raise _no_token(f"HTTP {response.status}: {text[:300]}")

    async def measure(self) -> StreamMeasurement:
        """Streams `MEASURED_TOKENS` and times them. Raises EngineError if fewer than half of them arrive.

        The rate is of the tokens behind the first chunk: with speculation a chunk has several.
        """
        body = {
            "model": self._model,
            "prompt": PROMPT,
            "max_tokens": MEASURED_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        began = time.perf_counter()
        arrivals: list[float] = []
        first = counted = 0
        try:
            async with self._session.post(
                self._url + "/v1/completions", json=body, headers=self._headers, timeout=_seconds(MEASURE_S)
            ) as response:
                async for event in _events(response):
                    if event.get("choices"):
                        arrivals.append(time.perf_counter())
                    counted = (event.get("usage") or {}).get("completion_tokens", counted)
                    first = first or counted
        except TimeoutError:
            raise _no_token(f"{counted} of {MEASURED_TOKENS} tokens in {MEASURE_S:.0f} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _no_token(repr(error)) from error
        if len(arrivals) < 2 or counted < MEASURED_TOKENS // 2:
            raise _no_token(f"a stream of {MEASURED_TOKENS} tokens ended after {counted}")
        first = first if first < counted else 1  # an engine that reports its usage in the last chunk only
        span = max(arrivals[-1] - arrivals[0], 1e-6)
        return StreamMeasurement(
            ttft_ms=(arrivals[0] - began) * 1e3, decode_tps=(counted - first) / span, tokens=counted
        )

    async def scores(self, api: TokenApi, prompt: str | Sequence[int]) -> Scored:
        """The model's own probabilities of each token of a prompt; empty if the engine does not report them."""
        if isinstance(prompt, str) and (encode := api.encode(prompt)):
            prompt = api.encoded(await self._post(encode))
        ask = api.score(self._model, prompt) if prompt else None
        return api.scored(await self._post(ask), prompt) if ask else Scored()

    async def generated(self, prompt: str, tokens: int) -> tuple[Score, ...]:
        """Probabilities of a continuation's tokens as it generates them; () if the engine does not report them.

        Weaker evidence than `scores` of the same text: a fault of the generation distorts these, too.
        """
        body = {"model": self._model, "prompt": prompt, "max_tokens": tokens, "logprobs": 1, "temperature": 0}
        return _scores(_pairs(await self._post(Ask(COMPLETIONS, body))))

    async def greedy(self, api: TokenApi, prompt: str, tokens: int) -> Sampled:
        """The model's own continuation at temperature 0."""
        return api.sampled(await self._post(api.sample(self._model, prompt, tokens)))

    async def chat_refusal(self) -> str:
        """The error with which a chat of one message is answered: `HTTP 400: …`; "" for an answer, or if the engine is busy.

        Nothing else here needs the model's chat template.
        """
        messages = [{"role": "user", "content": PROMPT}]
        body = {"model": self._model, "messages": messages, "max_tokens": CHAT_TOKENS, "temperature": 0}
        try:
            async with self._session.post(
                self._url + CHATS, json=body, headers=self._headers, timeout=_seconds(MEASURE_S)
            ) as response:
                if response.status == 200 or response.status in _BUSY:
                    return ""
                return f"HTTP {response.status}: {_message(await response.text())}"
        except TimeoutError:
            return f"no answer in {MEASURE_S:.0f} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return str(error) or type(error).__name__

    async def _post(self, ask: Ask) -> Any:
        """The engine's answer, as JSON; {} if it refuses the request. Raises EngineError if it does not answer."""
        try:
            async with self._session.post(
                self._url + ask.path, json=ask.body, headers=self._headers, timeout=_seconds(MEASURE_S)
            ) as response:
                answer: Any = json.loads(await response.text())
                if response.status >= 500:
                    raise _no_token(f"HTTP {response.status}: {str(answer)[:300]}")
                return answer if response.status == 200 else {}
        except TimeoutError:
            raise _no_token(f"no answer of {ask.path} in {MEASURE_S:.0f} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _no_token(repr(error)) from error

    async def gauges(self, path: str, names: tuple[str, ...]) -> dict[str, float]:
        """Sums of the named series on the engine's metrics page; empty if it does not answer."""
        page = await self.page(path)
        return sum_series(page, names) if page else {}

    async def page(self, path: str) -> str:
        """The engine's metrics page; "" if it does not answer."""
        try:
            async with self._session.get(
                self._url + path, headers=self._headers, timeout=_seconds(5)
            ) as response:
                return await response.text() if response.status == 200 else ""
        except (aiohttp.ClientError, TimeoutError, OSError):
            return ""


def sum_series(page: str, names: tuple[str, ...]) -> dict[str, float]:
    """Sum of each named series over its labels, from a Prometheus text page."""
    sums = dict.fromkeys(names, 0.0)
    for line in page.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in sums and math.isfinite(value := _number(line.rpartition(" ")[2])):
            sums[name] += value
    return sums


def sums_by_position(page: str, series: PositionCounter) -> tuple[float, ...]:
    """Sums of a series by a label that counts from 0, without gaps, from a Prometheus text page."""
    sums: dict[int, float] = {}
    label = re.compile(rf'[{{,]\s*{re.escape(series.label)}="(\d+)"')
    for line in page.splitlines():
        found = label.search(line) if line.startswith(f"{series.name}{{") else None
        if found is not None and math.isfinite(value := _number(line.rpartition(" ")[2])):
            at = int(found[1])
            sums[at] = sums.get(at, 0.0) + value
    return tuple(sums[at] for at in range(len(sums))) if sums.keys() == set(range(len(sums))) else ()


def _message(answer: str) -> str:
    """The message of an engine's error, on one line: vLLM's is in `error`, SGLang's beside it."""
    try:
        found = json.loads(answer)
        found = found.get("error", found)
        message = found["message"] if isinstance(found, dict) else found
    except (ValueError, AttributeError, KeyError, RecursionError):
        message = answer
    return " ".join(str(message).split())[:300]


def _number(text: str) -> float:
    """A sample's value; NaN for the end of a page that was cut."""
    try:
        return float(text)
    except ValueError:
        return math.nan


async def wait_healthy(probe: Probe, path: str) -> None:
    """Returns when the server answers on its health path. Cancel it to give up."""
    while not await probe.healthy(path):
        await asyncio.sleep(HEALTH_S)


def _pairs(answer: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """The log-probability of each token of an answer, and those of the likeliest at its place; [] if it has none."""
    try:
        found = answer["choices"][0]["logprobs"]
        return list(zip(found["token_logprobs"], found["top_logprobs"], strict=True))
    except (KeyError, IndexError, TypeError, ValueError):
        return []


def _scores(pairs: Sequence[tuple[Any, Any]]) -> tuple[Score, ...]:
    try:
        return tuple(Score(own=float(own), best=max(best.values())) for own, best in pairs)
    except (AttributeError, TypeError, ValueError):
        return ()


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
        means="Its /health returned 200, but a completion failed: it cannot serve.",
        do="Read the rank's log: `sparkfleet logs NAME`.",
    )
