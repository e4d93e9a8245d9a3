"""Terms of a prediction: bytes, FLOPs and fixed costs over their ceilings, with the factors fitted to measurements. Pure.

Both tables are of one request alone with the prompt that plans are made for, and end in the numbers that the plan shows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal

from sparkfleet.knowledge.ceilings import LinkSpeed, physics
from sparkfleet.perf.latency.explained import AppliedFactor, Explained, Term, explain_prefill, explain_step
from sparkfleet.perf.latency.latency_model import LatencyModel
from sparkfleet.perf.prediction import Band
from sparkfleet.perf.predictor import Predictor
from sparkfleet.perf.workload import Workload, usual
from sparkfleet.planner.capacity.headroom import settings_of_candidate
from sparkfleet.planner.place.fleet_map import Fleet, SiteClass
from sparkfleet.planner.report.effect_words import effect_words
from sparkfleet.planner.types.plan import GroupPlan
from sparkfleet.units import three_digits
from sparkfleet.values import Value

Unit = Literal["bytes", "FLOP", ""]

READS = ("weights", "experts", "kv", "state", "draft", "verify", "traffic")
"""Terms that read memory."""
CEILINGS_OF = "knowledge/physics.yaml, ceilings"
"""Each number there has its source beside it."""
BF16_OF_PREFILL = ("attention", "linear")
"""Terms of a prefill whose products are in bf16 in any format of the weights."""
WHAT: dict[str, str] = {
    "weights": "weights that every step reads",
    "experts": "routed experts that are touched",
    "kv": "KV cache",
    "state": "state of linear-attention layers",
    "compute": "matrix products",
    "launch": "kernel launches of the layers",
    "host": "launches by the host, without CUDA graphs",
    "linear": "linear-attention layers",
    "routing": "routing of expert layers",
    "step": "scheduling of a step",
    "sequence": "sampling of a request",
    "latency": "all-reduces, latency",
    "transfer": "all-reduces, bytes",
    "draft": "weights of the drafter",
    "draft_launch": "launches of the drafter",
    "verify": "verification of the drafts",
    "drafting": "preparation and sampling of the drafts",
    "attention": "attention",
    "traffic": "activations",
    "fixed": "cost of a request, whatever its length",
}


class PredictionTerm(Value):
    """One row: a term of the time, its rate, and the factor between the rate and measurements."""

    name: str
    what: str
    amount: float | None = None
    """Per rank; None for a fixed cost."""
    unit: Unit = ""
    rate: float | None = None
    """`unit` per second."""
    source: str
    """Source of the rate or of the fixed cost."""
    ceiling_ms: float
    factor: float
    """Fitted coefficient: the term takes so many times its ceiling."""
    ms: float
    """`ceiling_ms` × `factor`."""


class PredictionSum(Value):
    """A predicted time as the sum of its terms, times what else is known."""

    quantity: Literal["ITL", "TTFT"]
    prompt: int
    """Tokens of the prompt (TTFT)."""
    context: float
    """Tokens in the KV cache (ITL): of a request halfway through its answer."""
    terms: tuple[PredictionTerm, ...]
    effects: tuple[AppliedFactor, ...]
    """Fitted effects of this setup, from the general to the particular, each with the measurements behind it."""
    ms: float
    """The terms' sum times the effects: one decode step, or the prefill."""
    tokens_per_step: float = 1.0
    """Tokens that one step yields (speculative decoding); the ITL is a step over it."""
    correction: float
    """Predicted over modelled: the effect of rules and measurements of this fleet. 1: none."""
    predicted: Band | None
    """As the plan has it, ms; None if nothing is predicted."""


def prediction_sums(
    predictor: Predictor, fleet: Fleet, groups: Sequence[GroupPlan], number: int = 0
) -> tuple[PredictionSum, ...]:
    """Terms of the predicted ITL and TTFT of a rung of the first group; none on a CPU, for which nothing is predicted.

    Args:
        predictor: of the rung's checkpoint, with the same measurements and drafts as the plan.
        fleet: that the groups were planned for.
        groups: all of a deployment.
        number: of the rung, from 0.
    """
    rung = groups[0].ladder[number]
    candidate, prediction = rung.candidate, rung.prediction
    rate = prediction.decode_tps_per_request
    if rate is None:
        return ()
    shape = candidate.shape
    settings = settings_of_candidate(candidate, _link(fleet, shape.nodes, groups))
    model = predictor.model(shape.split, settings)
    workload = usual(candidate.context, 1, predictor.content)
    accepted = model.yielded(workload)
    itl = Band(
        low=1e3 / rate.high,
        mid=1e3 / rate.mid,
        high=1e3 / rate.low,
        provenance=rate.provenance,
        basis=rate.basis,
    )
    step, prefill = explain_step(model, 1, workload.context), explain_prefill(model, workload)
    return (
        _sum("ITL", model, step, workload, accepted=accepted, predicted=itl),
        _sum("TTFT", model, prefill, workload, accepted=1.0, predicted=prediction.ttft_ms),
    )


def _link(fleet: Fleet, nodes: Sequence[str], groups: Sequence[GroupPlan]) -> LinkSpeed | None:
    """The link that was predicted with: of the fastest class that joins these nodes and those of the other groups, since all
    of a deployment are predicted alike."""
    joined: dict[SiteClass, list[frozenset[str]]] = defaultdict(list)
    for pool in fleet.pools(len(nodes)):
        joined[pool.site].append(frozenset(pool.nodes))
    own = [site for site, among in joined.items() if any(one.issuperset(nodes) for one in among)]
    shapes = [group.choice.candidate.shape.nodes for group in groups]
    others = [other for other in shapes if len(other) == len(nodes)]
    for site in own:
        if all(any(one.issuperset(other) for one in joined[site]) for other in others):
            return site.link
    return own[0].link


