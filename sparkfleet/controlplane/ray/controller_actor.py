"""The controller as a Ray actor: detached, restarted by Ray, with its API on the head's loopback."""

from __future__ import annotations

import asyncio
import logging
import os
from urllib.parse import urlsplit

import ray
from aiohttp import web
from prometheus_client import CollectorRegistry
from ray import serve
from ray.serve.config import ProxyLocation

from sparkfleet.controlplane.api import http_api as api
from sparkfleet.controlplane.controller import Controller
from sparkfleet.controlplane.ray.node_actor import NodeActors
from sparkfleet.controlplane.ray.ray_process import NODE_LABEL
from sparkfleet.controlplane.ray.ray_serve_backend import RayServeBackend, run_without_waiting
from sparkfleet.controlplane.serve_backend import CONTROLLER, GATEWAY_APP, NAMESPACE
from sparkfleet.controlplane.state.launches import launches_for
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.controlplane.state.store import Store
from sparkfleet.gateway.ray_serve import GatewayConfig, gateway_app
from sparkfleet.gateway.report import GatewayReport
from sparkfleet.group.report import GroupReport
from sparkfleet.runtime.boot_id import this_boot
from sparkfleet.runtime.fleet_paths import FleetPaths
from sparkfleet.specs.inventory import Inventory
from sparkfleet.telemetry.metrics import ControlMetrics
from sparkfleet.values import Value

log = logging.getLogger(__name__)


class ControllerConfig(Value):
    """Configuration of the controller's actor, without secrets: the actor reads those from the state directory."""

    inventory: Inventory
    api: str
    gateway: GatewayConfig
    endpoint: str


@ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=1000)
class ControllerActor:
    """Wires the controller to Ray Serve, to the gateway, and to its HTTP API."""

    async def __init__(self, config_json: str) -> None:  # type: ignore[misc]  # Ray awaits it
        logging.basicConfig(level=logging.INFO)
        config = ControllerConfig.model_validate_json(config_json)
        self._paths = FleetPaths.of_this_process()
        self._inventory = config.inventory
        self._nodes = NodeActors(config.inventory.nodes)
        registry = CollectorRegistry()
        self._controller = Controller(
            fleet=config.inventory.fleet,
            store=Store(self._paths.database),
            apps=RayServeBackend(),
            metrics=ControlMetrics(registry),
            endpoint=config.endpoint,
            launches_of=lambda desired, rungs: launches_for(config.inventory, desired, rungs),
            nodes=self._nodes,
            here=NodeReport(name=config.inventory.head, joined=True, boot=this_boot()),
        )
        await self._serve_api(
            api.build(self._controller, self._paths.api_token.read_text(), registry), config.api
        )
        self._work = asyncio.create_task(self._controller.ends.slowed(self._run(config.gateway)))
        self._work.add_done_callback(_end)

    async def report(self, report_json: str) -> None:
        """Takes a group's report."""
        await self._controller.report(GroupReport.model_validate_json(report_json))

    async def register_gateway(self, report_json: str) -> None:
        """Takes a gateway replica's report of its address."""
        await self._controller.register_gateway(GatewayReport.model_validate_json(report_json))

    async def table(self, known: int, replica: str = "") -> str:
        """The gateway's table as soon as it differs from `known`, the version that this replica holds; JSON."""
        return (await self._controller.table(known, replica=replica)).model_dump_json()

    async def ping(self) -> bool:
        """True if the actor is up."""
        return True

    async def _run(self, gateway: GatewayConfig) -> None:
        await asyncio.to_thread(serve.start, proxy_location=ProxyLocation.Disabled)
        await asyncio.to_thread(_deploy_gateway, gateway, self._inventory.head)
        await self._controller.run()

    async def _serve_api(self, app: web.Application, url: str) -> None:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        parts = urlsplit(url)
        await web.TCPSite(runner, parts.hostname, parts.port, reuse_address=True).start()


def _end(work: asyncio.Task[None]) -> None:
    """Ends this process if its work has failed: it would only answer requests. Ray starts another one."""
    if not work.cancelled() and (error := work.exception()) is not None:
        log.critical("the controller ends", exc_info=error)
        os._exit(1)


def _deploy_gateway(config: GatewayConfig, head: str) -> None:
    """Deploys the gateway if it does not exist: a second deploy would replace replicas that serve."""
    if GATEWAY_APP not in serve.status().applications:
        target = gateway_app(config, {NODE_LABEL: head})
        run_without_waiting(serve.RunTarget(target=target, name=GATEWAY_APP, route_prefix=None))


def create(config: ControllerConfig) -> None:
    """Creates the controller in this process's cluster, and waits until it is up."""
    actor = ControllerActor.options(  # type: ignore[attr-defined]  # added by the decorator
        name=CONTROLLER,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        label_selector={NODE_LABEL: config.inventory.head},
    ).remote(config.model_dump_json())
    ray.get(actor.ping.remote())
