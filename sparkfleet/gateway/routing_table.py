"""Routing table of the gateway: models, their state, and the keys that may use them.

The controller writes a new `Table` whenever something changes; the gateway swaps it in whole. If the
controller is gone, the last table keeps serving.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparkfleet.values import Value

ModelState = Literal["ready", "starting", "stopped", "failed"]


class KeyEntry(Value):
    """An API key as it is stored: the key itself is shown once, when it is made, and kept nowhere."""

    id: str
    name: str
    sha256: str
    """Lower-case hexadecimal digest of the key."""


class GroupEntry(Value):
    """One group of a deployment, and what it can do. None: not known, which excludes nothing."""

    app: str
    """Its Serve application."""
    ready: bool = True
    """Whether it takes requests. Those that do not are here for what they will be able to do."""
    vision: bool | None = None
    """Whether it takes images."""
    tools: bool | None = None
    """Whether it reads the calls of tools that its model makes."""
    context: int | None = None
    """Longest prompt plus answer, in tokens."""
    concurrency: int | None = None
    """Requests that it decodes together."""


class ModelEntry(Value):
    """One public model name."""

    name: str
    groups: tuple[GroupEntry, ...] = ()
    """Every group that serves it or is to serve it."""
    deployment: str
    """Serve deployment inside each group's application."""
    state: ModelState
    detail: str = ""
    """What is happening, in words for the person who asks: "loading weights, 40 of 100 GiB"."""
    retry_after_s: int = 5
    """What `Retry-After` says while it is not ready."""
    created: int = 0
    """Seconds since the epoch, as `/v1/models` reports it."""
    context: int | None = None
    """Longest prompt plus answer, in tokens."""
    keys: tuple[str, ...] = ()
    """Names of the keys that may use it; empty means every key."""

    @property
    def apps(self) -> tuple[str, ...]:
        """Serve applications that serve it, one per group that is ready."""
        return tuple(group.app for group in self.groups if group.ready)

    def allows(self, key: KeyEntry) -> bool:
        """True if `key` may use this model."""
        return not self.keys or key.name in self.keys


class RoutingTable(Value):
    """Everything the gateway needs to answer or to refuse. `version` is 0 as long as nothing is known."""

    version: int = 0
    models: dict[str, ModelEntry] = Field(default_factory=dict)
    keys: tuple[KeyEntry, ...] = ()

    def visible_to(self, key: KeyEntry) -> list[ModelEntry]:
        """The models that `key` may use, by name."""
        return [entry for _, entry in sorted(self.models.items()) if entry.allows(key)]
