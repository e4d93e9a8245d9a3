"""Choices of a plan with memory, speed, reasons and fallbacks; refusals; single candidates in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from sparkfleet.hostfacts.node import NodeFacts
from sparkfleet.knowledge.hardware import memory_alike
from sparkfleet.perf.latency.step_costs import own_chunk
from sparkfleet.perf.prediction import Band, Provenance
from sparkfleet.planner.capacity.kv_disk import return_times
from sparkfleet.planner.report.explain.layout import band_ends, labelled, lines_of
from sparkfleet.planner.report.explain.prefix_lines import prefix_lines
from sparkfleet.planner.report.explain.published_lines import beside, published_lines
from sparkfleet.planner.report.explain.rejected import other_lines, rejected_lines, remedy_lines
from sparkfleet.planner.report.explain.shared_kv import shared_kv_lines
from sparkfleet.planner.report.explain.standby_lines import offer_lines, standby_lines
from sparkfleet.planner.report.explain.start_lines import start_lines, start_part_lines
from sparkfleet.planner.types.image_refs import image_of, tag_words
from sparkfleet.planner.types.node_load import StandbyOffer
from sparkfleet.planner.types.plan import (
    ENGINE_LABELS,
    Candidate,
    DeploymentPlan,
    GroupPlan,
    InfeasibleDeployment,
    Rejection,
    Rung,
)
from sparkfleet.specs.deployment import Objective
from sparkfleet.units import GIB, gb, gib, rough_duration, short_number, three_digits


def explain_plan(
    plan: DeploymentPlan,
    *,
    everything: bool = False,
    nodes: Sequence[NodeFacts] = (),
    head: str = "",
    offers: Sequence[StandbyOffer] = (),
) -> list[str]:
    """The choice of every group, its fallbacks, variants that are not served, and rejected candidates.

    Args:
        plan: to be explained.
        everything: with all rejected candidates.
        nodes: facts of the fleet, for the memory that a node has; without them only the need is shown.
        head: the fleet's head node; "" if it is not known.
        offers: what `standby: true` would keep.
    """
    totals = {node.name: node.memory.total for node in nodes}
    lines: list[str] = []
    for replicas in _alike(plan.groups):
        lines += _group_lines(plan, replicas, totals, head)
    lines += offer_lines([one for one in offers if one.name == plan.name], head)
    for one in plan.left_out:
        lines += lines_of("not served", f"{one.model}: {one.reason}")
        lines += lines_of("", f"nearest: {' · '.join(one.nearest)}") if one.nearest else []
    return lines + (rejected_lines(plan.rejected, everything) if everything else other_lines(plan.rejected))


def _alike(groups: Iterable[GroupPlan]) -> Iterable[Sequence[GroupPlan]]:
    """Groups that differ in their nodes only, together."""
    found: dict[tuple[int, str], list[GroupPlan]] = {}
    for group in groups:
        found.setdefault((group.variant, group.choice.candidate.how), []).append(group)
    return found.values()


def _group_lines(
    plan: DeploymentPlan, replicas: Sequence[GroupPlan], totals: Mapping[str, int], head: str
) -> list[str]:
    group, objective = replicas[0], plan.objective
    first = group.choice
    places = ["+".join(one.choice.candidate.shape.nodes) for one in replicas]
    count = len(places)
    more = (
        ""
        if count == 1
        else f" · {count} replicas" + ("" if len(set(places)) == 1 else f" ({', '.join(places)})")
    )
    lines = lines_of("choice", f"{first.candidate}{more}")
    lines += lines_of("memory", *_memory(first, totals))
    shared = _shared_nodes(places)
    lines += _speed_lines(first, objective, 1 if shared else count)
    lines += published_lines(first, plan.name, objective)
    lines += lines_of("why", *first.reason.split("; ")) if first.reason else []
    lines += lines_of("also fits", room) if (room := _headroom(first)) else []
    lines += shared_kv_lines(first) + prefix_lines(first)
    lines += _settings_lines(first)
    notes = list(dict.fromkeys(note for one in replicas for note in one.choice.notes))
    if shared:
        notes.append(f"replicas share {', '.join(shared)}: each is slower than predicted while both are busy")
    lines += lines_of("warning", *notes)
    lines += _image_lines(first.candidate)
    lines += start_lines(first) + _kv_disk_lines(first)
    return lines + _fallback_lines(group, objective) + standby_lines(replicas, objective, head)


def _shared_nodes(places: Sequence[str]) -> list[str]:
    """Nodes of several replicas, whose memory bandwidth they share: their rates do not add up."""
    counted = Counter(node for place in places for node in place.split("+"))
    return [node for node, number in counted.items() if number > 1]


def _settings_lines(rung: Rung) -> list[str]:
    """Settings of the deployment's own arguments, and rules that changed the candidate."""
    lines = (
        lines_of("fixed", f"{', '.join(rung.pinned)} (engine_args of the deployment)") if rung.pinned else []
    )
    return lines + (
        lines_of("rules", f"{', '.join(rung.rules)} (`sparkfleet explain RULE`)") if rung.rules else []
    )


