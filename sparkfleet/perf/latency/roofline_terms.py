"""Roofline terms of a workload: bytes and FLOPs over measured ceilings first, then factors fitted to measurements.

    step      one decode step of B sequences: weights, experts touched, KV, state, launches, all-reduces, draft
    prefill   n tokens at a depth: matrix products, attention, one pass over the weights per chunk, all-reduces
    rates     TTFT with its queue, tok/s of one request and of all, with prefills in between

Every physical time is a named *term* that is multiplied by a fitted coefficient (1.0: exactly the ceiling). The rest is
a product of *effects*, each known from n measurements with a spread. `docs/planner.md` has the equations.
"""

from __future__ import annotations

import math

from sparkfleet.knowledge.ceilings import physics
from sparkfleet.perf.draft_methods import PARALLEL_DRAFTS
from sparkfleet.perf.latency.all_reduce import all_reduce_s
from sparkfleet.perf.latency.context_parallel import ContextRanks
from sparkfleet.perf.latency.step_costs import DRAFT_LAYERS, Costs, SpeedConfig

ALIKE = 0.85
"""Tokens of one answer pick experts alike: w of them touch as many as w^0.85 independent ones. What validates best."""

STEP_TERMS = (
    "weights",
    "experts",
    "kv",
    "state",
    "compute",
    "launch",
    "host",
    "linear",
    "routing",
    "step",
    "sequence",
    "latency",
    "transfer",
    "draft",
    "draft_launch",
    "verify",
    "drafting",
    "executor",
)
"""Every term that `step_terms` may name."""
PREFILL_TERMS = ("compute", "attention", "weights", "traffic", "linear", "fixed", "transfer")
"""Every term that `prefill_terms` may name."""


TILE = 64
"""Tokens of one tile of a grouped matrix product."""


def context_ranks(setup: SpeedConfig) -> ContextRanks | None:
    """The ranks that share one KV cache; None if each has its own, or they are on one node."""
    if setup.dcp == 1 or setup.link is None:
        return None
    return ContextRanks(setup.shape.layers, setup.tp, setup.dcp, setup.link)


def touched(pick: float, tokens: float) -> float:
    """Share of the experts that at least one of `tokens` tokens picks."""
    return 1.0 - (1.0 - pick) ** tokens if pick else 0.0


def step_terms(setup: SpeedConfig, cost: Costs, batch: float, width: int, context: float) -> dict[str, float]:
    """Seconds of one decode step, by term. `width` tokens per sequence are verified (k + 1; 1 without speculation)."""
    read = physics().ceilings.read_gb_per_s * 1e9
    tokens = batch * width
    kv = cost.kv_token * context + cost.kv_window * min(context, cost.window)
    terms = {
        "weights": cost.dense / read,
        "experts": cost.experts * touched(cost.pick, batch * width**ALIKE) / read,
        "kv": batch * kv / read,
        # Read once, and written after every token that is verified: `cost.state` is one of each.
        "state": batch * cost.state * (1 + width) / 2 / read,
        "compute": 2 * cost.active * tokens / cost.flops,
        "launch": cost.blocks * 1e-5,
        "linear": cost.linear * 1e-5,
        "routing": cost.moe * 1e-5,
        "step": 1e-3,
        "sequence": batch * 1e-4,
    }
    if setup.link is not None:
        latency, transfer = all_reduce_s(setup.link, cost.ranks, tokens * cost.hidden * 2)
        hops = cost.blocks if setup.tp > 1 else 0
        terms["latency"] = hops * latency + (setup.pp - 1) * setup.link.latency_us * 1e-6
        terms["transfer"] = hops * transfer
    if (shared := context_ranks(setup)) is not None:
        latency, transfer = shared.step_s(tokens)
        terms["latency"] += latency
        terms["transfer"] += transfer
    if setup.method != "none":
        terms |= draft_terms(setup, cost, batch, read)
        terms["kv"] += batch * cost.kv_draft * context * drafted_layers(setup) / read
        at_once = setup.method in PARALLEL_DRAFTS or setup.method == "ngram"
        drafting = AT_ONCE_S if at_once else FIRST_S + PASS_S * setup.k
        terms |= {"verify": cost.dense / read, "drafting": drafting}
    if setup.ray and cost.ranks * cost.pp > 1:
        terms["executor"] = RAY_S
    if setup.eager:
        rest = sum(seconds for name, seconds in terms.items() if name != "launch")
        waiting = cost.blocks * HOST_S - rest
        # In place of the GPU's own pause between two kernels, which stays if the host is ahead of it.
        if waiting > PAUSES * terms["launch"]:
            terms |= {"launch": 0.0, "host": waiting}
    return terms


