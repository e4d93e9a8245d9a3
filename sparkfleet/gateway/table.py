"""What the gateway knows: which models exist, in which state, and who may use them.

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


class ModelEntry(Value):
    """One public model name."""

    name: str
    apps: tuple[str, ...]
    """Serve applications that serve it, one per group that is ready."""
    deployment: str
    """Serve deployment inside each of them."""
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

    def allows(self, key: KeyEntry) -> bool:
        """Whether `key` may use this model."""
        return not self.keys or key.name in self.keys


class Table(Value):
    """Everything the gateway needs to answer or to refuse. `version` is 0 as long as nothing is known."""

    version: int = 0
    models: dict[str, ModelEntry] = Field(default_factory=dict)
    keys: tuple[KeyEntry, ...] = ()

    def visible_to(self, key: KeyEntry) -> list[ModelEntry]:
        """The models that `key` may use, by name."""
        return [entry for _, entry in sorted(self.models.items()) if entry.allows(key)]
