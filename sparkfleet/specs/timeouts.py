"""Waits of a fleet before it declares an engine dead or restarts it. Seconds.

They are values of the inventory: a test of minutes waits for seconds by the same code, and a fleet with a habit of its own
(a prefill that moves no figure, a workload that is slow to answer) need not be changed in its source.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sparkfleet.specs.fields import Spec

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Timeouts(Spec):
    """Waits of a fleet, seconds. Leave them out unless you know why: each default has its reason."""

    stuck_s: Seconds = 20.0
    """With work in hand and no figure that moves for this long, an engine is asked for a token: short enough for somebody
    who waits."""
    idle_s: Seconds = 60.0
    """The same of an engine that has nothing in hand by its own figures. If it hangs, they show nothing: vLLM writes them
    after a step, TensorRT-LLM after an answer, so that a hang which began in a rest reads like the rest going on."""
    proof_s: Seconds = 30.0
    """The least that the token is waited for; a long prefill has longer."""
    health_every_s: Seconds = 10.0
    """Between two questions to a custom workload for its health."""
    unwell_s: Seconds = 60.0
    """A custom workload that has answered no question for this long hangs: what it does for a client may keep it from
    answering for a while, and one that is stopped takes all of its clients' work with it."""
    pause_s: Seconds = 1.0
    """Before an engine is started again that has just ended for the second time; twice as long each further time."""
    longest_pause_s: Seconds = 60.0
    """The most of that: an engine takes about that long to load, or more, so that a longer pause would be noticed."""