def _sum(
    quantity: Literal["ITL", "TTFT"],
    model: LatencyModel,
    found: Explained,
    workload: Workload,
    *,
    accepted: float,
    predicted: Band | None,
) -> PredictionSum:
    modelled = 1e3 * found.seconds / accepted
    return PredictionSum(
        quantity=quantity,
        prompt=workload.prompt,
        context=workload.context,
        terms=tuple(_term(model, quantity, term) for term in found.terms if term.seconds),
        effects=found.effects,
        ms=1e3 * found.seconds,
        tokens_per_step=accepted,
        correction=1.0 if predicted is None else predicted.mid / modelled,
        predicted=predicted,
    )


def _term(model: LatencyModel, quantity: Literal["ITL", "TTFT"], term: Term) -> PredictionTerm:
    unit, rate, source = _ceiling(model, quantity, term.name)
    return PredictionTerm(
        name=term.name,
        what=_what(model, term.name),
        amount=None if rate is None else term.seconds * rate,
        unit=unit,
        rate=rate,
        source=source,
        ceiling_ms=1e3 * term.seconds,
        factor=term.coefficient,
        ms=1e3 * term.seconds * term.coefficient,
    )


def _what(model: LatencyModel, name: str) -> str:
    """The term in words; ranks that share a KV cache have further collectives."""
    words = WHAT[name]
    return words.replace("all-reduces", "all-reduces and DCP") if model.setup.dcp > 1 else words


def _ceiling(
    model: LatencyModel, quantity: Literal["ITL", "TTFT"], name: str
) -> tuple[Unit, float | None, str]:
    """Unit of a term, its rate per second, and the source of the rate."""
    ceilings = physics().ceilings
    if name in READS:
        return "bytes", ceilings.read_gb_per_s * 1e9, f"memory read, {CEILINGS_OF}"
    if quantity == "TTFT" and name in BF16_OF_PREFILL:
        return "FLOP", ceilings.bf16_tflops * 1e12, f"bf16, {CEILINGS_OF}"
    if name == "compute":
        return "FLOP", model.cost.flops, f"{_compute(model)}, {CEILINGS_OF}"
    if name in ("latency", "transfer") and model.setup.link is not None:
        link = model.setup.link
        return "", None, f"link: {link.latency_us:g} µs, {link.gb_per_s:g} GB/s"
    return "", None, "fixed cost, perf/latency/roofline_terms.py"


def _compute(model: LatencyModel) -> str:
    setup = model.setup
    return "bf16" if setup.kernel == "marlin" else physics().formats[setup.format].compute


# --- words ------------------------------------------------------------------------------------------------------------


def sum_lines(found: PredictionSum) -> Iterator[str]:
    """A sum as lines of one table: amount, rate, ms at the ceiling, factor, ms; then effects, and the total."""
    if found.quantity == "ITL":
        yield f"  ITL of one request alone, {found.context:.0f} tokens in its KV cache, per rank:"
    else:
        yield f"  TTFT of one request alone, prompt of {found.prompt} tokens, per rank:"
    yield f"    {'term':<40}{'amount':>12}{'at':>14}{'ms':>9}{'factor':>9}{'ms':>10}   source of the rate"
    for term in sorted(found.terms, key=lambda term: -term.ms):
        yield (
            f"    {term.what:<40}{_amount(term):>12}{_rate(term):>14}{term.ceiling_ms:>9.2f}"
            f"{f'× {term.factor:.2f}':>9}{term.ms:>10.2f}   {term.source}"
        )
    yield f"    {'sum of the terms':<84}{math.fsum(term.ms for term in found.terms):>10.2f}"
    for effect in found.effects:
        yield (
            f"    {effect_words(effect.key):<75}{f'× {effect.factor:.2f}':>9}{'':>10}   "
            f"{effect.n} measurements, spread {100 * effect.spread:.0f} %"
        )
    yield from _total(found)


def _total(found: PredictionSum) -> Iterator[str]:
    step = "one decode step" if found.quantity == "ITL" else "prefill"
    yield f"    {step:<84}{found.ms:>10.2f}"
    if found.tokens_per_step != 1:
        words = f"÷ {found.tokens_per_step:.2f} tokens per step (drafts accepted)"
        yield f"    {words:<84}{found.ms / found.tokens_per_step:>10.2f}"
    if found.predicted is None:
        return
    if abs(found.correction - 1) > 1e-3:
        yield f"    {'rules, and measurements of this fleet':<75}{f'× {found.correction:.2f}':>9}"
    band = found.predicted
    words = f"predicted {found.quantity}: {three_digits(band.low)} to {three_digits(band.high)} ms"
    yield f"    {words:<84}{band.mid:>10.2f}   {band.basis}"


def _amount(term: PredictionTerm) -> str:
    return "" if term.amount is None else _scaled(term.amount, "B" if term.unit == "bytes" else "FLOP")


def _rate(term: PredictionTerm) -> str:
    return "" if term.rate is None else _scaled(term.rate, "B/s" if term.unit == "bytes" else "FLOP/s")


def _scaled(value: float, unit: str) -> str:
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
