"""The controller as a Ray actor: detached, restarted by Ray, with its API on the head's loopback."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Collection
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path

import ray
from prometheus_client import CollectorRegistry
from ray import serve
from ray.serve.config import ProxyLocation

from sparkfleet.controlplane.api import http_api as api
from sparkfleet.controlplane.api.api_server import ApiServer, refusing
from sparkfleet.controlplane.clocks import WallClock, read_clocks
from sparkfleet.controlplane.controller import Controller
from sparkfleet.controlplane.controller_life import ControllerLife
from sparkfleet.controlplane.controller_note import NoteWriter
from sparkfleet.controlplane.page_changes import answered, carry_out, log_end
from sparkfleet.controlplane.ray.entry_actor import EntryActors
from sparkfleet.controlplane.ray.gateway_upkeep import deploy_gateway, keep_gateway
from sparkfleet.controlplane.ray.node_actor import NodeActors, rails_of
from sparkfleet.controlplane.ray.ray_process import NODE_LABEL
from sparkfleet.controlplane.ray.ray_serve_backend import RayServeBackend
from sparkfleet.controlplane.serve_backend import CONTROLLER, NAMESPACE
from sparkfleet.controlplane.state.desired import Generation
from sparkfleet.controlplane.state.head_address import HeadAddress, read_address
from sparkfleet.controlplane.state.launches import launch_for
from sparkfleet.controlplane.state.status import App, NodeReport
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.store_safety.guard import KEEPS, StoreError, StoreFault
from sparkfleet.controlplane.store_safety.mark import StoreMark
from sparkfleet.controlplane.store_safety.opening import open_store
from sparkfleet.controlplane.store_safety.safekeeping import Safekeeping
from sparkfleet.controlplane.store_safety.store_lock import StoreLock
from sparkfleet.controlplane.store_safety.store_watch import StoreWatch
from sparkfleet.controlplane.views.page_view import MOST_EVENTS, page_view
from sparkfleet.errors import ControlError
from sparkfleet.gateway.page.fleet_change import FleetChange, LogRequest
from sparkfleet.gateway.ray_serve import GatewayConfig
from sparkfleet.gateway.report import GatewayReport
from sparkfleet.gateway.routing_table import RoutingTable
from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.report import GroupReport
from sparkfleet.runtime.boot_id import this_boot
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.hang_guard import HangGuard, take_note
from sparkfleet.runtime.sealed_env import EnvSealer
from sparkfleet.specs.inventory import Inventory
from sparkfleet.telemetry.metrics import ControlMetrics
from sparkfleet.units import MIB
from sparkfleet.values import Value

log = logging.getLogger(__name__)

NO_TABLE_S = 2.0
"""Seconds until a gateway asks again while the controller waits for its store."""
LOG_BYTES = 2 * MIB
HUNG_S = 12.0
"""Seconds without a step of the controller after which it is ended, and Ray starts another. A write to a slow disk takes
seconds; meanwhile gateways and groups go on, and only `status` waits."""
CREATE_S = 60.0
"""Time limit of the start of the actor's process."""


class ControllerConfig(Value):
    """Configuration of the controller's actor, without secrets: the actor reads those from the state directory."""

    inventory: Inventory
    address: HeadAddress
    gateway: GatewayConfig


@ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=1000)
class ControllerActor:
    """Wires the controller to Ray Serve, to the gateway, and to its HTTP API."""

    async def __init__(self, config_json: str) -> None:  # type: ignore[misc]  # Ray awaits it
        # Nothing here may fail because of a file or a port: Ray does not start an actor again whose constructor raised.
        config = ControllerConfig.model_validate_json(config_json)
        self._paths = FleetPaths.of_this_process()
        _log_to(self._paths.logs / "controller.log")
        self._config = config
        self._nodes = NodeActors(config.inventory.nodes, rails_of(config.inventory))
        self._entries = EntryActors()
        self._backend = RayServeBackend()
        self._serve: asyncio.Task[None] | None = None
        self._note = NoteWriter(self._paths)
        self._lock = StoreLock(self._paths.root)
        self._server = ApiServer(
            config.address.api,
            self._paths.api_token,
            self._paths.former_api_tokens,
            lambda words: self._note.change(api=words),
        )
        self._life = ControllerLife(
            open_store=self._open_store,
            running=self._running,
            make=self._make,
            work=self._work,
            front=self,
            note=self._note,
        )
        self._serving = asyncio.create_task(self._server.run())
        self._living = asyncio.create_task(self._life.run())
        for task in (self._serving, self._living):
            task.add_done_callback(_end)
        note = self._paths.run / "controller.hung"
        self._hang = take_note(note)
        self._guard = HangGuard(HUNG_S, note)
        self._guard.start()

    async def report(self, report_json: str) -> None:
        """Takes a group's report. One that arrives while the controller waits for its store is repeated by the group."""
        if (controller := self._life.controller) is not None:
            await controller.intake.report(GroupReport.model_validate_json(report_json))

    async def register_gateway(self, report_json: str) -> bool:
        """Takes a gateway replica's report of its address, which it repeats. True if its usage is stored."""
        if (controller := self._life.controller) is None:
            return False
        return await controller.intake.register_gateway(GatewayReport.model_validate_json(report_json))

    async def table(self, known: int, replica: str = "") -> str:
        """The gateway's table as soon as it differs from `known`, the version that this replica holds; JSON.

        Version 0 (keep the last one) while the controller waits for its store.
        """
        if (controller := self._life.controller) is None:
            await asyncio.sleep(NO_TABLE_S)
            return RoutingTable(version=0, models={}, keys=()).model_dump_json()
        return (await controller.gateways.table(known, replica=replica)).model_dump_json()

    async def page(self) -> str:
        """The fleet as the gateway's page shows it: JSON of FleetView. Raises ControlError if it waits for its store."""
        if (controller := self._life.controller) is None:
            raise ControlError("The controller waits for its store.")
        status = controller.queries.status()
        events = await controller.event_log.events(max(0, status.last_event - MOST_EVENTS), None, 0)
        view = page_view(status, self._config.inventory, events, time.time(), controller.queries.stopped())
        return view.model_dump_json()

    async def change(self, change_json: str) -> str:
        """Carries out a change that an admin chose on the page: JSON of FleetChange, and of FleetAnswer."""
        change = FleetChange.model_validate_json(change_json)
        return (
            await answered(lambda controller: carry_out(controller, change), self._life)
        ).model_dump_json()

    async def rank_log(self, request_json: str) -> str:
        """The end of a rank's log: JSON of LogRequest, and of FleetAnswer."""
        request = LogRequest.model_validate_json(request_json)
        read = self._nodes.read_log
        return (
            await answered(lambda controller: log_end(controller, request, read), self._life)
        ).model_dump_json()

    async def is_still_wanted(self, group: GroupKey, rung: int) -> bool:
        """See `FleetQueries.is_still_wanted`; True while the controller waits for its store."""
        controller = self._life.controller
        return controller is None or controller.queries.is_still_wanted((group[0], group[1], group[2]), rung)

    async def bars(self, nodes: list[str]) -> str:
        """See `FleetQueries.bars`; "" while the controller waits for its store."""
        controller = self._life.controller
        return "" if controller is None else controller.queries.bars(nodes)

    async def ping(self) -> bool:
        """True if the actor is up."""
        return True

    # the API, as its life changes it

    def work(self, controller: Controller) -> None:
        """See `ApiFront`."""
        self._server.show(lambda tokens: api.build(controller, tokens, self._registry, self._sealer))

    def hold(self, error: StoreError) -> None:
        """See `ApiFront`."""
        self._server.show(lambda tokens: refusing(error, tokens))

    # its work

    def _open_store(self, running: Collection[Generation], known: StoreMark | None) -> Store:
        self._lock.take()
        return open_store(self._paths, self._config.inventory.fleet, running, known)

    def _make(self, store: Store) -> Controller:
        inventory = self._config.inventory
        self._registry = CollectorRegistry()
        self._sealer = self._new_sealer()
        store.deployments.seal(self._sealer)
        return Controller(
            fleet=inventory.fleet,
            store=store,
            serve=self._backend,
            metrics=ControlMetrics(self._registry),
            address=read_address(self._paths) or self._config.address,
            launch_of=partial(launch_for, inventory),
            nodes=self._nodes,
            entries=self._entries,
            here=NodeReport(name=inventory.head, joined=True, boot=this_boot()),
            wall=WallClock(read_clocks, self._paths.run_clock),
            check=StoreWatch(store, self._paths.database, inventory.fleet).check,
        )

    def _new_sealer(self) -> EnvSealer:
        try:
            return EnvSealer(self._paths.read_engine_secret().encode())
        except ControlError as error:
            raise StoreError(StoreFault.SECRET, error.what, means=KEEPS, do=error.do) from error

    async def _work(self, controller: Controller, store: Store) -> None:
        with controller.failures.working("the start of Ray Serve"):
            await self._start_serve()
        reason, self._hang = self._hang, ""
        await controller.failures.record_hang(reason)
        warn = partial(controller.failures.warn, "copies")
        keeping = asyncio.create_task(Safekeeping(self._paths, store, warn).run())
        try:
            await controller.run()
        finally:
            keeping.cancel()

    async def _start_serve(self) -> None:
        """Starts Serve and the gateway once; several callers wait for the same start."""
        if self._serve is None:
            self._serve = asyncio.create_task(self._serve_and_gateway())
        try:
            await asyncio.shield(self._serve)
        except Exception:
            self._serve = None
            raise

    async def _serve_and_gateway(self) -> None:
        await asyncio.to_thread(serve.start, proxy_location=ProxyLocation.Disabled)
        gateway = (self._config.gateway, self._config.inventory.head)
        await asyncio.to_thread(deploy_gateway, *gateway)
        self._keeping = asyncio.create_task(keep_gateway(*gateway))

    async def _running(self) -> tuple[App, ...]:
        """Everything that exists, while the store cannot be opened. Gateways serve meanwhile if they have a table."""
        await self._start_serve()
        return await self._backend.list()


def _end(work: asyncio.Task[None]) -> None:
    """Ends this process if its work has failed: it would only answer requests. Ray starts another one."""
    if not work.cancelled() and (error := work.exception()) is not None:
        log.critical("the controller ends", exc_info=error)
        os._exit(1)


def _log_to(path: Path) -> None:
    """Keeps a log of the controller in the state directory, too; a directory that cannot be written is no reason to end."""
    logging.basicConfig(level=logging.INFO)
    with contextlib.suppress(OSError):
        handler = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger("sparkfleet").addHandler(handler)


def create(config: ControllerConfig) -> None:
    """Creates the controller in this process's cluster, and waits until it is up."""
    actor = ControllerActor.options(  # type: ignore[attr-defined]  # added by the decorator
        name=CONTROLLER,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        label_selector={NODE_LABEL: config.inventory.head},
    ).remote(config.model_dump_json())
    ray.get(actor.ping.remote(), timeout=CREATE_S)
