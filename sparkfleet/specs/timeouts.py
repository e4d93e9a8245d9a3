"""Waits of a fleet before it declares an engine dead or restarts it. Seconds.

They are fields of the inventory: tests wait seconds instead of minutes with the same code, and a fleet with unusual engines
(a prefill during which no counter moves, a workload with a slow health check) needs no change of the source.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sparkfleet.specs.fields import Spec

Seconds = Annotated[float, Field(gt=0, le=86_400)]

GIVEN_BACK_S = 180.0
"""Seconds until a stopped engine's memory is available again. On a Spark that takes 120 s and more after the engine closes
its port (jschmied/dgx-spark-setup-guide)."""


class Timeouts(Spec):
    """Waits of a fleet, seconds. Leave them out unless you know why: each default has its reason."""

    stuck_s: Seconds = 20.0
    """An engine with requests in flight is probed with one token if none of its counters has moved for this long: short
    enough for a person who waits for an answer."""
    idle_s: Seconds = 60.0
    """The same for an engine that is idle by its own metrics. A hang does not show in them: vLLM updates them after a step,
    TensorRT-LLM after an answer, so an engine that hung while idle keeps looking idle."""
    proof_s: Seconds = 30.0
    """Shortest time limit of that probe; it is longer during a long prefill."""
    health_every_s: Seconds = 10.0
    """Time between two health checks of a custom workload."""
    unwell_s: Seconds = 60.0
    """A custom workload without a successful health check for this long is considered hung. Work for a client may delay a
    check for a while, and a restart would lose the work of all its clients."""
    memory_s: Seconds = GIVEN_BACK_S
    """A start waits for its memory this long; a group waits as long for one that was started later to free it."""
    drain_s: Seconds = 600.0
    """Requests of an engine that is replaced, deleted or ended for another's memory may end within this time, and are cut
    then: as long as OpenAI's and Anthropic's clients wait. At 20 tok/s that is 12,000 tokens. Those of an engine that
    hangs or exits, or whose node runs out of memory, are cut at once; `down` waits 60 s."""
    pause_s: Seconds = 1.0
    """Pause before an engine that has ended twice is started again; it doubles each further time."""
    longest_pause_s: Seconds = 60.0
    """Longest such pause. An engine takes about as long to load, or longer, so a longer pause would be noticeable."""
