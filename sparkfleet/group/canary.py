"""The canary: after a start, checks for real tokens, their rate, and sane output.

`/health` proves none of it. Wrong output that looks like text is found by the model's own probabilities: of a known text (a
broken kernel makes it improbable), and of the model's own answer (broken speculation passes tokens that the model would
not have chosen).
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp

from sparkfleet.engines.base import DraftTokenCounts, Engine
from sparkfleet.engines.token_api import COMPLETIONS, Ask, Sampled, Scored, TokenApi
from sparkfleet.engines.token_scores import (
    ENOUGH_TOKENS,
    OPENING,
    OWN_TOKENS,
    TEXT,
    Score,
    agreement,
    perplexity,
)
from sparkfleet.errors import EngineError
from sparkfleet.perf.prediction import Speculation
from sparkfleet.specs.fields import quote
from sparkfleet.values import Value

PROMPT = "Hello"
FIRST_TOKEN_S = 120.0
"""Time limit of the first token: it waits for kernels to compile, about a minute on two busy cores."""
MEASURE_S = 120.0
"""Time limit of an answer that is requested to measure or to check."""
HEALTH_S = 0.1
"""Seconds between two requests to a health path that does not answer yet."""
MEASURED_TOKENS = 64
"""Long enough that a rate means something, short enough (8 s at the slowest published decode, 8 tok/s) to wait for."""

TEXT_PERPLEXITY = 1000.0
"""Upper limit of the known text's perplexity. Sound models of 0.6 B parameters and more stay below 100; broken weights or
kernels come near the size of the vocabulary (32,000 to 250,000)."""
OWN_PERPLEXITY = 50.0
"""Upper limit of the perplexity of a model's own greedy answer. Sound models have 1 to 3; a small model on a text beyond its
training reaches 15."""
OWN_AGREEMENT = 0.6
"""Least share of its own greedy tokens that the model must choose again: below it, something else has chosen them. Sound
engines reach 0.9 and more; rounding in batches of another size explains the rest."""
ACCEPTED_FLOOR = {
    "mtp": 0.1,
    "nextn": 0.1,
    "eagle3": 0.1,
    "draft": 0.1,
    "dflash": 0.04,
    "dflash2": 0.04,
    "dspark": 0.04,
}
"""Least acceptance by method: half of the lowest that was published for a working one (MTP 0.22 of 88 measurements, DSpark
0.086 of 30, DFlash 0.11 of 39; knowledge/measurements). Methods that are not here look up earlier text, and may find
nothing."""
ENOUGH_DRAFTS = 30
"""Fewest draft tokens that allow a conclusion."""


class Sanity(Value):
    """Canary readings: the model's own answers and probabilities. None: the engine does not provide them."""

    method: str = "none"
    """Speculative method."""
    only: str = ""
    """The only character of its own answer; "" if it has several."""

    text_perplexity: float | None = None
    own_perplexity: float | None = None
    own_agreement: float | None = None
    """Share of its own greedy tokens, by id, to which the model gives the highest probability again."""
    as_generated: bool = False
    """True if the probabilities of its own tokens come from the generation itself and not from a prompt: a fault of the
    generation may distort them, too."""
    accepted_share: float | None = None
    """Accepted draft tokens divided by proposed ones; None without speculation or with too few draft tokens."""

    def complaint(self) -> str:
        """Fault of the output, in words; "" if there is none."""
        if self.only:
            return f"the output repeats {quote(self.only)} only, which indicates NaN logits"
        if self.text_perplexity is not None and self.text_perplexity > TEXT_PERPLEXITY:
            return (
                f"the perplexity of plain English is {self.text_perplexity:.0f} (limit {TEXT_PERPLEXITY:.0f})"
            )
        if self.own_perplexity is not None and self.own_perplexity > OWN_PERPLEXITY:
            return (
                f"the perplexity of its own answer is {self.own_perplexity:.1f} (limit {OWN_PERPLEXITY:.0f}): the sampled"
                " tokens do not match the model's own greedy choice"
            )
        if self.own_agreement is not None and self.own_agreement < OWN_AGREEMENT:
            return (
                f"only {self.own_agreement:.0%} of its own tokens are its greedy choice again (at least"
                f" {OWN_AGREEMENT:.0%}): the sampled tokens do not match the model's own greedy choice"
            )
        floor = ACCEPTED_FLOOR.get(self.method, 0.0)
        if self.accepted_share is not None and self.accepted_share < floor:
            return (
                f"it accepts {self.accepted_share:.1%} of the draft tokens (at least {floor:.0%}): speculation costs time"
                " without a gain"
            )
        return ""

    def unchecked(self) -> tuple[str, ...]:
        """Readings that the engine does not provide, in words."""
        missing = {
            "a known text's perplexity": self.text_perplexity is None,
            "its own answer's perplexity": self.own_perplexity is None,
            "its own tokens as a prompt (this engine gives no token ids)": self.as_generated,
            "acceptance": self.accepted_share is None and self.method in ACCEPTED_FLOOR,
        }
        return tuple(words for words, is_missing in missing.items() if is_missing)

    def values(self) -> dict[str, float]:
        """The numbers that are known, by name."""
        return {name: value for name, value in self.model_dump().items() if isinstance(value, float)}


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

    async def healthy(self, path: str) -> bool:
        """True if the server answers 200 on its health path."""
        try:
            async with self._session.get(
                self._url + path, headers=self._headers, timeout=_seconds(5)
            ) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
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
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
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
        ask = api.score(self._model, prompt)
        return api.scored(await self._post(ask)) if ask else Scored()

    async def generated(self, prompt: str, tokens: int) -> tuple[Score, ...]:
        """Probabilities of a continuation's tokens as it generates them; () if the engine does not report them.

        Weaker evidence than `scores` of the same text: a fault of the generation distorts these, too.
        """
        body = {"model": self._model, "prompt": prompt, "max_tokens": tokens, "logprobs": 1, "temperature": 0}
        return _scores(_pairs(await self._post(Ask(COMPLETIONS, body))))

    async def greedy(self, api: TokenApi, prompt: str, tokens: int) -> Sampled:
        """The model's own continuation at temperature 0."""
        return api.sampled(await self._post(api.sample(self._model, prompt, tokens)))

    async def _post(self, ask: Ask) -> dict[str, Any]:
        """The engine's answer; {} if it refuses the request. Raises EngineError if it does not answer."""
        try:
            async with self._session.post(
                self._url + ask.path, json=ask.body, headers=self._headers, timeout=_seconds(MEASURE_S)
            ) as response:
                answer: dict[str, Any] = json.loads(await response.text())
                if response.status >= 500:
                    raise _no_token(f"HTTP {response.status}: {str(answer)[:300]}")
                return answer if response.status == 200 else {}
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _no_token(repr(error)) from error

    async def gauges(self, path: str, names: tuple[str, ...]) -> dict[str, float]:
        """Sums of the named series on the engine's metrics page; empty if it does not answer."""
        try:
            async with self._session.get(
                self._url + path, headers=self._headers, timeout=_seconds(5)
            ) as response:
                page = await response.text() if response.status == 200 else ""
        except (aiohttp.ClientError, TimeoutError, OSError):
            return {}
        return sum_series(page, names) if page else {}


