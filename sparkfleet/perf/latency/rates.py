"""Rates as a user sees them: TTFT, tok/s of one request and of all of them, with error bands.

The functions follow one batch of requests: prompts wait for each other's prefill, and while some are prefilled the
others hardly decode. See `docs/planner.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from sparkfleet.perf.latency.acceptance import EVEN
from sparkfleet.perf.latency.bands import Bands
from sparkfleet.perf.latency.latency_model import LatencyModel, in_step
from sparkfleet.perf.latency.step_costs import SpeedConfig
from sparkfleet.perf.prediction import Band
from sparkfleet.perf.workload import Window, Workload
from sparkfleet.values import Value

MAX_RUNNING = 256
"""Requests that run together if nothing else is set (vLLM's `--max-num-seqs`)."""


class Rates(Value):
    """Costs of a setup for a workload."""

    ttft_ms: Band | None
    """None if the prompt's length is not known."""
    prefill_tps: Band | None
    decode_tps_per_request: Band
    decode_tps_aggregate: Band
    accepted: float = 1.0
    """Tokens per step, 1 without speculation."""


def rates(model: LatencyModel, workload: Workload) -> Rates:
    """Predict. Deterministic; about 0.1 ms."""
    batch = float(min(workload.concurrency, model.setup.max_running or MAX_RUNNING))
    accepted = model.yielded(workload)
    per_token = model.step_s(batch, workload.context) / accepted
    band = Bands(model)
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

    saturated = most / life(most) < rate
    running = most if saturated else _running_at(rate, life, most)
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


def _running_at(rate: float, life: Callable[[float], float], most: float) -> float:
    """Number of running requests that finish `rate` of them per second, at least 1 and at most `most`."""
    low, high = 1.0, most
    if low / life(low) >= rate:
        return low
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (middle, high) if middle / life(middle) < rate else (low, middle)
    return high


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
