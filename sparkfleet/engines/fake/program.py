"""The fake engine as a program."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from sparkfleet.engines.fake.engine import FakeEngine
from sparkfleet.engines.fake.pace import Fault, Pace


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sparkfleet.engines.fake", description="A fake engine.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one, which is printed")
    parser.add_argument("--model", default="fake", help="the name it answers to")
    parser.add_argument("--ttft-ms", type=float, default=0.0, help="to the first token")
    parser.add_argument("--itl-ms", type=float, default=0.0, help="between two tokens")
    parser.add_argument("--tokens", type=int, default=16, help="of an answer")
    parser.add_argument("--token-env", default="", help="variable with the bearer token to ask for")
    parser.add_argument("--fault", type=_fault, metavar="KIND[:AFTER]", help="die, drop, hang or status")
    arguments = parser.parse_args(argv)
    if arguments.token_env and not os.environ.get(arguments.token_env):
        parser.error(f"--token-env: {arguments.token_env} is not set")
    return arguments


def _fault(text: str) -> Fault:
    kind, _, after = text.partition(":")
    try:
        return Fault.model_validate({"kind": kind, "after": int(after or 0)})
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not KIND[:AFTER], with one of die, drop, hang, status"
        ) from None


async def _run(arguments: argparse.Namespace) -> None:
    engine = FakeEngine(
        model=arguments.model,
        pace=Pace(ttft_s=arguments.ttft_ms / 1e3, itl_s=arguments.itl_ms / 1e3, tokens=arguments.tokens),
        fault=arguments.fault,
        token=os.environ.get(arguments.token_env, ""),
        die=lambda: os._exit(1),
    )
    stopped = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    await engine.listen(arguments.host, arguments.port)
    print(f"fake engine {engine.model!r} on {engine.url}", flush=True)
    await stopped.wait()
    await engine.aclose()


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM. Returns the exit code."""
    arguments = _arguments(argv)
    try:
        asyncio.run(_run(arguments))
    except (OSError, OverflowError) as error:
        print(f"cannot listen on {arguments.host} port {arguments.port}: {error}", file=sys.stderr)
        return 1
    return 0
