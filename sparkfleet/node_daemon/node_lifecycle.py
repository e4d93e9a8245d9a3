"""Brings this node of a fleet up and down.

Ray needs seconds to start, an engine minutes, and neither depends on the other: `up` starts both at once. The ranks that it
starts wait without an owner for the actors of their groups, which adopt them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from sparkfleet.controlplane.api.api_calls import PATIENCE_S
from sparkfleet.controlplane.api.api_models import JoinRequest, Prepared, UpRequest
from sparkfleet.controlplane.api.client import FleetClient, connect
from sparkfleet.controlplane.ray.ray_process import (
    LABEL,
    choose_address,
    ray_argv,
    ray_environment,
    ray_worker_argv,
)
from sparkfleet.controlplane.ray.ray_tls import prepare_tls
from sparkfleet.controlplane.state.head_address import (
    HeadAddress,
    gateway_entries,
    name_on_network,
    read_address,
)
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.state.taken_ports import refuse_endpoint_ports
from sparkfleet.controlplane.store_safety.guard import StoreError
from sparkfleet.controlplane.store_safety.kept_copy import move_to_backups
from sparkfleet.controlplane.store_safety.moving import read_move
from sparkfleet.controlplane.store_safety.opening import read_content
from sparkfleet.errors import ControlError
from sparkfleet.fabric.node_addresses import node_addresses
from sparkfleet.gateway.access.certificates import check_files
from sparkfleet.gateway.access.keys import metrics_token
from sparkfleet.node_daemon.engine_prestart import start_engines
from sparkfleet.node_daemon.left_ray import RayProcess, left_worker
from sparkfleet.node_daemon.metrics_token_file import write_metrics_token
from sparkfleet.node_daemon.role_guard import require_no_other_head
from sparkfleet.node_daemon.start_controller import RAY_START_S, no_answer, start_controller
from sparkfleet.runtime import processes
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.state_probe import listens
from sparkfleet.runtime.process_runtime import ProcessRuntime

log = logging.getLogger(__name__)

STOP_S = 60.0
JOINING_S = 60.0
"""Age up to which Ray of a node may still be joining. `up` waits for longer (`JOIN_S`), so that its repetition ends one
that has not joined by then, and starts another."""


def prepare(request: UpRequest) -> Prepared:
    """Creates the head's directories and secrets, and chooses its addresses. Starts nothing.

    Raises:
        ControlError: this node has joined another head that lives.
    """
    paths = request.paths
    require_no_other_head(paths)
    paths.create()
    address = _address(paths, request)
    return Prepared(
        address=address,
        ray_token=paths.ray_token.read_text(),
        api_token=paths.read_api_token(),
        engine_secret=paths.read_engine_secret(),
        engine_tokens=paths.read_token_secrets().text(),
    )


async def up(request: UpRequest) -> tuple[HeadAddress, subprocess.Popen[bytes] | None]:
    """Starts everything that does not run on the head yet; returns when the controller answers.

    The second value is Ray's process if this call started it, None if the fleet was up.

    Raises:
        ControlError: the gateway's port is taken, or Ray or the controller did not start.
    """
    paths = request.paths
    paths.create()
    with alone(paths):
        await _complete_end(paths)
        client = await connect(paths, _patience_s(paths))
        if client is None:
            client = await _with_a_controller(paths, request)
        if client is not None:
            await _resume(client)
            return client.address, None
        if request.beside:
            shutil.rmtree(paths.gcs, ignore_errors=True)
            paths.create()
        else:
            await clear_leftovers(paths)
            _forget_last_cluster(paths)
            move_to_backups(paths)
        address = _address(paths, request)
        check_port(address, own=request.beside)  # an entry of the fleet may have it until the head has moved
        check_certificate(address)
        token = metrics_token(paths.read_token_secrets().for_metrics.encode())
        write_metrics_token(paths, token)
        move = read_move(paths.root) if request.beside else None
        by_move = move.token if move is not None else ""
        prepare_tls(paths, address.ray.rpartition(":")[0], address.term, by_move)
        ray_head = _start(paths, ray_argv(paths, address, request.inventory.head))
        await start_engines(paths, request, ProcessRuntime(paths.run, paths.label))
        await asyncio.to_thread(start_controller, paths, request, address, ray_head)
        await _answering(paths)
        return address, ray_head


async def make_controller(request: UpRequest) -> None:
    """Makes a controller if Ray runs on this head without one; does nothing if one answers.

    Raises:
        ControlError: Ray does not run, or the controller does not answer.
    """
    paths = request.paths
    with alone(paths):
        if await _complete_end(paths):
            return  # the fleet is down
        if await connect(paths) is None and await _with_a_controller(paths, request) is None:
            raise no_answer(paths)


async def join(request: JoinRequest, resumed: bool = False) -> RayProcess:
    """Starts Ray on a node that is not the head. Ray waits for a head that is not up yet.

    Args:
        request: the node's role.
        resumed: leave Ray to run on if it was started for the same role: only its watchdog has ended.

    Ray that another `up` has just started for the same role is left to run on in any case.
    """
    paths = request.paths
    paths.create()
    paths.take(
        ray_token=request.ray_token,
        engine_secret=request.engine_secret,
        engine_tokens=request.engine_tokens,
    )
    argv = ray_worker_argv(paths, request.ray, request.host, request.node)
    with alone(paths):
        await _complete_end(paths)
        left = left_worker(paths, argv)
        if left is not None and (resumed or left.age_s() < JOINING_S):
            return left
        await clear_leftovers(paths)
        shutil.rmtree(paths.run / "ray", ignore_errors=True)
        prepare_tls(paths, request.host)
        return _start(paths, argv)


async def down(paths: FleetPaths) -> None:
    """Stops every group, then Ray, and leaves no process of the fleet on this node; the desired state stays in the store."""
    with alone(paths):
        await _complete_end(paths)
        client = await connect(paths)
        # A controller whose own work has failed would stop nothing.
        if client is not None and not client.trouble:
            # If it fails or is lost, the groups are killed below.
            with contextlib.suppress(ControlError):
                async with client:
                    await client.stop()
                    await _until_no_groups(client)
        with contextlib.suppress(OSError):  # a full disk
            paths.ending.touch()
        await ProcessRuntime(paths.run, paths.label).sweep(frozenset())
        paths.forget_ends()
        await clear_leftovers(paths)
        paths.ending.unlink(missing_ok=True)
        # On the head: unfinished starts were stopped, even if no controller ran to record it. A store that cannot be used is
        # left as it is, for `sparkfleet restore`.
        with contextlib.suppress(StoreError, sqlite3.Error):
            if read_content(paths.database) is not None:
                with contextlib.closing(Store(paths.database)) as store:
                    store.groups.end_starts()


async def _complete_end(paths: FleetPaths) -> bool:
    """Kills the rest of a fleet whose end by `down` was interrupted; False if none was.

    A controller without its GCS still answers: an `up` took it for a fleet that runs.
    """
    if not paths.ending.exists():
        return False
    await clear_leftovers(paths)
    paths.ending.unlink(missing_ok=True)
    return True


async def clear_leftovers(paths: FleetPaths) -> None:
    """Kills the rest of Ray by its label. Ray would drain for 30 s on SIGTERM, without use here."""
    own = os.getpid()
    await processes.kill_all(
        lambda: [p for p in processes.labelled({LABEL: paths.label}) if p.pid != own], grace_s=2.0
    )


@contextlib.contextmanager
def alone(paths: FleetPaths) -> Iterator[None]:
    """Lock against a second `up` at the same time, which would start a second head."""
    paths.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (paths.root / "boot.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _patience_s(paths: FleetPaths) -> float:
    """Seconds to wait for a controller that does not answer: if Ray lives, it is restarting."""
    address = read_address(paths)
    return PATIENCE_S if address is not None and listens(address.ray) else 0.0


def _address(paths: FleetPaths, request: UpRequest) -> HeadAddress:
    gateway = request.inventory.gateway
    host = node_addresses(request.inventory)[request.inventory.head].address
    head = request.inventory.nodes[request.inventory.head]
    name = name_on_network() if head.is_local else head.address
    entries = gateway_entries(request.inventory)
    return choose_address(paths, host, gateway, name, entries, term=request.term, ray_port=request.ray_port)


def _forget_last_cluster(paths: FleetPaths) -> None:
    """Empties the GCS, and removes the logs of Ray's last session.

    The desired state is in the store, and engines that still run, here or on other nodes, are adopted by their label. An
    old GCS could only restore actors that died with their cluster.
    """
    for directory in (paths.gcs, paths.run / "ray"):
        shutil.rmtree(directory, ignore_errors=True)
    paths.create()


def check_port(address: HeadAddress, own: bool = False) -> None:
    """Raises ControlError if the gateway could not listen at the endpoint's address, as another program does, or as the
    address is not this node's. `own`: this fleet's gateway or entry may have it."""
    host, port = address.gateway_host, address.gateway_port
    fault = _bind_fault(host, port, own)
    if fault is None:
        return
    means = "The endpoint cannot listen there, so nothing was changed."
    if fault.errno == errno.EADDRINUSE:
        raise ControlError(
            f"Port {port} on {host} is used by another program.",
            means=means,
            do="Stop that program, or set `gateway: {port: …}` in inventory.yaml (0: any free port).",
        )
    if fault.errno == errno.EADDRNOTAVAIL:
        raise ControlError(
            f"{host}, the endpoint's address, is not an address of this node.",
            means=f"{means} Right after a boot its network may not be up yet.",
            do="`ip -brief address` on the node shows those it has; `gateway: {host: …}` in inventory.yaml names one.",
        )
    raise ControlError(
        f"The endpoint cannot listen on {host}:{port}: {fault.strerror}.",
        means="Nothing was changed.",
        do="Set `gateway: {host: …, port: …}` in inventory.yaml: ports below 1024 are root's.",
    )


def check_declared_ports(paths: FleetPaths, request: UpRequest) -> None:
    """Raises ControlError if a stored deployment has the endpoint's port: it starts first, and the gateway never would.

    Does nothing if the store cannot be read: the controller reports why.
    """
    replaced = {one.spec.name for one in request.apply}
    with contextlib.suppress(StoreError, sqlite3.Error):
        if read_content(paths.database) is None:
            return
        with contextlib.closing(Store(paths.database)) as store:
            stored = store.deployments.desired().values()
        plans = (one.plan for one in stored if one.name not in replaced)
        before = read_address(paths)
        refuse_endpoint_ports(plans, request.inventory.endpoint_ports(before.gateway_port if before else 0))


def check_certificate(address: HeadAddress) -> None:
    """Raises ControlError if the files of the endpoint's certificate cannot be used."""
    if address.tls is not None and not address.tls.is_generated:
        check_files(Path(address.tls.cert), Path(address.tls.key))


