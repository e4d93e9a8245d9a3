"""Sizes a proposal to its nodes: context, requests at once, precision of the KV cache. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sparkfleet.knowledge.rules.rule_context import parse_flags
from sparkfleet.perf.engine_config import CHUNK
from sparkfleet.perf.engine_settings import EngineSettings
from sparkfleet.perf.latency.step_costs import own_chunk
from sparkfleet.perf.memory.demand import FLOOR, MemoryBudget, fits
from sparkfleet.perf.memory.kv_cache import pool_bytes
from sparkfleet.perf.prediction import KV, VLLM_POOL, Band, MemoryPart, MemoryUse
from sparkfleet.planner.capacity.proposal import KvSizing, Proposal, Sizes, Sizing, VariantCase
from sparkfleet.planner.engine_args.engine_args import (
    BATCHED,
    CHUNKED,
    EAGER_FLAGS,
    UBATCH,
    chunk_given,
    kv_type_given,
    pool_given,
    share_given,
)
from sparkfleet.planner.place.drafting import depth_on
from sparkfleet.planner.place.stacks import Stack
from sparkfleet.planner.rules.rule_facts import checkpoint_quant
from sparkfleet.specs.deployment import EngineName

LEAST_CONTEXT = 2048
WORKABLE_CONTEXT = 8192
"""Context that is kept even at the cost of the host's reserve: one long request is worth more than four short ones."""

KV_SMALL = {"vllm": "fp8", "sglang": "fp8_e4m3", "trtllm": "fp8", "llama.cpp": ""}
"""A KV cache of half the bytes, to try if there is no room for the checkpoint's own; "" if plans have none."""
BATCH_FLAGS = {
    "vllm": BATCHED,
    "sglang": CHUNKED,
    "trtllm": "--max-num-tokens",
    "llama.cpp": UBATCH[0],
}
BEYOND_SHARE = {
    "vllm": (MemoryUse.KV_STAGING,),
    "sglang": (
        MemoryUse.ACTIVATIONS,
        MemoryUse.CUDA_GRAPHS,
        MemoryUse.PROCESS,
        MemoryUse.COMMUNICATORS,
        MemoryUse.VISION_CACHE,
    ),
}
"""Memory that an engine takes beside its share. SGLang's is weights and KV alone ("static"); vLLM measures what else is in
use and takes it off its KV cache, but for its pool of KV on the way to the disk, which it allocates after that."""
POOLED = {"vllm": VLLM_POOL}
"""Parts inside a KV cache of fixed size, if it holds more than KV: vLLM's states are blocks of it."""


def size_proposal(
    case: VariantCase, proposal: Proposal, room: MemoryBudget, settings: EngineSettings
) -> Sizing:
    """The first sizes that fit, else the first that are tight, else the smallest, which do not fit.

    The first tight ones with a context to work with are preferred to a shorter context that fits. At the edge of the
    memory the smallest ones with a context to work with.
    """

    def at(sizes: Sizes, kv: str) -> Sizing:
        return sized_at(case, proposal, room, settings._replace(kv_dtype=kv), sizes)

    tried = tuple(_sizes(case, proposal, settings))
    smallest = at(*tried[-1])
    if smallest.verdict == "no":
        return smallest
    tight: list[Sizing] = []
    for sizes, kv in tried:
        if sizes.context < WORKABLE_CONTEXT and tight and tight[-1].context >= WORKABLE_CONTEXT:
            return tight[-1] if case.edge else tight[0]
        found = at(sizes, kv)
        if found.verdict == "fits":
            return found
        tight += [found] if found.verdict == "tight" else []
    if not tight:
        return smallest
    return tight[-1] if case.edge else tight[0]


def tight_sizes(
    case: VariantCase, proposal: Proposal, room: MemoryBudget, settings: EngineSettings
) -> Iterator[Sizing]:
    """The sizes that are tight, with a context to work with, the largest first."""
    for sizes, kv in _sizes(case, proposal, settings):
        if sizes.context < WORKABLE_CONTEXT:
            return
        found = sized_at(case, proposal, room, settings._replace(kv_dtype=kv), sizes)
        if found.verdict == "tight":
            yield found


def sized_at(
    case: VariantCase, proposal: Proposal, room: MemoryBudget, settings: EngineSettings, sizes: Sizes
) -> Sizing:
    """The proposal with these sizes: what it takes of its nodes, and whether they have it."""
    needs, parts = case.predictor.memory(proposal.split, settings, *sizes)
    cache = _cache(case, proposal, settings, sizes, parts)
    verdict = fits(needs, room, edge=case.edge)
    found = Sizing(*sizes, settings.kv_dtype, needs, parts, verdict, cache)
    found = _with_given_args(case, found, proposal, room)
    # Requests that the cache has no room for wait for one another.
    waits = found.verdict == "fits" and cache is not None and cache.requests < found.concurrency
    return found._replace(verdict="tight") if waits else found


