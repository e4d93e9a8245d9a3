"""Asks a model one question over the endpoint, as any client would, and measures the answer's speed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from sparkfleet.errors import ControlError, SparkfleetError
from sparkfleet.fleet.clients.passing_key import key_for
from sparkfleet.fleet.deployments.load import follow_start
from sparkfleet.fleet.events import OnEvent, StepRunning, UseCaseEvent, ignored
from sparkfleet.fleet.session import Session
from sparkfleet.values import Value

if TYPE_CHECKING:
    from aiohttp import Fingerprint

    from sparkfleet.controlplane.api.client import FleetClient

REMEDIES = {
    401: "`sparkfleet keys list` lists the keys. Without `--key` and SPARKFLEET_API_KEY the command makes one for itself.",
    403: "`keys:` of a deployment lists the keys that may use it: pass one of them with `--key @FILE`.",
}
"""By HTTP status."""
_REASONING = ("reasoning", "reasoning_content")
"""Fields of the tokens that precede an answer, in newer and older engines."""
LISTED_S = 5.0
"""Seconds that the list of models may take."""
_SHORTEST_S = 0.02
"""From the first token to the last: what arrives in less was held up on its way and shows no rate of the engine."""


class AnswerSpeed(Value):
    """Speed of one answer, measured by the client."""

    tokens: int
    ttft_ms: float | None = None
    """None: no token arrived, or a single one."""
    decode_tps: float | None = None
    """None: too few tokens, or they arrived at once."""
    only_reasoning: bool = False
    """True if no token was left for the answer itself."""
    with_start: bool = False
    """True if `ttft_ms` has the start of its model in it, which was on demand and not loaded."""


async def ask(
    session: Session,
    name: str,
    question: str,
    key: str,
    *,
    max_tokens: int,
    on_text: Callable[[str], None],
    on_start: Callable[[], None] = lambda: None,
    on_event: OnEvent = ignored,
) -> AnswerSpeed:
    """Ask the deployment `name` over the fleet's endpoint; `on_text` is called with the answer's text as it arrives.

    Args:
        key: an API key; "": one of its own, for this question.
        on_start: called first if the deployment is on demand and has to start.
        on_event: receives the steps of that start, none once the answer begins.

    Raises:
        ControlError: the fleet is down, the endpoint refuses the request, or the answer is incomplete.
    """
    client = await session.controller()
    trust = await session.endpoint.trust(client)
    async with session.endpoint.url(client) as url, key_for(client, key) as used:
        if not await _waits_for_start(client, name, await listed_state(url, name, used, trust)):
            found = await ask_at(
                url, name, question, used, max_tokens=max_tokens, on_text=on_text, trust=trust
            )
            return found.speed
        on_start()
        follower = asyncio.create_task(_follow(session, client.again(), name, on_event))

        def write(text: str) -> None:
            follower.cancel()
            on_text(text)

        try:
            found = await ask_at(url, name, question, used, max_tokens=max_tokens, on_text=write, trust=trust)
        finally:
            follower.cancel()
        return found.speed.model_copy(update={"with_start": True})


async def _follow(session: Session, client: FleetClient, name: str, on_event: OnEvent) -> None:
    """Sends the steps of a start, without the events that end them."""

    def pass_steps(event: UseCaseEvent) -> None:
        if isinstance(event, StepRunning):
            on_event(event)

    with contextlib.suppress(SparkfleetError):  # the question itself gets the error
        async with client:
            await follow_start(session, client, name, pass_steps)


class AnswerTimes(NamedTuple):
    """Times of one streamed answer, seconds of `time.perf_counter`, and its tokens by the engine's count."""

    sent: float
    arrivals: tuple[float, ...]
    """Of each chunk with text or reasoning, and of those after the first that have neither: a token without text, such as
    the end of a turn under `ignore_eos`, is counted and takes its time."""
    tokens: int
    prompt_tokens: int
    only_reasoning: bool
    """True if no token was left for the answer itself."""
    first_tokens: int = 1
    """Tokens up to the first chunk: with speculation it has several, and a format such as Harmony begins with some that have
    no text. 1 if the engine counts at the end only."""

    @property
    def speed(self) -> AnswerSpeed:
        """The speed as the client has it; without rates if too few tokens arrived."""
        if len(self.arrivals) < 2 or self.tokens < 2:
            return AnswerSpeed(tokens=self.tokens, only_reasoning=self.only_reasoning)
        lasted = self.arrivals[-1] - self.arrivals[0]
        return AnswerSpeed(
            tokens=self.tokens,
            ttft_ms=(self.arrivals[0] - self.sent) * 1e3,
            decode_tps=(self.tokens - self.first_tokens) / lasted if lasted >= _SHORTEST_S else None,
            only_reasoning=self.only_reasoning,
        )


