"""State of the exchange between a request and the engines that had it, by which its end is counted."""

from __future__ import annotations

from dataclasses import dataclass

from sparkfleet.gateway.admission.slot import Slot
from sparkfleet.gateway.engine.attempts import Attempts
from sparkfleet.gateway.engine.usage import UsageMeter


@dataclass(slots=True)
class EngineExchange:
    """A request that was given a slot, up to the last byte of its answer."""

    slot: Slot
    attempts: Attempts
    """The tries that led to its answer; after a continuation those of the group that continued it."""
    meter: UsageMeter | None = None
    """Meter of the answer; None before it begins."""
    is_stream: bool = False
    lost_apps: tuple[str, ...] = ()
    """Groups that were lost while they answered it."""
    replays: tuple[str, ...] = ()
    """Outcome of each try to continue it on another group: `continued`, `failed`."""
