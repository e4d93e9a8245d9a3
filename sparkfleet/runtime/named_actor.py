"""Finds a Ray actor by its name, without stopping the process meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import ray


class NamedActor:
    """An actor that is looked up in a thread: `ray.get_actor` waits 60 s for a GCS that hangs, and guards end us before.

    All calls share one look-up, so such a GCS occupies one thread, not one for each call. Ray itself keeps what it found.

    Args:
        name: the actor's name.
        namespace: its namespace.
    """

    def __init__(self, name: str, namespace: str) -> None:
        self._name = name
        self._namespace = namespace
        self._looking: asyncio.Task[Any] | None = None

    async def find(self) -> Any:
        """The handle. Callers set their time limit. Raises ValueError if there is no such actor."""
        if self._looking is None or self._looking.done():
            look = asyncio.to_thread(ray.get_actor, self._name, namespace=self._namespace)
            self._looking = asyncio.create_task(look)
            self._looking.add_done_callback(_seen)
        return await asyncio.shield(self._looking)


def _seen(look: asyncio.Task[Any]) -> None:
    """Takes note of a failure whose callers have left, which asyncio would log."""
    if not look.cancelled():
        look.exception()
