"""Cost of one request in the gateway's own process: processor time, calls of Python functions, and executed instructions.

    python benchmarks/request.py                       # a small request, and a stream of 64 tokens
    python benchmarks/request.py --instructions        # counts them with valgrind: other load does not change them
    PYTHONPATH=OTHER/TREE python benchmarks/request.py # another version of the gateway

The whole way of a request runs, from the bytes of a client to the bytes for it, on uvloop: parser, key, choice, engine's
connection, usage, page. In place of the sockets are transports that keep nothing, so that no system call of a socket is in
it, and the look-up of an engine is in a list as Ray Serve keeps it. Each part of a stream takes a turn of the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from time import process_time
from types import SimpleNamespace
from typing import Any

import uvloop
from paced.client import Side
from paced.engine import _HEAD, _TOKEN, Pace

from sparkfleet.gateway.access.keys import digest
from sparkfleet.gateway.app import GatewayApp
from sparkfleet.gateway.engine.serve_picker import ServePicker
from sparkfleet.gateway.http.http_server import serve
from sparkfleet.gateway.page.page_app import PageApp
from sparkfleet.gateway.routing_table import GroupEntry, KeyEntry, ModelEntry, RoutingTable
from sparkfleet.runtime.still_heap import StillHeap

KEY = "sk-sf-" + "k" * 43
TOKENS = 64
KINDS = ("small", "stream")
WARM = 300
_APP = "fake--g1-0"
_CLIENT, _GATEWAY = ("127.0.0.1", 40_000), ("127.0.0.1", 8000)
_SOCKET = SimpleNamespace(
    setsockopt=lambda *_: None, getsockname=lambda: _GATEWAY, getpeername=lambda: _CLIENT
)


class MemoryTransport(asyncio.Transport):
    """A connection without a socket. `wrote` gets what is written."""

    def __init__(self, wrote: Callable[[bytes], None]) -> None:
        super().__init__({"peername": _CLIENT, "sockname": _GATEWAY, "socket": _SOCKET})
        self.write = wrote  # type: ignore[method-assign,assignment]

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class MemoryEngine:
    """An engine that answers at once; each part of a stream takes a turn of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        self._loop = loop
        self._protocol = protocol
        pace = Pace()
        pace.set(0.0, 0.0, TOKENS)
        self._stream = [_HEAD, *[_TOKEN] * (TOKENS - 1), pace.last]
        self._whole = [pace.whole]
        protocol.connection_made(MemoryTransport(self._asked))

    def _asked(self, request: bytes) -> None:
        self._parts = iter(self._stream if b'"stream":true' in request else self._whole)
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        part = next(self._parts, None)
        if part is not None:
            self._loop.call_soon(self._next)
            self._protocol.data_received(part)


