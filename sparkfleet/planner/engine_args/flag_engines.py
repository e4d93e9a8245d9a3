"""Engines that accept a flag: a flag of a deployment excludes every other engine. Pure."""

from __future__ import annotations

from sparkfleet.knowledge.engines.engine_flags import engines_with, nearest_flag
from sparkfleet.knowledge.rules.rule_context import parse_flags
from sparkfleet.planner.engine_args.engine_args import KV_FLAG
from sparkfleet.planner.types.plan import ENGINE_LABELS
from sparkfleet.specs.deployment import EngineName
from sparkfleet.specs.flag_fields import field_of

_VLLM_VALUES = {KV_FLAG: ("fp8", "fp8_inc", "fp8_ds_mla")}
"""Values that SGLang does not take of flags that both have; it calls the first fp8_e4m3."""


def foreign(args: tuple[str, ...], engine: EngineName, *, alone: bool, newer: bool = False) -> str:
    """Reason why `engine` cannot take the arguments; "" if it can.

    Args:
        args: the deployment's own.
        engine: one that could serve it.
        alone: no other engine could, so that unknown flags are taken for its own.
        newer: its release may have flags that no known release of it has; then those of others may be its own, too.
    """
    for flag, value in parse_flags(args).items():
        owners = engines_with(flag)
        if engine == "sglang" and value in _VLLM_VALUES.get(flag, ()):
            return f"{flag}={value} in engine_args is for {ENGINE_LABELS['vllm']}"
        if owners and engine not in owners and not (alone and newer):
            theirs = " or ".join(ENGINE_LABELS[name] for name in owners)
            return f"{flag} in engine_args is for {theirs}"
        if not owners and not alone:
            return f"no known engine has {flag} (engine_args){_meant(flag)}"
    return ""


def _meant(flag: str) -> str:
    """The flag that a misspelt one is meant for, with the field that sets the same, and the way to a flag that is new."""
    near = nearest_flag(flag)
    if not near:
        return ": set `engine`"
    field = field_of(near)
    return (
        f": did you mean {f'`{field}`, which is ' if field else ''}{near}? If it is a new one: set `engine`"
    )
