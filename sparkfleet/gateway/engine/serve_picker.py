"""The engine of a group by Ray Serve, which supervises its replica and sends each gateway the list of those that run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from sparkfleet.errors import ControlError
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

    A group is an application with one replica. If Serve's list in this process has it, that is the answer. To have Serve
    choose it costs a small request 0.14 to 0.2 ms of processor time and a quarter of its rate (docs/decisions.md, 5):
    that is for a group whose replica is not known yet, is being replaced, or has failed.

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
        listed = self._listed(groups[0]) if groups else None
        if listed is not None and listed.url not in exclude:
            return listed
        find = partial(self._find, model.deployment)
        return await first_found(groups, find, exclude=exclude, limit_s=REPICK_S if exclude else PICK_S)

    def _listed(self, group: GroupEntry) -> EngineEndpoint | None:
        handle = self._handles.get(group.app)
        metadata = None if handle is None else only_replica(handle)
        if metadata is None:
            return None
        try:
            return self._endpoint(group, metadata)
        except ControlError:  # its secret cannot be read; the group is skipped after its limit of time
            return None

    async def _find(self, deployment: str, group: GroupEntry) -> EngineEndpoint | None:
        return self._endpoint(group, await self._choose(group.app, deployment))

    def _endpoint(self, group: GroupEntry, metadata: Mapping[str, Any]) -> EngineEndpoint | None:
        url, name = metadata.get("url"), metadata.get("group")
        if not isinstance(url, str) or not isinstance(name, str):
            return None
        return _endpoint(url, name, group.app, self._secret_of(metadata.get("secret")))

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


@lru_cache(maxsize=256)  # of a group it is the same for each request
def _endpoint(url: str, name: str, app: str, secret: str) -> EngineEndpoint:
    return EngineEndpoint(url=url, group=name, app=app, token=engine_token(secret.encode(), name))


def only_replica(handle: DeploymentHandle[Any]) -> dict[str, Any] | None:
    """Metadata of the one replica that Serve lists as running; None if there is another number, or no list.

    The list is of the handle's router, which Serve's controller keeps current by its long poll. Its attributes are private:
    Ray is pinned, and with others Serve chooses the replica of every request.
    """
    try:
        router = handle._router._asyncio_router
        if not router._deployment_available:
            return None
        replicas = tuple(router._request_router.curr_replicas.values())
    except AttributeError:  # no list yet
        return None
    if len(replicas) != 1:
        return None
    metadata: dict[str, Any] = replicas[0].replica_metadata
    return metadata
