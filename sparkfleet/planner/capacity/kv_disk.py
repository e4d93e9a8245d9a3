"""KV that is kept on a node's disk (`kv_disk`): stacks that can do it, arguments that forbid it, predicted times. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sparkfleet.knowledge.hardware import hardware
from sparkfleet.knowledge.rules.rule_context import RuleContext, parse_flags
from sparkfleet.knowledge.rules.rules import planning_rules
from sparkfleet.knowledge.versions import Truth
from sparkfleet.perf.memory.kv_cache import STAGING_MARGIN
from sparkfleet.planner.place.stacks import Stack
from sparkfleet.planner.types.plan import Rejection, Rung
from sparkfleet.specs.deployment import Variant
from sparkfleet.units import GB

PROMPT = 100 * 1024
"""Tokens of the prompt that the times are for; of a shorter context all of it."""
RELEASE_RULE = "kv-disk-release"
"""The rule with the releases that lack it."""
OURS = ("--kv-transfer-config", "--kv-offloading-size", "--kv-offloading-backend")
"""Flags by which vLLM keeps KV elsewhere: `engines/vllm.py` sets the first."""
AGAINST = ("--no-enable-prefix-caching", "--no-enable-cumem-allocator")
"""Flags that take away what it needs."""
HASH = "--prefix-caching-hash-algo"
"""With xxhash the names of files begin with a random seed, so that no other start finds them (vLLM 0.32,
v1/core/kv_cache_utils.py)."""


class ReturnTimes(NamedTuple):
    """A prompt that is read from the disk, and the same one prefilled again."""

    tokens: int
    bytes_per_token: float
    read_gb_per_s: float
    read_s: float
    prefill_s: float


def clash(variant: Variant) -> str:
    """The argument of the deployment that cannot be had with `kv_disk`, in words; "" if there is none."""
    if variant.kv_disk is None:
        return ""
    flags = parse_flags(variant.engine_args)
    if ours := next((flag for flag in OURS if flag in flags), ""):
        return f"{ours} is set by `kv_disk: {variant.kv_disk}`; leave one of the two out"
    algorithm = flags.get(HASH, "")
    against = f"{HASH} {algorithm}" if algorithm.startswith("xxhash") else ""
    if against := against or next((flag for flag in AGAINST if flag in flags), ""):
        return f"{against} takes away what `kv_disk: {variant.kv_disk}` needs; leave one of the two out"
    return ""


def able_stacks(variant: Variant, stacks: Sequence[Stack]) -> tuple[list[Stack], list[Rejection]]:
    """The stacks that a variant may have, and why others are left out: with `kv_disk` those of a release that is known to
    lack it, or of which the release is not known, as nobody has read what they do."""
    if variant.kv_disk is None:
        return list(stacks), []
    rule = next(one for one in planning_rules() if one.id == RELEASE_RULE)
    able: list[Stack] = []
    rejected: list[Rejection] = []
    for stack in stacks:
        told = RuleContext(kv_disk=True, engine=stack.engine, engine_version=stack.version or None)
        applies = rule.applies(told)
        if applies is Truth.NO:
            able.append(stack)
            continue
        reason = (
            rule.title
            if applies is Truth.YES
            else "its release is not known, and before vLLM 0.32 there is none"
        )
        rejected.append(
            Rejection(
                what=f"{stack.name} with `kv_disk`",
                reason=reason,
                why="rule",
                rule=rule.id,
                engine=stack.engine,
            )
        )
    return able, rejected


def return_times(rung: Rung) -> ReturnTimes | None:
    """Predicted times of a long prompt with and without the disk; None if no KV is kept there or no speed is predicted."""
    candidate, whole = rung.candidate, rung.prediction.long_prompt_ms
    if candidate.kv_staging_bytes is None or whole is None:
        return None
    tokens = min(PROMPT, candidate.context)
    staged = candidate.context + (candidate.batch_tokens or 0)
    each = candidate.kv_staging_bytes / STAGING_MARGIN / staged
    rate = hardware().kv_disk.read_gb_per_s.value
    return ReturnTimes(tokens, each, rate, each * tokens / GB / rate, whole.mid / 1000)
