"""Writes a plan as lines of text, most of them under 100 columns. Pure: no terminal."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import get_args

from sparkfleet.hostfacts.network.link import LinkFacts, LinkProvenance
from sparkfleet.hostfacts.node import NodeFacts
from sparkfleet.perf.latency.roofline_terms import own_chunk
from sparkfleet.perf.prediction import Band, Prediction, Provenance
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
COLUMNS = 99
"""Length of the longest line; only a word that is longer by itself exceeds it."""
WIDTH = COLUMNS - len(INDENT) - LABEL
"""Length of a text beside its label."""
WIDE = 42
"""Column of a short reason behind a rejected candidate."""
SHOWN = 6
"""Reasons that are shown without `--all` if nothing can be served."""

_ORDER: tuple[str, ...] = get_args(Why)
_KINDS: dict[Why, str] = {
    "failed": "failed here",
    "rule": "known not to work",
    "memory": "too large",
    "slower": "not better",
    "wanted": "ruled out by the deployment",
    "engine": "without an image that runs it",
    "node": "without a node",
}
"""Words for kinds of reasons, behind their count."""
_CODE = re.compile(r"`[^`]*`")
_GLUE = "\x00"
"""In place of a space at which a line must not end: what a user types stays in one line."""


def explain_fleet(
    spec: Deployment,
    plan: DeploymentPlan | None,
    facts: Sequence[NodeFacts],
    fleet: str,
    *,
    links: Sequence[LinkFacts] = (),
    assumed: Sequence[str] = (),
    drained: Sequence[str] = (),
) -> str:
    """The headline: the deployment's request, and the fleet that it is planned for."""
    asked = [f"objective {spec.objective}"]
    if plan is not None:
        candidate = plan.groups[0].choice.candidate
        asked += [f"context {candidate.context}"] if candidate.context else []
        asked += [f"concurrency {candidate.concurrency}"]
    head = f"{spec.name}   {' · '.join(asked)}"
    return "\n".join(
        [head, *_lines("fleet", f"{fleet}: {_fleet(facts, links, assumed)}{_left_out(drained)}"), ""]
    )


def _fleet(facts: Sequence[NodeFacts], links: Sequence[LinkFacts], assumed: Sequence[str]) -> str:
    noun = "Spark" if all(node.gpu and "GB10" in node.gpu.name for node in facts) else "node"
    words = _count(len(facts), noun)
    if assumed:
        some = "" if len(assumed) == len(facts) else f"{', '.join(assumed)} "
        words += f" ({some}assumed, not read)"
    if links:
        words += f", {_count(len(links), 'link')} ({_link(links[0])})"
    if not assumed and any(link.provenance is LinkProvenance.DEFAULT for link in links):
        words += "; links not measured"
    return words


def _left_out(drained: Sequence[str]) -> str:
    return f"; without {', '.join(drained)}: drained" if drained else ""


def _link(link: LinkFacts) -> str:
    kind = "RoCE" if link.kind == "roce" else "TCP"
    rails = "both rails" if link.rails == 2 else _count(link.rails, "rail")
    return f"{kind} {rails}, {link.gb_per_s:.1f} GB/s, {link.latency_us:.0f} µs"


def explain_plan(
    plan: DeploymentPlan, *, everything: bool = False, nodes: Sequence[NodeFacts] = ()
) -> list[str]:
    """The choice of every group, its fallbacks, variants that are not served, and rejected candidates.

    Args:
        plan: to be explained.
        everything: with all rejected candidates.
        nodes: facts of the fleet, for the memory that a node has; without them only the need is shown.
    """
    totals = {node.name: node.memory.total for node in nodes}
    lines: list[str] = []
    for group, replicas in _without_duplicates(plan.groups):
        lines += _group_lines(group, replicas, totals)
    for one in plan.left_out:
        lines += _lines("not served", f"{one.model}: {one.reason}")
        lines += _lines("", f"nearest: {' · '.join(one.nearest)}") if one.nearest else []
    return lines + (_rejected_lines(plan.rejected, everything) if everything else _others(plan.rejected))


