"""The gateway as a Ray Serve deployment: one replica, on the head, with its own listening socket.

Serve starts it, watches it and replaces it; it is not behind Serve's proxies, which listen on every interface
(docs/decisions.md). It gets the routing table from the controller by a long poll; while that is away, the last one holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from ray import serve

from sparkfleet.errors import ControlError
from sparkfleet.gateway.access.certificates import CertificateStore
from sparkfleet.gateway.access.limits import RequestLimits
from sparkfleet.gateway.access.response_owners import ResponseOwners
from sparkfleet.gateway.accounting.usage_journal import UsageJournal
from sparkfleet.gateway.app import GatewayApp
from sparkfleet.gateway.body.body_budget import BUDGET_BYTES
from sparkfleet.gateway.engine.serve_picker import ServePicker
from sparkfleet.gateway.http.http_server import Server
from sparkfleet.gateway.http.http_server import serve as listen
from sparkfleet.gateway.listening import GatewayListening, GatewayTls, stored_listening
from sparkfleet.gateway.metrics_page import serve_metrics
from sparkfleet.gateway.page.page_app import PageApp
from sparkfleet.gateway.report import EndpointCertificate, GatewayReport
from sparkfleet.gateway.reverse_proxy import BODIES_HELD
from sparkfleet.gateway.routing_table import RoutingTable
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.token_secrets import SecretLookup
from sparkfleet.runtime.hang_guard import HangGuard, take_note
from sparkfleet.runtime.named_actor import NamedActor
from sparkfleet.runtime.still_heap import StillHeap
from sparkfleet.telemetry.metrics import GatewayMetrics
from sparkfleet.values import Value

log = logging.getLogger(__name__)

POLL_PAUSE_S = 0.5
REGISTER_S = 5.0
DRAIN_S = 30.0
STREAMS_S = 3600.0
"""Time limit of streams on an address that the gateway has left."""
HUNG_S = 3.0
"""Seconds without a step of a gateway after which it is ended: its clients wait for each of them, and Serve's own checks
take 30 s. With 4 s it was replaced after 10.2 s, on two busy x86 cores."""


class GatewayConfig(Value):
    """Configuration of a gateway replica."""

    listening: GatewayListening
    """Until it reads the head's address file."""
    controller: str
    namespace: str


