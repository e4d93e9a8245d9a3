"""The entries as Ray actors: detached, one on each node that has one, restarted by Ray.

The controller finds them by their name, so they outlive it; they end with the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import threading
from collections.abc import Mapping
from errno import EADDRINUSE
from typing import Any

import ray

from sparkfleet.controlplane.ray.ray_process import NODE_LABEL
from sparkfleet.controlplane.serve_backend import NAMESPACE
from sparkfleet.errors import ControlError, FactError
from sparkfleet.gateway.entry import EntryServer
from sparkfleet.gateway.listening import EntryOrder
from sparkfleet.gateway.report import EntryReport
from sparkfleet.hostfacts.network.listening_sockets import ReadSockets
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.hang_guard import HangGuard, take_note

log = logging.getLogger(__name__)

PREFIX = "entry-"
"""Of the actors' names; the node's name follows."""
ANSWER_S = 5.0
"""Time limit of an entry's answer: it tries to reach the gateway for 3 s at most."""
HUNG_S = 3.0
"""Seconds without a step of an entry after which it is ended, as of the gateway."""
SOCKETS_S = 5.0


class EntryActors:
    """The entries of a fleet, over Ray."""

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}

    async def keep(self, wanted: Mapping[str, EntryOrder]) -> tuple[EntryReport, ...]:
        """See `Entries.keep`. One that is not wanted any more stops listening, and ends with its last connection."""
        await asyncio.to_thread(self._find, tuple(wanted))
        found = await asyncio.gather(
            *(self._keep(node, wanted.get(node), actor) for node, actor in tuple(self._handles.items()))
        )
        return tuple(one for one in found if one is not None and one.node in wanted)

    async def _keep(self, node: str, order: EntryOrder | None, actor: Any) -> EntryReport | None:
        report = await self._ask(node, order, actor)
        if order is None and (report is None or not report.connections):
            await asyncio.to_thread(ray.kill, actor)
            self._handles.pop(node, None)
        return report

    async def _ask(self, node: str, order: EntryOrder | None, actor: Any) -> EntryReport | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                text = await actor.keep.remote(node, order.model_dump_json() if order is not None else "")
        except (ray.exceptions.RayError, TimeoutError) as error:
            log.warning("the entry on %s does not answer: %r", node, error)
            self._handles.pop(node, None)  # found again by its name, or made again
            return None
        return EntryReport.model_validate_json(text)

    def _find(self, wanted: tuple[str, ...]) -> None:
        """Finds the actors that exist, and makes those that are wanted, on nodes that are alive. Blocks for a moment."""
        alive = {node["Labels"].get(NODE_LABEL) for node in ray.nodes() if node["Alive"]}
        names = {one["name"] for one in ray.util.list_named_actors(all_namespaces=True)}
        existing = {name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)}
        self._handles = {node: actor for node, actor in self._handles.items() if node in alive}
        for node in (existing | set(wanted)) & alive - self._handles.keys():
            self._handles[node] = EntryActor.options(  # type: ignore[attr-defined]  # added by the decorator
                name=PREFIX + node,
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                label_selector={NODE_LABEL: node},
            ).remote()


@ray.remote(num_cpus=0, max_restarts=-1)
class EntryActor:
    """Actor of one entry. Its connections have a thread and an event loop of their own."""

    def __init__(self) -> None:
        note = FleetPaths.of_this_process().run / "entry.hung"
        self._after = take_note(note)
        # Not Ray's loop: that is uvloop, which loses the end of an answer to a client that has closed its half.
        self._loop = asyncio.SelectorEventLoop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._on_loop(self._begin(HangGuard(HUNG_S, note)))

    def keep(self, node: str, order_json: str) -> str:
        """Lets the entry be as ordered ("": it stops listening); its report, JSON."""
        report: EntryReport = self._on_loop(self._keep(node, order_json))
        return report.model_dump_json()

    def _on_loop(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _begin(self, guard: HangGuard) -> None:
        guard.start()
        self._guard, self._entry = guard, EntryServer()

    async def _keep(self, node: str, order_json: str) -> EntryReport:
        order = EntryOrder.model_validate_json(order_json) if order_json else None
        try:
            await self._entry.listen(order)
            trouble = await self._entry.trouble()
        except ControlError as error:
            trouble = error.what
            cause = error.__cause__
            if order is not None and isinstance(cause, OSError) and cause.errno == EADDRINUSE:
                holder = await asyncio.to_thread(holder_of, order.port)
                trouble += f" {holder} has the port: stop it, or set another `gateway: {{port: …}}`."
        return EntryReport(
            node=node,
            listening=self._entry.order is not None,
            trouble=trouble,
            connections=len(self._entry.clients),
            after=self._after,
        )


def holder_of(port: int) -> str:
    """The program that listens on a port of this node, in words; those of other users have no name."""
    try:
        listed = subprocess.run(
            ReadSockets.argv, capture_output=True, text=True, timeout=SOCKETS_S, check=True
        )
        found = [one for one in ReadSockets.parse(listed.stdout) if one.port == port and one.process]
    except (OSError, subprocess.SubprocessError, FactError):
        found = []
    return f"{found[0].process} (process {found[0].pid})" if found else "Another program"
