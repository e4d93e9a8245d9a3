"""An engine with a prefix cache, on a faster clock: prompts are read one after the other, answers decode together.

    python -m paced.prefix_engine '{"prefill_tps": 4000, "alone_tps": 45, "together_tps": 220, "context": 8192}'

A token is four characters. It refuses what it cannot serve as vLLM does, and its usage has the cached tokens of a prompt.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import uvloop
from aiohttp import web

TICK_S = 0.005
CHARACTERS = 4
"""Of a token."""
BLOCK = 256
"""Tokens that are cached, or not, together."""
NO_VISION = "At most 0 image(s) may be provided in one prompt."


@dataclass(frozen=True)
class EngineSpeed:
    """Speed and capabilities of an engine; seconds are those of its own clock, which runs `scale` times as fast as ours."""

    prefill_tps: float
    alone_tps: float
    together_tps: float
    """Of all answers, at `concurrency` requests."""
    concurrency: int = 8
    context: int = 131_072
    vision: bool = False
    cached_tokens: int = 2_000_000
    scale: float = 1.0

    def decode_tps(self, running: int) -> float:
        """Tokens per second of each of so many answers."""
        power = math.log(self.together_tps / self.alone_tps) / math.log(self.concurrency)
        return self.alone_tps * float(running) ** (power - 1)


class _Decoding:
    """One answer."""

    def __init__(self, tokens: int) -> None:
        self.left = float(tokens)
        self.ended = asyncio.get_running_loop().create_future()


class PrefixEngine:
    """Answers `/v1/chat/completions`."""

    def __init__(self, speed: EngineSpeed) -> None:
        self._speed = speed
        self._slots = asyncio.Semaphore(speed.concurrency)
        self._prefill = asyncio.Lock()
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._running: set[_Decoding] = set()

    async def decode(self) -> None:
        """Goes on with all answers, for ever."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            if self._running:
                done = self._speed.decode_tps(len(self._running)) * (now - last) * self._speed.scale
                for one in tuple(self._running):
                    one.left -= done
                    if one.left <= 0:
                        self._running.discard(one)
                        if not one.ended.done():  # its client may have left
                            one.ended.set_result(None)
            last = now

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Streams an answer of exactly `max_tokens`."""
        body = await request.json()
        text, images = _prompt(body["messages"])
        prompt, tokens = len(text) // CHARACTERS, int(body["max_tokens"])
        if images and not self._speed.vision:
            return _refusal(NO_VISION)
        if prompt + tokens > self._speed.context:
            return _refusal(
                f"This model's maximum context length is {self._speed.context} tokens. However, you requested {tokens}"
                f" output tokens and your prompt contains {prompt} input tokens, for a total of {prompt + tokens} tokens."
            )
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        async with self._slots:
            async with self._prefill:
                cached = self._read(tuple(_blocks(text))) * BLOCK
                await asyncio.sleep((prompt - cached) / self._speed.prefill_tps / self._speed.scale)
            await answer.prepare(request)
            await answer.write(_event(delta={"role": "assistant", "content": "tok"}))
            decoding = _Decoding(tokens - 1)
            self._running.add(decoding)
            try:
                await decoding.ended
            finally:
                self._running.discard(decoding)
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": tokens,
            "total_tokens": prompt + tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        await answer.write(_event(delta={}, reason="stop") + _event(usage=usage) + b"data: [DONE]\n\n")
        await answer.write_eof()
        return answer

    def _read(self, blocks: tuple[int, ...]) -> int:
        """Caches a prompt. Returns the number of its first blocks that were cached."""
        cached = next((at for at, one in enumerate(blocks) if one not in self._cache), len(blocks))
        for one in reversed(blocks):  # the first is evicted last
            self._cache[one] = None
            self._cache.move_to_end(one)
        while len(self._cache) > self._speed.cached_tokens // BLOCK:
            self._cache.popitem(last=False)
        return cached


def _prompt(messages: list[dict[str, Any]]) -> tuple[str, int]:
    """The text of a chat, and the number of its images."""
    texts, images = [], 0
    for one in messages:
        texts.append(f"<{one['role']}>")
        parts = one["content"] if isinstance(one["content"], list) else [{"text": one["content"]}]
        texts += [part.get("text", "") for part in parts]
        images += sum("image_url" in part for part in parts)
    return "".join(texts), images


def _blocks(text: str) -> Iterator[int]:
    name, size = 0, BLOCK * CHARACTERS
    for start in range(0, len(text) - size + 1, size):
        name = hash((name, text[start : start + size]))
        yield name


def _event(delta: dict[str, Any] | None = None, reason: str | None = None, usage: Any = None) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
    document = {
        "id": "chatcmpl-0",
        "object": "chat.completion.chunk",
        "created": 1_780_000_000,
        "model": "fake",
    }
    document |= {"choices": choices} if usage is None else {"choices": [], "usage": usage}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def _refusal(message: str) -> web.Response:
    error = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
    return web.json_response({"error": error}, status=400)


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "fake", "object": "model"}]})


async def _serve(speed: EngineSpeed) -> None:
    engine = PrefixEngine(speed)
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/chat/completions", engine.chat)
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/health", _models)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    with suppress(asyncio.CancelledError):
        await engine.decode()


if __name__ == "__main__":
    uvloop.run(_serve(EngineSpeed(**json.loads(sys.argv[1]))))
