"""Ranks proposals: the objective's value of the predicted speed, less a discount for weak evidence. Pure."""

from __future__ import annotations

import math

from sparkfleet.knowledge.rules import Penalise
from sparkfleet.perf.predictor import Settings
from sparkfleet.planner.capacity.sizing import Proposal, VariantContext
from sparkfleet.planner.place.stacks import Stack, proves
from sparkfleet.planner.rules.judgement import RuleJudgement

DEMOTION = 0.75
"""Discount of a candidate that a report calls slow without a number. Affects the ranking, not the predictions."""
NODES_COST = 0.7
"""The value of an answer falls with nodes to this power: twice the nodes have to be 1.6 times as fast. Well-tuned TP=2 of
dense models is 1.7 to 2.1 times as fast, the badly joined 1.0 to 1.2 (benchmark notes, topology)."""
UNPROVEN = 0.9
"""Discount of a candidate if no measurement of its method on its image is published."""


def worth(case: VariantContext, draft: Proposal, settings: Settings, context: int) -> float:
    """Value of a proposal under the objective. Only comparable within one deployment.

    More nodes have to be earned: a doubling has to bring most of what a perfect one would (NODES_COST). For throughput
    all nodes that there are count, each group with its part of the requests.
    """
    outlook, ranks = case.outlook, draft.split.ranks
    if case.objective == "throughput":
        groups = case.groups(ranks)
        each = outlook.rates(draft.split, settings, context, -(-case.concurrency // groups))
        return groups * each.decode_tps_aggregate.mid
    alone = outlook.rates(draft.split, settings, context, 1)
    ttft = alone.ttft_ms.mid / 1000 if alone.ttft_ms else 0.0
    quick = 1.0 / (ttft + 256 / alone.decode_tps_per_request.mid) / math.pow(ranks, NODES_COST)
    return quick if case.objective == "interactive" else context * 1e6 + quick


def doubt(stack: Stack, draft: Proposal, verdict: RuleJudgement) -> float:
    """Discount for evidence without a number."""
    factor = stack.evidence * (UNPROVEN if proves(stack, draft.speculation.method) is False else 1.0)
    for finding in verdict.penalties:
        then = finding.rule.then
        if isinstance(then, Penalise) and then.factor is None and then.metric == "decode_tps":
            factor *= DEMOTION
    return factor
