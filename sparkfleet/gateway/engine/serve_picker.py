"""The engine of a group by Ray Serve, which supervises its replica."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Any

from sparkfleet.gateway.access.keys import engine_token
from sparkfleet.gateway.engine.endpoints import EngineEndpoint, first_found
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

PICK_S = 4.5
"""Time limit for Serve to return a replica. Without a running one it would wait for ever."""
PREPARE_S = 30.0
"""Time limit for a gateway to look up a new group's replica before the first request."""
REPICK_S = 0.5
"""The same for a request that has failed on one replica: its client has already waited."""


class ServePicker:
    """Looks up a group's replica in Ray Serve, and reads its engine's address from the replica's metadata.

    Args:
        secret_of: the secret of an engine's token, by its mark.
        handle_of: Serve's handle of a deployment of an application, by both names.
    """

    def __init__(
        self, secret_of: Callable[[object], str], handle_of: Callable[[str, str], DeploymentHandle[Any]]
    ) -> None:
        self._secret_of = secret_of
        self._handle_of = handle_of
        self._handles: dict[str, DeploymentHandle[Any]] = {}

    async def pick(
        self, model: ModelEntry, groups: Sequence[GroupEntry], *, exclude: AbstractSet[str]
    ) -> EngineEndpoint | None:
        """The first group's replica that is not excluded; None if Serve returns none in time, or fails."""
        find = partial(self._find, model.deployment)
        return await first_found(groups, find, exclude=exclude, limit_s=REPICK_S if exclude else PICK_S)

    async def _find(self, deployment: str, group: GroupEntry) -> EngineEndpoint | None:
        metadata = await self._choose(group.app, deployment)
        url, name = metadata.get("url"), metadata.get("group")
        if not isinstance(url, str) or not isinstance(name, str):
            return None
        token = engine_token(self._secret_of(metadata.get("secret")).encode(), name)
        return EngineEndpoint(url=url, group=name, app=group.app, token=token)

    async def _choose(self, app: str, deployment: str) -> dict[str, Any]:
        handle = self._handles.get(app)
        if handle is None:
            handle = self._handles[app] = self._handle_of(deployment, app)
        # Not reserving saves two actor calls, 2.8 ms of CPU a request. The argument is private: Ray is pinned.
        async with handle.choose_replica(_reserve=False) as selection:
            metadata: dict[str, Any] = selection.replica_metadata
            return metadata

    async def prepare(self, deployment: str, app: str) -> None:
        """Looks up a group's replica before its first request: Serve's first answer takes a second and more."""
        if app not in self._handles:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(PREPARE_S):
                    await self._choose(app, deployment)

    def forget(self, apps: AbstractSet[str]) -> None:
        """Drops the handles of applications that are gone; `apps` are the existing ones."""
        self._handles = {app: handle for app, handle in self._handles.items() if app in apps}