def _with_given_args(case: VariantCase, found: Sizing, proposal: Proposal, room: MemoryBudget) -> Sizing:
    """The same with what the deployment's own arguments fix of it."""
    share, cache = share_given(case.variant.engine_args, proposal.engine), found.cache
    if cache is not None and cache.requests < 1:
        return found._replace(verdict="no")
    if cache is not None and (share is None or proposal.engine == "vllm"):
        kept = _by_pool(case, found, cache, proposal, room)
        return kept._replace(verdict="no") if lacks_share(share, proposal, room) else kept
    return found if share is None else _by_share(case, found, share, proposal, room)


def lacks_share(share: float | None, proposal: Proposal, room: MemoryBudget) -> bool:
    """True if less is free than a share of the memory: vLLM requires that much at its start, whatever it takes later."""
    return share is not None and share * proposal.pool.site.memory_total > room.at_most + FLOOR


def _cache(
    case: VariantCase,
    proposal: Proposal,
    settings: EngineSettings,
    sizes: Sizes,
    parts: tuple[MemoryPart, ...],
) -> KvSizing | None:
    """The KV cache that the deployment's arguments fix, None if they do not."""
    pool = pool_given(case.variant.engine_args, proposal.engine)
    if pool is None:
        return None
    if pool.tokens is None:
        given, needed = float(pool.bytes or 0), pooled_bytes(parts, proposal.engine)
        return KvSizing(pool, given, given * sizes.concurrency / needed if needed else math.inf)
    layers = case.predictor.shape.layers
    config = case.predictor.memory_config(proposal.split, settings, *sizes)
    given = pool_bytes(case.predictor.shape, config, pool.tokens, pool.sliding)
    unknown = pool.blocks and (layers.sliding > 0 or layers.linear > 0)
    held = pool.tokens * proposal.split.dcp  # by all ranks together
    return KvSizing(pool, given, 0.0 if unknown else held / sizes.context)


def pooled_bytes(parts: tuple[MemoryPart, ...], engine: EngineName) -> float:
    """Bytes in the KV cache as the engine counts it."""
    return sum(part.bytes for part in parts if part.name in POOLED.get(engine, KV))


def _by_pool(
    case: VariantCase, found: Sizing, cache: KvSizing, proposal: Proposal, room: MemoryBudget
) -> Sizing:
    """The same if the deployment sets the size of the KV cache: the engine allocates it in full."""
    pooled, names = pooled_bytes(found.parts, proposal.engine), POOLED.get(proposal.engine, KV)
    more, needs = cache.bytes - pooled, found.needs
    band = needs.model_copy(
        update={
            "low": needs.low + more,
            "mid": needs.mid + more,
            "high": needs.high + more,
            "basis": f"{cache.pool.label}, set in the deployment: {cache.requests:.3g} × {found.context} tokens",
        }
    )
    less = min(1.0, cache.bytes / pooled) if pooled else 1.0
    parts = [
        part.model_copy(update={"bytes": part.bytes * less}) if part.name in names else part
        for part in found.parts
    ]
    parts += [MemoryPart(name=MemoryUse.SPARE, bytes=more)] if more > 0 else []
    return found._replace(
        needs=band,
        parts=tuple(sorted(parts, key=lambda part: -part.bytes)),
        verdict=fits(band, room, edge=case.edge),
    )


def _by_share(
    case: VariantCase, found: Sizing, share: float, proposal: Proposal, room: MemoryBudget
) -> Sizing:
    """The same if the deployment sets the engine's share of the memory: the engine takes all of it."""
    needs, taken = found.needs, share * shared_bytes(proposal, room)
    outside = sum(part.bytes for part in found.parts if part.name in BEYOND_SHARE.get(proposal.engine, ()))
    inside = needs.mid - outside
    if inside - (needs.mid - needs.low) > taken:
        return found._replace(verdict="no")
    if found.cache is not None:  # the fewer tokens of the two
        taken = min(taken, inside + max(0.0, found.cache.bytes - pooled_bytes(found.parts, proposal.engine)))
    total = outside + max(taken, inside)
    band = Band(
        low=total,
        mid=total,
        high=total + needs.high - needs.mid,
        provenance=needs.provenance,
        basis=f"{share:g} of the memory, set in the deployment",
    )
    spare = (MemoryPart(name=MemoryUse.SPARE, bytes=taken - inside),) if taken > inside else ()
    parts = tuple(sorted((*found.parts, *spare), key=lambda part: -part.bytes))
    verdict = fits(band, room, edge=case.edge)
    return found._replace(
        needs=band, parts=parts, verdict="tight" if verdict == "fits" and inside > taken else verdict
    )


