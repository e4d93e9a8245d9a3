"""Keeps the gateway's application in Ray Serve, which gives one up whose replica fails three times at its start."""

from __future__ import annotations

import asyncio
import logging

from ray import serve
from ray.serve.schema import ApplicationStatus

from sparkfleet.controlplane.ray.ray_process import NODE_LABEL
from sparkfleet.controlplane.ray.ray_serve_backend import app_statuses, run_without_waiting
from sparkfleet.controlplane.serve_backend import GATEWAY_APP
from sparkfleet.gateway.ray_serve import GatewayConfig, gateway_app

log = logging.getLogger(__name__)

LOOK_S = 10.0
"""Seconds between two looks: a port that another program has, the usual cause, may be free by then."""


def deploy_gateway(config: GatewayConfig, head: str) -> None:
    """Deploys the gateway if Serve does not have it or has given it up: a second deploy would replace replicas that serve.

    Blocks. Raises RayServeException if Serve does not run.
    """
    known = {app.name: app.app_status.status for app in app_statuses()}
    if known.get(GATEWAY_APP, ApplicationStatus.DEPLOY_FAILED) is ApplicationStatus.DEPLOY_FAILED:
        target = gateway_app(config, {NODE_LABEL: head})
        run_without_waiting(serve.RunTarget(target=target, name=GATEWAY_APP, route_prefix=None))


async def keep_gateway(config: GatewayConfig, head: str) -> None:
    """Deploys the gateway again whenever Serve has given it up, until it is cancelled."""
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            await asyncio.to_thread(deploy_gateway, config, head)
        except Exception:
            log.exception("the gateway could not be looked at")
