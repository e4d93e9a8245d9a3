"""The controller as a Ray actor: detached, restarted by Ray, with its API on the head's loopback."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from urllib.parse import urlsplit

import ray
from aiohttp import web
from prometheus_client import CollectorRegistry
from ray import serve
from ray.serve.config import ProxyLocation

from sparkfleet.control import api
from sparkfleet.control.apps import CONTROLLER, GATEWAY_APP, NAMESPACE
from sparkfleet.control.controller import Controller
from sparkfleet.control.order import GroupOrder, order_for
from sparkfleet.control.paths import FleetPaths
from sparkfleet.control.serve_apps import ServeApps, run_without_waiting
from sparkfleet.control.status import GroupReport
from sparkfleet.control.store import Desired, Store
from sparkfleet.facts.node import ReadMemory
from sparkfleet.gateway.report import GatewayReport
from sparkfleet.gateway.serve import GatewayConfig, gateway_app
from sparkfleet.nodes.local import LocalChannel
from sparkfleet.nodes.runtime.process import ProcessRuntime
from sparkfleet.observe.metrics import ControlMetrics
from sparkfleet.values import Value


class ControllerConfig(Value):
    """What the controller's actor is made of. It holds no secret: those are read from the state directory."""

    fleet: str
    state_dir: str
    api: str
    gateway: GatewayConfig
    endpoint: str


@ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=1000)
class ControllerActor:
    """Wires the controller to Ray Serve, to the gateway, and to its HTTP API."""

    async def __init__(self, config_json: str) -> None:  # type: ignore[misc]  # Ray awaits it
        logging.basicConfig(level=logging.INFO)
        config = ControllerConfig.model_validate_json(config_json)
        self._paths = FleetPaths(Path(config.state_dir))
        self._runtime = ProcessRuntime(self._paths.run, self._paths.label)
        self._channel = LocalChannel(config.fleet)
        registry = CollectorRegistry()
        self._controller = Controller(
            fleet=config.fleet,
            store=Store(self._paths.database),
            apps=ServeApps(),
            metrics=ControlMetrics(registry),
            endpoint=config.endpoint,
            order_of=self._order_of,
            available=self._available,
            sweep=self._sweep,
        )
        await self._serve_api(
            api.build(self._controller, self._paths.api_token.read_text(), registry), config.api
        )
        self._work = asyncio.create_task(self._run(config.gateway))

    async def report(self, report_json: str) -> None:
        """A group says where it is."""
        await self._controller.report(GroupReport.model_validate_json(report_json))

    async def register_gateway(self, report_json: str) -> None:
        """A gateway replica says where it listens."""
        await self._controller.register_gateway(GatewayReport.model_validate_json(report_json))

    async def table(self, known: int) -> str:
        """The gateway's table, when it is another one than `known`; JSON."""
        return (await self._controller.table(known)).model_dump_json()

    async def ping(self) -> bool:
        """Whether the actor is up."""
        return True

    async def _run(self, gateway: GatewayConfig) -> None:
        await asyncio.to_thread(serve.start, proxy_location=ProxyLocation.Disabled)
        await asyncio.to_thread(_deploy_gateway, gateway)
        await self._controller.run()

    async def _serve_api(self, app: web.Application, url: str) -> None:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        parts = urlsplit(url)
        await web.TCPSite(runner, parts.hostname, parts.port, reuse_address=True).start()

    def _order_of(self, desired: Desired) -> GroupOrder:
        return order_for(self._paths, desired)

    async def _available(self) -> int:
        done = await self._channel.run(ReadMemory.argv)
        return ReadMemory.parse(done.stdout).available

    async def _sweep(self, keep: frozenset[tuple[str, int]]) -> tuple[str, ...]:
        ranks = await self._runtime.list()
        return await self._runtime.sweep(
            frozenset(rank.id for rank in ranks if (rank.id.deployment, rank.id.generation) in keep)
        )


def _deploy_gateway(config: GatewayConfig) -> None:
    """Deploy the gateway, unless it is there: deploying it again would replace replicas that serve."""
    if GATEWAY_APP not in serve.status().applications:
        run_without_waiting(serve.RunTarget(target=gateway_app(config), name=GATEWAY_APP, route_prefix=None))


def create(config: ControllerConfig) -> None:
    """Create the controller in the cluster that this process has joined, and wait until it is up."""
    actor = ControllerActor.options(  # type: ignore[attr-defined]  # added by the decorator
        name=CONTROLLER, namespace=NAMESPACE, lifetime="detached", get_if_exists=True
    ).remote(config.model_dump_json())
    ray.get(actor.ping.remote())
