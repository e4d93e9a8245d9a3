"""The delay of one client's stream while another client posts one body: the longest gap between two of its tokens.

    python benchmarks/abuse.py                  # 32 MiB of JSON of each kind, and 32 MiB of a form
    python benchmarks/abuse.py --mib 8 --rounds 5 --json

A gateway and two fake engines, one for the stream and one for the body, each a process of its own. The stream has a token
every 10 ms. `delay` is the longest gap
beyond the longest one of an undisturbed stream of the same length. `status` and `seconds` are the body's own answer.
The client that posts is a process too, so that it does not delay the one that measures; on a machine with few cores
they still compete.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import uvloop

sys.path.insert(0, str(Path(__file__).parent))

from gateway import process
from paced.fixed_picker import FixedPicker

from sparkfleet.gateway.access.keys import digest, generate
from sparkfleet.gateway.app import GatewayApp
from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.http.http_server import serve
from sparkfleet.gateway.routing_table import GroupEntry, KeyEntry, ModelEntry, RoutingTable

ITL_MS = 10.0
BOUNDARY = "b0"


def lists(size: int) -> bytes:
    """Empty lists: the most values per byte."""
    return _with_input(b"[" + b"[]," * ((size - 100) // 3) + b"[]]")


def numbers(size: int) -> bytes:
    """Token ids."""
    return _with_input(b"[" + b"7," * ((size - 100) // 2) + b"7]")


def urls(size: int) -> bytes:
    """Parts with images."""
    part = b'{"type":"image_url","image_url":{"url":"http://h/i.png"}},'
    return _with_input(b"[" + part * ((size - 100) // len(part)) + b"{}]")


def text(size: int) -> bytes:
    """One long text, as an image in base64 is one."""
    return _with_input(b'"' + b"A" * (size - 100) + b'"')


def escapes(size: int) -> bytes:
    """One long text of escapes."""
    return _with_input(b'"' + b"\\u00e9" * ((size - 100) // 6) + b'"')


def form(size: int) -> bytes:
    """A form with as many parts as fit."""
    part = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="model"\r\n\r\nother\r\n'.encode()
    return part * (size // len(part)) + f"--{BOUNDARY}--\r\n".encode()


def breaks(size: int) -> bytes:
    """A form with one part of line ends, each of which may begin a boundary."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'.encode()
    return head + b"\r\n-" * ((size - 200) // 3) + f"\r\n--{BOUNDARY}--\r\n".encode()


KINDS: dict[str, Callable[[int], bytes]] = {
    kind.__name__: kind for kind in (lists, numbers, urls, text, escapes, form, breaks)
}


def _with_input(value: bytes) -> bytes:
    return b'{"model": "other", "input": ' + value + b"}"


async def gaps_of_stream(url: str, key: str, tokens: int, started: asyncio.Event) -> list[float]:
    """Seconds between the chunks of one stream."""
    body = {"model": "fake", "prompt": "Tell me.", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    arrivals: list[float] = []
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            url + "/v1/completions", json=body, headers={"authorization": f"Bearer {key}"}
        ) as response,
    ):
        if response.status != 200:
            raise SystemExit(f"{response.status}: {(await response.text())[:300]}")
        async for _ in response.content.iter_any():
            arrivals.append(perf_counter())
            started.set()
    return [b - a for a, b in pairwise(arrivals)]


async def post(url: str, key: str, kind: str, mib: int) -> dict[str, Any]:
    """Posts one body from a process of its own, and returns what that printed."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--post", kind, "--url", url, "--key", key, "--mib", str(mib),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await child.communicate()
    answer: dict[str, Any] = json.loads(out)
    return answer


async def post_here(url: str, key: str, kind: str, mib: int) -> dict[str, Any]:
    body = KINDS[kind](mib << 20)
    is_form = kind in ("form", "breaks")
    path = "/v1/audio/transcriptions" if is_form else "/v1/embeddings"
    content_type = f"multipart/form-data; boundary={BOUNDARY}" if is_form else "application/json"
    headers = {"authorization": f"Bearer {key}", "content-type": content_type}
    sent = perf_counter()
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + path, data=pieces(body), headers=headers) as response,
    ):
        shown = await response.read()
    return {"status": response.status, "seconds": perf_counter() - sent, "answer": shown[:120].decode()}


async def pieces(body: bytes) -> Any:
    for start in range(0, len(body), 1 << 16):
        yield body[start : start + (1 << 16)]


async def measure(url: str, key: str, arguments: argparse.Namespace, kind: str) -> dict[str, Any]:
    """One line of the table."""
    calm, disturbed, answers = [], [], []
    for _ in range(arguments.rounds):
        calm.append(max(await gaps_of_stream(url, key, arguments.tokens, asyncio.Event())))
        started = asyncio.Event()
        stream = asyncio.create_task(gaps_of_stream(url, key, arguments.tokens, started))
        await started.wait()
        answers.append(await post(url, key, kind, arguments.mib))
        disturbed.append(max(await stream))
    return {
        "body": kind,
        "delay_ms": (statistics.median(disturbed) - statistics.median(calm)) * 1e3,
        "longest_gap_ms": max(disturbed) * 1e3,
        "status": answers[-1]["status"],
        "seconds": statistics.median(answer["seconds"] for answer in answers),
        "answer": answers[-1]["answer"],
    }


async def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    key, _ = generate("bench")
    pace = ("--ttft-ms", "1", "--itl-ms", str(ITL_MS), "--tokens", str(arguments.tokens))
    with (
        process("-m", "sparkfleet.engines.fake", "--model", "fake", *pace) as (one, _),
        process("-m", "sparkfleet.engines.fake", "--model", "other", *pace) as (two, _),
        process(str(Path(__file__).resolve()), "--run-gateway", one, two, "--key", digest(key.encode())) as (
            url,
            _,
        ),
    ):
        return [await measure(url, key, arguments, kind) for kind in arguments.body]


async def run_gateway(engines: Sequence[str], key_sha256: str) -> None:
    """The gateway of two models, in this process, until it is killed."""
    models = {
        name: ModelEntry(name=name, groups=(GroupEntry(app=name),), deployment="fake", state="ready")
        for name in ("fake", "other")
    }
    key = KeyEntry(id="key-bench", name="bench", sha256=key_sha256)
    targets = [EngineEndpoint(url=url, app=name) for name, url in zip(models, engines, strict=True)]
    app = GatewayApp(FixedPicker(targets), table=RoutingTable(version=1, models=models, keys=(key,)))
    server = await serve(app, "127.0.0.1", 0)
    print(f"gateway on {server.url}", flush=True)
    await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=800, help="of the stream, one every 10 ms")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--body", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--run-gateway", nargs=2, default=(), help=argparse.SUPPRESS)
    parser.add_argument("--post", default="", help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    parser.add_argument("--key", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.run_gateway:
        uvloop.run(run_gateway(arguments.run_gateway, arguments.key))
        return 0
    if arguments.post:
        print(json.dumps(uvloop.run(post_here(arguments.url, arguments.key, arguments.post, arguments.mib))))
        return 0
    lines = uvloop.run(run(arguments))
    if arguments.json:
        print(json.dumps({"version": 1, "mib": arguments.mib, "lines": lines}, indent=2))
        return 0
    print(f"{'body':8} {'delay ms':>9} {'longest ms':>10} {'status':>6} {'its s':>6}")
    for line in lines:
        print(
            f"{line['body']:8} {line['delay_ms']:>9.1f} {line['longest_gap_ms']:>10.1f} "
            f"{line['status']:>6} {line['seconds']:>6.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
