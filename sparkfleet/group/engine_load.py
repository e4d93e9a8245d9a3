"""Load of an engine, read from its own metrics."""

from __future__ import annotations

from typing import NamedTuple

from sparkfleet.engines.base import DraftTokenCounts, Engine
from sparkfleet.group.probe import Probe


class Load(NamedTuple):
    """Current load of an engine."""

    running: int
    waiting: int
    figures: tuple[float, ...] | None
    """Tokens generated since it started, and its other counters that move while it works; None if its metrics did not
    answer."""
    drafted: float = 0.0
    """Draft tokens proposed since it started; 0 without speculation."""
    accepted: float = 0.0


async def read_load(probe: Probe, engine: Engine, draft_tokens: int) -> Load:
    """Reads an engine's load; 0 for an engine without metrics. `draft_tokens`: of one step, 0 without speculation."""
    if not engine.metrics_path:
        return Load(running=0, waiting=0, figures=None)  # it has no metrics
    gauges = (engine.running_metric, engine.waiting_metric)
    moving = (engine.tokens_metric, *engine.step_metrics)
    counters = engine.draft_metrics if draft_tokens else ()
    found = await probe.gauges(engine.metrics_path, (*gauges, *moving, *counters))
    drafts = engine.drafts(found, draft_tokens) if counters else DraftTokenCounts()
    return Load(
        running=int(found.get(gauges[0], 0)),
        waiting=int(found.get(gauges[1], 0)),
        figures=tuple(found[name] for name in moving) if found else None,
        drafted=drafts.proposed,
        accepted=drafts.accepted,
    )
