"""The engine of the measurement: sends tokens by the clock, at as little cost as Python allows.

Every contender gets the same one. Its pace is set while it runs: `PUT /pace {"ttft": s, "itl": s, "tokens": n}`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, cast

import httptools
import uvloop

TOKEN = b" tok"
"""Text of every token: the clients count it."""
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _event(data: bytes) -> bytes:
    line = b"data: " + data + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(line), line)


def _chunk(delta: dict[str, Any], reason: str | None, **more: Any) -> bytes:
    document = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1_780_000_000,
        "model": "fake",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}],
    }
    return json.dumps(document | more, separators=(",", ":")).encode()


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}


_TOKEN = _event(_chunk({"content": TOKEN.decode()}, None))


class Pace:
    """Seconds to the first token and between two, and tokens of an answer."""

    def __init__(self) -> None:
        self.set(0.04, 0.005, 64)

    def set(self, ttft: float, itl: float, tokens: int) -> None:
        self.ttft, self.itl, self.tokens = ttft, itl, tokens
        end = _chunk({}, "stop")
        usage = json.dumps(json.loads(end) | {"choices": [], "usage": _usage(tokens)}, separators=(",", ":"))
        self.last = _TOKEN + _event(end) + _event(usage.encode()) + _event(b"[DONE]") + b"0\r\n\r\n"
        whole = {
            "id": "chatcmpl-0123456789abcdef0123456789abcdef",
            "object": "chat.completion",
            "created": 1_780_000_000,
            "model": "fake",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": TOKEN.decode()},
                    "finish_reason": "stop",
                }
            ],
            "usage": _usage(1),
        }
        self.whole = _json(json.dumps(whole, separators=(",", ":")).encode())


def _json(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Connection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are of no class of asyncio's
        self._parser = httptools.HttpRequestParser(self)
        self._url = self._body = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def on_url(self, url: bytes) -> None:
        self._url, self._body = url, b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._url == b"/pace":
            self._pace.set(**json.loads(self._body))
            self._transport.write(_json(b"{}"))
        elif b"completions" not in self._url:
            self._transport.write(_json(b'{"object":"list","data":[{"id":"fake","object":"model"}]}'))
        elif b'"stream":true' in self._body or b'"stream": true' in self._body:
            self._at = self._loop.time() + self._pace.ttft
            self._left = self._pace.tokens
            self._transport.write(_HEAD)
            self._timer = self._loop.call_at(self._at, self._token)
        else:
            self._transport.write(self._pace.whole)

    def _token(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._timer = None
            self._transport.write(self._pace.last)
            return
        self._transport.write(_TOKEN)
        self._at += self._pace.itl
        self._timer = self._loop.call_at(self._at, self._token)


async def _serve() -> None:
    pace = Pace()
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(pace), "127.0.0.1", 0, backlog=4096
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve())
    sys.exit(0)
