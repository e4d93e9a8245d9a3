"""Client of a group's engine from the moment its ranks run: its address, its health, its load, a token."""

from __future__ import annotations

import asyncio

import aiohttp

from sparkfleet.engines.base import Engine
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.group.engine_load import Load, read_load
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.group.probe import Probe
from sparkfleet.group.serving_watch import generates
from sparkfleet.runtime.ports import connections

UNUSED_TOKENS = 16
"""Tokens of an engine that has generated the first token of its start only; with drafts that is a few at once."""
BUSY_LOOK_S = 0.2


class EngineClient:
    """One engine, as its group reaches it.

    Args:
        launch: of the group.
        port: of rank 0 on its node.
        token: the engine's internal bearer token.
    """

    def __init__(self, launch: GroupLaunch, port: int, token: str) -> None:
        self._candidate = launch.candidate
        self.is_custom = launch.candidate.engine == "custom"
        """True for a custom workload: of its API only the health path is known, if the deployment declares one."""
        self.engine: Engine = engine_by_name(launch.candidate.engine)
        self.health_path = launch.candidate.health if self.is_custom else self.engine.health_path
        self.url = f"http://{launch.placements[0].address}:{port}"
        # A check of a custom workload must not leave a connection: `is_busy` would count it. llama.cpp's server closes one
        # after each stream without announcing it, and a request on it would fail.
        alone = not self.engine.checks_token
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=alone))
        self.probe = Probe(self._session, self.url, launch.deployment, token)
        self.load = Load(running=0, waiting=0, figures=None)
        """The last one that was read."""

    async def close(self) -> None:
        """Closes the connections to the engine."""
        await self._session.close()

    async def read_load(self) -> Load:
        """Reads the present load, and keeps it."""
        self.load = await read_load(self.probe, self.engine, self._candidate.speculation.tokens)
        return self.load

    async def is_unused(self) -> bool:
        """True if it has served nobody: an adopted one may have been started before its group, while Ray started."""
        load = await self.read_load()
        return (
            load.figures is not None and not load.running + load.waiting and load.figures[0] <= UNUSED_TOKENS
        )

    async def generates(self) -> bool:
        """True if it generates a token within a few seconds: then every rank computes."""
        return await generates(self.read_load, self.probe.one_token)

    async def until_idle(self) -> None:
        """Returns when it has no requests. Cancel it to give up."""
        while await self._is_busy():
            await asyncio.sleep(BUSY_LOOK_S)

    def connections(self) -> int:
        """Open connections, an upper bound of a custom workload's requests: gateways close idle ones in seconds."""
        return connections(self._candidate.port or 0)

    async def _is_busy(self) -> bool:
        if self.is_custom:
            return self.connections() > 0
        load = await self.read_load()
        return load.running + load.waiting > 0 or load.figures is None