class MemoryLoop(uvloop.Loop):
    """An event loop whose listening sockets and connections are in memory."""

    async def create_server(self, factory: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        self.client_side = factory
        return SimpleNamespace(close=lambda: None, sockets=[])

    async def create_connection(self, factory: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        protocol = factory()
        MemoryEngine(self, protocol)
        return protocol.transport, protocol


class MemoryClient:
    """A client on one connection to the gateway."""

    def __init__(self, loop: MemoryLoop) -> None:
        self._loop = loop
        self._ended: asyncio.Future[None] | None = None
        self._stream = False
        self.size = 0
        self._protocol = loop.client_side()
        self._protocol.connection_made(MemoryTransport(self._wrote))
        side = Side("http://127.0.0.1:8000", KEY)
        self._requests = [
            side.request(stream=False, tokens=1),
            side.request(stream=True, tokens=TOKENS),
        ]

    async def ask(self, kind: str) -> None:
        self._stream = kind == "stream"
        self._ended = self._loop.create_future()
        self._protocol.data_received(self._requests[self._stream])
        await self._ended

    def _wrote(self, data: bytes) -> None:
        self.size += len(data)
        if not self._stream or data.endswith(b"0\r\n\r\n"):
            assert self._ended is not None
            self._ended.set_result(None)


def _handle_of(deployment: str, app: str) -> Any:
    """Ray Serve's handle of a group whose replica is known."""
    replica = SimpleNamespace(replica_metadata={"url": "http://127.0.0.1:5005", "group": "fake/g1/0"})
    known = SimpleNamespace(curr_replicas={"one": replica})
    router = SimpleNamespace(_deployment_available=True, _request_router=known)
    return SimpleNamespace(_router=SimpleNamespace(_asyncio_router=router))


async def _client(loop: MemoryLoop) -> MemoryClient:
    picker = ServePicker(lambda mark: "5" * 64, _handle_of)
    picker._handles[_APP] = _handle_of("group", _APP)  # as `prepare` leaves it

    async def nothing(*_: str) -> str:
        return ""

    app = GatewayApp(picker, page=PageApp(nothing, nothing, nothing))
    group = GroupEntry(app=_APP, concurrency=4096)
    entry = ModelEntry(name="fake", groups=(group,), deployment="group", state="ready")
    key = KeyEntry(id="key-bench", name="bench", sha256=digest(KEY.encode()))
    app.table = RoutingTable(version=1, models={"fake": entry}, keys=(key,))
    await serve(app, "127.0.0.1", 0)
    StillHeap().begin()
    return MemoryClient(loop)


async def _asked(loop: MemoryLoop, kind: str, count: int) -> MemoryClient:
    client = await _client(loop)
    for _ in range(count):
        await client.ask(kind)
    return client


async def _times(loop: MemoryLoop, kind: str, each: int, rounds: int) -> list[float]:
    client = await _asked(loop, kind, WARM)
    found = []
    for _ in range(rounds):
        begun = process_time()
        for _ in range(each):
            await client.ask(kind)
        found.append((process_time() - begun) / each)
    return found


async def _calls(loop: MemoryLoop, kind: str, each: int) -> dict[str, float]:
    """Calls for one request, of Python's functions and of C's."""
    client, counts = await _asked(loop, kind, WARM), {"call": 0, "c_call": 0}

    def count(frame: Any, event: str, argument: Any) -> None:
        if event in counts:
            counts[event] += 1

    sys.setprofile(count)
    for _ in range(each):
        await client.ask(kind)
    sys.setprofile(None)
    return {"python_calls": counts["call"] / each, "c_calls": counts["c_call"] / each}


def _run(work: Callable[[MemoryLoop], Any]) -> Any:
    loop = MemoryLoop()
    asyncio.set_event_loop(loop)
    return loop.run_until_complete(work(loop))


def instructions(kind: str) -> float:
    """Instructions of one request: the difference of two runs of other lengths."""
    few, many = 200, 600
    each = many - few if kind == "small" else (many - few) // 4
    found = [_valgrind(kind, few), _valgrind(kind, few + each)]
    return (found[1] - found[0]) / each


def _valgrind(kind: str, count: int) -> int:
    argv = [
        "valgrind",
        "--tool=cachegrind",
        "--cache-sim=no",
        "--cachegrind-out-file=/dev/null",
        sys.executable,
    ]
    argv += [__file__, "--only", kind, "--count", str(count)]
    ran = subprocess.run(
        argv, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONHASHSEED": "0"}
    )
    (found,) = re.findall(r"I\s+refs:\s+([\d,]+)", ran.stderr)
    return int(found.replace(",", ""))


def measure(kind: str, arguments: argparse.Namespace) -> dict[str, float]:
    each = arguments.each if kind == "small" else max(1, arguments.each // 6)
    times = _run(lambda loop: _times(loop, kind, each, arguments.rounds))
    found = {"us": statistics.median(times) * 1e6, "least_us": min(times) * 1e6}
    found |= _run(lambda loop: _calls(loop, kind, 50))
    if arguments.instructions:
        found["instructions"] = instructions(kind)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=KINDS, nargs="*", default=list(KINDS))
    parser.add_argument(
        "--each", type=int, default=600, help="small requests of a round; a sixth of it streams"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--count", type=int, default=0, help="only send so many requests, for a profiler")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    if arguments.count:
        for kind in arguments.only:
            _run(partial(_asked, kind=kind, count=arguments.count))
        return 0
    found = {kind: measure(kind, arguments) for kind in arguments.only}
    if arguments.json:
        print(json.dumps({"version": 1, **found}, indent=2))
        return 0
    for kind, values in found.items():
        print(kind, " ".join(f"{name} {value:,.1f}" for name, value in values.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
