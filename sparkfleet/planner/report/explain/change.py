"""Differences to the desired state, with their cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparkfleet.planner.report.diff import Change
from sparkfleet.planner.report.explain.layout import lines_of
from sparkfleet.planner.report.explain.published_lines import published_rate
from sparkfleet.planner.types.plan import DeploymentPlan, GroupPlan, Rung
from sparkfleet.units import gb, gib, three_digits


def explain_change(change: Change, plan: DeploymentPlan | None = None) -> list[str]:
    """The difference to the desired state: what starts or changes, on which nodes, with which weights."""
    words = {"start": "+ start", "change": "~ change", "keep": "= keep"}[change.verb]
    waits = change.verb == "start" and change.on_demand
    counts = {verb: int(change.verb == verb) for verb in ("start", "change")}
    chosen = [group.choice for group in plan.groups] if plan and change.starts else []
    nodes = dict.fromkeys(node for rung in chosen for node in rung.candidate.shape.nodes)
    places = f" on {', '.join(nodes)}" if nodes else ""
    lines = ["", *lines_of("changes", f"{'+ on demand' if waits else words}  {change.name}{places}")]
    effect = [f"  {_effect(change, chosen)}"] if change.verb == "change" else []
    effect += [f"  its first request starts it ({_last_start(change)})"] if waits else []
    effect += [f"  {_same_model(change)}"] if change.same_model else []
    kept = plan.groups if plan and plan.keeps_standby and change.verb != "keep" else ()
    weights = (*_weights(chosen), *_kept_weights(kept))
    lines += lines_of("", *weights, *effect, *(f"  {field_words(one)}" for one in change.fields))
    counted = f"{counts['start']} {'on demand' if waits else 'to start'}, {counts['change']} to change"
    return lines + lines_of("verdict", f"{verdict}: {counted}" if (verdict := _verdict(plan)) else counted)


def field_words(change: str) -> str:
    """`planned concurrency: 8 → 4`, of what the plan launches; a field of the file as it is."""
    return change.replace("plan.", "planned ", 1) if change.startswith("plan.") else change


def _verdict(plan: DeploymentPlan | None) -> str:
    """The answer to the two questions of an owner: the tightest group's fit, and the speed; "" without a plan."""
    if plan is None or not plan.groups:
        return ""
    found = [group.choice.prediction for group in plan.groups]
    fits = next((one.verdict for one in found if one.verdict != "fits"), "fits")
    if plan.tps is None:
        return fits
    if plan.objective == "throughput":
        requests = sum(one.concurrency or 1 for one in found)
        return f"{fits}, {three_digits(plan.tps)} tok/s shared by {requests}{published_rate(plan)}"
    return f"{fits}, {three_digits(plan.tps)} tok/s for one user{published_rate(plan)}"


def _effect(change: Change, chosen: Sequence[Rung]) -> str:
    """The cost of a change: engines that start, end and go on."""
    if change.unloaded:
        return f"it does not run now: its next request starts it so ({_last_start(change)})"
    goes_on = (
        f"{_names(change.keeps)} {'goes' if len(change.keeps) == 1 else 'go'} on" if change.keeps else ""
    )
    if not change.starts:
        ended = f"ends {_names(change.ends)}; " if change.ends else "restarts no engine: "
        return f"{ended}{goes_on or 'no group is left'}"
    engines = "engine" if change.starts == 1 else f"{change.starts} engines"
    cost = f" ({', '.join(found)})" if (found := [*_costs(change, chosen)]) else ""
    if not change.ends:
        return f"starts {'one more' if change.starts == 1 else change.starts} engine{cost}; {goes_on}"
    serving = tuple(name for name in change.ends if name not in change.silent)
    old, ends = _names(serving), "ends" if len(serving) == 1 else "end"
    the = "the " if change.starts == 1 else ""
    serves = _serves(change, old, ends) if serving else ""
    silent = "does not answer" if len(change.silent) == 1 else "do not answer"
    parts = (serves, f"{_names(change.silent)} {silent}" if change.silent else "", goes_on)
    return "; ".join((f"restarts {the}{engines}{cost}", *filter(None, parts)))


