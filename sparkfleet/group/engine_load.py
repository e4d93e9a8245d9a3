"""Load of an engine, read from its own metrics."""

from __future__ import annotations

from typing import NamedTuple

from sparkfleet.engines.base import DraftTokenCounts, Engine
from sparkfleet.group.probe import Probe, sum_series, sums_by_position


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
    draft_steps: float = 0.0
    """Verifications of one request's draft each; 0 if the engine does not count them."""
    accepted_by_position: tuple[float, ...] = ()
    """Accepted draft tokens by their position in the draft; () if the engine does not count them."""


async def read_load(probe: Probe, engine: Engine, draft_tokens: int) -> Load:
    """Reads an engine's load; 0 for an engine without metrics. `draft_tokens`: of one step, 0 without speculation."""
    if not engine.metrics_path:
        return Load(running=0, waiting=0, figures=None)  # it has no metrics
    gauges = (engine.running_metric, engine.waiting_metric)
    moving = (engine.tokens_metric, *engine.step_metrics)
    counters = engine.draft_metrics if draft_tokens else ()
    page = await probe.page(engine.metrics_path)
    found = sum_series(page, (*gauges, *moving, *counters)) if page else {}
    drafts = engine.drafts(found, draft_tokens) if counters else DraftTokenCounts()
    positions = engine.draft_positions if draft_tokens else None
    return Load(
        running=int(found.get(gauges[0], 0)),
        waiting=int(found.get(gauges[1], 0)),
        figures=tuple(found[name] for name in moving) if found else None,
        drafted=drafts.proposed,
        accepted=drafts.accepted,
        draft_steps=drafts.steps,
        accepted_by_position=sums_by_position(page, positions) if positions else (),
    )