def sum_series(page: str, names: tuple[str, ...]) -> dict[str, float]:
    """Sum of each named series over its labels, from a Prometheus text page."""
    sums = dict.fromkeys(names, 0.0)
    for line in page.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in sums and math.isfinite(value := _number(line.rpartition(" ")[2])):
            sums[name] += value
    return sums


def _number(text: str) -> float:
    """A sample's value; NaN for the end of a page that was cut."""
    try:
        return float(text)
    except ValueError:
        return math.nan


async def drafts_of(probe: Probe, engine: Engine, speculation: Speculation) -> DraftTokenCounts:
    """Draft tokens since the engine started, as it counts them."""
    if speculation.method == "none" or not engine.draft_metrics:
        return DraftTokenCounts()
    return engine.drafts(await probe.gauges(engine.metrics_path, engine.draft_metrics), speculation.tokens)


async def sanity(probe: Probe, engine: Engine, speculation: Speculation, before: DraftTokenCounts) -> Sanity:
    """Reads the model's own probabilities. `before`: draft tokens that are not the canary's."""
    text = (await probe.scores(engine.token_api, TEXT)).scores
    answer = await probe.greedy(engine.token_api, OPENING, OWN_TOKENS)
    own = reread = await _own_scores(probe, engine.token_api, answer)
    if answer.tokens >= ENOUGH_TOKENS and not reread:
        own = await probe.generated(OPENING, OWN_TOKENS)
    drafts = await drafts_of(probe, engine, speculation)
    proposed, accepted = drafts.proposed - before.proposed, drafts.accepted - before.accepted
    share = accepted / proposed if proposed >= ENOUGH_DRAFTS else None
    return Sanity(
        method=speculation.method,
        only=only_character(answer.text) if answer.tokens >= ENOUGH_TOKENS else "",
        text_perplexity=perplexity(text),
        own_perplexity=perplexity(own),
        own_agreement=agreement(own),
        as_generated=bool(own) and not reread,
        accepted_share=share,
    )


async def _own_scores(probe: Probe, api: TokenApi, answer: Sampled) -> tuple[Score, ...]:
    """Scores of the sampled ids as a prompt, behind the opening's; () if the engine reports no ids, or too few."""
    if len(answer.ids) < ENOUGH_TOKENS:
        return ()
    opening = await probe.scores(api, OPENING)
    if not opening.ids:
        return ()
    whole = await probe.scores(api, (*opening.ids, *answer.ids))
    return whole.scores[len(opening.ids) - 1 :]


def only_character(text: str) -> str:
    """The only character of a text, apart from white space; "" if it has several, or none."""
    found = set("".join(text.split()))
    return found.pop() if len(found) == 1 else ""


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
