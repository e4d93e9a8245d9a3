"""Discounts for what no predicted rate has: wrong results, and prefills of earlier turns that a cache would save. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sparkfleet.knowledge.rules.rules import Require
from sparkfleet.perf.workload import ANSWER, PROMPT, conversation_of
from sparkfleet.planner.rules.judgement import RuleJudgement
from sparkfleet.planner.search.objective import SizedProposal
from sparkfleet.planner.types.rung_facts import RepeatedPrefill

UNCURED = 0.25
"""Discount of a candidate that is known to compute wrong results, without a published cure: a choice, not a measurement.
What is four times as slow is preferred, as wrong answers are worse than none."""
OFF_FLAGS = frozenset(("--no-enable-prefix-caching", "--disable-radix-cache"))
"""Flags that switch the prefix cache of vLLM and of SGLang off."""


def repeated_prefill(
    sized: SizedProposal, verdict: RuleJudgement, args: Sequence[str]
) -> RepeatedPrefill | None:
    """The tokens that each turn of a conversation prefills again, with the time to the first token; None if there are none.

    A turn has as many tokens before it as a conversation of the deployment's kind of text, or as its context has room for.

    Args:
        sized: the proposal.
        verdict: the rules that hold for it.
        args: of its engine, with those that rules require.
    """
    lost = verdict.prefix_lost
    if lost is None:
        return None
    conversation = conversation_of(sized.case.spec.content)
    room = sized.sizes.context - PROMPT - ANSWER
    again = round(min(lost.prefilled_again, conversation.earlier, room))
    short = sized.rates(1).ttft_ms
    if again <= 0 or short is None:
        return None
    long = sized.case.predictor.long_prompt(sized.proposal.split, sized.settings, PROMPT + again).ttft_ms
    switched = (
        one.rule.id
        for one in verdict.required_by
        if isinstance(one.rule.then, Require) and OFF_FLAGS & set(one.rule.then.flags)
    )
    return RepeatedPrefill(
        rule=next(switched, lost.rule.id),
        whole=lost.loses_prefix,
        off=bool(OFF_FLAGS & set(args)),
        tokens=again,
        follow_ups=conversation.follow_ups,
        ttft_ms=short.mid if long is None else long.mid,
        cached_ttft_ms=short.mid,
    )


def risk_factor(sized: SizedProposal, verdict: RuleJudgement, repeated: RepeatedPrefill | None) -> float:
    """Factor on the worth of a proposal."""
    return (UNCURED if verdict.uncured else 1.0) * _prefix_factor(sized, repeated)


def _prefix_factor(sized: SizedProposal, repeated: RepeatedPrefill | None) -> float:
    """Time of a request as a part of the time with its share of the prefills that a prefix cache would save."""
    if repeated is None:
        return 1.0
    lost = repeated.follow_ups * repeated.extra_ms / 1000
    if sized.case.objective == "throughput":  # a group that prefills does not decode
        request = ANSWER / sized.rates(sized.sizes.concurrency).decode_tps_aggregate.mid
    else:
        request = repeated.cached_ttft_ms / 1000 + ANSWER / sized.rates(1).decode_tps_per_request.mid
    return request / (request + lost)
