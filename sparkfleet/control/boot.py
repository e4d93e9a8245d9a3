"""Brings a fleet's head up and down. Runs on the head: `python -m sparkfleet.control.boot up|down`.

`up` detaches: it prints the path of a file that will hold the outcome, so that whoever waits for it may stop
waiting without stopping the work.

Ray needs seconds, an engine minutes, and neither needs the other to begin: `up` starts both at once. The ranks
that it starts wait, unowned, for the actors of their groups, which adopt them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from sparkfleet.control.apps import CONTROLLER, NAMESPACE
from sparkfleet.control.client import FleetClient, connect
from sparkfleet.control.head import (
    LABEL,
    Address,
    choose_address,
    ray_argv,
    ray_environment,
    ray_init_arguments,
)
from sparkfleet.control.order import order_for, rank_spec
from sparkfleet.control.paths import FleetPaths
from sparkfleet.control.requests import ApplyRequest, UpRequest
from sparkfleet.control.store import Store
from sparkfleet.errors import ControlError, SparkfleetError
from sparkfleet.nodes.runtime import processes
from sparkfleet.nodes.runtime.ports import free_port
from sparkfleet.nodes.runtime.process import ProcessRuntime
from sparkfleet.spec.inventory import Inventory

log = logging.getLogger(__name__)

RAY_START_S = 90.0
STOP_S = 60.0


async def up(request: UpRequest) -> Address:
    """Start what is not running; returns when the controller answers.

    Raises:
        ControlError: the gateway's port is taken, or Ray or the controller did not come up.
    """
    paths = FleetPaths(Path(request.state_dir))
    paths.create()
    with _alone(paths):
        client = await connect(paths)
        if client is not None:
            return client.address
        await _clear_leftovers(paths)
        _forget_last_cluster(paths)
        gateway = request.inventory.gateway
        address = choose_address(paths, gateway.host, gateway.port)
        _check_port(address)
        ray_head = _start_ray(paths, address, request.inventory.head)
        await _start_ranks(paths, request.apply)
        await asyncio.to_thread(_start_controller, paths, request.inventory, address, ray_head)
        await _answering(paths)
        return address


async def down(paths: FleetPaths) -> None:
    """Stop every group, then Ray; what is wanted stays in the store. Nothing of the fleet is left running."""
    with _alone(paths):
        client = await connect(paths)
        if client is not None:
            async with client:
                await client.stop()
                await _nothing_served(client)
        await ProcessRuntime(paths.run, paths.label).sweep(frozenset())
        await _clear_leftovers(paths)


async def _clear_leftovers(paths: FleetPaths) -> None:
    """Kill what is left of Ray, by its label. Ray drains for 30 s on SIGTERM; nothing here is worth waiting for."""
    own = os.getpid()
    await processes.kill_all(
        lambda: [p for p in processes.labelled({LABEL: paths.label}) if p.pid != own], grace_s=2.0
    )


def _forget_last_cluster(paths: FleetPaths) -> None:
    """Begin with an empty GCS, and without the logs of Ray's last session.

    No node of the last cluster is left, so all its GCS could do is to bring back actors that died with it. What is
    wanted is in the store, and engines that still run are adopted by their label.
    """
    for directory in (paths.gcs, paths.run / "ray"):
        shutil.rmtree(directory, ignore_errors=True)
    paths.create()


@contextlib.contextmanager
def _alone(paths: FleetPaths) -> Iterator[None]:
    """Two `up`s at once would start two heads."""
    paths.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (paths.root / "boot.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _check_port(address: Address) -> None:
    if not _is_free(address.gateway_host, address.gateway_port):
        raise ControlError(
            f"Port {address.gateway_port} on {address.gateway_host} is taken by another program.",
            means="The endpoint cannot listen there, so nothing was started.",
            do="Stop that program, or set `gateway: {port: …}` in inventory.yaml (0: any free port).",
        )


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _start_ray(paths: FleetPaths, address: Address, node: str) -> subprocess.Popen[bytes]:
    log = (paths.logs / "ray.log").open("wb")
    with log:
        return subprocess.Popen(
            ray_argv(paths, address, node),
            env=ray_environment(paths),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )


async def _start_ranks(paths: FleetPaths, apply: ApplyRequest | None) -> None:
    """Start the ranks of everything that is wanted on this node, so that their engines load while Ray comes up."""
    store = Store(paths.database)
    try:
        if apply is not None:
            store.put(apply.spec, apply.plan, apply.who)
        wanted = store.desired()
    finally:
        store.close()
    runtime = ProcessRuntime(paths.run, paths.label)
    orders = [order_for(paths, desired) for desired in wanted.values()]
    keep = frozenset(order.rank_id(replica) for order in orders for replica in range(order.replicas))
    await runtime.sweep(keep)
    secret = paths.engine_secret.read_text()
    for order in orders:
        for replica in range(order.replicas):
            with contextlib.suppress(
                SparkfleetError
            ):  # the group's actor tries again, and says what is wrong
                await runtime.start(rank_spec(order, replica, free_port("127.0.0.1"), secret))


def _start_controller(
    paths: FleetPaths, inventory: Inventory, address: Address, ray_head: subprocess.Popen[bytes]
) -> None:
    """Join the new cluster and create the controller. Ray reads its settings at import, so it is imported here."""
    os.environ.update(ray_environment(paths))
    import ray

    from sparkfleet.control.actor import ControllerConfig, create
    from sparkfleet.gateway.serve import GatewayConfig

    deadline = time.monotonic() + RAY_START_S
    while True:
        if ray_head.poll() is not None or time.monotonic() > deadline:
            raise _no_ray(paths)
        try:
            ray.init(**ray_init_arguments(address))
            break
        except (ConnectionError, RuntimeError, ValueError):
            time.sleep(0.1)
    create(
        ControllerConfig(
            fleet=inventory.fleet,
            state_dir=str(paths.root),
            api=address.api,
            endpoint=address.endpoint,
            gateway=GatewayConfig(
                host=address.gateway_host,
                port=address.gateway_port,
                max_body_bytes=inventory.gateway.max_body_bytes,
                secret_path=str(paths.engine_secret),
                controller=CONTROLLER,
                namespace=NAMESPACE,
            ),
        )
    )
    ray.shutdown()


async def _answering(paths: FleetPaths) -> None:
    deadline = time.monotonic() + RAY_START_S
    while await connect(paths) is None:
        if time.monotonic() > deadline:
            raise _no_ray(paths)
        await asyncio.sleep(0.1)


async def _nothing_served(client: FleetClient) -> None:
    """Return when the last group is gone, or when it takes too long: what is left is killed then."""
    deadline = time.monotonic() + STOP_S
    while (await client.fleet()).deployments and time.monotonic() < deadline:
        await asyncio.sleep(0.2)


def _no_ray(paths: FleetPaths) -> ControlError:
    return ControlError(
        "Ray or the controller did not come up on the head node.",
        means="Nothing is served.",
        do=f"See {paths.logs / 'ray.log'}, and the session under {paths.run / 'ray'}.",
    )


def main() -> int:
    """Entry point. `up` takes an `UpRequest` on standard input, `down` a state directory."""
    verb, given = sys.argv[1], sys.stdin.read()
    if verb == "up":
        return _detach(UpRequest.model_validate_json(given))
    if verb == "work":
        return _work(UpRequest.model_validate_json(given))
    try:
        asyncio.run(down(FleetPaths(Path(given))))
    except SparkfleetError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _detach(request: UpRequest) -> int:
    """Do the work in a process of its own, and say where its outcome will be."""
    paths = FleetPaths(Path(request.state_dir))
    paths.create()
    outcome = paths.outcome
    outcome.unlink(missing_ok=True)
    with (paths.logs / "boot.log").open("wb") as log:
        worker = subprocess.Popen(
            (sys.executable, "-m", "sparkfleet.control.boot", "work"),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )
    assert worker.stdin is not None
    worker.stdin.write(request.model_dump_json().encode())
    worker.stdin.close()
    print(outcome)
    return 0


def _work(request: UpRequest) -> int:
    outcome = FleetPaths(Path(request.state_dir)).outcome
    try:
        text = asyncio.run(up(request)).model_dump_json()
    except SparkfleetError as error:
        text = json.dumps({"error": {"what": error.what, "means": error.means, "do": error.do}})
    except Exception as error:
        log.exception("the fleet did not come up")
        text = json.dumps({"error": {"what": f"The fleet did not come up: {error!r}", "means": "", "do": ""}})
    temporary = outcome.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main())