def shared_bytes(proposal: Proposal, room: MemoryBudget) -> float:
    """Memory that an engine takes its share of, bytes: SGLang of the free memory before it loads, vLLM of the total."""
    total = proposal.pool.site.memory_total
    return total if proposal.engine == "vllm" else min(total, max(0.0, room.at_most) + FLOOR)


def _sizes(case: VariantCase, proposal: Proposal, settings: EngineSettings) -> Iterator[tuple[Sizes, str]]:
    """Sizes with a KV precision: the requested ones first, then less of those that are open."""
    small = KV_SMALL[proposal.engine]
    smaller = (small,) if settings.kv_dtype == "auto" and small else ()
    for context in _contexts(case):
        for concurrency in _concurrencies(case, proposal.split.ranks):
            for kv in (settings.kv_dtype, *smaller):
                yield Sizes(context, concurrency), kv


def _contexts(case: VariantCase) -> Iterator[int]:
    context = case.context
    while True:
        yield context
        if context <= LEAST_CONTEXT or case.variant.context is not None:
            return
        context = max(LEAST_CONTEXT, context // 2)


def _concurrencies(case: VariantCase, ranks: int) -> Iterator[int]:
    """Numbers to try: the planned one, three quarters and half of it, and so on: half may lose more than drafts gain."""
    concurrency = case.concurrency_of(ranks)
    yield concurrency
    while case.variant.concurrency is None and concurrency > 1:
        if 3 * concurrency // 4 > concurrency // 2:
            yield 3 * concurrency // 4
        concurrency //= 2
        yield concurrency


def settings_of(case: VariantCase, proposal: Proposal, stack: Stack) -> EngineSettings:
    """Memory and speed settings in the deployment's own arguments."""
    flags = parse_flags(case.variant.engine_args)
    chunk = chunk_given(case.variant.engine_args, BATCH_FLAGS.get(stack.engine, ""))
    settings = EngineSettings(
        engine=stack.engine,
        release=stack.release,
        speculation=depth_on(proposal.speculation, stack, case.load(proposal.split.ranks)),
        eager=EAGER_FLAGS[stack.engine] in flags,
        kv_dtype=kv_type_given(case.variant.engine_args, stack.engine) or "auto",
        batch_tokens=chunk or planned_chunk(stack.engine),
        link=proposal.pool.site.link,
        disk_tables=stack.disk_tables(case.predictor.checkpoint) is not None,
        kv_disk=case.variant.kv_disk is not None and stack.engine == "vllm",
        requantized=stack.known.requantized(quant_of(case)) if stack.known else (),
    )
    return (
        settings
        if chunk
        else settings._replace(
            batch_tokens=max(settings.batch_tokens, _whole_block(case, proposal, settings))
        )
    )


def planned_chunk(engine: str) -> int:
    """Tokens of a prefill step in plans: more than the engines' own but for llama.cpp, which was measured with its own batch
    as one pass (`-b 2048 -ub 2048`)."""
    return own_chunk(engine) if engine == "llama.cpp" else CHUNK


def _whole_block(case: VariantCase, proposal: Proposal, settings: EngineSettings) -> int:
    """Tokens that a prefill step has to have room for. Of a KV cache whose precision is open the smallest counts: its blocks
    have the most tokens."""
    smallest = (KV_SMALL[proposal.engine] if settings.kv_dtype == "auto" else "") or settings.kv_dtype
    return case.predictor.whole_block(proposal.split, settings._replace(kv_dtype=smallest))


def quant_of(case: VariantCase) -> str:
    """Weight format, as images and plans name it; rules name the format of most weights (`checkpoint_quant`)."""
    if case.predictor.format == "fp8+mxfp4":
        return "fp8+mxfp4-experts"
    return checkpoint_quant(case.predictor.checkpoint)


def fraction_of(case: VariantCase, proposal: Proposal, engine: EngineName, sized: Sizing) -> float | None:
    """Share of the node's memory that the engine may take: what it needs, so that others have room beside it; None for
    llama.cpp, which allocates what its sizes need."""
    if engine == "llama.cpp":
        return None
    share = share_given(case.variant.engine_args, engine)
    if share is not None:
        return share
    total = proposal.pool.site.memory_total
    return min(0.95, math.ceil(100 * (sized.needs.mid - sized.staging) / total) / 100)
