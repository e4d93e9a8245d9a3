"""Reasons that exclude a deployment from every CPU: its model, its method or its flags. Pure."""

from __future__ import annotations

from sparkfleet.knowledge.engines.engine_flags import flag_faults
from sparkfleet.knowledge.rules.rule_context import parse_flags
from sparkfleet.planner.cpu.cpu_stacks import stack_of
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.search.constraints import wanted
from sparkfleet.planner.types.cpu_model import CpuModel
from sparkfleet.planner.types.plan import Rejection
from sparkfleet.specs.deployment import Deployment, Method, Variant

OWN_HEAD: tuple[Method, ...] = ("mtp", "nextn")
"""Methods whose head is in the model's own checkpoint."""
NEEDS_DRAFT: tuple[Method, ...] = ("draft", "eagle3", "dflash", "dflash2", "dspark")
"""Methods whose draft is a checkpoint of its own. For CPUs none is known by itself."""


def cpu_misfit(spec: Deployment, variant: Variant, fleet: Fleet, model: CpuModel | None) -> Rejection | None:
    """Reason that excludes a deployment from every CPU: its model, its method or its engine cannot do what it sets.

    Args:
        spec: the deployment.
        variant: one of its variants.
        fleet: the nodes, for the versions of their engines.
        model: what is known of the model; None if nothing is.
    """
    name = variant.model.rpartition("/")[2]
    if variant.kv_disk is not None:
        return wanted(
            "kv_disk", "vLLM keeps KV on the disk from a GPU only; leave it out for engines on the CPU"
        )
    if variant.parallel is not None and (variant.parallel.dcp or 1) > 1:
        return wanted(
            "parallel",
            "the CPU attention of vLLM cannot join parts of a KV cache: `dcp` is for engines on a GPU; leave it out",
        )
    if model is not None and (words := _lacks(spec, variant, model)):
        return wanted(name, words)
    if words := _draft_missing(variant):
        return wanted(name, words)
    if words := _flag_fault(variant, fleet):
        return wanted("engine_args", words)
    return None


def _lacks(spec: Deployment, variant: Variant, model: CpuModel) -> str:
    if not model.weights:
        return "the directory has a config and no weights"
    if variant.context is not None and model.positions is not None and variant.context > model.positions:
        return f"supports at most {model.positions} tokens, but the deployment sets a context of {variant.context}"
    if "vision" in spec.needs and model.vision is False:
        return "it has no vision tower, but the deployment needs vision"
    method = variant.speculation.method
    own_head = method in OWN_HEAD and variant.speculation.draft is None
    if own_head and model.heads is not None and method not in model.heads:
        return f"its checkpoint has no head for {method.upper()}; `speculation: none` or `ngram` needs none"
    return ""


def _draft_missing(variant: Variant) -> str:
    method = variant.speculation.method
    if method in NEEDS_DRAFT and variant.speculation.draft is None:
        return f"{method.upper()} needs a draft: `speculation: {{method: {method}, draft: CHECKPOINT}}`"
    return ""


def _flag_fault(variant: Variant, fleet: Fleet) -> str:
    """The first flag or value that no node's engine takes."""
    stacks = {
        (found.engine, found.version)
        for node in fleet.nodes
        if (found := stack_of(variant, fleet.nodes, node))
    }
    if len(stacks) != 1:
        return ""
    ((engine, version),) = stacks
    faults = flag_faults(engine, version, parse_flags(variant.engine_args))
    return next((one.words(engine, version) for one in faults if one.certain), "")
