"""Latency as a user sees it: TTFT, tok/s of one request and of all of them, with error bands and reasons.

The functions follow one batch of requests: prompts wait for each other's prefill, and while some are prefilled the
others hardly decode. See `docs/planner.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparkfleet.knowledge.published.factors import Effect, Factors, Quantity
from sparkfleet.perf.latency.acceptance import acceptance, tokens_per_step
from sparkfleet.perf.latency.factor_keys import (
    SETUP_KEYS,
    decode_coefficient,
    decode_keys,
    decode_load_keys,
    prefill_coefficient,
    prefill_keys,
    prefill_load_keys,
)
from sparkfleet.perf.latency.roofline_terms import (
    PREFILL_TERMS,
    STEP_TERMS,
    Costs,
    SpeedConfig,
    burst_terms,
    costs,
    step_terms,
)
from sparkfleet.perf.prediction import Band, Provenance
from sparkfleet.perf.workload import Window, Workload
from sparkfleet.values import Value

WIDEST = 0.7
"""Half width (log) if too few measurements were held out: half to double."""
MAX_RUNNING = 256
"""Requests that run together if nothing else is set (vLLM's `--max-num-seqs`)."""


class Term(Value):
    """One physical term of a time, as explained to a person."""

    name: str
    seconds: float
    """Time at the measured ceilings."""
    coefficient: float
    """Fitted: how much longer it takes."""


class AppliedFactor(Value):
    """One effect that was applied."""

    key: str
    factor: float
    """On the time: above 1 is slower."""
    n: int
    spread: float


class Explained(Value):
    """A time with everything it was made of."""

    seconds: float
    terms: tuple[Term, ...]
    effects: tuple[AppliedFactor, ...]


class Rates(Value):
    """Costs of a setup for a workload."""

    ttft_ms: Band | None
    """None if the prompt's length is not known."""
    prefill_tps: Band | None
    decode_tps_per_request: Band
    decode_tps_aggregate: Band
    accepted: float = 1.0
    """Tokens per step, 1 without speculation."""


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """A setup with its costs and the factors that apply to it: answers any workload."""

    setup: SpeedConfig
    cost: Costs
    factors: Factors
    step_coefficients: Mapping[str, float]
    prefill_coefficients: Mapping[str, float]
    effects: Mapping[Quantity, float]
    """Sums (log) of the effects that depend on the setup alone."""

    def prefill_s(self, batch: float, workload: Workload, *, mean: bool = False) -> float:
        """Seconds until `batch` prompts of the workload, come together, are prefilled: the last, or on average."""
        bare, fixed = self.prefill_parts(batch, workload, mean=mean)
        return bare + fixed

    def prefill_parts(self, batch: float, workload: Workload, *, mean: bool = False) -> tuple[float, float]:
        """The same in two: what grows with the prompts, and what a request costs whatever its length."""
        depth = workload.depth if workload.depth_cached else 0
        at_once = mean and in_step(self.setup, workload)
        terms = burst_terms(self.setup, self.cost, batch, workload.prefill, depth, mean=mean, at_once=at_once)
        known = self.prefill_coefficients
        effect = math.exp(self._effect("prefill", prefill_load_keys(self.setup, workload.prompt, batch)))
        fixed = terms.pop("fixed") * known["fixed"]
        return effect * sum(s * known[name] for name, s in terms.items()), effect * fixed

    def step_s(self, batch: float, context: float) -> float:
        """Seconds of one decode step of `batch` requests."""
        width = self.setup.k + 1 if self.setup.method != "none" else 1
        terms = step_terms(self.setup, self.cost, batch, width, context)
        known = self.step_coefficients
        total = sum(s * known[name] for name, s in terms.items())
        return total * math.exp(self._effect("decode", decode_load_keys(self.setup, batch)))

    def yielded(self, workload: Workload) -> float:
        """Tokens that one step yields per request."""
        if self.setup.method == "none":
            return 1.0
        return tokens_per_step(acceptance(self.setup, workload.content, self.factors), self.setup.k)

    def _effect(self, quantity: Quantity, keys: list[str]) -> float:
        known = self.factors.effects[quantity]
        return self.effects[quantity] + sum(known[key].log for key in keys if key in known)


def model_of(setup: SpeedConfig, factors: Factors) -> LatencyModel:
    """The model that answers workloads for a setup; what depends on the setup alone is worked out here."""
    step, prefill = factors.coefficients["decode"], factors.coefficients["prefill"]
    effects: dict[Quantity, float] = {}
    for quantity, keys in SETUP_KEYS.items():
        known = factors.effects[quantity]
        effects[quantity] = math.fsum(known[key].log for key in keys(setup) if key in known)
    return LatencyModel(
        setup,
        costs(setup),
        factors,
        {term: step.get(decode_coefficient(setup, term), 1.0) for term in STEP_TERMS},
        {term: prefill.get(prefill_coefficient(setup, term), 1.0) for term in PREFILL_TERMS},
        effects,
    )


def rates(model: LatencyModel, workload: Workload) -> Rates:
    """Predict. Deterministic; about 0.1 ms."""
    batch = float(min(workload.concurrency, model.setup.max_running or MAX_RUNNING))
    accepted = model.yielded(workload)
    per_token = model.step_s(batch, workload.context) / accepted
    band = _Bands(model)
    drafted = model.setup.method != "none"
    if not workload.prefill:
        return Rates(
            ttft_ms=None,
            prefill_tps=None,
            decode_tps_per_request=band("decode", 1 / per_token),
            decode_tps_aggregate=band("decode", batch * kept(workload, batch, drafted=drafted) / per_token),
            accepted=accepted,
        )
    bare, fixed = model.prefill_parts(batch, workload)
    if workload.arrivals_per_s is not None:
        request, aggregate, ttft = _open_loop(model, workload, (bare + fixed) / batch)
    else:
        request, aggregate = _closed_loop(workload, batch, per_token, bare + fixed, drafted=drafted)
        ttft = _first_token(model, workload, batch, per_token)
    return Rates(
        ttft_ms=band("prefill", 1000 * ttft),
        prefill_tps=band("prefill", batch * workload.prefill / bare),
        decode_tps_per_request=band("decode", request),
        decode_tps_aggregate=band("decode", aggregate),
        accepted=accepted,
    )


BURST_ONE, BURST_ONE_DRAFTED, BURST_ALL = 0.8, 0.6, 0.9
"""Share of the prefills of others during its own that an answer waits for (without and with drafts), and of the other
prefills that all of a burst do: every pass that prefills another one also yields a token, or several that were drafted
(medians of llama-benchy's bursts of 5 to 20; the engine does the same whatever the harness)."""
SPREAD = 64
"""Most requests of a burst that are counted one by one."""
ANSWER = 4000
"""Tokens after which answers end by themselves if a harness lets them (llama-benchy); the last of a burst run alone."""


def waits(window: Window, batch: float, all_s: float, *, drafted: bool) -> tuple[tuple[float, ...], float]:
    """Seconds of prefill in the time over which the tok/s of each request, and of all, are counted.

    Args:
        window: what the harness counts.
        batch: requests that run together.
        all_s: seconds to prefill all of them.
        drafted: a speculative method is on.

    Returns:
        One number for each of some requests that represent all (their rates are averaged), and one for all.
    """
    others = all_s * (batch - 1) / batch
    share = BURST_ONE_DRAFTED if drafted else BURST_ONE
    if window == "decode":
        return (0.0,), 0.0
    if window == "whole":
        return (all_s,), all_s
    if window in ("steady", "closed"):
        alone = window == "steady" and batch <= 1  # what one yields is published as from its first token on
        return (share * others,), 0.0 if alone else all_s
    n = max(1, min(SPREAD, round(batch)))  # the last of a burst waits for nobody, the first for all others
    longest = share * others
    each = tuple(longest * i / max(1, n - 1) for i in range(n))
    return each, BURST_ALL * others if window == "burst" else all_s


EVEN = 0.93
"""Tok/s of all over the sum of each one's if requests draft: each ends in its own time, the last ones run alone. Median
of 77 published pairs of 17 sources."""


def kept(workload: Workload, batch: float, *, drafted: bool) -> float:
    """Aggregate rate as a share of what as many requests would reach if all decoded from first to last token."""
    if batch <= 1:
        return 1.0
    if workload.window == "burst":  # answers of unlike length
        share = workload.generate / ANSWER
        return -math.expm1(-share) / share
    if workload.window in ("closed", "whole") and workload.requests is not None:
        return full_rounds(workload.requests, batch)
    return EVEN if drafted and workload.window == "steady" else 1.0


def full_rounds(requests: int, batch: float) -> float:
    """Share of the slots that are taken while `requests` of equal length go through `batch` at once, in rounds."""
    return min(1.0, requests / (batch * math.ceil(requests / batch)))


def _closed_loop(
    workload: Workload, batch: float, per_token: float, all_s: float, *, drafted: bool
) -> tuple[float, float]:
    """(tok/s of one request, of all) when a request follows as soon as one ends."""
    of_each, of_all = waits(workload.window, batch, all_s, drafted=drafted)
    decode = workload.generate * per_token
    aggregate = batch * workload.generate * kept(workload, batch, drafted=drafted) / (decode + of_all)
    return math.fsum(workload.generate / (decode + wait) for wait in of_each) / len(of_each), aggregate


STAGGERED = 0.15
"""Share of a burst's wait that is left in a closed loop: answers that begin one after another end so, too (means of vLLM:
0.15 with drafts by jvr0x; without, 0.13 by PalatineVision, 0.17 by jvr0x, 0.04 by mrdbourke). A first round is a burst."""
ONE_BY_ONE = ("llama.cpp", "ollama")
"""Engines whose loops stay bursts: all slots decode in step with each other's prompts (jvr0x, 10 models)."""


def in_step(setup: SpeedConfig, workload: Workload) -> bool:
    """True for a closed loop whose requests end in one step, so that the next prompts come in one step, too.

    Two prompts of llama.cpp take twice the time of one until the first token of either, not 1.5 times on average.
    """
    return workload.window == "closed" and setup.engine in ONE_BY_ONE and setup.method == "none"


def left_of_burst(setup: SpeedConfig, workload: Workload, batch: float) -> float:
    """Share of a burst's wait that requests have on average: 1 if all of them come at once."""
    if workload.window != "closed" or batch <= 1 or in_step(setup, workload):
        return 1.0
    if workload.requests is None:
        return STAGGERED
    first = min(1.0, batch / workload.requests)
    return first + (1 - first) * STAGGERED


def _first_token(model: LatencyModel, workload: Workload, batch: float, per_token: float) -> float:
    """Mean seconds to the first token: prompts queue for the prefill, and requests beyond the slots for a slot."""
    mean = model.prefill_s(batch, workload, mean=True)
    left = left_of_burst(model.setup, workload, batch)
    if left < 1:
        alone = _beside_decode(model, workload, batch - 1)
        mean = min(mean, alone) + left * max(0.0, mean - alone)
    turns = workload.concurrency / batch - 1.0
    if workload.window in ("burst", "served"):  # nobody follows: the first wait for no slot
        turns /= 2
    return mean + turns * (model.prefill_s(1, workload) * batch + workload.generate * per_token)


def _open_loop(model: LatencyModel, workload: Workload, one_s: float) -> tuple[float, float, float]:
    """(tok/s of one request, of all, seconds to the first token) when requests arrive at a rate of their own.

    As many run as it takes to finish requests as fast as they arrive, or as many as are allowed. If prompts come
    faster than they can be prefilled, the queue grows until the last one has come.
    """
    rate = workload.arrivals_per_s or 0.0
    requests = workload.requests or ARRIVALS
    most = float(min(workload.concurrency, model.setup.max_running or MAX_RUNNING, requests))
    yielded = model.yielded(workload)

    def life(running: float) -> float:
        decode = workload.generate * model.step_s(running, workload.context) / yielded
        return one_s * running + decode

    low, high = 1.0, most
    saturated = high / life(high) < rate
    if saturated:
        running = high
    elif low / life(low) >= rate:
        running = 1.0
    else:
        for _ in range(10):
            middle = (low + high) / 2
            low, high = (middle, high) if middle / life(middle) < rate else (low, middle)
        running = high
    whole = life(running)
    seconds = requests * whole / running if saturated else requests / rate + whole
    per_token = (whole - one_s) / workload.generate
    prefill = _beside_decode(model, workload, running)
    busy = min(BUSIEST, prefill * min(rate, running / whole))
    queued = workload.concurrency > 0.3 * requests  # otherwise the client holds requests back
    full = saturated and most < workload.concurrency  # all slots are taken, and each request waits for one
    between = max(prefill, whole / running if full else 0.0)
    behind = max(0.0, between - 1 / rate) * requests / 2 if queued else 0.0
    ttft = prefill * (1 + QUEUE * busy / (1 - busy)) + behind
    return 1 / per_token, requests * workload.generate / seconds, ttft


ARRIVALS = 100
"""Requests that arrive at a rate, if it is not known how many."""
BUSIEST = 0.6
"""Share of time in prefills beyond which waiting grows no further: what does not fit is counted as a queue that grows."""
QUEUE = 0.3
"""Median wait of a queue in units of busy / (1 - busy) services; the mean of a queue of equal services is 0.5."""
BESIDE = 0.75
"""Share of a decode step by which each pass of a prefill takes longer while others decode."""


def _beside_decode(model: LatencyModel, workload: Workload, running: float) -> float:
    """Seconds of one prefill whose passes carry the tokens of `running` requests that decode."""
    passes = math.ceil(workload.prefill / model.setup.chunk)
    step = model.step_s(running, workload.context)
    return model.prefill_s(1, workload) + (BESIDE * passes + 0.25) * step


def support(setup: SpeedConfig, factors: Factors) -> str:
    """Evidence for setups like this one: "known", "family", "kind" or "none"."""
    known = factors.effects["decode"]
    keys = decode_keys(setup, 1)

    def n(prefix: str) -> int:
        key = next((k for k in keys if k.startswith(prefix + "=")), "")
        return known[key].n if key in known else 0

    if n("family+format+engine") >= 3 and (setup.tp == 1 or n("tp+family") >= 3):
        return "known"
    if n("family"):
        return "family"
    return "kind" if n("engine+kind") else "none"


class _Bands:
    """Bands of one model, as wide as the errors with as much evidence."""

    def __init__(self, model: LatencyModel) -> None:
        self.known = support(model.setup, model.factors)
        self.spec = "none" if model.setup.method == "none" else "spec"
        self.bands = model.factors.bands
        self.basis, self.provenance = "modelled from physics", Provenance.MODELLED
        if self.known in ("known", "family"):
            self.basis = f"calibrated on {_measurements(model)}"
            self.provenance = Provenance.CALIBRATED

    def __call__(self, quantity: Quantity, value: float) -> Band:
        half = self.bands.get(f"{quantity}/{self.spec}/{self.known}", WIDEST)
        low, high = value * math.exp(-half), value * math.exp(half)
        return Band(low=low, mid=value, high=high, provenance=self.provenance, basis=self.basis)


def _measurements(model: LatencyModel) -> str:
    """Number of measurements of this family, in this format and on this engine if there are any."""
    known = model.factors.effects["decode"]
    keys = {key.partition("=")[0]: key for key in decode_keys(model.setup, 1)}
    levels = {
        "family+format+engine": "",
        "family+format": " of all engines",
        "family": " of all engines and formats",
    }
    counts = ((known.get(keys[level], Effect(log=0, n=0, spread=0)).n, of) for level, of in levels.items())
    return next(f"{n} measurements{of}" for n, of in counts if n)


def explain_step(model: LatencyModel, batch: float, context: float) -> Explained:
    """One decode step with its terms and the effects applied to it."""
    width = model.setup.k + 1 if model.setup.method != "none" else 1
    seconds = step_terms(model.setup, model.cost, batch, width, context)
    return Explained(
        seconds=model.step_s(batch, context),
        terms=_weighed(seconds, model.step_coefficients),
        effects=_applied(decode_keys(model.setup, batch), model.factors.effects["decode"]),
    )


def explain_prefill(model: LatencyModel, workload: Workload) -> Explained:
    """The prefill of one prompt with its terms and the effects applied to it."""
    depth = workload.depth if workload.depth_cached else 0
    seconds = burst_terms(model.setup, model.cost, 1.0, workload.prefill, depth, mean=False)
    return Explained(
        seconds=model.prefill_s(1.0, workload),
        terms=_weighed(seconds, model.prefill_coefficients),
        effects=_applied(prefill_keys(model.setup, workload.prompt, 1.0), model.factors.effects["prefill"]),
    )


def _weighed(seconds: Mapping[str, float], coefficients: Mapping[str, float]) -> tuple[Term, ...]:
    return tuple(Term(name=name, seconds=s, coefficient=coefficients[name]) for name, s in seconds.items())


def _applied(keys: Iterable[str], known: Mapping[str, Effect]) -> tuple[AppliedFactor, ...]:
    found = ((key, known[key]) for key in keys if key in known)
    return tuple(AppliedFactor(key=key, factor=math.exp(e.log), n=e.n, spread=e.spread) for key, e in found)
