"""`sparkfleet ask`: sends one question to the endpoint, streams the answer, and measures its speed."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import aiohttp
import typer

from sparkfleet.cli.describe import NameArgument
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, open_session, run
from sparkfleet.cli.output import errors
from sparkfleet.errors import ControlError
from sparkfleet.fleet.session import Session

KeyOption = Annotated[
    str,
    typer.Option("--key", envvar="SPARKFLEET_API_KEY", help="An API key of the endpoint.", show_envvar=True),
]


def ask(
    name: NameArgument,
    question: Annotated[str, typer.Argument(help="The question.", metavar="QUESTION", show_default=False)],
    key: KeyOption = "",
    inventory: InventoryOption = DEFAULT_INVENTORY,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of the answer.")] = 256,
) -> int:
    """Ask a model one question over the endpoint, as any client would."""
    if not key:
        raise ControlError(
            "No API key was given.",
            do="Set SPARKFLEET_API_KEY or pass --key; `sparkfleet keys create NAME` makes a key.",
        )
    return run(_ask(open_session(inventory), name, question, key, max_tokens))


async def _ask(session: Session, name: str, question: str, key: str, max_tokens: int) -> int:
    client = await session.controller()
    body = {
        "model": name,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.perf_counter()
    arrivals: list[float] = []
    tokens = 0
    async with session.endpoint(client) as url:
        async for event in _events(f"{url}/chat/completions", key, body):
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            for choice in event.get("choices", []):
                if text := choice["delta"].get("content"):
                    arrivals.append(time.perf_counter())
                    sys.stdout.write(text)
                    sys.stdout.flush()
    sys.stdout.write("\n")
    errors.print(_speed(began, arrivals, tokens), style="dim")
    return Exit.DONE


def _speed(began: float, arrivals: list[float], tokens: int) -> str:
    if len(arrivals) < 2 or tokens < 2:
        return f"{tokens} tokens: too few to measure a rate"
    rate = (tokens - 1) / max(arrivals[-1] - arrivals[0], 1e-6)
    return f"{tokens} tokens · TTFT {(arrivals[0] - began) * 1e3:.0f} ms · {rate:.1f} tok/s (measured here)"


async def _events(url: str, key: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
        session.post(url, json=body, headers={"authorization": f"Bearer {key}"}) as response,
    ):
        if response.status != 200:
            raise _refused(response.status, await response.text())
        async for line in response.content:
            if line.startswith(b"data:") and b"[DONE]" not in line:
                event = jsonlib.loads(line[5:])
                if "error" in event:
                    raise ControlError(f"The answer was cut short: {event['error'].get('message')}")
                yield event


def _refused(status: int, text: str) -> ControlError:
    try:
        message = jsonlib.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = text[:200]
    return ControlError(f"The endpoint answered with HTTP {status}: {message}")
