"""Puts sparkfleet's environment on nodes, all at once. Doing it again costs one question per node."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from sparkfleet.errors import NodeError
from sparkfleet.nodes.base import Channel, Completed
from sparkfleet.nodes.install.release import Release, release
from sparkfleet.nodes.local import LocalChannel

INSTALL_S = 900.0
"""A Spark on a slow line fetches 150 MB of wheels."""
LOOK_S = 30.0
REMOTE_WHEELS = ".cache/sparkfleet/wheels"
"""Below the node's home."""

Step = Callable[[str, str], None]
"""Is told a node's name and what is being done on it."""


async def install(channels: Mapping[str, Channel], wheels: Path | None, step: Step) -> dict[str, str]:
    """The interpreter of the environment on every node, by node; environments are made where they are missing.

    A node that is this machine uses the environment that this process runs in.

    Args:
        channels: the nodes.
        wheels: a directory of wheels to install from instead of a package index, for nodes without internet.
        step: is told what is being done.

    Raises:
        NodeError: the nodes have no Python in common, or an environment could not be made.
    """
    remote = {name: channel for name, channel in channels.items() if not isinstance(channel, LocalChannel)}
    here = dict.fromkeys(channels.keys() - remote.keys(), sys.executable)
    if not remote:
        return here
    pythons = await _common_python(remote, bool(here))
    what = release()
    made = await asyncio.gather(
        *(_make(channel, what, pythons[name], wheels, step) for name, channel in remote.items())
    )
    return here | dict(zip(remote, made, strict=True))


async def _common_python(channels: Mapping[str, Channel], local: bool) -> dict[str, str]:
    """A Python of one minor version on every node: Ray refuses a cluster of several."""
    found = dict(zip(channels, await asyncio.gather(*map(_look, channels.values())), strict=True))
    own = f"3.{sys.version_info.minor}"
    common = set.intersection(*(set(pythons) for pythons in found.values()), *([{own}] if local else []))
    if not common:
        here = [f"this machine runs {own}"] if local else []
        have = [f"{name} has {', '.join(pythons) or 'none'}" for name, pythons in found.items()]
        raise NodeError(
            f"The nodes have no Python in common: {'; '.join((*here, *have))}.",
            means="Ray joins only nodes with the same minor version; sparkfleet runs on 3.11, 3.12 and 3.13.",
            do="Install one on all of them, e.g. `sudo apt install python3.12 python3.12-venv`.",
        )
    first = next(iter(found.values()))
    best = next((version for version in first if version in common), own)
    return {name: pythons[best] for name, pythons in found.items()}


async def _look(channel: Channel) -> dict[str, str]:
    """Versions and paths, in the order in which they are preferred."""
    answer = _last(await channel.run(_program("look"), timeout_s=LOOK_S), channel)
    return {str(version): str(path) for version, path in answer.get("pythons", [])}


async def _make(channel: Channel, what: Release, python: str, wheels: Path | None, step: Step) -> str:
    directory = None if wheels is None else await _send(channel, wheels, step)
    order = {
        "digest": what.digest,
        "python": python,
        "wheel_name": what.wheel_name,
        "wheel": base64.b64encode(what.wheel).decode(),
        "pip": base64.b64encode(what.pip).decode(),
        "pins": what.pins,
        "wheels": directory,
    }
    done = await channel.run(
        _program("make"),
        stdin=json.dumps(order).encode(),
        timeout_s=INSTALL_S,
        on_output=lambda piece: _tell(piece, channel.node, step),
    )
    answer = _last(done, channel)
    if "python" not in answer:
        raise NodeError(
            f"{channel.node}: sparkfleet's environment could not be made: {answer.get('error', 'no reason given')}.",
            means=" ".join(str(line) for line in answer.get("log", ())),
            do="Where the node has no internet: `pip download` the wheels elsewhere, then `sparkfleet up --wheels DIR`.",
        )
    return str(answer["python"])


async def _send(channel: Channel, wheels: Path, step: Step) -> str:
    """Copy the wheels that the node does not have; returns their directory on the node."""
    home = (await channel.run(("printenv", "HOME"), timeout_s=LOOK_S)).stdout.strip()
    directory = f"{home}/{REMOTE_WHEELS}"
    for path in sorted(wheels.glob("*.whl")):
        content = await asyncio.to_thread(path.read_bytes)
        target = f"{directory}/{path.name}"
        there = await channel.run(("sha256sum", target), timeout_s=60)
        if there.stdout.partition(" ")[0] != hashlib.sha256(content).hexdigest():
            step(channel.node, f"copying {path.name}")
            await channel.write(target, content, mode=0o644)
    return directory


def _program(verb: str) -> tuple[str, ...]:
    source = (files("sparkfleet.nodes.install") / "remote.py").read_text()
    return ("python3", "-c", source, verb)


def _tell(piece: bytes, node: str, step: Step) -> None:
    for line in piece.splitlines():
        try:
            words = json.loads(line)
        except ValueError:
            continue  # half a line: the next step is heard
        if isinstance(words, dict) and "step" in words:
            step(node, str(words["step"]))


def _last(done: Completed, channel: Channel) -> dict[str, Any]:
    """The last line that was printed, as JSON."""
    lines = done.stdout.strip().splitlines()
    try:
        answer = json.loads(lines[-1])
    except (IndexError, ValueError):
        answer = None
    if not isinstance(answer, dict):
        raise NodeError(
            f"{channel.node}: python3 did not answer (exit code {done.exit_code}): {done.stderr.strip()[-200:]}",
            means="sparkfleet needs Python on every node.",
            do="Check `python3 --version` on the node.",
        )
    return answer
