"""What an engine's own metrics say of its work."""

from __future__ import annotations

from typing import NamedTuple

from sparkfleet.control.canary import Probe
from sparkfleet.engines.base import Engine


class Load(NamedTuple):
    """What an engine does now."""

    running: int
    waiting: int
    tokens: float | None
    """Generated since it started; None where its metrics did not answer."""
    drafted: float = 0.0
    """Draft tokens proposed since it started; 0 without speculation."""
    accepted: float = 0.0


async def read_load(probe: Probe, engine: Engine) -> Load:
    """Ask an engine; of one without metrics it is nothing."""
    if not engine.metrics_path:
        return Load(running=0, waiting=0, tokens=0.0)  # nothing is known of its work
    names = (engine.running_metric, engine.waiting_metric, engine.tokens_metric)
    drafts = (engine.drafted_metric, engine.accepted_metric)
    found = await probe.gauges(engine.metrics_path, (*names, *filter(None, drafts)))
    return Load(
        running=int(found.get(names[0], 0)),
        waiting=int(found.get(names[1], 0)),
        tokens=found.get(names[2]),
        drafted=found.get(drafts[0], 0.0),
        accepted=found.get(drafts[1], 0.0),
    )