@serve.deployment(
    name="gateway",
    max_ongoing_requests=100_000,
    health_check_period_s=1,
    health_check_timeout_s=10,
    graceful_shutdown_timeout_s=DRAIN_S + 5,
    graceful_shutdown_wait_loop_s=0.1,
    ray_actor_options={"num_cpus": 0},
)
class GatewayReplica:
    """Hosts the gateway's ASGI application and keeps its table fresh."""

    async def __init__(self, config_json: str) -> None:  # type: ignore[misc]  # Serve awaits it
        config = GatewayConfig.model_validate_json(config_json)
        self._controller, paths = (
            NamedActor(config.controller, config.namespace),
            FleetPaths.of_this_process(),
        )
        self._secret = paths.read_engine_secret().encode()
        at = self._at = stored_listening(paths, config.listening)
        self._trouble = ""
        self._metrics = GatewayMetrics()
        self._picker = ServePicker(SecretLookup(paths), serve.get_deployment_handle)
        self._owners = ResponseOwners(paths.stored_responses)
        self._gateway = GatewayApp(
            self._picker,
            self._metrics,
            limits=RequestLimits(body_bytes=at.max_body_bytes),
            budget_bytes=max(BUDGET_BYTES, BODIES_HELD * at.max_body_bytes),
            origins=at.origins,
            page=PageApp(self._fleet_view, self._change, self._rank_log),
            owners=self._owners,
        )
        self._usage = UsageJournal(
            paths.gateway_usage,
            serve.get_replica_context().replica_tag,
            self._gateway.usage,
        )
        self._certificate = self._certificate_of(at.tls)
        self._server: Server = await self._listen(at, self._certificate)
        port = paths.metrics_port
        self._page: Server = await serve_metrics(self._metrics.registry, port)
        heap = StillHeap()
        heap.begin()
        note = paths.run / "gateway.hung"
        self._after = take_note(note)
        self._leaving: list[asyncio.Task[None]] = []
        """Ends of servers at earlier addresses."""
        self._news = asyncio.Event()
        """Set if the controller is to know at once what this replica has to report."""
        self._gateway.proxy.queues.on_start_awaited = self._news.set
        self._guard = HangGuard(HUNG_S, note)
        self._guard.start()
        steps = (
            self._follow(),
            self._register(),
            self._usage.keep(),
            self._owners.keep(),
            heap.keep(lambda: not self._gateway.in_flight),
        )
        self._tasks = [asyncio.create_task(one) for one in steps]

    async def __del__(self) -> None:
        """Drains and stops; Serve awaits this on a graceful shutdown."""
        for task in self._tasks:
            task.cancel()
        self._server.stop_accepting()  # new connections go to the replica that shares the port
        await self._gateway.drain(DRAIN_S)
        await self._usage.flush()
        await self._owners.flush()
        await self._server.aclose()
        await self._page.aclose()
        await self._gateway.aclose()
        self._guard.stop()

    def _certificate_of(self, tls: GatewayTls | None) -> CertificateStore | None:
        if tls is None:
            return None
        return CertificateStore(tls, FleetPaths.of_this_process().tls, self._secret)

    async def _listen(self, at: GatewayListening, certificate: CertificateStore | None) -> Server:
        context = certificate.context if certificate is not None else None
        return await listen(self._gateway, at.host, at.port, tls=context)

    async def _fleet_view(self) -> str:
        """The fleet as the controller sees it, for the page."""
        view: str = await (await self._controller.find()).page.remote()
        return view

    async def _change(self, change_json: str) -> str:
        """Lets the controller carry out an admin's change."""
        answer: str = await (await self._controller.find()).change.remote(change_json)
        return answer

    async def _rank_log(self, request_json: str) -> str:
        """Lets the controller read the end of a rank's log."""
        answer: str = await (await self._controller.find()).rank_log.remote(request_json)
        return answer

    async def _follow(self) -> None:
        """Keeps the table equal to the controller's, which thereby knows which one this replica holds."""
        replica = serve.get_replica_context().replica_tag
        while True:
            try:
                controller = await self._controller.find()
                text = await controller.table.remote(self._gateway.table.version, replica)
                table = RoutingTable.model_validate_json(text)
            except Exception as error:
                # With any failure of the controller the last table stays in use.
                log.warning("no table from the controller: %r", error)
                await asyncio.sleep(POLL_PAUSE_S)
                continue
            self._gateway.table = table
            if table.listening is not None:
                await self._move(table.listening)
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks += [
                asyncio.create_task(self._picker.prepare(entry.deployment, app))
                for entry in table.models.values()
                for app in entry.apps
            ]
            self._picker.forget({app for entry in table.models.values() for app in entry.apps})

    async def _move(self, to: GatewayListening) -> None:
        """Listens at another address, or with another certificate, if it is not the present one.

        Streams on the old one go on to their end.
        """
        if to == self._at:
            return
        if (to.host, to.port, to.tls) != (self._at.host, self._at.port, self._at.tls):
            try:
                certificate = self._certificate_of(to.tls)
                server = await self._listen(to, certificate)
            except (ControlError, OSError) as error:
                self._trouble = error.what if isinstance(error, ControlError) else str(error)
                await self._report()
                return
            old, self._server, self._certificate = self._server, server, certificate
            old.stop_accepting()
            self._leaving.append(asyncio.create_task(old.aclose(STREAMS_S)))
        self._gateway.proxy.limit_bodies(to.max_body_bytes)
        self._gateway.origins = frozenset(to.origins)
        self._at, self._trouble = to, ""
        await self._report()

    async def _register(self) -> None:
        """Reports this replica's address to the controller, every few seconds, and if a request waits for a start."""
        while True:
            self._news.clear()
            await self._report()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REGISTER_S):
                    await self._news.wait()

    def _present(self) -> EndpointCertificate | None:
        """The certificate, after a look at its files."""
        self._metrics.certificate_expiry.clear()
        if self._certificate is None:
            return None
        self._certificate.refresh()
        present = self._certificate.present
        self._metrics.certificate_expiry.labels(self._server.url).set(present.expires_at)
        return present

    async def _report(self) -> None:
        certificate, queued = self._present(), self._gateway.queued
        report = GatewayReport(
            replica=serve.get_replica_context().replica_tag,
            url=self._server.url,
            metrics_url=f"http://127.0.0.1:{self._page.port}/metrics",
            at=time.time(),
            waiting=sum(queued.values()),
            queued=queued,
            on_demand=self._gateway.on_demand,
            trouble=self._trouble or (self._certificate.trouble if self._certificate is not None else ""),
            certificate=certificate,
            external_trouble=self._gateway.external_trouble,
            failing=self._gateway.failing_groups,
            after=self._after,
            keys_used=dict(self._gateway.keys_used),
            usage=self._gateway.usage.totals(),
            former=self._usage.former,
            usage_trouble=self._usage.trouble,
        )
        with contextlib.suppress(Exception):
            async with asyncio.timeout(REGISTER_S):
                controller = await self._controller.find()
                if await controller.register_gateway.remote(report.model_dump_json()):
                    self._usage.drop_stored(report)


def gateway_app(config: GatewayConfig, label_selector: dict[str, str]) -> serve.Application:
    """The Serve application of the gateway, on a node with these labels of Ray's."""
    replica = GatewayReplica.options(  # type: ignore[attr-defined]  # added by the decorator
        ray_actor_options={"num_cpus": 0, "label_selector": label_selector}
    )
    app: serve.Application = replica.bind(config.model_dump_json())
    return app
