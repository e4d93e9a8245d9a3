"""Candidate groups of one request: their forecasts in order, and the reason for the first one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sparkfleet.gateway.observed_groups import NOBODY, FreeGroups, ObservedGroups, RequestsAhead
from sparkfleet.gateway.policy.forecast import GroupForecast, reason_of
from sparkfleet.gateway.request.requirements import Requirements, can, too_small
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry, Priority

_SHOWN = 16


@dataclass(slots=True)  # not frozen: that would take longer for each request
class CandidateGroups:
    """Candidate groups for one request. Nothing of it changes."""

    model: ModelEntry
    groups: tuple[GroupEntry, ...]
    """The ready groups that may serve it, by their known capabilities."""
    needs: Requirements
    observed: ObservedGroups
    key: str = ""
    """Id of its key."""
    priority: Priority = "interactive"
    session: str = ""
    """Name of its session, with that of its key; "" for none."""
    external: tuple[GroupEntry, ...] = ()
    """Endpoints outside the fleet that may serve it, in the order of the deployment."""
    engine_needs: tuple[str, ...] = ()
    """Needs that only engines know (`engine_needs_of`)."""
    apps: frozenset[str] = field(init=False)
    """Applications of `groups`."""

    def __post_init__(self) -> None:
        self.apps = frozenset([one.app for one in self.groups])

    @property
    def wait_for_start(self) -> bool:
        """True if there are none yet, because the model starts on demand."""
        return not self.groups and self.model.awaits_start

    def larger_later(self, context: int) -> GroupEntry | None:
        """The group with the largest context, if it has more than this and is not ready."""
        known = [one for one in self.model.groups if one.context is not None]
        largest = max(known, key=lambda one: one.context or 0, default=None)
        return (
            largest
            if largest is not None and not largest.ready and (largest.context or 0) > context
            else None
        )

    def may_begin(self, free: FreeGroups) -> bool:
        """True if a group that it may go to has a free slot. Without one it waits, whatever the forecasts are."""
        if self.wait_for_start:
            return False
        if free.any_of(self.apps):
            return True
        if not self.external:
            return not self.apps
        all_failed = self.apps <= free.failed
        return any(
            self.observed.has_room(one) for one in self.external if all_failed or _takes_the_waiting(one)
        )

    def must_begin(self, free: FreeGroups) -> bool:
        """True if each group that it may go to has a free slot."""
        return self.apps <= free.room

    def forecasts(self, ahead: RequestsAhead = NOBODY) -> list[GroupForecast]:
        """The forecast of each group, best first, at this moment; those outside the fleet as a deployment allows."""
        own = self.observed.forecasts(self.groups, self.needs, self.model.name, self.session, ahead)
        return self._with_external(own) if self.external else own

    def _with_external(self, own: list[GroupForecast]) -> list[GroupForecast]:
        """The fleet's groups before endpoints outside it, unless all of them failed lately or, for some, are full."""
        external = [self.observed.forecasts([one], self.needs, self.model.name)[0] for one in self.external]
        external.sort(key=lambda one: (self.observed.circuit_is_open(one.group.app), one.is_full))
        if all(self.observed.circuit_is_open(one.group.app) for one in own):
            return [*external, *own]
        if all(one.is_full or one.failed for one in own):
            now = [one for one in external if _takes_the_waiting(one.group) and not one.is_full]
            now = [one for one in now if not self.observed.circuit_is_open(one.group.app)]
            return [*now, *own, *(one for one in external if one not in now)]
        return [*own, *external]

    def ranked(self) -> list[GroupEntry]:
        """The groups, best first, at this moment."""
        return [one.group for one in self.forecasts()]

    def explain(self, found: list[GroupForecast]) -> dict[str, Any]:
        """The decision for people and programs: the chosen group, the reason, each forecast, and who was left out."""
        able = {group.app for group in self.groups}
        left_out = {group.name: self._lack(group) for group in self.model.groups if group.app not in able}
        return {
            "model": self.model.name,
            "group": found[0].group.name if found else None,
            "why": self._reason(found),
            "prompt_tokens": self.needs.prompt_tokens,
            "groups": [self._line(one) for one in found[:_SHOWN]],
            "left_out": left_out,
        }

    def _line(self, one: GroupForecast) -> dict[str, Any]:
        line = one.line()
        if circuit := self.observed.circuit_line(one.group.app):
            line["circuit"] = circuit
        return line

    def _lack(self, group: GroupEntry) -> str:
        if not can(group, self.needs):
            return "takes no " + " or ".join(
                one for one in self.needs.abilities if getattr(group, one) is False
            )
        if not group.ready:
            return "is not ready"
        if too_small([group], self.needs) is not None:
            return f"its context of {group.context} tokens is too short"
        return f"its engine does not serve {' with '.join(self.engine_needs)}"

    def _reason(self, found: list[GroupForecast]) -> str:
        if self.wait_for_start:
            return "the model starts on demand: the request waits for that"
        if not found:
            return "no group can serve it"
        if (address := found[0].group.external) is None:
            return reason_of([one for one in found if one.group.external is None])
        if not self.groups:
            return f"no ready group can serve it: spills over to {address.url}"
        full = any(one.is_full for one in found if one.group.external is None)
        return f"its groups {'are full' if full else 'failed lately'}: spills over to {address.url}"


def _takes_the_waiting(group: GroupEntry) -> bool:
    return group.external is not None and group.external.when == "busy"