def _others(rejected: Sequence[Rejection]) -> list[str]:
    """Candidates that failed here, and one line about all others, so that the first screen has the whole plan."""
    failed, rejected = (
        [one for one in rejected if one.why == "failed"],
        [one for one in rejected if one.why != "failed"],
    )
    lines = [line for one in failed for line in _lines("not taken", f"{one.what}: {one.reason}")]
    if not rejected:
        return lines
    counts = Counter(_KINDS[one.why] for one in rejected)
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    return lines + _lines(
        "not taken", f"{_count(len(rejected), 'candidate')}: {kinds}; `--all` lists them with their reasons"
    )


def _without_duplicates(groups: Iterable[GroupPlan]) -> Iterator[tuple[GroupPlan, list[str]]]:
    """Groups that differ in their nodes only, once each, with the nodes of all of them."""
    found: dict[tuple[int, str], tuple[GroupPlan, list[str]]] = {}
    for group in groups:
        key = (group.variant, group.choice.candidate.how)
        nodes = "+".join(group.choice.candidate.shape.nodes)
        found.setdefault(key, (group, []))[1].append(nodes)
    yield from found.values()


def _group_lines(group: GroupPlan, places: Sequence[str], totals: Mapping[str, int]) -> list[str]:
    first, *rest = group.ladder
    count = len(places)
    more = (
        ""
        if count == 1
        else f" · {count} replicas" + ("" if len(set(places)) == 1 else f" ({', '.join(places)})")
    )
    lines = _lines("choice", f"{first.candidate}{more}")
    lines += _lines("memory", *_memory(first, totals))
    lines += _speed_lines(first.prediction)
    lines += _lines("why", *first.reason.split("; ")) if first.reason else []
    lines += _lines("also fits", room) if (room := _headroom(first)) else []
    lines += _settings_lines(first)
    lines += _lines("warning", *first.notes)
    lines += _image_lines(first.candidate)
    return lines + _fallback_lines(first, rest)


def _settings_lines(rung: Rung) -> list[str]:
    """Settings of the deployment's own arguments, and rules that changed the candidate."""
    lines = _lines("fixed", f"{', '.join(rung.said)} (engine_args of the deployment)") if rung.said else []
    return lines + (_lines("rules", ", ".join(rung.rules)) if rung.rules else [])


def _image_lines(candidate: Candidate) -> list[str]:
    image = image_of(candidate)
    return _lines("image", tag_words(image)) if image else []


def _fallback_lines(first: Rung, rest: Sequence[Rung]) -> list[str]:
    """The rungs below the choice, in order, each with the line that chooses it; with nodes only if those are others."""
    if not rest:
        return []
    same = all(rung.candidate.shape == first.candidate.shape for rung in rest)
    names = [rung.candidate.how if same else str(rung.candidate) for rung in rest]
    texts = (
        f"{number}. {' · '.join(part for part in (name, _brief(rung), _chosen_by(rung, first)) if part)}"
        for number, (name, rung) in enumerate(zip(names, rest, strict=True), start=1)
    )
    return _lines("if it fails", *texts)


def _brief(rung: Rung) -> str:
    alone = rung.prediction.decode_tps_per_request
    return f"{alone.mid:.3g} tok/s" if alone else ""


def _chosen_by(rung: Rung, first: Rung) -> str:
    """Lines of a deployment that choose this rung's engine and method, as far as they differ from the first's."""
    one, other = rung.candidate, first.candidate
    lines = [f"`engine: {one.engine}`"] if one.engine != other.engine else []
    if one.speculation.method != other.speculation.method:
        lines.append(f"`speculation: {one.speculation.method}`")
    return " ".join(lines)


# --- rejected ---------------------------------------------------------------------------------------------------------


def _rejected_lines(rejected: Sequence[Rejection], everything: bool) -> list[str]:
    counted = [(one, 0) for one in rejected] if everything else list(_grouped(rejected))
    # A broken image matters only if nothing else was rejected.
    telling = [(one, more) for one, more in counted if one.why != "engine"] or counted
    shown = counted if everything else telling[:SHOWN]
    lines = [line for one, more in shown for line in _rejection(one, more)]
    hidden = len(rejected) - sum(1 + more for _, more in shown)
    lines += [f"… {hidden} more (--all)"] if hidden else []
    return [_line("rejected" if number == 0 else "", text) for number, text in enumerate(lines)]


