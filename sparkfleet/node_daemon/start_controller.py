"""Creates the controller in the Ray cluster of this node."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time

from sparkfleet.controlplane.api.api_models import UpRequest
from sparkfleet.controlplane.controller_note import read_note
from sparkfleet.controlplane.ray.ray_process import ray_environment, ray_init_arguments
from sparkfleet.controlplane.serve_backend import CONTROLLER, NAMESPACE
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.errors import ControlError
from sparkfleet.gateway.listening import GatewayListening
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.state_probe import listens

RAY_START_S = 90.0
LIVE_RAY_S = 20.0
"""Time limit for a Ray that has run before to accept this process."""


_ONE_AT_A_TIME = threading.Lock()
"""A process has one connection to Ray."""


def start_controller(
    paths: FleetPaths, request: UpRequest, address: HeadAddress, ray_head: subprocess.Popen[bytes] | None
) -> None:
    """Joins the cluster and creates the controller, if there is none. Blocks.

    Args:
        paths: the fleet's directories on the head.
        request: the fleet.
        address: its addresses.
        ray_head: Ray's process, if this process has just started it; None: it has run before.

    Raises:
        ControlError: Ray ended, did not accept this process, or did not start the controller.
    """
    with _ONE_AT_A_TIME:
        _start(paths, request, address, ray_head)


def _start(
    paths: FleetPaths, request: UpRequest, address: HeadAddress, ray_head: subprocess.Popen[bytes] | None
) -> None:
    # Ray reads its settings at import, so it is imported here.
    os.environ.update(ray_environment(paths))
    import ray

    deadline = time.monotonic() + (LIVE_RAY_S if ray_head is None else RAY_START_S)
    while True:
        ended = ray_head is not None and ray_head.poll() is not None
        if ended or time.monotonic() > deadline:
            raise no_answer(paths)
        # Without a GCS, `ray.init` blocks for 40 s or more, in which the end of Ray's process would not be noticed.
        if not listens(address.ray):
            time.sleep(0.1)
            continue
        try:
            # Ray puts the current directory into the import path of its workers. systemd and cron start the watchdog in the
            # home directory, in which a clone named sparkfleet would take the place of this package.
            with contextlib.chdir("/"):
                ray.init(**ray_init_arguments(address))
            break
        except (ConnectionError, RuntimeError, ValueError):
            time.sleep(0.1)
    try:
        _create(paths, request, address)
    except ray.exceptions.RayError as error:
        raise no_answer(paths) from error
    finally:
        ray.shutdown()


def _create(paths: FleetPaths, request: UpRequest, address: HeadAddress) -> None:
    from sparkfleet.controlplane.ray.controller_actor import ControllerConfig, create
    from sparkfleet.gateway.ray_serve import GatewayConfig

    create(
        ControllerConfig(
            inventory=request.inventory,
            address=address,
            gateway=GatewayConfig(
                listening=GatewayListening(
                    host=address.gateway_host,
                    port=address.gateway_port,
                    max_body_bytes=request.inventory.gateway.max_body_bytes,
                    origins=request.inventory.gateway.origins,
                    tls=address.tls,
                ),
                controller=CONTROLLER,
                namespace=NAMESPACE,
            ),
        )
    )


def no_answer(paths: FleetPaths) -> ControlError:
    """Error about a head whose Ray or controller does not answer, with the controller's own reason if it has one."""
    note = read_note(paths)
    if note is not None and note.api and os.path.exists(f"/proc/{note.pid}"):
        return ControlError(
            note.api,
            means="The controller runs and tries again every second; nobody reaches it.",
            do="Free that address, or repair that file; it continues by itself.",
        )
    return ControlError(
        "Ray or the controller did not start on the head node.",
        means="The fleet is not up, and serves nothing.",
        do=f"Read {paths.logs / 'ray.log'}, and the session's logs under {paths.run / 'ray'}.",
    )
