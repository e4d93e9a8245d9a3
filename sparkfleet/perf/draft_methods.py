"""Speculative methods as the speed model names them, and one draft with other depths. Pure."""

from __future__ import annotations

from sparkfleet.perf.prediction import Speculation

PARALLEL_DRAFTS = ("dflash", "dflash2", "dspark")
"""Drafters that propose all k tokens in one pass."""
SPEED_METHODS = {"nextn": "mtp"}
"""Speculative methods that are one thing to the speed model: SGLang's NEXTN is the checkpoint's own MTP head."""
DEEPER = 2
"""Draft tokens beyond the planned depth that are looked at: of a head that drafts one token after the other. A parallel
drafter has no more than its block."""


def speed_method(method: str) -> str:
    """The name of a method for the speed model."""
    return SPEED_METHODS.get(method, method)


def as_counted(speculation: Speculation) -> Speculation:
    """The draft by its name for the speed model: SGLang's NEXTN is the same head as the others' MTP."""
    return speculation.model_copy(update={"method": speed_method(speculation.method)})


def deepest(speculation: Speculation) -> int:
    """The largest depth of a draft that is looked at beside the planned one."""
    parallel = speculation.method in PARALLEL_DRAFTS
    return speculation.tokens + (0 if parallel else DEEPER)


def at_depth(speculation: Speculation, tokens: int) -> Speculation:
    """The same draft with so many draft tokens per step, for any load; 0: no speculation."""
    if not tokens:
        return Speculation()
    chain = speculation.beam_tokens is not None
    return speculation.model_copy(
        update={
            "tokens": tokens,
            "beam_tokens": tokens + 1 if chain else None,
            "busy": None,
            "busy_from": None,
        }
    )