def _grouped(rejected: Sequence[Rejection]) -> Iterator[tuple[Rejection, int]]:
    """One rejection per reason, rules first, with the number of others like it."""
    found: dict[tuple[str, str], list[Rejection]] = {}
    for one in rejected:
        found.setdefault((one.why, one.rule or one.reason), []).append(one)
    for same in sorted(found.values(), key=lambda same: (_ORDER.index(same[0].why), -(same[0].tps or 0.0))):
        yield same[0], len(same) - 1


def _rejection(one: Rejection, more: int) -> Iterator[str]:
    """The candidate and the reason with its rule and source: in one line, or if that is too long below each other."""
    what = one.what + (f" (and {more} more)" if more else "")
    cited = ", ".join(part for part in (one.rule, _short(one.source)) if part)
    reason = f"{one.reason}{f' ({cited})' if cited else ''}"
    beside = f"{what:<{WIDE}}   {reason}"
    yield from (beside,) if len(beside) <= WIDTH else (what, *_wrapped(reason, indent=2))


def _short(source: str) -> str:
    """A source without its explanation: "field report 001"."""
    return source.partition(" (")[0].partition(": ")[0]


def explain_refusal(refusal: InfeasibleDeployment, *, everything: bool = False) -> list[str]:
    """A deployment that cannot be served: the reasons, and the nearest thing that would fit."""
    lines = _lines("infeasible", f"nothing in this fleet can serve {refusal.model}")
    if refusal.nearest:
        lines += _lines("nearest", " · ".join(refusal.nearest))
    return lines + _rejected_lines(refusal.rejected, everything)


# --- one candidate ----------------------------------------------------------------------------------------------------


def explain_why(plan: DeploymentPlan | None, rejected: Sequence[Rejection], words: str) -> list[str]:
    """Everything about the candidates whose description has all of `words`: numbers, rules, sources."""
    wanted = words.lower().split()
    lines: list[str] = []
    for group in plan.groups if plan else ():
        for at, rung in enumerate(group.ladder):
            if _matches(str(rung.candidate), wanted):
                lines += _rung_in_full(rung, at)
    for one in rejected:
        if _matches(f"{one.what} {one.rule}", wanted):
            lines += [_line("rejected", one.what), *_lines("", one.reason)]
            lines += [_line("rule", f"{one.rule}   `sparkfleet explain {one.rule}`")] if one.rule else []
            lines += _lines("source", one.source) if one.source else []
    return lines or [_line("", f"no candidate is described by “{words}”; `--all` lists them")]


def _matches(text: str, wanted: Sequence[str]) -> bool:
    return all(word in text.lower() for word in wanted)


def _rung_in_full(rung: Rung, at: int) -> list[str]:
    candidate, prediction = rung.candidate, rung.prediction
    lines = _lines("choice" if at == 0 else f"rung {at + 1}", str(candidate))
    lines += _lines(
        "memory",
        *_memory(rung, {}),
        *(f"{part.bytes / GIB:6.1f} GiB  {part.name}" for part in prediction.memory_parts),
    )
    lines += _speed_lines(prediction)
    lines += _lines("why", *rung.reason.split("; ")) if rung.reason else []
    lines += _lines(
        "sizes",
        f"context {candidate.context} · concurrency {candidate.concurrency} · KV {candidate.kv_dtype}",
    )
    if candidate.memory_fraction is not None:
        lines += _lines("", f"memory fraction {candidate.memory_fraction:g}")
    if candidate.batch_tokens is not None:
        default = f"{ENGINE_LABELS[candidate.engine]}'s default on a Spark is {own_chunk(candidate.engine)}"
        lines += _lines("", f"prefill {candidate.batch_tokens} tokens at a time; {default}")
    if prediction.accepted is not None:
        lines += _lines("drafts", f"{prediction.accepted:.2f} tokens per step expected")
    lines += _image_lines(candidate)
    lines += _lines("flags", " ".join(candidate.engine_args)) if candidate.engine_args else []
    lines += _lines("env", " ".join(name for name, _ in candidate.env)) if candidate.env else []
    return lines + _settings_lines(rung) + _lines("warning", *rung.notes)