async def ask_at(
    url: str,
    name: str,
    question: str,
    key: str,
    *,
    max_tokens: int,
    on_text: Callable[[str], None] = lambda _: None,
    trust: Fingerprint | bool = True,
    full_length: bool = False,
) -> AnswerTimes:
    """The same at the OpenAI endpoint `url` (with `/v1`).

    Args:
        trust: of `EndpointAccess.trust`.
        full_length: let the answer have `max_tokens`, also if the model would end it before; a field of our engines' own.
    """
    body: dict[str, Any] = {
        "model": name,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if full_length:
        body["ignore_eos"] = True
        body["stream_options"]["continuous_usage_stats"] = True
    sent = time.perf_counter()
    arrivals: list[float] = []
    usage: dict[str, Any] = {}
    answered = False
    first_tokens = 0
    async for event in _events(f"{url}/chat/completions", key, body, trust):
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            delta = choice["delta"]
            text = delta.get("content")
            if arrivals or text or any(delta.get(name) for name in _REASONING):
                arrivals.append(time.perf_counter())
                first_tokens = first_tokens or usage.get("completion_tokens", 0)
            if text:
                answered = True
                on_text(text)
    tokens = usage.get("completion_tokens", 0)
    return AnswerTimes(
        sent,
        tuple(arrivals),
        tokens=tokens,
        prompt_tokens=usage.get("prompt_tokens", 0),
        only_reasoning=bool(arrivals) and not answered,
        first_tokens=first_tokens if 0 < first_tokens < tokens else 1,
    )


async def _waits_for_start(client: FleetClient, name: str, state: str) -> bool:
    """True if a question waits for the start of a model in this state; what is not on demand refuses it meanwhile."""
    if state != "starting":
        return state == "unloaded"
    async with client.again() as asking:
        found = (await asking.fleet()).named(name)
    return found is not None and found.on_demand


async def listed_state(url: str, name: str, key: str, trust: Fingerprint | bool) -> str:
    """The state that a model is listed with; "" if that cannot be read: the question then gets the error."""
    import aiohttp  # a slow import, for questions only

    headers = {"authorization": f"Bearer {key}"}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LISTED_S)) as session,
            session.get(f"{url}/models/{quote(name, safe='')}", headers=headers, ssl=trust) as response,
        ):
            return str((await response.json()).get("state", "")) if response.status == HTTPStatus.OK else ""
    except (aiohttp.ClientError, TimeoutError, ValueError, AttributeError):
        return ""


async def _events(
    url: str, key: str, body: dict[str, Any], trust: Fingerprint | bool
) -> AsyncIterator[dict[str, Any]]:
    import aiohttp  # a slow import, for questions only

    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
            session.post(url, json=body, headers={"authorization": f"Bearer {key}"}, ssl=trust) as response,
        ):
            if response.status != 200:
                raise _refused(response.status, await response.text())
            async for line in response.content:
                if line.startswith(b"data:") and b"[DONE]" not in line:
                    event = json.loads(line[5:])
                    if "error" in event:
                        raise ControlError(f"The answer is incomplete: {event['error'].get('message')}")
                    yield event
    except aiohttp.ClientError as error:
        raise ControlError(
            f"The endpoint did not answer, or not to the end: {error}.",
            means="The gateway is being replaced, or its address has changed.",
            do="`sparkfleet status` shows the endpoint; then the same command again.",
        ) from None


def _refused(status: int, text: str) -> ControlError:
    try:
        message = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = text[:200]
    return ControlError(f"The endpoint answered with HTTP {status}: {message}", do=REMEDIES.get(status, ""))
