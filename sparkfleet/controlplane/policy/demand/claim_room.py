"""Room for a claim: the loaded deployments that end for it, and when.

- One without a request for `UNUSED_S` ends at once;
- one that is used when it has served for as long as its own start took, and for `LEAST_SERVED_S` at least: two deployments
  with steady requests then take turns, and spend at most half of the time on starts (the rule of ski rental). The start
  with which it became ready counts also if an edit has replaced that group since;
- any of them ends at once for a deployment that is not on demand.

Those that were used longest ago end first, as many as are needed, once all of them may end. None ends for memory that is
free and reserved for further groups of some that may end: such a group waits instead. At the end of its deployment it would
not start either.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.controlplane.policy.demand.loaded_memory import fewest, given_back, held_memory, loaded
from sparkfleet.controlplane.policy.demand.memory_claims import Claim
from sparkfleet.controlplane.policy.memory_admission import FreeMemory, added
from sparkfleet.controlplane.policy.state import FleetState, Now
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.group.report import GroupPhase

UNUSED_S = 10.0
"""Seconds without a request after which a loaded deployment ends for another: an agent's calls of tools take seconds."""
LEAST_SERVED_S = 60.0
"""Seconds that a loaded deployment with requests serves, at least, before it ends for another."""
OTHERS_START = "it starts once the memory is known that others take which start now"
"""The reason of a wait, in words."""


class ClaimRoom:
    """The loaded deployments that may end for a claim."""

    def __init__(self, state: FleetState, now: Now, claim: Claim, free: FreeMemory) -> None:
        self._state = state
        self._now = now
        self._claim = claim
        self._ending = given_back(state, claim.needs)
        # Some of the memory that is kept for groups that start is taken already, and counted twice.
        self._starting = free.starting if claim.since is not None else {}
        holders = sorted((one for one in loaded(state) if one.name != claim.desired.name), key=self._used_at)
        reserved = free.reserved
        further = [
            (one, reserved[one.name]) for one in holders if one.name in reserved and self._may_end(one)
        ]
        self.to_wait = fewest(free.lacking(claim.needs), further) or []
        """Those of which no further group starts now, so that the claim fits beside all that run; empty if it does not."""
        chosen: list[Desired] | None = None
        for needs in (claim.needs, claim.planned):
            if not (lacking := free.lacking(needs)):
                break  # the middle of its band fits as it is
            held = ((one, added(held_memory(state, one), reserved.get(one.name, {}))) for one in holders)
            chosen = fewest(self._later(lacking), held)
            if chosen is not None:
                break
        self.is_under_way = chosen is not None
        """True if memory is about to be given back, or will be once what is used has had its time."""
        self._chosen = chosen or []
        self.to_end = self._chosen if all(map(self._may_end, self._chosen)) else []

    def words(self) -> str:
        """The event that the claim waits for, in words."""
        if self._chosen:
            names = " and ".join(each.name for each in self._chosen)
            ends = "ends" if len(self._chosen) == 1 else "end"
            return f"it starts once {names} {ends}, which {'has' if ends == 'ends' else 'have'} its memory"
        if self._ending:
            return "it starts once the memory of what has just ended is free"
        return OTHERS_START

    def _later(self, lacking: Mapping[str, int]) -> dict[str, int]:
        """Bytes that will still be missing when what ends has ended, and what starts has started."""
        back = added(self._ending, self._starting)
        return {node: need - back.get(node, 0) for node, need in lacking.items() if need > back.get(node, 0)}

    def _used_at(self, one: Desired) -> float:
        demand = self._state.demand.get(one.name)
        return demand.used_at if demand is not None else self._now.steady

    def _may_end(self, one: Desired) -> bool:
        if self._claim.since is None:
            return True
        if (demand := self._state.demand.get(one.name)) is None:
            return False
        if demand.unused_s >= UNUSED_S:
            return True
        if demand.ready_since is None:
            return False
        start_s = demand.longest_start_s
        for app in self._state.apps:
            if app.deployment == one.name and app.status in ("starting", "running"):
                report = self._state.report(app.group)
                if report is None or report.phase is not GroupPhase.READY:
                    return False  # it starts, or its seconds are not known: the controller or its actor has just started
                start_s = max(start_s, report.started_s or 0.0)
        # Also between two requests: those of an agent may be so short that no report finds one in flight.
        return self._now.steady - demand.ready_since >= max(LEAST_SERVED_S, start_s)