def _same_model(change: Change) -> str:
    """Other deployments of the same model, and what ends them if this is a new name."""
    ends = " ".join(f"`sparkfleet delete {name}`" for name in change.same_model)
    goes_on = (
        "serves the same model, and goes on"
        if len(change.same_model) == 1
        else "serve the same model, and go on"
    )
    return f"{_names(change.same_model)} {goes_on}; if {change.name} is a new name for it: {ends}"


def _serves(change: Change, old: str, ends: str) -> str:
    """The end of the old groups, before the new ones start or after."""
    until_then = f"{old} {'serves' if ends == 'ends' else 'serve'} until then"
    if change.port is None and change.handover in ("beside", None):
        return until_then if change.handover else f"{until_then} if memory holds both"
    why = "memory does not hold both" if change.port is None else f"both listen on port {change.port}"
    if change.handover != "in turn":
        again = "it serves" if ends == "ends" else "they serve"
        return f"{old} {ends} first, because {why}; {again} again if no new one starts"
    if ends == "ends":
        return f"{old} serves until the first of them is ready, because {why}"
    return f"{old} end one after the other, and the others serve meanwhile, because {why}"


def _costs(change: Change, chosen: Sequence[Rung]) -> Iterator[str]:
    """Bytes that each engine loads, if all load as many, and the time that it took last. Before its first start that is not
    predicted: published starts of one model differ by a factor of ten."""
    sizes = {rung.prediction.weights_bytes for rung in chosen}
    if len(sizes) == 1 and (size := sizes.pop()):
        yield f"{'each ' * (change.starts > 1)}loads {gib(size)}"
    yield _last_start(change)


def _last_start(change: Change) -> str:
    if change.expected_s:
        return f"the last start took {_seconds_in_words(change.expected_s)}"
    return "no start of it was timed here yet"


def _names(groups: Sequence[str]) -> str:
    return " and ".join((", ".join(groups[:-1]), groups[-1])) if len(groups) > 1 else "".join(groups)


def _seconds_in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _weights(chosen: Sequence[Rung]) -> Iterator[str]:
    """One line per model: bytes and nodes of its weights."""
    for model in dict.fromkeys(rung.candidate.model for rung in chosen):
        of_model = [rung for rung in chosen if rung.candidate.model == model]
        nodes = dict.fromkeys(node for rung in of_model for node in rung.candidate.shape.nodes)
        yield from _weights_line(of_model, "each node" if len(nodes) > 1 else "".join(nodes))


def _kept_weights(groups: Sequence[GroupPlan]) -> Iterator[str]:
    """The same on nodes that no group has and that are kept for the loss of one."""
    used = {node for group in groups for node in group.choice.candidate.shape.nodes}
    further: dict[str, list[Rung]] = {}
    for rung in (rung for group in groups for rung in group.rungs_elsewhere):
        if not used.issuperset(rung.candidate.shape.nodes):
            further.setdefault(rung.candidate.model, []).append(rung)
    for rungs in further.values():
        nodes = dict.fromkeys(node for rung in rungs for node in rung.candidate.shape.nodes)
        yield from _weights_line(
            rungs, f"{', '.join(node for node in nodes if node not in used)} for a lost node"
        )


def _weights_line(rungs: Sequence[Rung], on: str) -> Iterator[str]:
    if size := rungs[0].prediction.weights_bytes:
        guessed = any(rung.prediction.weights_estimated for rung in rungs)
        about, note = ("about ", " (estimated from the config)") if guessed else ("", "")
        yield f"  weights: {about}{gb(size)} on {on}, copied if not there{note}"
    elif rungs[0].candidate.stage_model:
        yield f"  weights: {rungs[0].candidate.model} on {on}, copied if not there (size not known)"
