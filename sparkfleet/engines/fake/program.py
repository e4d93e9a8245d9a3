"""The fake engine as a program."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from sparkfleet.engines.fake.engine import FakeEngine
from sparkfleet.engines.fake.pace import InjectedFault, Pace
from sparkfleet.engines.fake.peers import Leader, follow


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sparkfleet.engines.fake", description="A fake engine.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument(
        "--port", type=int, default=0, help="port to listen on; 0: any free one, which is printed"
    )
    parser.add_argument("--model", default="fake", help="served model name")
    parser.add_argument("--ttft-ms", type=float, default=0.0, help="milliseconds to the first token")
    parser.add_argument("--itl-ms", type=float, default=0.0, help="milliseconds between two tokens")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--token-env", default="", help="variable with the required bearer token")
    parser.add_argument("--metrics-token-env", default="", help="variable with a token for /metrics alone")
    parser.add_argument(
        "--start-s", type=float, default=0.0, help="seconds before it listens, as if it loaded weights"
    )
    parser.add_argument("--ranks", type=int, default=1, help="number of ranks of its group")
    parser.add_argument("--rank", type=int, default=0, help="its own rank; only rank 0 listens for clients")
    parser.add_argument(
        "--meet", type=_place, metavar="HOST:PORT", help="address at which rank 0 waits for the others"
    )
    parser.add_argument(
        "--fault",
        type=_fault,
        metavar="KIND[:AFTER]",
        help="fault to inject: die, drop, hang, status or garble",
    )
    arguments = parser.parse_args(argv)
    if arguments.token_env and not os.environ.get(arguments.token_env):
        parser.error(f"--token-env: {arguments.token_env} is not set")
    if arguments.ranks > 1 and arguments.meet is None:
        parser.error("--ranks: more than one rank needs --meet")
    return arguments


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not (host and port.isdigit()):
        raise argparse.ArgumentTypeError(f'"{text}" is not HOST:PORT')
    return host, int(port)


def _fault(text: str) -> InjectedFault:
    kind, _, after = text.partition(":")
    try:
        return InjectedFault.model_validate({"kind": kind, "after": int(after or 0)})
    except ValueError:
        raise argparse.ArgumentTypeError(
            f'"{text}" is not KIND[:AFTER], with one of die, drop, hang, status, garble'
        ) from None


async def _run(arguments: argparse.Namespace) -> int:
    """Serves, or follows rank 0, until a signal arrives. Returns the exit code: 1 if a peer is gone."""
    stopped = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    stopping = asyncio.create_task(stopped.wait())
    work = asyncio.create_task(_work(arguments))
    await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        stopping.cancel()
        work.result()
        return 1
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    return 0


async def _work(arguments: argparse.Namespace) -> None:
    """Serves until it is cancelled, or follows rank 0 to its end."""
    if arguments.rank:
        await follow(*arguments.meet)
        return
    leader = Leader(arguments.ranks - 1) if arguments.ranks > 1 else None
    if leader is not None:
        await leader.meet(*arguments.meet)
    await asyncio.sleep(arguments.start_s)
    engine = _engine(arguments, leader)
    await engine.listen(arguments.host, arguments.port)
    print(f'fake engine "{engine.model}" on {engine.url}', flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await engine.aclose()


def _engine(arguments: argparse.Namespace, leader: Leader | None) -> FakeEngine:
    async def step() -> None:
        assert leader is not None
        try:
            await leader.step()
        except (OSError, EOFError):
            os._exit(1)  # a rank is gone, and with it the engine

    return FakeEngine(
        model=arguments.model,
        pace=Pace(ttft_s=arguments.ttft_ms / 1e3, itl_s=arguments.itl_ms / 1e3, tokens=arguments.tokens),
        fault=arguments.fault,
        token=os.environ.get(arguments.token_env, ""),
        metrics_token=os.environ.get(arguments.metrics_token_env, ""),
        die=lambda: os._exit(1),
        step=step if leader is not None else None,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until SIGINT or SIGTERM. Returns the exit code."""
    arguments = _arguments(argv)
    try:
        return asyncio.run(_run(arguments))
    except (OSError, OverflowError) as error:
        print(f"cannot listen on {arguments.host} port {arguments.port}: {error}", file=sys.stderr)
        return 1
