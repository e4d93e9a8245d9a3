"""Tokens per step of speculative decoding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sparkfleet.perf.draft_methods import PARALLEL_DRAFTS

if TYPE_CHECKING:  # the controller has none of these
    from sparkfleet.knowledge.published.factors import Factors
    from sparkfleet.perf.latency.step_costs import SpeedConfig
    from sparkfleet.perf.workload import Content

CEILING = 0.97
"""No drafter is right more often, whatever the text: structured text reaches 0.98 (vtimuchen-lab/qwen38-mtp)."""
EVEN = 0.93
"""Tok/s of all over the sum of each one's if requests draft: each ends in its own time, the last ones run alone. Median
of 77 published pairs of 17 sources."""


def acceptance_keys(setup: SpeedConfig, content: Content) -> tuple[str, ...]:
    """Factors of acceptance, from the general to the particular."""
    method, family = setup.method, setup.shape.family
    drafter = "parallel" if method in PARALLEL_DRAFTS else "serial"
    return (
        f"method={method}",
        f"content={content}",
        f"drafter+content={drafter}+{content}",
        f"method+content={method}+{content}",
        f"family={family}",
        f"method+family={method}+{family}",
        f"method+depth={method}+{min(setup.k, 9) // 3}",
    )


def acceptance(setup: SpeedConfig, content: Content, factors: Factors) -> float:
    """Chance that one more draft token is accepted, given that those before it were."""
    known = factors.acceptance
    logit = math.fsum(known[key].log for key in acceptance_keys(setup, content) if key in known)
    return CEILING / (1.0 + math.exp(-logit))


def tokens_per_step(chance: float, k: int) -> float:
    """Expected tokens of one step that verifies `k` drafts: the accepted ones and one more, 1 + p + … + p^k."""
    return (1.0 - chance ** (k + 1)) / (1.0 - chance)