def _image_lines(candidate: Candidate) -> list[str]:
    image = image_of(candidate)
    return lines_of("image", tag_words(image)) if image else []


def _kv_disk_lines(rung: Rung) -> list[str]:
    """The KV cache on the disk: its size, its memory, and the time that it saves, all predicted."""
    candidate, times = rung.candidate, return_times(rung)
    if candidate.kv_disk_bytes is None:
        return []
    size, staging = gb(candidate.kv_disk_bytes), gib(candidate.kv_staging_bytes or 0)
    memory = f"{staging} of memory: one request of the whole context on its way to the disk and back"
    if times is None:
        return lines_of("kv disk", f"{size} on {candidate.shape.nodes[0]}", memory)
    gain = (
        f"comes back in about {rough_duration(times.read_s)} instead of {rough_duration(times.prefill_s)}"
        if times.read_s < times.prefill_s
        else f"comes back in about {rough_duration(times.read_s)}, and is prefilled again in"
        f" {rough_duration(times.prefill_s)}: no gain"
    )
    return lines_of(
        "kv disk",
        f"{size} on {candidate.shape.nodes[0]}: a prompt of {_tokens(times.tokens)} tokens {gain}, predicted from"
        f" {times.bytes_per_token / 1000:.0f} KB of KV per token and {times.read_gb_per_s:g} GB/s published for a Spark's"
        f" disk; room for at most {_millions(candidate.kv_disk_bytes / times.bytes_per_token)} tokens",
        memory,
    )


def _millions(count: float) -> str:
    return f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}K"


def _fallback_lines(group: GroupPlan, objective: Objective) -> list[str]:
    """The rungs below the choice on its nodes, numbered as `status` does, with the line that chooses each; with nodes only
    if their split is another one."""
    first = group.choice
    rest = [
        (at, one) for at, one in enumerate(group.ladder, start=1) if at > 1 and not group.is_elsewhere(one)
    ]
    same = all(rung.candidate.shape == first.candidate.shape for _, rung in rest)
    texts = []
    for number, rung in rest:
        name = rung.candidate.how if same else str(rung.candidate)
        parts = (name, rung.speed(objective), _chosen_by(rung, first), rung.order)
        texts.append(f"rung {number}: {' · '.join(part for part in parts if part)}")
    return lines_of("if it fails", *texts)


def _chosen_by(rung: Rung, first: Rung) -> str:
    """Lines of a deployment that choose this rung's engine and method, as far as they differ from the first's."""
    one, other = rung.candidate, first.candidate
    lines = [f"`engine: {one.engine}`"] if one.engine != other.engine else []
    if one.speculation.method != other.speculation.method:
        lines.append(f"`speculation: {one.speculation.method}`")
    return " ".join(lines)


def explain_refusal(
    refusal: InfeasibleDeployment, *, everything: bool = False, lighter: Sequence[str] = ()
) -> list[str]:
    """A deployment that cannot be served: the nearest thing that would fit, and the reasons.

    Args:
        refusal: to be explained.
        everything: with all rejected candidates.
        lighter: lines about the same model in fewer bits.
    """
    lines = lines_of("infeasible", f"nothing in this fleet can serve {refusal.model}")
    if refusal.nearest:
        lines += lines_of("nearest", " · ".join(refusal.nearest))
    # A rule beside what would fit is about one engine or image: its remedy would not help.
    remedies = [] if refusal.nearest or lighter else remedy_lines(refusal.rejected)
    return [*lines, *lighter, *rejected_lines(refusal.rejected, everything), *remedies]


def explain_why(plan: DeploymentPlan | None, rejected: Sequence[Rejection], words: str) -> list[str]:
    """Everything about the candidates whose description has all of `words`: numbers, rules, sources."""
    wanted = words.lower().split()
    lines: list[str] = []
    for group, objective in ((group, plan.objective) for group in plan.groups) if plan else ():
        for at, rung in enumerate(group.ladder):
            if _matches(str(rung.candidate), wanted):
                lines += _rung_in_full(rung, at, objective)
    for one in rejected:
        if _matches(f"{one.what} {one.rule}", wanted):
            lines += [labelled("rejected", one.what), *lines_of("", one.reason)]
            lines += [labelled("rule", f"{one.rule}   `sparkfleet explain {one.rule}`")] if one.rule else []
            lines += lines_of("source", one.source) if one.source else []
    return lines or [labelled("", f"no candidate is described by “{words}”; `--all` lists them")]


def _matches(text: str, wanted: Sequence[str]) -> bool:
    return all(word in text.lower() for word in wanted)