# --- changes and nodes ------------------------------------------------------------------------------------------------


def explain_change(change: Change, plan: DeploymentPlan | None = None) -> list[str]:
    """The difference to the desired state: what starts or changes, on which nodes, with which weights."""
    words = {"start": "+ start", "change": "~ change", "keep": "= keep"}[change.verb]
    counts = {verb: int(change.verb == verb) for verb in ("start", "change")}
    chosen = [group.choice for group in plan.groups] if plan and change.starts else []
    nodes = dict.fromkeys(node for rung in chosen for node in rung.candidate.shape.nodes)
    places = f" on {', '.join(nodes)}" if nodes else ""
    lines = ["", *_lines("changes", f"{words}  {change.name}{places}")]
    effect = [f"  {_effect(change)}"] if change.verb == "change" else []
    lines += _lines("", *_weights(chosen), *effect, *(f"  {field}" for field in change.fields))
    counted = f"{counts['start']} to start, {counts['change']} to change"
    return lines + _lines("verdict", f"{verdict}: {counted}" if (verdict := _verdict(plan)) else counted)


def _verdict(plan: DeploymentPlan | None) -> str:
    """The answer to the two questions of an owner, for the slowest and the tightest group; "" without a plan."""
    if plan is None or not plan.groups:
        return ""
    found = [group.choice.prediction for group in plan.groups]
    fits = next((one.verdict for one in found if one.verdict != "fits"), "fits")
    rates = [one.decode_tps_per_request.mid for one in found if one.decode_tps_per_request is not None]
    return f"{fits}, {min(rates):.3g} tok/s for one user" if rates else fits


def _effect(change: Change) -> str:
    """The cost of a change: engines that start, end and go on."""
    goes_on = (
        f"{_names(change.keeps)} {'goes' if len(change.keeps) == 1 else 'go'} on" if change.keeps else ""
    )
    if not change.starts:
        ended = f"ends {_names(change.ends)}; " if change.ends else "restarts no engine: "
        return f"{ended}{goes_on or 'no group is left'}"
    engines = "engine" if change.starts == 1 else f"{change.starts} engines"
    took = f" (the last start took {_seconds_in_words(change.expected_s)})" if change.expected_s else ""
    if not change.ends:
        return f"starts {'one more' if change.starts == 1 else change.starts} engine{took}; {goes_on}"
    old, ends = _names(change.ends), "ends" if len(change.ends) == 1 else "end"
    serves = {
        True: f"{old} {'serves' if len(change.ends) == 1 else 'serve'} until then",
        False: f"{old} {ends} first, because memory does not hold both",
        None: f"{old} {'serves' if len(change.ends) == 1 else 'serve'} until then if memory holds both",
    }[change.together]
    return f"restarts {'the ' if change.starts == 1 else ''}{engines}{took}; {serves}{goes_on and f'; {goes_on}'}"


def _names(groups: Sequence[str]) -> str:
    return " and ".join((", ".join(groups[:-1]), groups[-1])) if len(groups) > 1 else "".join(groups)


def _seconds_in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _weights(chosen: Sequence[Rung]) -> Iterator[str]:
    """One line per model: bytes and nodes of its weights."""
    for model in dict.fromkeys(rung.candidate.model for rung in chosen):
        of_model = [rung for rung in chosen if rung.candidate.model == model]
        size = of_model[0].prediction.weights_bytes
        if not size:
            continue
        nodes = dict.fromkeys(node for rung in of_model for node in rung.candidate.shape.nodes)
        guessed = any(rung.prediction.weights_estimated for rung in of_model)
        about, note = ("about ", " (estimated from the config)") if guessed else ("", "")
        on = "each node" if len(nodes) > 1 else "".join(nodes)
        yield f"  weights: {about}{size / GB:.0f} GB on {on}, copied if not there{note}"


def explain_origins(origins: Sequence[tuple[str, str]]) -> list[str]:
    """Lines with the origin of the sizes of models: (model, origin)."""
    return [line for model, origin in origins for line in _lines("sizes", f"{model}: {origin}")]


def explain_measured(measured: Sequence[str]) -> list[str]:
    """Lines with the measurements of running groups."""
    return [_line("measured" if number == 0 else "", text) for number, text in enumerate(measured)]


