"""Slot of a request on one of its candidate groups, and what the group's speed is learned from."""

from __future__ import annotations

from time import perf_counter

from sparkfleet.gateway.candidate_groups import CandidateGroups
from sparkfleet.gateway.policy.forecast import GroupForecast
from sparkfleet.gateway.routing_table import GroupEntry

LEARN_S = 0.2
"""Shortest predicted prefill that is learned from: below it the first token's time is overhead."""
LEARN_TOKENS = 16
"""Fewest tokens of an answer that is learned from."""


class Slot:
    """The place of one request on a group, until `close`. It moves with the request to another group.

    Args:
        candidates: the groups that it may be on.
        found: their forecasts when the slot was granted, best first.
    """

    def __init__(self, candidates: CandidateGroups, found: list[GroupForecast]) -> None:
        self.candidates = candidates
        self._observed = candidates.observed
        self._needs = candidates.needs
        self._model = candidates.model.name
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
        self._observed.sessions.note(self.candidates.session, group.app, self._needs.prompt_tokens)
        self._begun = perf_counter()
        if moved:
            self._observed.on_end()  # its new group is busier, so that another one may now be the best of those that wait

    def note_answer(self, *, is_stream: bool, is_good: bool = True) -> None:
        """Records the first byte of an answer: its prompt has been read. `is_good`: it is no error."""
        if not self._app or self._first:
            return
        if is_good:
            self._observed.succeed(self._app, self._number)
        self._first = perf_counter()
        self._observed.end_prefill(self._app, self._cold)
        if self._cold:
            self._observed.on_end()  # the next prompt of this group is read sooner: it may be the best of those that wait
        self._cold = 0
        if is_stream and self._forecast is not None and not self._moved:
            predicted = (self._forecast.prefill_s + self._forecast.wait_s) / self._factors[0]
            if predicted >= LEARN_S and not self._forecast.is_full:
                self._observed.learned.saw_prefill(
                    self._app, predicted, self._first - self._begun, self._common
                )

    def note_end(self, tokens: int, *, is_stream: bool) -> None:
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
                self._observed.end_prefill(app, self._cold)
                self._cold = 0
            self._observed.end(app, self._number)
