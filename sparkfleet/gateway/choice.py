"""Candidate groups of one request, and the slot that it takes on one of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from sparkfleet.gateway.observed_groups import NOBODY, FreeGroups, ObservedGroups, RequestsAhead
from sparkfleet.gateway.policy.forecast import GroupForecast, reason_of
from sparkfleet.gateway.request.requirements import Requirements, can, too_small
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry, Priority

_SHOWN = 16
LEARN_S = 0.2
"""Shortest predicted prefill that is learned from: below it the first token's time is overhead."""
LEARN_TOKENS = 16
"""Fewest tokens of an answer that is learned from."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Candidate groups for one request."""

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
    spare: tuple[GroupEntry, ...] = ()
    """Endpoints outside the fleet that may serve it, in the order of the deployment."""
    wants: tuple[str, ...] = ()
    """Needs that only engines know (`wants_of`)."""
    apps: frozenset[str] = field(init=False)
    """Applications of `groups`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "apps", frozenset(one.app for one in self.groups))

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
        if free.any_of(self.apps):
            return True
        if not self.spare:
            return not self.apps
        are_open = self.apps <= free.failed
        return any(self.observed.has_room(one) for one in self.spare if are_open or _takes_the_waiting(one))

    def must_begin(self, free: FreeGroups) -> bool:
        """True if each group that it may go to has a free slot."""
        return self.apps <= free.room

    def forecasts(self, ahead: RequestsAhead = NOBODY) -> list[GroupForecast]:
        """The forecast of each group, best first, at this moment; those outside the fleet as a deployment allows."""
        own = self.observed.forecasts(self.groups, self.needs, self.model.name, self.session, ahead)
        return self._with_spare(own) if self.spare else own

    def _with_spare(self, own: list[GroupForecast]) -> list[GroupForecast]:
        """The fleet's groups before endpoints outside it, unless all of them failed lately or, for some, are full."""
        spare = [self.observed.forecasts([one], self.needs, self.model.name)[0] for one in self.spare]
        spare.sort(key=lambda one: (self.observed.is_open(one.group.app), one.is_full))
        if all(self.observed.is_open(one.group.app) for one in own):
            return [*spare, *own]
        if all(one.is_full or one.failed for one in own):
            now = [one for one in spare if _takes_the_waiting(one.group) and not one.is_full]
            now = [one for one in now if not self.observed.is_open(one.group.app)]
            return [*now, *own, *(one for one in spare if one not in now)]
        return [*own, *spare]

    def ranked(self) -> list[GroupEntry]:
        """The groups, best first, at this moment."""
        return [one.group for one in self.forecasts()]

    def explain(self, found: list[GroupForecast]) -> dict[str, Any]:
        """The decision for people and programs: the chosen group, the reason, each forecast, and who was left out."""
        able = {group.app for group in self.groups}
        left_out = {group.app: self._lack(group) for group in self.model.groups if group.app not in able}
        return {
            "model": self.model.name,
            "group": found[0].group.app if found else None,
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
        return f"its engine does not serve {' with '.join(self.wants)}"

    def _reason(self, found: list[GroupForecast]) -> str:
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


class Slot:
    """The place of one request on a group, until `close`. It moves with the request to another group.

    Args:
        found: forecasts of the candidates when the slot was granted, best first.
    """

    def __init__(self, choice: Choice, found: list[GroupForecast]) -> None:
        self.choice = choice
        self._observed = choice.observed
        self._needs = choice.needs
        self._model = choice.model.name
        self.found = found
        self._app = ""
        """The group that counts it; "" for none."""
        self._last = ""
        """The group of the last try."""
        self._common = ""
        """Its model, if nothing is predicted for that group (`LearnedSpeeds`)."""
        self._number = 0
        """Its number at that group."""
        self._cold = 0
        self._begun = perf_counter()
        self._first = 0.0
        self._expected = self._observed.learned.answer_tokens(self._model, self._needs.answer_tokens)
        """Tokens of the answer that the forecasts are for."""
        self._moved = False
        """True once it is not at its first group: the forecasts are not for this moment, or not for the whole answer."""
        if found:
            self.move(found[0].group)

    def move(self, group: GroupEntry) -> None:
        """Counts the request at another group."""
        if group.app == self._app:
            return
        moved = bool(self._app)
        self._leave()
        self._moved = bool(self._last)
        self._first = 0.0
        self._app = self._last = group.app
        self._forecast = next((one for one in self.found if one.group.app == group.app), None)
        warm = self._forecast.warm_tokens if self._forecast is not None else 0
        self._cold = max(0, self._needs.prompt_tokens - warm)
        self._common = "" if group.speed is not None else self._model
        self._factors = self._observed.learned.factors(self._app, self._common)
        self._number = self._observed.begin(self._app, self._cold)
        self._observed.caches.add(group, self._needs.prefix)
        self._observed.sessions.note(self.choice.session, group.app, self._needs.prompt_tokens)
        self._begun = perf_counter()
        if moved:
            self._observed.on_end()  # its new group is busier, so that another one may now be the best of those that wait

    def answered(self, *, is_stream: bool, is_good: bool = True) -> None:
        """Records the first byte of an answer: its prompt has been read. `is_good`: it is no error."""
        if not self._app or self._first:
            return
        if is_good:
            self._observed.succeed(self._app, self._number)
        self._first = perf_counter()
        self._observed.prefilled(self._app, self._cold)
        if self._cold:
            self._observed.on_end()  # the next prompt of this group is read sooner: it may be the best of those that wait
        self._cold = 0
        if is_stream and self._forecast is not None and not self._moved:
            predicted = (self._forecast.prefill_s + self._forecast.wait_s) / self._factors[0]
            if predicted >= LEARN_S and not self._forecast.is_full:
                self._observed.learned.saw_prefill(
                    self._app, predicted, self._first - self._begun, self._common
                )

    def ended(self, tokens: int, *, is_stream: bool) -> None:
        """Records a whole answer of so many tokens."""
        if tokens:
            self._observed.learned.saw_answer(self._model, tokens)
        learns = is_stream and self._first and not self._moved and tokens >= LEARN_TOKENS
        if not learns or self._forecast is None:
            return
        predicted = self._forecast.decode_s / self._factors[1] * tokens / max(1.0, self._expected)
        self._observed.learned.saw_decode(self._last, predicted, perf_counter() - self._first, self._common)

    def close(self) -> None:
        """Ends it: it no longer counts anywhere."""
        self._leave()

    def _leave(self) -> None:
        if self._app:
            app, self._app = self._app, ""
            if self._cold:
                self._observed.prefilled(app, self._cold)
                self._cold = 0
            self._observed.end(app, self._number)
