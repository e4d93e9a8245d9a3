"""A gateway with the page and one engine, on a loop in a thread of its own, for clients that block."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from static_picker import StaticPicker

from sparkfleet.engines.fake import FakeEngine
from sparkfleet.gateway.access.keys import generate
from sparkfleet.gateway.access.limits import RequestLimits
from sparkfleet.gateway.app import GatewayApp
from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.http.http_server import serve
from sparkfleet.gateway.page.fleet_change import FleetAnswer
from sparkfleet.gateway.page.fleet_view import FleetView
from sparkfleet.gateway.page.page_app import PageApp
from sparkfleet.gateway.routing_table import GroupEntry, KeyLimits, ModelEntry, RoutingTable

VIEW = FleetView(at=time.time(), fleet="home", sparkfleet="0")
KEY, ENTRY = generate("fuzz")
ADMIN, ADMIN_ENTRY = generate("boss", KeyLimits(admin=True, inference=False))
TOKEN = "internal-token"


class RunningGateway:
    """The gateway and its engine, until `stop`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.run(self._start())

    def run(self, made: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(made, self.loop).result(30)

    async def _start(self) -> None:
        self.engine = FakeEngine(model="tiny", token=TOKEN)
        await self.engine.__aenter__()
        group = GroupEntry(app="app", concurrency=8, context=4096)
        entry = ModelEntry(name="tiny", groups=(group,), deployment="d", state="ready", aliases=("gpt-4o",))
        table = RoutingTable(version=1, models={"tiny": entry}, keys=(ENTRY, ADMIN_ENTRY))
        picker = StaticPicker([EngineEndpoint(url=self.engine.url, token=TOKEN, app="app")])
        self.passed: list[str] = []
        """Changes, and questions for logs, that reached the controller."""
        page = PageApp(self._view, self._pass, self._pass)
        self.app = GatewayApp(picker, table=table, limits=RequestLimits(body_s=1.0), page=page)
        self.server = await serve(self.app, "127.0.0.1", 0)
        self.hasty = await serve(self.app, "127.0.0.1", 0, head_s=0.2)
        """For heads that never end."""

    async def _view(self) -> str:
        return VIEW.model_dump_json()

    async def _pass(self, request: str) -> str:
        self.passed.append(request)
        return FleetAnswer(done="done", node="spark1", path="/x", log="").model_dump_json()

    async def _stop(self) -> None:
        await self.server.aclose(1)
        await self.hasty.aclose(1)
        await self.app.aclose()
        await self.engine.aclose()

    def stop(self) -> None:
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def internal_errors(self) -> float:
        samples = [
            sample.value
            for metric in self.app.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == "sparkfleet_errors_total" and sample.labels["kind"] == "internal"
        ]
        return sum(samples)

    def assert_nothing_stays(self) -> None:
        assert self.run(self.app.drain(10)), "a request stays in flight"
        self.app._draining = False
        assert self.app.proxy.bodies.held == 0
        assert self.app.proxy.observed.held("app") == self.app.proxy.observed.pending("app") == 0
        assert not self.app.proxy.queues._running
        assert self.internal_errors() == 0