def _rung_in_full(rung: Rung, at: int, objective: Objective) -> list[str]:
    candidate, prediction = rung.candidate, rung.prediction
    lines = lines_of("choice" if at == 0 else f"rung {at + 1}", str(candidate))
    lines += lines_of(
        "memory",
        *_memory(rung, {}),
        *(f"{part.bytes / GIB:6.1f} GiB  {part.name}" for part in prediction.memory_parts),
    )
    lines += _speed_lines(rung, objective)
    lines += lines_of("why", *rung.reason.split("; ")) if rung.reason else []
    lines += lines_of(
        "sizes",
        f"context {candidate.context} · concurrency {candidate.concurrency} · KV {candidate.kv_dtype}",
    )
    if candidate.memory_fraction is not None:
        shares = candidate.memory_fractions or (candidate.memory_fraction,)
        lines += lines_of("", f"memory fraction {', '.join(f'{share:g}' for share in shares)}")
    if candidate.batch_tokens is not None:
        default = f"{ENGINE_LABELS[candidate.engine]}'s default on a Spark is {own_chunk(candidate.engine)}"
        lines += lines_of("", f"prefill {candidate.batch_tokens} tokens at a time; {default}")
    if prediction.accepted is not None:
        lines += lines_of("drafts", f"{prediction.accepted:.2f} tokens per step expected")
    lines += _image_lines(candidate) + start_part_lines(rung)
    lines += lines_of("flags", " ".join(candidate.engine_args)) if candidate.engine_args else []
    lines += lines_of("env", " ".join(name for name, _ in candidate.env)) if candidate.env else []
    return lines + prefix_lines(rung) + _settings_lines(rung) + lines_of("warning", *rung.notes)


def _memory(rung: Rung, totals: Mapping[str, int]) -> tuple[str, ...]:
    """The verdict with the need of a node and its memory, by node if they differ; its basis if no speed is predicted."""
    need, nodes = rung.prediction.memory_bytes_per_rank, rung.candidate.shape.nodes
    sizes = [totals[node] for node in nodes if node in totals]
    total = f" of {min(sizes) / GIB:.0f}" if memory_alike(sizes) and sizes else ""
    ends = f"{short_number(need.low / GIB)}–{short_number(need.high / GIB)}"
    band = "" if need.low == need.high else f" ({ends})"
    each = " on each node" if len(nodes) > 1 else ""
    if not memory_alike(sizes):
        each += f", of {', '.join(f'{totals[node] / GIB:.0f} ({node})' for node in nodes if node in totals)}"
    words = f"{short_number(need.mid / GIB)}{total} GiB{each}: {rung.prediction.verdict}{band}"
    return (words, need.basis) if rung.prediction.decode_tps_per_request is None else (words,)


def _speed_lines(rung: Rung, objective: Objective, replicas: int = 1) -> list[str]:
    """Predicted decode rates of a group and of all its replicas, beside the published rate of one request; TTFT and prefill
    rate, and the basis of the prediction."""
    prediction = rung.prediction
    alone, many = prediction.decode_tps_per_request, prediction.decode_tps_aggregate
    if alone is None:
        if rung.candidate.engine == "custom":
            return lines_of("speed", "neither predicted nor measured: the workload's API is not known")
        return lines_of("speed", "not predicted; measured after the start")
    published = beside(alone, rung.published.figure)
    rates = [f"{three_digits(alone.mid)} tok/s for one user ({band_ends(alone)}{published})"]
    if many is not None and (prediction.concurrency or 1) > 1:
        # This includes the time in which other prompts are prefilled; the rate of one user does not.
        together = beside(many, rung.published.together) if objective == "throughput" else ""
        rates.append(f"{many.mid:.0f} shared by {prediction.concurrency} ({band_ends(many)}{together})")
        if replicas > 1:  # each full
            requests = replicas * (prediction.concurrency or 1)
            rates.append(f"{replicas * many.mid:.0f} by {requests} on {replicas} replicas")
    first = []
    if prediction.ttft_ms is not None:
        prompt = f" ({_tokens(prediction.prompt)} prompt)" if prediction.prompt else ""
        first.append(f"first word after {_seconds(prediction.ttft_ms)}{prompt}")
    if prediction.prefill_tps is not None:
        first.append(f"prefill {_thousands(prediction.prefill_tps.mid)} tok/s")
    return lines_of("speed", ", ".join(rates), "; ".join((*first, _basis(alone))))


def _basis(band: Band) -> str:
    """The basis of a prediction: `predicted from 38 measurements`."""
    if band.provenance is Provenance.MEASURED:
        return band.basis
    return f"predicted from {band.basis.removeprefix('calibrated on ').removeprefix('modelled from ')}"


def _headroom(rung: Rung) -> str:
    """Larger sizes that fit on the nodes; "" if they are not known, or nothing larger fits."""
    has, could = rung.candidate, rung.prediction
    if could.largest_context is None or could.largest_concurrency is None:
        return ""
    sizes = []
    if could.largest_context > has.context:
        sizes.append(f"context {could.largest_context} × {has.concurrency}")
    if could.largest_concurrency > has.concurrency:
        sizes.append(f"{has.context} × {could.largest_concurrency} requests")
    return ", or ".join(sizes)


def _seconds(band: Band) -> str:
    """Milliseconds; seconds from 0.95 s."""
    return f"{band.mid:.0f} ms" if band.mid < 950 else f"{band.mid / 1000:.1f} s"


def _thousands(value: float) -> str:
    return f"{value:,.0f}"


def _tokens(count: int) -> str:
    return f"{count // 1024}K" if count % 1024 == 0 else str(count)