AT_ONCE_S, FIRST_S, PASS_S = 5e-3, 2e-3, 1.5e-3
"""Expected time per step to prepare, sample and discard drafts: if all come at once; if they come one after another,
and for each pass more. Chosen, not measured: the fit finds how far off they are (`drafting`)."""
RAY_S = 1e-3
"""Expected time per step to drive ranks through Ray, s. Chosen on sources that were left out (decision 133)."""
PAUSES = 2.5
"""Least wait for the host in a step without CUDA graphs, in units of *launch*; with less the GPU is the slower one. Chosen,
not fitted: above the 2.07 of a step with graphs, so that none is predicted faster without them."""
HOST_S = 3e-4
"""Host time per block (attention, or MLP) of a step without CUDA graphs: the step takes as long as the host's launches or
the GPU's work, whichever is longer. 48 layers 27.8 ms (heitor-mocelin: Qwen3-Coder-30B on two nodes), 40 layers 37 ms
(jschmied: Qwen3.6-35B on one), 36 layers 38.5 ms (conselara.dev: gpt-oss-120b on one)."""


def drafted_layers(setup: SpeedConfig) -> int:
    """Layers whose keys and values the drafts of one step read."""
    if setup.method == "ngram":
        return 0
    return DRAFT_LAYERS if setup.method in PARALLEL_DRAFTS else setup.k


def draft_terms(setup: SpeedConfig, cost: Costs, batch: float, read: float) -> dict[str, float]:
    """Seconds that proposing k tokens takes, by term."""
    if setup.method == "ngram":
        return {}
    if setup.method in PARALLEL_DRAFTS:
        return {"draft": (DRAFT_LAYERS * cost.block + cost.head) / read, "draft_launch": DRAFT_LAYERS * 2e-5}
    if setup.method == "eagle3":
        one = cost.eagle
    elif setup.draft_bytes is not None:
        one = setup.draft_bytes / cost.ranks
    else:
        one = cost.layer + cost.head + cost.drafted_experts * touched(cost.pick, batch)
    return {"draft": setup.k * one / read, "draft_launch": setup.k * 1e-4}


def prefill_terms(
    setup: SpeedConfig, cost: Costs, batch: float, tokens: float, depth: float
) -> dict[str, float]:
    """Seconds to prefill `batch` prompts of `tokens` after `depth` others each, by term.

    Prompts share chunks: short ones of many requests pass over the weights together.
    """
    ceilings = physics().ceilings
    read = ceilings.read_gb_per_s * 1e9
    total = batch * tokens
    passes = max(1.0, total / setup.chunk)
    chunk = min(total, setup.chunk)
    window = min(tokens, cost.window)
    each = chunk * cost.pick  # tokens that one expert is given; its tiles are half empty at the end
    share = cost.prompt_share
    padded = cost.prompt + (share * cost.routed * TILE / 2 / max(each, 1.0) if cost.pick else 0.0)
    terms = {
        "compute": 2 * padded * total / cost.flops,
        "traffic": share * total * cost.traffic / read,
        "attention": total
        * (cost.head_flops * (depth + tokens / 2) + share * cost.window_flops * window / 2)
        / (ceilings.bf16_tflops * 1e12),
        "weights": share * passes * (cost.dense + cost.experts * touched(cost.pick, chunk)) / read,
        "linear": total * cost.scan / (ceilings.bf16_tflops * 1e12),
        "fixed": 1e-2,
    }
    if setup.link is not None:
        latency, transfer = all_reduce_s(setup.link, cost.ranks, chunk * cost.hidden * 2)
        terms["transfer"] = share * passes * cost.blocks * (latency + transfer) if setup.tp > 1 else 0.0
    if (shared := context_ranks(setup)) is not None:
        terms["transfer"] += share * shared.prefill_s(batch, tokens, depth, setup.chunk)
    return terms


def burst_terms(
    setup: SpeedConfig,
    cost: Costs,
    batch: float,
    tokens: float,
    depth: float,
    *,
    mean: bool,
    at_once: bool = False,
) -> dict[str, float]:
    """Seconds until `batch` prompts that come together are prefilled: the last of them, or on average (`mean`).

    The first is prefilled alone, because the engine does not wait for the others; they share the chunks after it. If all
    come in one step of the engine (`at_once`), the first shares, too.
    """
    first = prefill_terms(setup, cost, 1.0, tokens, depth)
    if batch <= 1.0:
        return first
    others = batch if at_once else batch - 1.0
    share = others / batch * halfway(min(others, others * tokens / setup.chunk)) if mean else 1.0
    after = prefill_terms(setup, cost, others, tokens, depth)
    alone = 0.0 if at_once else 1.0
    return {name: s if name == "fixed" else alone * s + share * after[name] for name, s in first.items()}


def halfway(passes: float) -> float:
    """Mean share of some passes over which what they prefill waits: prompts of one pass all come out at its end.

    1 for one pass or a part of it, towards 1/2 for many.
    """
    whole = math.floor(passes)
    return (whole * (whole + 1) / 2 + (passes - whole) * passes) / passes**2
