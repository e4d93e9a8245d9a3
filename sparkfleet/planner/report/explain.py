"""A plan in words. Pure: lines of text, no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

from sparkfleet.hostfacts.link import LinkFacts, LinkProvenance
from sparkfleet.hostfacts.node import NodeFacts
from sparkfleet.perf.latency.roofline_terms import own_chunk
from sparkfleet.perf.prediction import Band, Prediction
from sparkfleet.planner.report.diff import Change
from sparkfleet.planner.types.image_refs import image_of, tag_words
from sparkfleet.planner.types.plan import (
    ENGINE_LABELS,
    Candidate,
    DeploymentPlan,
    GroupPlan,
    InfeasibleDeployment,
    NodeLoad,
    Rejection,
    Rung,
    Why,
)
from sparkfleet.specs.deployment import Deployment
from sparkfleet.units import GB, GIB

INDENT = "  "
LABEL = 12
SHOWN = 6
"""Reasons that are shown where nobody asks for all of them."""
WIDE = 46
"""Column at which reasons begin, where what they are about is not longer."""
STEADY = 0.4
"""A band up to this is told as ±; a wider one by its ends."""

_ORDER: tuple[str, ...] = get_args(Why)


def explain_fleet(
    spec: Deployment,
    plan: DeploymentPlan | None,
    facts: Sequence[NodeFacts],
    fleet: str,
    *,
    links: Sequence[LinkFacts] = (),
    assumed: Sequence[str] = (),
) -> str:
    """The headline: what was asked for, and of what."""
    asked = [f"objective {spec.objective}"]
    if plan is not None:
        candidate = plan.groups[0].choice.candidate
        asked += [f"context {candidate.context}"] if candidate.context else []
        asked += [f"concurrency {candidate.concurrency}"]
    return f"{spec.name}   {' · '.join(asked)} · fleet {fleet} ({_fleet(facts, links, assumed)})\n"


def _fleet(facts: Sequence[NodeFacts], links: Sequence[LinkFacts], assumed: Sequence[str]) -> str:
    noun = "Spark" if all(node.gpu and "GB10" in node.gpu.name for node in facts) else "node"
    told = _count(len(facts), noun)
    if links:
        told += f", {_count(len(links), 'link')}: {_link(links[0])}"
    if assumed:
        return (
            f"{told}; "
            + ("" if len(assumed) == len(facts) else f"{', '.join(assumed)} ")
            + "assumed, not read from nodes"
        )
    if any(link.provenance is LinkProvenance.DEFAULT for link in links):
        told += "; links not measured"
    return told


def _link(link: LinkFacts) -> str:
    kind = "RoCE" if link.kind == "roce" else "TCP"
    rails = "both rails" if link.rails == 2 else _count(link.rails, "rail")
    return f"{kind} {rails}, {link.gb_per_s:.1f} GB/s, {link.latency_us:.0f} µs"


def explain_plan(plan: DeploymentPlan, *, everything: bool = False) -> list[str]:
    """The choice of every group, the ladder below it, variants that are not served, and what was rejected."""
    lines: list[str] = []
    for group, replicas in _alike(plan.groups):
        lines += _group_lines(group, replicas)
    for one in plan.left_out:
        lines.append(_line("not served", f"{one.model}: {one.reason}"))
        lines += [_line("", f"nearest: {' · '.join(one.nearest)}")] if one.nearest else []
    return lines + _rejected_lines(plan.rejected, everything)


def _alike(groups: Iterable[GroupPlan]) -> Iterator[tuple[GroupPlan, list[str]]]:
    """Groups that differ in their nodes only, together: the first, and where the others lie."""
    found: dict[tuple[int, str], tuple[GroupPlan, list[str]]] = {}
    for group in groups:
        key = (group.variant, group.choice.candidate.how)
        nodes = "+".join(group.choice.candidate.shape.nodes)
        found.setdefault(key, (group, []))[1].append(nodes)
    yield from found.values()


def _group_lines(group: GroupPlan, where: Sequence[str]) -> list[str]:
    first, *rest = group.ladder
    count = len(where)
    more = (
        ""
        if count == 1
        else f" · {count} replicas" + ("" if len(set(where)) == 1 else f" ({', '.join(where)})")
    )
    lines = [_line("choice", f"{first.candidate}{more}")]
    told = (_numbers(first.prediction), first.reason, _more(first))
    lines += [_line("", text) for text in told if text]
    lines += [_line("", f"set in the deployment: {', '.join(said)}") for said in (first.said,) if said]
    lines += [_line("", f"with {', '.join(rules)}") for rules in (first.rules,) if rules]
    lines += [_line("", f"! {note}") for note in first.notes]
    lines += _image_lines(first.candidate)
    width = max((len(str(rung.candidate)) for rung in rest), default=0)
    lines += [
        _line("then" if n == 0 else "", f"{rung.candidate!s:<{width}}   {_brief(rung)}")
        for n, rung in enumerate(rest)
    ]
    return lines


def _image_lines(candidate: Candidate) -> list[str]:
    image = image_of(candidate)
    return [_line("image", tag_words(image))] if image else []


def _brief(rung: Rung) -> str:
    alone = rung.prediction.decode_tps_per_request
    return f"{alone.mid:.3g} tok/s alone" if alone else _numbers(rung.prediction)


# --- rejected ---------------------------------------------------------------------------------------------------------


def _rejected_lines(rejected: Sequence[Rejection], everything: bool) -> list[str]:
    told = [(one, 0) for one in rejected] if everything else list(_grouped(rejected))
    # That an image is broken matters where nothing else is wrong.
    telling = [(one, more) for one, more in told if one.why != "engine"] or told
    shown = told if everything else telling[:SHOWN]
    width = min(WIDE, max((len(one.what) for one, _ in shown), default=0))
    lines = [
        _line("rejected" if number == 0 else "", _rejection(one, more, width))
        for number, (one, more) in enumerate(shown)
    ]
    hidden = len(rejected) - sum(1 + more for _, more in shown)
    return [*lines, _line("", f"… {hidden} more (--all)")] if hidden else lines


def _grouped(rejected: Sequence[Rejection]) -> Iterator[tuple[Rejection, int]]:
    """One line per reason, rules first; with how many more there are like it."""
    found: dict[tuple[str, str], list[Rejection]] = {}
    for one in rejected:
        found.setdefault((one.why, one.rule or one.reason), []).append(one)
    for same in sorted(found.values(), key=lambda same: (_ORDER.index(same[0].why), -(same[0].tps or 0.0))):
        yield same[0], len(same) - 1


def _rejection(one: Rejection, more: int, width: int) -> str:
    also = f" (and {more} more)" if more else ""
    rule = f"   {one.rule}" if one.rule else ""
    source = f"   {_short(one.source)}" if one.source else ""
    return f"{one.what:<{width}}   {one.reason}{also}{rule}{source}"


def _short(source: str) -> str:
    """A source without its explanation: "field report 001"."""
    return source.partition(" (")[0].partition(": ")[0]


def explain_refusal(refusal: InfeasibleDeployment, *, everything: bool = False) -> list[str]:
    """A deployment that cannot be served: why not, and what would come nearest."""
    lines = [_line("infeasible", f"nothing in this fleet can serve {refusal.model}")]
    lines += _rejected_lines(refusal.rejected, everything)
    if refusal.nearest:
        lines.append(_line("nearest", " · ".join(refusal.nearest)))
    return lines


# --- one candidate ----------------------------------------------------------------------------------------------------


def explain_why(plan: DeploymentPlan | None, rejected: Sequence[Rejection], words: str) -> list[str]:
    """Everything about the candidates whose description has all of `words`: numbers, rules, sources."""
    wanted = words.lower().split()
    lines: list[str] = []
    for group in plan.groups if plan else ():
        for at, rung in enumerate(group.ladder):
            if _speaks_of(str(rung.candidate), wanted):
                lines += _rung_in_full(rung, at)
    for one in rejected:
        if _speaks_of(f"{one.what} {one.rule}", wanted):
            lines += [_line("rejected", one.what), _line("", one.reason)]
            lines += [_line("rule", f"{one.rule}   `sparkfleet explain {one.rule}`")] if one.rule else []
            lines += [_line("source", one.source)] if one.source else []
    return lines or [_line("", f"no candidate is described by “{words}”; `--all` lists them")]


def _speaks_of(text: str, wanted: Sequence[str]) -> bool:
    return all(word in text.lower() for word in wanted)


def _rung_in_full(rung: Rung, at: int) -> list[str]:
    candidate, prediction = rung.candidate, rung.prediction
    lines = [
        _line("choice" if at == 0 else f"rung {at + 1}", str(candidate)),
        _line("", _numbers(prediction)),
    ]
    lines += [_line("", rung.reason)] if rung.reason else []
    lines += [
        _line("memory" if n == 0 else "", f"{p.bytes / GIB:6.1f} GiB  {p.name}")
        for n, p in enumerate(prediction.memory_parts)
    ]
    lines.append(
        _line(
            "sizes",
            f"context {candidate.context} · concurrency {candidate.concurrency} · KV {candidate.kv_dtype}",
        )
    )
    if candidate.memory_fraction is not None:
        lines.append(_line("", f"memory fraction {candidate.memory_fraction:g}"))
    if candidate.batch_tokens is not None:
        alone = f"{ENGINE_LABELS[candidate.engine]} by itself takes {own_chunk(candidate.engine)} on a Spark"
        lines.append(_line("", f"prefill {candidate.batch_tokens} tokens at a time; {alone}"))
    if prediction.accepted is not None:
        lines.append(_line("drafts", f"{prediction.accepted:.2f} tokens per step expected"))
    lines += _image_lines(candidate)
    lines += [_line("flags", " ".join(candidate.engine_args))] if candidate.engine_args else []
    lines += [_line("env", " ".join(name for name, _ in candidate.env))] if candidate.env else []
    lines += [_line("", f"set in the deployment: {', '.join(rung.said)}")] if rung.said else []
    lines += [_line("rules", ", ".join(rung.rules))] if rung.rules else []
    return lines + [_line("", f"! {note}") for note in rung.notes]


# --- changes and nodes ------------------------------------------------------------------------------------------------


def explain_change(change: Change, plan: DeploymentPlan | None = None) -> list[str]:
    """The difference to what is wanted now."""
    words = {"start": "+ start", "change": "~ change", "keep": "= keep"}[change.verb]
    counts = {verb: int(change.verb == verb) for verb in ("start", "change")}
    lines = ["", _line("changes", f"{words}  {change.name}{_needs(change, plan)}")]
    lines += [_line("", f"  {field}") for field in change.fields]
    lines.append(_line("", f"{counts['start']} to start, {counts['change']} to change"))
    return lines


def _needs(change: Change, plan: DeploymentPlan | None) -> str:
    if plan is None or change.verb == "keep":
        return ""
    nodes = dict.fromkeys(n for group in plan.groups for n in group.choice.candidate.shape.nodes)
    chosen = [group.choice for group in plan.groups]
    size = sum({rung.candidate.model: rung.prediction.weights_bytes for rung in chosen}.values())
    if not size:
        return f" on {', '.join(nodes)}"
    guessed = any(rung.prediction.weights_estimated for rung in chosen)
    weights = (
        f"about {size / GB:.0f} GB of weights (config alone, estimated)"
        if guessed
        else f"{size / GB:.0f} GB of weights"
    )
    return f" on {', '.join(nodes)}   needs {weights}"


def explain_measured(told: Sequence[str]) -> list[str]:
    """Lines with the measurements of running groups."""
    return [_line("measured" if number == 0 else "", text) for number, text in enumerate(told)]


def explain_nodes(loads: Sequence[NodeLoad]) -> list[str]:
    """Load and remaining memory of every node in use."""
    lines: list[str] = []
    for load in (load for load in loads if load.placed):
        placed = ", ".join(f"{name} {size / GIB:.0f}" for name, size in load.placed)
        left = f"{max(0, load.left) / GIB:.0f} of {load.total / GIB:.0f} GiB left"
        lines.append(_line("nodes" if not lines else "", f"{load.node}: {placed} GiB; {left}"))
    return lines


# --- numbers ----------------------------------------------------------------------------------------------------------


def _numbers(prediction: Prediction) -> str:
    """Predicted numbers, and a note for those that are not known."""
    memory = prediction.memory_bytes_per_rank
    parts = [
        f"{prediction.verdict}: {memory.mid / GIB:.1f} GiB ({memory.low / GIB:.1f} to {memory.high / GIB:.1f})"
    ]
    alone = prediction.decode_tps_per_request
    if prediction.ttft_ms is not None:
        at = f" @{_tokens(prediction.prompt)}" if prediction.prompt else ""
        parts.append(f"TTFT {_seconds(prediction.ttft_ms)}{at}")
    if alone is None:
        parts.append("speed not predicted: it is measured once it runs")
        return " · ".join(parts) + f"   {memory.provenance.value}: {memory.basis}"
    if prediction.prefill_tps is not None:
        parts.append(f"prefill {prediction.prefill_tps.mid:.0f} tok/s")
    many = prediction.decode_tps_aggregate
    crowd = ""
    if many is not None and (prediction.concurrency or 1) > 1:
        # Time in which prompts of some are prefilled is counted here, and not in the rate alone.
        crowd = f", {many.mid:.0f} at {prediction.concurrency} with prefill"
    parts.append(f"{alone.mid:.3g} tok/s alone{_spread(alone)}{crowd}")
    return " · ".join(parts) + f"   {alone.basis}"


def _more(rung: Rung) -> str:
    """Headroom of the nodes; "" if it is not known, or nothing larger fits."""
    has, could = rung.candidate, rung.prediction
    if could.largest_context is None or could.largest_concurrency is None:
        return ""
    room = []
    if could.largest_context > has.context:
        room.append(f"context {could.largest_context} × {has.concurrency}")
    if could.largest_concurrency > has.concurrency:
        room.append(f"{has.context} × {could.largest_concurrency} requests")
    return f"room for {', or '.join(room)}" if room else ""


def _spread(band: Band) -> str:
    """` (± 15 %)`, or the ends of a band that is wide."""
    up = band.high / band.mid - 1 if band.mid else 0.0
    return (
        f" (± {100 * up:.0f} %)"
        if up <= STEADY
        else f" ({_short_number(band.low)} to {_short_number(band.high)})"
    )


def _seconds(band: Band) -> str:
    """Milliseconds with their band, in seconds where they are many."""
    if band.mid < 950:
        return f"{band.mid:.0f} ms{_spread(band)}"
    shown = band.model_copy(update={"low": band.low / 1000, "mid": band.mid / 1000, "high": band.high / 1000})
    return f"{shown.mid:.1f} s{_spread(shown)}"


def _short_number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def _tokens(count: int) -> str:
    return f"{count // 1024}K" if count % 1024 == 0 else str(count)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number != 1 else "")


def _line(label: str, text: str) -> str:
    return f"{INDENT}{label:<{LABEL}}{text}"
