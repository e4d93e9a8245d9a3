"""Forecast of a request on each group, and the order of the groups. Pure.

1. Groups that failed lately (`Circuit`) come last: those that wait for the others must not be sent to them.
2. Doubts: groups with unknown capabilities, or with less context than an overestimate of the request, come behind others.
3. Predicted finish: waiting for a slot and for earlier prompts, the prompt's own part that is not cached, the answer
   at the speed that the group has under its present load. A warm prefix counts as the seconds of prefill that it saves, so
   that a request waits for it exactly as long as that is worth: with one prefix in all prompts the least busy group wins;
   routers with a threshold sent everything to one (sgl-project/sglang#21199).
4. Equal ones take turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sparkfleet.gateway.policy.speeds import decode_tps, prefill_tps
from sparkfleet.gateway.request.requirements import Ability, Requirements, doubts
from sparkfleet.gateway.routing_table import GroupEntry


class GroupLoad(NamedTuple):
    """One group at this moment."""

    group: GroupEntry
    held: int = 0
    """Requests in flight."""
    pending: int = 0
    """Tokens of prompts whose first token has not come."""
    failed: bool = False
    """Its circuit is open (`Circuit`)."""
    turn: int = 0
    """Number of its last request, among all; 0: none."""
    warm: float = 0.0
    """Share of the prompt that it has probably cached, 0 to 1."""
    prefill_factor: float = 1.0
    """Learned: measured over predicted seconds."""
    decode_factor: float = 1.0


class GroupForecast(NamedTuple):
    """The forecast of a request on one group."""

    group: GroupEntry
    doubts: tuple[int, int]
    """Unknown capabilities, and missing tokens of context."""
    wait_s: float
    prefill_s: float
    decode_s: float
    warm_tokens: int
    is_full: bool
    """True if all its slots are taken."""
    failed: bool
    """True if its circuit is open."""
    turn: int

    @property
    def total_s(self) -> float:
        """Seconds to the end of the answer."""
        return self.wait_s + self.prefill_s + self.decode_s

    def line(self) -> dict[str, Any]:
        """The forecast for people and programs."""
        unknown, short = self.doubts
        line: dict[str, Any] = {
            "group": self.group.name,
            "finish_s": round(self.total_s, 3),
            "wait_s": round(self.wait_s, 3),
            "prefill_s": round(self.prefill_s, 3),
            "decode_s": round(self.decode_s, 3),
            "warm_tokens": self.warm_tokens,
        }
        if self.group.external is not None:
            line["external"] = self.group.external.url
        if self.is_full:
            line["full"] = True
        if unknown:
            line["unknown_capabilities"] = unknown
        if short:
            line["missing_context"] = short
        return line


def forecasts(loads: Sequence[GroupLoad], needs: Requirements, answer_tokens: float) -> list[GroupForecast]:
    """The forecast of each group, best first. `answer_tokens`: tokens that the answer will probably have."""
    fewest = min((load.group.concurrency for load in loads if load.group.concurrency), default=1)
    abilities = needs.abilities
    found = [_forecast(load, needs, abilities, answer_tokens, fewest) for load in loads]
    found.sort(key=_order)
    return found


def _order(one: GroupForecast) -> tuple[bool, tuple[int, int], float, int]:
    _, doubts, wait_s, prefill_s, decode_s, _, _, failed, turn = one
    return failed, doubts, wait_s + prefill_s + decode_s, turn


def _forecast(
    load: GroupLoad, needs: Requirements, abilities: tuple[Ability, ...], answer_tokens: float, fewest: int
) -> GroupForecast:
    group, held, pending, failed, turn, warm, prefill_factor, decode_factor = load
    slots = group.concurrency
    is_full = bool(slots) and held >= (slots or 0)
    slots = slots or fewest
    rate = prefill_tps(group) / prefill_factor
    decode_s = answer_tokens / decode_tps(group, held, slots) * decode_factor
    wait_s = pending / rate
    if held >= slots and group.speed is not None:
        wait_s += (held - slots + 1) / slots * decode_s
    prompt = needs.prompt_tokens
    warm_tokens = int(warm * prompt)
    prefill_s = (prompt - warm_tokens) / rate
    unsure = doubts(group, needs, abilities)
    return GroupForecast(group, unsure, wait_s, prefill_s, decode_s, warm_tokens, is_full, failed, turn)


def reason_of(found: Iterable[GroupForecast]) -> str:
    """The reason for the first of the groups, in words."""
    ranked = list(found)
    if len(ranked) == 1:
        return "the only group that can serve it"
    best, others = ranked[0], [one for one in ranked[1:] if one.failed <= ranked[0].failed]
    if not others:
        return "the only group that has not failed lately"
    if any(other.doubts > best.doubts for other in others) and min(o.total_s for o in others) < best.total_s:
        return "its capabilities and its context are known to suffice; those of faster groups are not"
    quickest = min(others, key=lambda other: other.total_s)
    if best.warm_tokens > quickest.warm_tokens:
        return f"finishes first: {best.warm_tokens} tokens of the prompt are probably cached"
    if best.total_s < quickest.total_s:
        return "finishes first"
    return "as fast as others, and idle for the longest time"
