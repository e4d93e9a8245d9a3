"""A plan in words. Pure: lines of text, no terminal."""

from __future__ import annotations

from collections.abc import Sequence

from sparkfleet.facts.node import NodeFacts
from sparkfleet.planning.diff import Change
from sparkfleet.planning.plan import Band, DeploymentPlan, Prediction, Rung
from sparkfleet.spec.deployment import Deployment

GIB = 1 << 30
INDENT = "  "
LABEL = 12


def explain_fleet(spec: Deployment, plan: DeploymentPlan, facts: Sequence[NodeFacts], fleet: str) -> str:
    """The headline: what was asked for, and of what."""
    candidate = plan.groups[0].choice.candidate
    nodes = f"{len(facts)} node" + ("s" if len(facts) != 1 else "")
    return (
        f"{spec.name}   objective {spec.objective} · context {candidate.context}"
        f" · concurrency {candidate.concurrency} · fleet {fleet} ({nodes})\n"
    )


def explain_plan(plan: DeploymentPlan) -> list[str]:
    """The choice, the ladder below it, and what was rejected."""
    first, *rest = plan.groups[0].ladder
    count = len(plan.groups)
    lines = [_line("choice", f"{first.candidate}" + (f" · {count} replicas" if count > 1 else ""))]
    lines += [_line("", text) for text in (_numbers(first.prediction), first.reason) if text]
    lines += [_line("then" if n == 0 else "", _rung(rung)) for n, rung in enumerate(rest)]
    for number, rejection in enumerate(plan.rejected):
        rule = f"   {rejection.rule}" if rejection.rule else ""
        lines.append(_line("rejected" if number == 0 else "", f"{rejection.what}: {rejection.reason}{rule}"))
    return lines


def explain_change(change: Change) -> list[str]:
    """The difference to what is wanted now."""
    words = {"start": "+ start", "change": "~ change", "keep": "= keep"}[change.verb]
    counts = {verb: int(change.verb == verb) for verb in ("start", "change")}
    lines = ["", _line("changes", f"{words}  {change.name}")]
    lines += [_line("", f"  {field}") for field in change.fields]
    lines.append(_line("", f"{counts['start']} to start, {counts['change']} to change"))
    return lines


def _rung(rung: Rung) -> str:
    return f"{rung.candidate}   {_numbers(rung.prediction)}"


def _numbers(prediction: Prediction) -> str:
    """What is predicted, and what is not known, said so."""
    memory = prediction.memory_bytes_per_rank
    parts = [f"{memory.mid / GIB:.1f} GiB ({memory.low / GIB:.1f} to {memory.high / GIB:.1f})"]
    parts.append(_speed(prediction.ttft_ms, "TTFT {} ms"))
    parts.append(_speed(prediction.decode_tps_per_request, "{} tok/s alone"))
    known = [part for part in parts if part]
    if prediction.decode_tps_per_request is None:
        known.append("speed not predicted: it is measured once it runs")
    return " · ".join(known) + f"   {memory.provenance.value}: {memory.basis}"


def _speed(band: Band | None, form: str) -> str:
    return form.format(f"{band.mid:.3g} ({band.low:.3g} to {band.high:.3g})") if band else ""


def _line(label: str, text: str) -> str:
    return f"{INDENT}{label:<{LABEL}}{text}"
