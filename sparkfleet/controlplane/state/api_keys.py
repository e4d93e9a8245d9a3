"""API keys: created, listed and revoked."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from sparkfleet.errors import ControlError
from sparkfleet.gateway.access.keys import generate, may_infer, rotate
from sparkfleet.gateway.routing_table import KeyEntry, KeyLimits
from sparkfleet.specs.fields import quote
from sparkfleet.values import Value

if TYPE_CHECKING:  # slow imports, of which only the types are used; every client imports this module
    from sparkfleet.controlplane.state.event_log import EventLog
    from sparkfleet.controlplane.state.report_cache import ReportCache
    from sparkfleet.controlplane.state.store import Store

CONFIRM_S = 5.0
"""Longest wait for the gateways after a key was created or revoked, seconds. They poll: one that works has it in 0.1 s."""


_NO_LIMITS = KeyLimits()


class KeyRow(Value):
    """One key, for people: never the key itself."""

    id: str
    name: str
    created: float
    """Unix seconds."""
    used: float | None = None
    """Unix seconds of its last request, to the minute; None: never."""
    may_use: tuple[str, ...] = ()
    """Deployments that it may use; () once it has expired."""
    limits: KeyLimits = KeyLimits()
    former_until: float | None = None
    """Unix seconds until which a text before the last rotation is accepted; None: none is."""


Late = frozenset[str]
"""Gateway replicas that do not know a change yet."""


class ApiKeys:
    """The keys of a fleet. Each change returns the gateways that do not know it yet.

    Args:
        store: keeps their names and hashes.
        reports: have the uses that are not stored yet.
        confirm: waits until the gateways know a change; returns those that do not.
    """

    def __init__(
        self, store: Store, event_log: EventLog, reports: ReportCache, confirm: Callable[[], Awaitable[Late]]
    ) -> None:
        self._store = store
        self._event_log = event_log
        self._reports = reports
        self._confirm = confirm

    def rows(self) -> tuple[KeyRow, ...]:
        """Each key with its last use and the deployments that it may use."""
        used = self._store.keys.used()
        for report in self._reports.gateways():
            used |= {key: at for key, at in report.keys_used.items() if at > used.get(key, 0.0)}
        wanted, now = self._store.deployments.desired(), time.time()
        return tuple(
            KeyRow(
                id=key.id,
                name=key.name,
                created=created,
                used=used.get(key.id),
                may_use=tuple(
                    n
                    for n, one in wanted.items()
                    if may_infer(key, now) and (not one.spec.keys or key.name in one.spec.keys)
                ),
                limits=key.limits,
                former_until=max((one.until for one in key.formers), default=None),
            )
            for key, created in self._store.keys.created()
        )

    async def create(self, name: str, limits: KeyLimits = _NO_LIMITS) -> tuple[str, KeyEntry, Late]:
        """Creates an API key; its text is returned once and never stored. Raises ControlError for a name that is taken."""
        text, key = generate(name, limits)
        with self._store.together():
            if not self._store.keys.add(key):
                raise ControlError(
                    f"There is already a key {quote(name)}.",
                    means="Its text was shown when it was created and is not stored.",
                    do=f"`sparkfleet keys rotate {name}` gives it a new text, and its limits stay; or choose another name.",
                )
            self._store.events.record("", 0, name, "key", f"key {name} created")
        return text, key, await self._announced()

    async def limit(self, name_or_id: str, limits: KeyLimits) -> tuple[KeyEntry, Late]:
        """Replaces the limits of a key. Raises ControlError if it does not exist."""
        key = self._known(name_or_id).model_copy(update={"limits": limits})
        return key, await self._change(key, "has new limits")

    async def rotate(self, name_or_id: str, until: float) -> tuple[str, KeyEntry, Late]:
        """Gives a key a new text, which is returned once; the old one is accepted `until` then, Unix seconds: see `rotate`.

        Raises ControlError if the key does not exist.
        """
        text, key = rotate(self._known(name_or_id), until, time.time())
        return text, key, await self._change(key, "rotated")

    async def revoke(self, name_or_id: str, request: str = "") -> tuple[str, Late]:
        """Revokes a key, which late gateways may still accept; returns its name. Raises ControlError if it does not exist.

        Args:
            name_or_id: of the key.
            request: see `FleetCommands`.
        """
        if (done := self._store.events.of_request(request)) is not None:
            return done.subject, await self._confirm()
        with self._store.together():
            key = self._store.keys.remove(name_or_id)
            if key is None:
                raise _no_key(name_or_id)
            self._store.events.record("", 0, key.name, "key", f"key {key.name} revoked", request=request)
        return key.name, await self._announced()

    async def _change(self, key: KeyEntry, what: str) -> Late:
        with self._store.together():
            self._store.keys.change(key)
            self._store.events.record("", 0, key.name, "key", f"key {key.name} {what}")
        return await self._announced()

    async def _announced(self) -> Late:
        await self._event_log.announce()
        return await self._confirm()

    def _known(self, name_or_id: str) -> KeyEntry:
        key = self._store.keys.named(name_or_id)
        if key is None:
            raise _no_key(name_or_id)
        return key


def _no_key(name_or_id: str) -> ControlError:
    return ControlError(
        f"There is no key {quote(name_or_id)}.", do="Run `sparkfleet keys list` to see all keys."
    )
