"""Speculation in an engine's own words: the method's name, and its depth by load. Pure."""

from __future__ import annotations

from typing import NamedTuple

from sparkfleet.errors import Cause, EngineError
from sparkfleet.knowledge.engines.images import images_of
from sparkfleet.knowledge.engines.method_support import (
    MethodSupport,
    lacks,
    names_of,
    support_of,
    takes_schedule,
)
from sparkfleet.planner.types.plan import ENGINE_LABELS, Candidate
from sparkfleet.specs.fields import quote


class DepthRange(NamedTuple):
    """Draft tokens per step for a range of batches."""

    first: int
    """Requests at once, the smallest of the range."""
    last: int
    tokens: int


def own_method(candidate: Candidate) -> MethodSupport:
    """The candidate's method by its engine's name for it.

    Raises:
        EngineError: the engine has no such method, or this release does not.
    """
    engine, method = candidate.engine, candidate.speculation.method
    label, support = ENGINE_LABELS[engine], support_of(engine, method)
    if support is None:
        raise EngineError(
            f"{label} has no speculative method {quote(method)}.",
            means="NEXTN is SGLang's name for the heads of the checkpoint; other engines call them mtp."
            if method == "nextn"
            else "",
            do=f"Set `speculation` to one of: {', '.join(names_of(engine))}.",
            because=Cause.FLAG,
        )
    if lacks(engine, candidate.engine_version, method) and not _seen(candidate):
        raise EngineError(
            f"{label} {candidate.engine_version} has no speculative method {quote(method)}: it came with {support.since}.",
            do="Set another `image` or another `speculation`.",
            because=Cause.FLAG,
        )
    return support


def _seen(candidate: Candidate) -> bool:
    """True if the image is known to have the method: a fork may have it before the release of its version number."""
    known = images_of(candidate.image) if candidate.image else ()
    return any(candidate.speculation.method in build.methods for build in known)


def depth_ranges(candidate: Candidate) -> tuple[DepthRange, ...]:
    """The depth alone and under load; () if it is one for all, or this release takes only one.

    The ranges are without gaps, up to the requests that the candidate has at once.
    """
    wanted, most = candidate.speculation, candidate.concurrency
    if wanted.busy is None or wanted.busy_from is None or wanted.busy_from > most:
        return ()
    if not takes_schedule(candidate.engine, candidate.engine_version, wanted.method):
        return ()
    few = DepthRange(1, wanted.busy_from - 1, wanted.tokens)
    return (few, DepthRange(wanted.busy_from, most, wanted.busy))
