"""A gateway and its fake engines, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from raw_client import Start, hello
from running_gateway import RunningGateway
from static_picker import StaticPicker

from sparkfleet.engines.fake import FakeEngine, Pace
from sparkfleet.gateway.access.keys import generate
from sparkfleet.gateway.app import GatewayApp
from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.http.http_server import Server, serve
from sparkfleet.gateway.routing_table import GroupEntry, KeyEntry, ModelEntry, RoutingTable

TOKEN = "internal-token"
ENTRY = ModelEntry(name="tiny", deployment="engine", state="ready", context=4096, created=1700000000)
"""Served by all engines of a door, of which nothing is known."""


class Noting:
    """A picker that records its calls; its engines may be changed."""

    def __init__(self, targets: Sequence[EngineEndpoint]) -> None:
        self.targets = list(targets)
        self.excluded: list[AbstractSet[str]] = []

    async def pick(
        self, model: ModelEntry, groups: Sequence[GroupEntry], *, exclude: AbstractSet[str]
    ) -> EngineEndpoint | None:
        self.excluded.append(exclude)
        return await StaticPicker(self.targets).pick(model, groups, exclude=exclude)


@dataclass
class Door:
    """A gateway that listens, its engines, and a client with a good key."""

    gateway: GatewayApp
    server: Server
    engines: list[FakeEngine]
    picker: Noting
    key: str
    entry: KeyEntry
    http: aiohttp.ClientSession

    @property
    def engine(self) -> FakeEngine:
        return self.engines[0]

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def registry(self) -> CollectorRegistry:
        return self.gateway.metrics.registry

    def value(self, name: str, **labels: str) -> float:
        """A sample of the gateway's metrics; 0 if there is none."""
        return self.registry.get_sample_value(name, labels) or 0.0

    def body(self, path: str = "/v1/chat/completions", **more: Any) -> dict[str, Any]:
        asked = {"prompt": "one two three"}
        if path in ("/v1/chat/completions", "/v1/messages"):
            asked = {"messages": [{"role": "user", "content": "one two three"}]}  # type: ignore[dict-item]
        return {"model": "tiny", **asked, **more}

    async def post(
        self, path: str = "/v1/chat/completions", **more: Any
    ) -> tuple[int, Mapping[str, str], bytes]:
        async with self.http.post(self.url + path, json=self.body(path, **more)) as response:
            return response.status, response.headers, await response.read()


OpenDoor = Callable[..., Awaitable[Door]]


@pytest.fixture
async def open_door() -> AsyncIterator[OpenDoor]:
    """Makes doors, and closes them after the test. Arguments: `engines` or `paces`, `models`, `table`, `**gateway`."""
    async with AsyncExitStack() as stack:

        async def make(
            *,
            engines: Sequence[FakeEngine] | None = None,
            pace: Pace | None = None,
            models: Sequence[ModelEntry] = (ENTRY,),
            extra_keys: Sequence[KeyEntry] = (),
            table: RoutingTable | None = None,
            **options: Any,
        ) -> Door:
            if engines is None:
                engines = [FakeEngine(model="tiny", pace=pace, token=TOKEN)]
            for engine in engines:
                await stack.enter_async_context(engine)
            key, entry = generate("alice")
            alike = tuple(GroupEntry(app=f"app-{number}") for number in range(max(1, len(engines))))
            models = [m if m.groups else m.model_copy(update={"groups": alike}) for m in models]
            if table is None:
                table = RoutingTable(version=1, models={m.name: m for m in models}, keys=(entry, *extra_keys))
            picker = Noting(
                [
                    EngineEndpoint(url=e.url, token=e.token, group=f"group-{i}", app=f"app-{i}")
                    for i, e in enumerate(engines)
                ]
            )
            gateway = GatewayApp(picker, table=table, **options)
            stack.push_async_callback(gateway.aclose)
            server = await serve(gateway, "127.0.0.1", 0)
            stack.push_async_callback(server.aclose)
            http = aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"})
            stack.push_async_callback(http.close)
            return Door(gateway, server, list(engines), picker, key, entry, http)

        yield make


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts servers of an application, by default `hello`, and closes them after the test."""
    servers: list[Server] = []

    async def make(app: Any = hello, host: str = "127.0.0.1", port: int = 0, **options: Any) -> Server:
        servers.append(await serve(app, host, port, **options))
        return servers[-1]

    yield make
    for server in servers:
        await server.aclose()


@pytest.fixture
async def door(open_door: OpenDoor) -> Door:
    """One gateway before one engine that answers at once."""
    return await open_door()


@pytest.fixture(scope="module")
def running() -> Iterator[RunningGateway]:
    """A gateway for clients that block. At its end nothing of a request has stayed, and none had an internal error."""
    made = RunningGateway()
    yield made
    made.assert_nothing_stays()
    made.stop()
