"""Installs sparkfleet's environment on all nodes concurrently. If it exists, that costs one command per node."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from sparkfleet.errors import NodeError
from sparkfleet.hostfacts.fact import text
from sparkfleet.install.environment_program import OTHER_HASH
from sparkfleet.install.release import Release, is_node_software_installed, release
from sparkfleet.remote.agent import AgentEvent, Program, ProgramError, call, validated
from sparkfleet.remote.channel import Channel
from sparkfleet.remote.local import LocalChannel
from sparkfleet.remote.unreachable import Unreachable
from sparkfleet.values import Value

INSTALL_S = 900.0
"""Time limit: a Spark on a slow line downloads 150 MB of wheels."""
LOOK_S = 30.0
REMOTE_WHEELS = ".cache/sparkfleet/wheels"
"""Below the node's home."""

PROGRAM = Program.of("sparkfleet.install.environment_program", does="make sparkfleet's environment")

_VERSIONED = re.compile(r"/env/[0-9a-f]+-py(3\.\d+)/bin/python", re.ASCII)
"""End of the path of an environment's interpreter, with its minor version."""

OnStep = Callable[[str, str], None]
"""Called with a node's name and its present step."""


class _Pythons(Value):
    pythons: tuple[tuple[str, str], ...]


class _Made(Value):
    python: str
    fresh: bool


class NodeEnvironments(NamedTuple):
    """The environments of the nodes."""

    pythons: dict[str, str]
    """Interpreter of each node that was reached."""
    unreached: dict[str, Unreachable]
    """The other nodes, each with its error."""


async def install(
    channels: Mapping[str, Channel], wheels: Path | None, step: OnStep, in_use: str = ""
) -> NodeEnvironments:
    """Make missing environments on all nodes that can be reached.

    A node that is this machine uses the environment that this process runs in.

    Args:
        channels: the nodes.
        wheels: a directory of wheels to install from instead of a package index, for nodes without internet.
        step: called with each step.
        in_use: minor version that the fleet runs on, such as "3.12"; it is taken if all nodes have it. "": not known.

    Raises:
        NodeError: no node can be reached, the nodes have no Python in common, an environment could not be made, or this
            machine is a node and has the command line only.
    """
    remote = {name: channel for name, channel in channels.items() if not isinstance(channel, LocalChannel)}
    here = dict.fromkeys(channels.keys() - remote.keys(), sys.executable)
    if here and not is_node_software_installed():
        raise no_node_software(min(here))
    if not remote:
        return NodeEnvironments(here, {})
    looked = dict(zip(remote, await asyncio.gather(*map(_look, remote.values())), strict=True))
    unreached = {name: one for name, one in looked.items() if isinstance(one, Unreachable)}
    found = {name: one for name, one in looked.items() if not isinstance(one, Unreachable)}
    if not (found or here):
        raise next(iter(unreached.values()))
    if not found:
        return NodeEnvironments(here, unreached)
    version = _common_version(found, bool(here), in_use)
    what = release()
    made = await asyncio.gather(
        *(_make(remote[name], what, (version, found[name][version]), wheels, step) for name in found)
    )
    return NodeEnvironments(here | dict(zip(found, made, strict=True)), unreached)


def python_version(python: str) -> str:
    """Minor version of an environment's interpreter by its path, such as "3.12"; "" of any other one."""
    match = _VERSIONED.search(python)
    return match.group(1) if match else ""


def no_node_software(node: str) -> NodeError:
    """Error about a node that is this machine, on which only the command line is installed."""
    return NodeError(
        f"{node} is this machine, and Ray is not installed in {sys.prefix}.",
        means="The command line alone can plan, and can manage a fleet of other machines; a node runs Ray and a gateway.",
        do="`pip install 'sparkfleet[local]'` adds them and vLLM's CPU build; `pip install 'sparkfleet[head]'` is enough "
        "if engines run in containers. With uv: `uv tool install 'sparkfleet[local]'`, with pipx: `pipx install --force "
        "'sparkfleet[local]'`.",
    )


def _common_version(found: Mapping[str, Mapping[str, str]], local: bool, in_use: str) -> str:
    """The minor version of Python for all nodes: Ray refuses mixed versions."""
    own = f"3.{sys.version_info.minor}"
    common = set.intersection(*(set(pythons) for pythons in found.values()), *([{own}] if local else []))
    if not common:
        here = [f"this machine runs {own}"] if local else []
        have = [f"{name} has {', '.join(pythons) or 'none'}" for name, pythons in found.items()]
        raise NodeError(
            f"The nodes have no Python version in common: {'; '.join((*here, *have))}.",
            means="Ray requires the same minor version on all nodes; sparkfleet runs on 3.11, 3.12 and 3.13.",
            do="Install one of these on every node: `sudo apt install python3.12 python3.12-venv`.",
        )
    if in_use in common:
        return in_use
    first = next(iter(found.values()))
    return next((version for version in first if version in common), own)


async def _look(channel: Channel) -> dict[str, str] | Unreachable:
    """Versions and paths in order of preference, or the error of a node that cannot be reached."""
    try:
        found = await call(channel, PROGRAM, {"verb": "look"}, timeout_s=LOOK_S)
    except Unreachable as error:
        return error
    return dict(validated(channel.node, found, _Pythons).pythons)


async def _make(
    channel: Channel, what: Release, chosen: tuple[str, str], wheels: Path | None, step: OnStep
) -> str:
    """The interpreter of a node's environment, made if it is missing. `chosen`: minor version and path of a Python."""
    version, python = chosen
    directory = None if wheels is None else await _send(channel, wheels, step)
    order = {
        "verb": "make",
        # Another choice of nodes may have another version in common.
        "name": f"{what.digest}-py{version}",
        "python": python,
        "wheel_name": what.wheel_name,
        "wheel": base64.b64encode(what.wheel).decode(),
        "pip": base64.b64encode(what.pip).decode(),
        "pins": what.pins,
        "hashes": what.hashes,
        "wheels": directory,
    }

    def on_event(event: AgentEvent) -> None:
        if event["event"] == "step":
            step(channel.node, text(event.get("text", "")))

    try:
        made = await call(channel, PROGRAM, order, on_event=on_event, timeout_s=INSTALL_S)
    except ProgramError as error:
        if OTHER_HASH in error.means:
            raise NodeError(
                f"{channel.node}: its package index gives another file than the one that was tested.",
                means=error.means,
                do=f"Look at the index that {channel.node} uses (`pip config list` there). If it is right and builds "
                "its own wheels, `pip download` them, look at them, then `sparkfleet up --wheels DIR`.",
            ) from error
        raise NodeError(
            f"{error.what}: sparkfleet could not be installed.",
            means=error.means,
            do="If the node has no internet: `pip download` the wheels elsewhere, then `sparkfleet up --wheels DIR`.",
        ) from error
    return validated(channel.node, made, _Made).python


async def _send(channel: Channel, wheels: Path, step: OnStep) -> str:
    """Copy missing wheels to the node; returns their directory there."""
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