def _bind_fault(host: str, port: int, shared: bool) -> OSError | None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:  # the gateway listens so itself, perhaps on one of the addresses that `host` includes
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def _start(paths: FleetPaths, argv: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Ray in the foreground of a session of its own."""
    with (paths.logs / "ray.log").open("ab") as output:  # appends: see runtime/files/log_limit.py
        output.truncate(0)
        return subprocess.Popen(
            argv,
            env=ray_environment(paths),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )


async def _with_a_controller(paths: FleetPaths, request: UpRequest) -> FleetClient | None:
    """A client of a new controller, if Ray lives and only its controller is gone: Ray is not ended under what serves."""
    address = read_address(paths)
    if address is None or not listens(address.ray):
        return None
    try:
        await asyncio.to_thread(start_controller, paths, request, address, None)
    except ControlError as error:
        log.warning("Ray listens and takes no controller; it is started again: %s", error)
        return None
    client = await connect(paths, PATIENCE_S)
    if client is None:
        raise no_answer(paths)
    return client


async def _resume(client: FleetClient) -> None:
    """Lets the groups run again that a `down` has stopped which did not end."""
    try:
        async with client:
            await client.resume()
    except ControlError as error:
        log.warning("groups that a `down` has stopped stay so: %s", error)


async def _answering(paths: FleetPaths) -> None:
    deadline = time.monotonic() + RAY_START_S
    while await connect(paths) is None:
        if time.monotonic() > deadline:
            raise no_answer(paths)
        await asyncio.sleep(0.1)


async def _until_no_groups(client: FleetClient) -> None:
    """Returns when the last group is gone, or after a time limit: the rest is killed then."""
    deadline = time.monotonic() + STOP_S
    while await client.serves() and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
