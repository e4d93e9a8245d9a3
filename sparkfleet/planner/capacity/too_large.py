"""Rejection of a proposal that does not fit its nodes, with its numbers and the sizes that would fit. Pure."""

from __future__ import annotations

import math

from sparkfleet.perf.memory.demand import MemoryBudget
from sparkfleet.planner.capacity.proposal import KvSizing, Proposal, Sizing, VariantCase
from sparkfleet.planner.capacity.sizing import lacks_share, pooled_bytes, shared_bytes
from sparkfleet.planner.engine_args.engine_args import share_given
from sparkfleet.planner.types.plan import Rejection
from sparkfleet.units import GIB, gib


def too_large(case: VariantCase, proposal: Proposal, sized: Sizing, room: MemoryBudget) -> Rejection:
    """The rejection of a proposal that does not fit, with its numbers."""
    where = "one node" if proposal.split.ranks == 1 else f"each of {proposal.split.ranks} nodes"
    largest = max(sized.parts, key=lambda part: part.bytes)
    share = share_given(case.variant.engine_args, proposal.engine)
    there = f"{max(0.0, room.at_most) / GIB:.0f} available"
    if sized.cache is not None and sized.cache.requests < 1:
        return _too_long(proposal, sized, sized.cache)
    if sized.cache is not None and (share is None or proposal.engine == "vllm"):
        there += _smaller_pool(sized, sized.cache, room)
        if lacks_share(share, proposal, room):
            there += f", and {share:g} of the memory, set in the deployment, must be free when vLLM starts"
    elif share is not None and sized.spare:
        there += _smaller_share(sized, share, proposal, room)
    elif share is not None:
        given = share * shared_bytes(proposal, room) / GIB
        there = f"and {share:g} of the memory, set in the deployment, is {given:.0f}"
    return Rejection(
        what=_place(proposal),
        reason=f"does not fit: {gib(sized.needs.mid)} needed on {where}"
        f" ({largest.bytes / GIB:.0f} for {largest.name}), {there}",
        why="memory",
        ranks=proposal.split.ranks,
    )


def _place(proposal: Proposal) -> str:
    return f"{proposal.split} on {proposal.split.ranks} node{'s' if proposal.split.ranks > 1 else ''}"


def _too_long(proposal: Proposal, sized: Sizing, cache: KvSizing) -> Rejection:
    """The rejection if not even one request has room in the KV cache of the deployment's arguments."""
    pool = cache.pool
    if pool.tokens is None:
        one = pooled_bytes(sized.parts, proposal.engine) / sized.concurrency / GIB
        words = f"needs {one:.2f} GiB of KV cache, and {pool.label} is {cache.bytes / GIB:.2f}"
    elif cache.requests:
        words = f"exceeds the {pool.tokens} of {pool.label}"
    else:
        reason = f"the size of a block of {pool.label} is not known for a model with sliding or linear layers"
        return Rejection(what=_place(proposal), reason=f"{reason}: set --kv-cache-memory-bytes", why="wanted")
    reason = f"does not fit: one request of {sized.context} tokens {words}, set in the deployment"
    return Rejection(what=_place(proposal), reason=reason, why="memory", ranks=proposal.split.ranks)


def _smaller_pool(sized: Sizing, cache: KvSizing, room: MemoryBudget) -> str:
    """Largest KV cache with room for at least one request."""
    most = cache.bytes - (sized.needs.mid - room.at_most)
    words = f" (KV cache of {cache.bytes / GIB:.0f} by {cache.pool.label}, set in the deployment"
    if not cache.bytes / cache.requests <= most < cache.bytes:
        return f"{words})"
    if cache.pool.tokens is None:
        return f"{words}; {math.floor(10 * most / GIB) / 10:g} would fit)"
    return f"{words}; {math.floor(cache.pool.tokens * most / cache.bytes)} tokens would fit)"


def _smaller_share(sized: Sizing, share: float, proposal: Proposal, room: MemoryBudget) -> str:
    """The share of the memory that the deployment sets, and the one that would fit, if a smaller one does."""
    over = sized.needs.mid - room.at_most
    most = math.floor(100 * (share - over / proposal.pool.site.memory_total)) / 100
    words = f" ({share:g} of the memory, set in the deployment"
    return f"{words}; {most:g} would fit)" if 0 < over <= sized.spare and most > 0 else f"{words})"
