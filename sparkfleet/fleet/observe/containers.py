"""Starts and stops Prometheus, Alertmanager and Grafana in containers on the head."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from collections.abc import Callable

from sparkfleet.errors import ControlError, NodeError
from sparkfleet.fleet.observe.files import place_of
from sparkfleet.fleet.session import Session
from sparkfleet.hostfacts.container import Tool
from sparkfleet.remote.channel import Channel
from sparkfleet.telemetry.observe_containers import (
    DASHBOARDS,
    PARTS,
    PASSWORD_FILE,
    READY_PATHS,
    TOKEN,
    ObserveHost,
    ObserveImages,
    ObservePart,
    ObservePorts,
    container_argv,
    data_directories,
)
from sparkfleet.telemetry.observe_files import OWNERS, observe_files

PULL_S = 1800.0
"""Time limit of a start: its image of up to 700 MB may have to be fetched."""
READY_S = 60.0
_FIND = "for tool in docker podman; do command -v $tool >/dev/null && $tool info >/dev/null 2>&1 && echo $tool && exit; done"
_ANSWERS = (
    "import sys,urllib.request\n"
    "try: urllib.request.urlopen(sys.argv[1], timeout=3)\n"
    "except Exception as error: sys.exit(str(error))"
)


async def observe_up(
    session: Session,
    ports: ObservePorts,
    on_part: Callable[[ObservePart], None],
    images: ObserveImages | None = None,
) -> ObserveHost:
    """Writes the files on the head and starts the three containers, in place of earlier ones. Their data is kept.

    Args:
        session: the fleet, which has to be up: the files name its controller.
        ports: addresses to listen on.
        on_part: called when a program works.
        images: others than the pinned ones.

    Raises:
        ControlError: the fleet is down, or a program does not work after `READY_S`.
        NodeError: the head has no container tool, or a container cannot be started.
    """
    place = (await place_of(session)).model_copy(
        update={
            "token_file": TOKEN,
            "dashboards": DASHBOARDS,
            "prometheus": f"127.0.0.1:{ports.prometheus}",
            "alertmanager": f"127.0.0.1:{ports.alertmanager}",
        }
    )
    host = await _host(session)
    for name, text in observe_files(place).items():
        path = f"{host.directory}/{name}"
        if name not in OWNERS or not await _exists(session.head, path):
            await session.head.write(path, text.encode())
    if not await _exists(session.head, f"{host.directory}/{PASSWORD_FILE}"):
        await session.head.write(f"{host.directory}/{PASSWORD_FILE}", secrets.token_urlsafe(18).encode())
    await _run(session.head, ("mkdir", "-p", *data_directories(host)))
    await _remove(session.head, host)
    for part in PARTS:
        await _run(session.head, container_argv(part, host, ports, images or ObserveImages()), PULL_S)
        await _until_ready(session.head, host, part, ports)
        on_part(part)
    return host


async def observe_down(session: Session) -> tuple[ObserveHost, bool]:
    """Stops and removes the containers; False if there were none. Their data and the files are kept. Raises NodeError."""
    host = await _host(session)
    there = bool(await _list(session.head, host))
    await _remove(session.head, host)
    return host, there


async def _host(session: Session) -> ObserveHost:
    found = await session.head.run(("sh", "-c", _FIND))
    tool = found.stdout.strip()
    if tool not in ("docker", "podman"):
        raise NodeError(
            f"Neither docker nor podman works on {session.inventory.head}.",
            means="Prometheus, Alertmanager and Grafana are started in containers.",
            do="sudo apt-get install podman; or run your own with `sparkfleet observe config DIR`.",
        )
    chosen: Tool = "docker" if tool == "docker" else "podman"
    ids = (await _run(session.head, ("sh", "-c", "id -u; id -g"))).split()
    root = await session.head_root()
    return ObserveHost(
        tool=chosen, fleet=session.inventory.fleet, uid=int(ids[0]), gid=int(ids[1]), root=root
    )


async def _remove(head: Channel, host: ObserveHost) -> None:
    for part in PARTS:
        # Without such a container the tool ends with an error or not, by its version.
        await head.run((host.tool, "rm", "--force", host.name(part)))
    if left := await _list(head, host):
        raise NodeError(
            f"{', '.join(left)} cannot be removed.", do=f"{host.tool} rm --force {' '.join(left)}"
        )


async def _list(head: Channel, host: ObserveHost) -> list[str]:
    """The containers that are on the head, whether they run or not."""
    listed = await _run(head, (host.tool, "ps", "--all", "--format", "{{.Names}}"))
    return sorted({host.name(part) for part in PARTS} & set(listed.split()))


async def _until_ready(head: Channel, host: ObserveHost, part: ObservePart, ports: ObservePorts) -> None:
    address, port = ports.of(part)
    url = f"http://{address}:{port}{READY_PATHS[part]}"
    deadline = time.monotonic() + READY_S
    while (answer := await head.run(("python3", "-I", "-c", _ANSWERS, url))).exit_code:
        if time.monotonic() > deadline:
            raise ControlError(
                f"{part} does not answer at {url} after {READY_S:.0f} s: {answer.stderr.strip()[-200:]}.",
                means="Its container runs or has ended; its log has the reason.",
                do=f"{host.tool} logs {host.name(part)}",
            )
        await asyncio.sleep(0.5)


async def _exists(head: Channel, path: str) -> bool:
    return (await head.run(("test", "-e", path))).exit_code == 0


async def _run(head: Channel, argv: tuple[str, ...], timeout_s: float = 60.0) -> str:
    done = await head.run(argv, timeout_s=timeout_s)
    if done.exit_code:
        reason = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        image = next((word for word in argv if "@sha256:" in word), "")
        raise NodeError(
            f"`{' '.join(argv[:2])}` on {head.node} ended with {done.exit_code}: {reason[:400]}",
            do=f"`{argv[0]} pull {image}` on {head.node} repeats the download; then `sparkfleet observe up` again."
            if image
            else f"Run it by hand on {head.node}: {shlex.join(argv)}",
        )
    return done.stdout