def explain_nodes(loads: Sequence[NodeLoad]) -> list[str]:
    """Load and remaining memory of every node in use."""
    lines: list[str] = []
    for load in (load for load in loads if load.placed):
        placed = ", ".join(f"{name} {size / GIB:.0f}" for name, size in load.placed)
        left = f"{max(0, load.left) / GIB:.0f} of {load.total / GIB:.0f} GiB left"
        lines.append(_line("nodes" if not lines else "", f"{load.node}: {placed} GiB; {left}"))
    return lines


# --- numbers ----------------------------------------------------------------------------------------------------------


def _memory(rung: Rung, totals: Mapping[str, int]) -> tuple[str, ...]:
    """The verdict with the need of a node and the memory of the smallest; its basis if no speed is predicted."""
    need, nodes = rung.prediction.memory_bytes_per_rank, rung.candidate.shape.nodes
    sizes = [totals[node] for node in nodes if node in totals]
    total = f" of {min(sizes) / GIB:.0f}" if sizes else ""
    ends = f"{_short_number(need.low / GIB)}–{_short_number(need.high / GIB)}"
    band = "" if need.low == need.high else f" ({ends})"
    each = " on each node" if len(nodes) > 1 else ""
    words = f"{_short_number(need.mid / GIB)}{total} GiB{each}: {rung.prediction.verdict}{band}"
    return (words, need.basis) if rung.prediction.decode_tps_per_request is None else (words,)


def _speed_lines(prediction: Prediction) -> list[str]:
    """Predicted decode rates, TTFT and prefill rate, and the basis of the prediction."""
    alone, many = prediction.decode_tps_per_request, prediction.decode_tps_aggregate
    if alone is None:
        return _lines("speed", "not predicted; measured after the start")
    rates = [f"{alone.mid:.3g} tok/s for one user{_spread(alone)}"]
    if many is not None and (prediction.concurrency or 1) > 1:
        # This includes the time in which other prompts are prefilled; the rate of one user does not.
        rates.append(f"{many.mid:.0f} shared by {prediction.concurrency}{_spread(many)}")
    first = []
    if prediction.ttft_ms is not None:
        prompt = f" ({_tokens(prediction.prompt)} prompt)" if prediction.prompt else ""
        first.append(f"first word after {_seconds(prediction.ttft_ms)}{prompt}")
    if prediction.prefill_tps is not None:
        first.append(f"prefill {_thousands(prediction.prefill_tps.mid)} tok/s")
    return _lines("speed", ", ".join(rates), "; ".join((*first, _basis(alone))))


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


def _spread(band: Band) -> str:
    """The ends of a band: ` (11–26)`."""
    return f" ({band_ends(band)})"


def band_ends(band: Band) -> str:
    """The low and the high end of a band, two digits each: `11–26`."""
    return f"{_short_number(band.low)}–{_short_number(band.high)}"


def _seconds(band: Band) -> str:
    """Milliseconds; seconds from 0.95 s."""
    return f"{band.mid:.0f} ms" if band.mid < 950 else f"{band.mid / 1000:.1f} s"


def _short_number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _thousands(value: float) -> str:
    return f"{value:,.0f}"


def _tokens(count: int) -> str:
    return f"{count // 1024}K" if count % 1024 == 0 else str(count)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number != 1 else "")


def _line(label: str, text: str) -> str:
    return f"{INDENT}{label:<{LABEL}}{text}"


def _lines(label: str, *texts: str) -> list[str]:
    """The texts below each other behind one label, each wrapped."""
    wrapped = [line for text in texts for line in _wrapped(text)]
    return [_line(label if number == 0 else "", line) for number, line in enumerate(wrapped)]


def _wrapped(text: str, indent: int = 0) -> list[str]:
    """The text in lines that fit beside a label; those after the first are indented by two more columns."""
    start = indent + len(text) - len(text.lstrip())
    if indent + len(text) <= WIDTH:
        return [" " * indent + text]
    lines = textwrap.wrap(
        _CODE.sub(lambda code: code[0].replace(" ", _GLUE), text.strip()),
        WIDTH,
        initial_indent=" " * start,
        subsequent_indent=" " * (start + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_GLUE, " ") for line in lines]
