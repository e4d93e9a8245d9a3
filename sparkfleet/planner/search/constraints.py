"""Constraints of a deployment that no candidate can meet. Pure."""

from __future__ import annotations

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.knowledge.rules.rules import Rule, planning_rules
from sparkfleet.planner.capacity.kv_disk import clash
from sparkfleet.planner.capacity.proposal import VariantCase
from sparkfleet.planner.capacity.sizing import quant_of
from sparkfleet.planner.engine_args.user_overrides import misread
from sparkfleet.planner.place.context_split import context_split_fault
from sparkfleet.planner.place.fleet_map import GROUP_SIZES, Fleet
from sparkfleet.planner.place.weight_containers import ONE_NODE
from sparkfleet.planner.types.plan import Rejection
from sparkfleet.specs.deployment import Deployment, Variant
from sparkfleet.specs.parallel import Parallel


def mistaken(spec: Deployment, number: int, variant: Variant, fleet: Fleet) -> Rejection | None:
    """Contradictions in the deployment. Not refused on reading: stores may hold such a deployment already."""
    known = [node.name for node in fleet.nodes]
    drained = sorted(set(variant.nodes) & set(fleet.drained))
    if drained and len(drained) == len(set(variant.nodes)):
        return wanted("nodes", f"{', '.join(drained)}: drained; `sparkfleet undrain {drained[0]}` ends that")
    if unknown := sorted(set(variant.nodes) - set(known) - set(drained)):
        return wanted("nodes", f"{', '.join(unknown)}: not in this fleet, which has {', '.join(known)}")
    own = bool(spec.variants) and spec.variants[number].memory is not None
    meant = variant.engine == "custom" or not (own or all(one.engine != "custom" for one in spec.resolved()))
    if variant.memory is not None and not meant:
        return wanted("memory", "only for `engine: custom`: the need of other engines is predicted")
    return None


def unwanted(case: VariantCase) -> Rejection | None:
    """Reason that excludes every candidate of this checkpoint, whatever its shape; None if there is none."""
    spec, variant, checkpoint = case.spec, case.variant, case.predictor.checkpoint
    name = variant.model.rpartition("/")[2]
    if spec.license == "open" and checkpoint.license.kind != "open-source":
        license_id = checkpoint.license.id or "not known"
        kind = "not open source" if checkpoint.license.id else "it may not be open source"
        return wanted(
            name,
            f"license {license_id}: {kind}, but the deployment requires `license: open`",
            _license_rule(checkpoint),
        )
    vision = checkpoint.declares_vision if checkpoint.vision is None else checkpoint.vision
    if "vision" in spec.needs and not vision:
        return wanted(name, "its weights have no vision tower, but the deployment needs vision")
    most = checkpoint.max_positions
    if variant.context is not None and most is not None and variant.context > most:
        return wanted(
            name, f"supports at most {most} tokens, but the deployment sets a context of {variant.context}"
        )
    unreadable = misread(variant.engine_args, quant_of(case)) or clash(variant)
    if unreadable:
        return wanted(name, unreadable)
    if variant.nodes and not set(variant.nodes) & {node.name for node in case.fleet.nodes}:
        return wanted(name, f"none of the nodes {', '.join(variant.nodes)} has the GPU of a Spark, a GB10")
    return None


def impossible_split(wanted: Parallel, checkpoint: Checkpoint, most: int = GROUP_SIZES[-1]) -> str:
    """Reason why no fleet can split a model as a deployment asks; "" if one may. `most`: ranks, if TP is left open."""
    ranks, layers = (wanted.tp or 1) * (wanted.pp or 1), sum(group.layers for group in checkpoint.layers)
    if checkpoint.gguf is not None and max(ranks, wanted.ep or 1, wanted.dcp or 1) > 1:
        return ONE_NODE
    if ranks not in GROUP_SIZES:
        sizes = f"{', '.join(map(str, GROUP_SIZES[:-1]))} or {GROUP_SIZES[-1]}"
        return f"TP times PP is {ranks}; a group has {sizes} nodes"
    if (wanted.pp or 1) > layers:
        return f"PP={wanted.pp} needs as many layers; the model has {layers}"
    return _impossible_experts(wanted.ep or 1, wanted.tp, checkpoint.experts) or _impossible_context(
        wanted, checkpoint, most
    )


def _impossible_experts(ep: int, tp: int | None, experts: int) -> str:
    if ep == 1:
        return ""
    if not experts:
        return f"EP={ep} splits experts, and the model has none; take `ep` out of `parallel`"
    if ep != (tp or ep):
        return f"EP={ep} with TP={tp}: EP is 1 or as large as TP"
    return f"EP={ep} does not divide the {experts} experts of a layer" if experts % ep else ""


def _impossible_context(wanted: Parallel, checkpoint: Checkpoint, most: int) -> str:
    """Reason why no number of ranks can share a KV cache as the deployment sets; that of the most, if TP is left open."""
    degrees = (wanted.tp,) if wanted.tp else [size for size in GROUP_SIZES if size <= most]
    faults = [context_split_fault(checkpoint, tp, wanted.dcp or 1) for tp in degrees]
    return faults[-1] if faults and all(faults) else ""


def _license_rule(checkpoint: Checkpoint) -> Rule | None:
    wanted = "license-nvidia-open-model" if "nvidia-open-model" in checkpoint.license.id else ""
    return next((rule for rule in planning_rules() if rule.id == wanted), None)


def wanted(what: str, reason: str, rule: Rule | None = None) -> Rejection:
    """Constraint that cannot be met, and the reason."""
    cited = {} if rule is None else {"rule": rule.id, "source": rule.sources[0]}
    return Rejection.model_validate({"what": what, "reason": reason, "why": "wanted", **cited})


def open_ring(ranks: int) -> Rejection:
    """Reason for leaving out a ring: its ranks share no rail."""
    return Rejection(
        what=f"a ring of {ranks} nodes",
        reason="its ranks meet on the management network, where PyTorch unpickles what any machine sends; "
        "`sparkfleet fabric firewall --apply` closes the port, `lan_rendezvous: true` in the inventory accepts it",
        why="node",
    )
