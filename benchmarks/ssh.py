"""Time of a command over SSH: one after another, and eight at once, over one connection to a real sshd on loopback.

    python benchmarks/ssh.py [--commands 80] [--at-once 1 8] [--rounds 4] [--json]
    python benchmarks/ssh.py --against ../older           # another checkout of sparkfleet beside this one

Sides take turns round by round, each round in a process of its own, so that what else the machine does falls on both.
The command is `true`: what is left is SSH, a login shell, and us. Every side has one connection, made before the clock
starts. `cpu` is the client's own processor time per command, which a busy machine does not blur.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import getpass
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from sparkfleet.remote.ssh.channel import SshChannel
from sparkfleet.remote.ssh.config import Hop

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin") or "sshd"
CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {home}/host
AuthorizedKeysFile {home}/id.pub
StrictModes no
UsePAM no
PidFile none
"""
Measured = dict[str, float]


@contextlib.contextmanager
def running_sshd() -> Iterator[tuple[Path, int]]:
    """An sshd of this user on a loopback port: the directory with its keys, and the port."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        for key in ("host", "id"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / key], check=True)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        (home / "config").write_text(CONFIG.format(port=port, home=home))
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        server = subprocess.Popen([SSHD, "-D", "-f", home / "config"])
        try:
            await_port(port)
            yield home, port
        finally:
            server.terminate()
            server.wait()


def await_port(port: int) -> None:
    """Return when something listens."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return


async def timed(run: Callable[[], Awaitable[object]], commands: int, at_once: int) -> list[float]:
    """Seconds of each command."""
    seconds: list[float] = []

    async def some(count: int) -> None:
        for _ in range(count):
            began = perf_counter()
            await run()
            seconds.append(perf_counter() - began)

    await asyncio.gather(*(some(commands // at_once) for _ in range(at_once)))
    return seconds


async def measured(run: Callable[[], Awaitable[object]], commands: int, at_once: int) -> Measured:
    """One side's round."""
    for _ in range(3):
        await run()
    before, began = cpu_seconds(), perf_counter()
    seconds = await timed(run, commands, at_once)
    wall_s = perf_counter() - began
    return {
        "commands_s": len(seconds) / wall_s,
        "p50_ms": statistics.median(seconds) * 1e3,
        "p95_ms": statistics.quantiles(seconds, n=20)[-1] * 1e3,
        "cpu_ms": (cpu_seconds() - before) / len(seconds) * 1e3,
    }


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in both)


async def ours(arguments: argparse.Namespace) -> Measured:
    """A round of whatever checkout this process has imported."""
    pins = frozenset([arguments.fingerprint])
    hop = Hop(
        "bench",
        "127.0.0.1",
        arguments.port,
        getpass.getuser(),
        pins,
        (arguments.home / "id",),
        only_identities=True,
    )
    channel = SshChannel("bench", [hop])
    try:
        return await measured(lambda: channel.run(["true"]), arguments.commands, arguments.at_once[0])
    finally:
        await channel.close()


def fingerprint(home: Path) -> str:
    """Of the host key in `home`."""
    words = ["ssh-keygen", "-lf", str(home / "host.pub")]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[1]


def round_of(tree: Path, home: Path, port: int, arguments: argparse.Namespace, at_once: int) -> Measured:
    """One round in a process of its own."""
    words = [sys.executable, __file__, "--round", "--home", str(home), "--port", str(port)]
    words += ["--fingerprint", fingerprint(home)]
    words += ["--commands", str(arguments.commands), "--at-once", str(at_once)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    result: Measured = json.loads(done.stdout)
    return result


def compare(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A line per side and number of commands at once: medians of the rounds."""
    here = Path(__file__).resolve().parent.parent
    sides = {"this": here, **({"against": arguments.against} if arguments.against else {})}
    lines = []
    with running_sshd() as (home, port):
        for at_once in arguments.at_once:
            rounds: dict[str, list[Measured]] = {side: [] for side in sides}
            for number in range(arguments.rounds):
                for side in list(sides) if number % 2 else list(reversed(sides)):
                    rounds[side].append(round_of(sides[side], home, port, arguments, at_once))
            for side, results in rounds.items():
                medians = {key: statistics.median(r[key] for r in results) for key in results[0]}
                lines.append(
                    {"side": side, "at_once": at_once, **{k: round(v, 2) for k, v in medians.items()}}
                )
    return lines


def show(lines: list[dict[str, Any]]) -> None:
    """A table; the ratio is this tree's commands per second to the side's."""
    print(
        f"{'at once':>7} {'side':<8} {'commands/s':>10} {'p50 ms':>7} {'p95 ms':>7} {'cpu ms':>7} {'ratio':>6}"
    )
    own = {line["at_once"]: line["commands_s"] for line in lines if line["side"] == "this"}
    for line in lines:
        ratio = own[line["at_once"]] / line["commands_s"]
        print(
            f"{line['at_once']:>7} {line['side']:<8} {line['commands_s']:>10.1f} {line['p50_ms']:>7.1f}"
            f" {line['p95_ms']:>7.1f} {line['cpu_ms']:>7.2f} {ratio:>6.2f}"
        )


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, help="another checkout of sparkfleet")
    parser.add_argument("--commands", type=int, default=80, help="per round")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--round", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--fingerprint", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.round:
        print(json.dumps(asyncio.run(ours(arguments))))
        return
    lines = compare(arguments)
    if arguments.json:
        print(json.dumps(lines, indent=2))
    else:
        show(lines)


if __name__ == "__main__":
    main()
