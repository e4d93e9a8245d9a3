"""How a draft of a candidate is sized to its nodes: context, requests at once, precision of the KV cache. Pure.

Case       everything that is the same for all drafts of one variant
Draft      how the model is cut, where, with which engine and speculation; no image yet
Sized      what a draft can hold
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sparkfleet.knowledge.situation import parse_flags
from sparkfleet.planning.candidates import Stack
from sparkfleet.planning.fleet import Fleet, Pool
from sparkfleet.planning.memory import FLOOR
from sparkfleet.planning.outlook import Outlook, Settings, Split
from sparkfleet.planning.pack import Room
from sparkfleet.planning.pinned import KV_FLAG, share_said
from sparkfleet.planning.plan import Band, MemoryPart, Rejection, Shape, Speculation, Verdict
from sparkfleet.planning.situate import checkpoint_situation
from sparkfleet.planning.speed import CHUNK
from sparkfleet.spec.deployment import Deployment, EngineName, Objective, Variant

GIB = 1 << 30

DEFAULT_CONTEXT = 32_768
LEAST_CONTEXT = 2048
DEFAULT_CONCURRENCY = {"interactive": 4, "throughput": 16, "context": 1}
"""Where the deployment does not say: a person or a few agents; many clients; one long document."""

KV_SMALL = {"vllm": "fp8", "sglang": "fp8_e4m3", "trtllm": "fp8"}
BATCH_FLAGS = {
    "vllm": "--max-num-batched-tokens",
    "sglang": "--chunked-prefill-size",
    "trtllm": "--max-num-tokens",
}
EAGER_FLAGS = {"vllm": "--enforce-eager", "sglang": "--disable-cuda-graph", "trtllm": ""}
BEYOND_SHARE = {"sglang": ("activations", "CUDA graphs", "process", "communicators", "vision encoder cache")}
"""What an engine takes beside the share of the memory that it is given. SGLang's is weights and KV alone ("static"); vLLM
measures what else is in use and takes it off its KV cache."""
SPARE = "KV cache beyond that"
"""What a share of the memory leaves, and the engine takes at once."""


class Draft(NamedTuple):
    """A candidate before an image, sizes and nodes are chosen."""

    split: Split
    pool: Pool
    engine: EngineName
    speculation: Speculation


class Sized(NamedTuple):
    """What a draft can hold on its nodes."""

    context: int
    concurrency: int
    kv_dtype: str
    needs: Band
    parts: tuple[MemoryPart, ...]
    verdict: Verdict

    @property
    def spare(self) -> float:
        """Bytes of KV that nobody asked for: the engine is given a share of the memory and takes all of it."""
        return sum(part.bytes for part in self.parts if part.name == SPARE)


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that is the same for all drafts of one variant."""

    spec: Deployment
    variant: Variant
    outlook: Outlook
    fleet: Fleet
    share: int = 1
    """Nodes that this variant may take where nobody says how many replicas there should be."""

    @property
    def objective(self) -> Objective:
        """What to be best at."""
        return self.spec.objective

    @property
    def concurrency(self) -> int:
        """Requests that are to decode together."""
        return self.variant.concurrency or DEFAULT_CONCURRENCY[self.objective]

    def groups(self, ranks: int) -> int:
        """How many groups of that many ranks may be made."""
        most = self.share // ranks if self.objective == "throughput" else 1
        return self.variant.replicas or max(1, min(most, self.concurrency))


def size(case: Case, draft: Draft, room: Room, settings: Settings) -> Sized:
    """The first sizes that fit, else the first that are tight, else the smallest, which do not fit."""

    def at(context: int, concurrency: int, kv: str) -> Sized:
        return sized_at(case, draft, room, settings._replace(kv_dtype=kv), (context, concurrency))

    tried = tuple(_sizes(case, draft.engine, settings))
    smallest = at(*tried[-1])
    if smallest.verdict == "no":
        return smallest
    tight: Sized | None = None
    for sizes in tried:
        found = at(*sizes)
        if found.verdict == "fits":
            return found
        tight = tight or (found if found.verdict == "tight" else None)
    return tight or smallest


def sized_at(case: Case, draft: Draft, room: Room, settings: Settings, wanted: tuple[int, int]) -> Sized:
    """The draft with `wanted` context and concurrency: what it takes of its nodes, and whether they have it."""
    needs, parts = case.outlook.memory(draft.split, settings, *wanted)
    found = Sized(*wanted, settings.kv_dtype, needs, parts, room.verdict(needs))
    share = share_said(case.variant.engine_args, draft.engine)
    return found if share is None else _by_share(found, share, draft, room)


def _by_share(found: Sized, share: float, draft: Draft, room: Room) -> Sized:
    """The same where the deployment says how much the engine may take: it takes all of that, whatever it needs."""
    needs, size = found.needs, share * _shared(draft, room)
    outside = sum(part.bytes for part in found.parts if part.name in BEYOND_SHARE.get(draft.engine, ()))
    inside = needs.mid - outside
    if inside - (needs.mid - needs.low) > size:
        return found._replace(verdict="no")
    takes = outside + max(size, inside)
    band = Band(
        low=takes,
        mid=takes,
        high=takes + needs.high - needs.mid,
        provenance=needs.provenance,
        basis=f"{share:g} of the memory, as the deployment says",
    )
    spare = (MemoryPart(name=SPARE, bytes=size - inside),) if size > inside else ()
    parts = tuple(sorted((*found.parts, *spare), key=lambda part: -part.bytes))
    verdict = room.verdict(band)
    return found._replace(
        needs=band, parts=parts, verdict="tight" if verdict == "fits" and inside > size else verdict
    )


def _shared(draft: Draft, room: Room) -> float:
    """What an engine is given a share of, bytes: SGLang of what is free before it loads, vLLM of all that there is."""
    total = draft.pool.site.memory_total
    return total if draft.engine == "vllm" else min(total, max(0.0, room.at_most) + FLOOR)


def _sizes(case: Case, engine: EngineName, settings: Settings) -> Iterator[tuple[int, int, str]]:
    """Context, concurrency, KV precision: what was asked for first, then less of what was not."""
    smaller = () if settings.kv_dtype != "auto" else (KV_SMALL[engine],)
    for context in _contexts(case):
        for concurrency in _concurrencies(case):
            for kv in (settings.kv_dtype, *smaller):
                yield context, concurrency, kv


def _contexts(case: Case) -> Iterator[int]:
    most = case.outlook.checkpoint.max_positions or DEFAULT_CONTEXT
    if case.variant.context is not None:
        yield case.variant.context
        return
    context = most if case.objective == "context" else min(DEFAULT_CONTEXT, most)
    while True:
        yield context
        if context <= LEAST_CONTEXT:
            return
        context = max(LEAST_CONTEXT, context // 2)


def _concurrencies(case: Case) -> Iterator[int]:
    yield case.concurrency
    if case.variant.concurrency is None and case.concurrency > 1:
        yield 1


def settings_of(case: Case, draft: Draft, stack: Stack) -> Settings:
    """What the deployment's own arguments say about memory and speed."""
    flags = parse_flags(case.variant.engine_args)
    batch = flags.get(BATCH_FLAGS.get(stack.engine, ""), "")
    return Settings(
        engine=stack.engine,
        release=stack.release,
        speculation=draft.speculation,
        eager=EAGER_FLAGS[stack.engine] in flags,
        kv_dtype=flags.get(KV_FLAG, "auto"),
        batch_tokens=int(batch) if batch.isdecimal() and int(batch) > 0 else CHUNK,
        link=draft.pool.site.link,
    )


def quant_of(case: Case) -> str:
    """How the weights are stored, as images and rules name it."""
    if case.outlook.format == "fp8+mxfp4":
        return "fp8+mxfp4-experts"
    return checkpoint_situation(case.outlook.checkpoint, Shape(nodes=("-",))).quant or ""


def fraction_of(case: Case, draft: Draft, engine: EngineName, sized: Sized) -> float | None:
    """Share of the node's memory that the engine may take: what it needs, so that others have room beside it."""
    share = share_said(case.variant.engine_args, engine)
    if share is not None:
        return share
    total = draft.pool.site.memory_total
    return min(0.95, math.ceil(100 * sized.needs.mid / total) / 100)


def too_large(case: Case, draft: Draft, sized: Sized, room: Room) -> Rejection:
    """The rejection of a draft that does not fit, with its numbers."""
    where = "one node" if draft.split.ranks == 1 else f"each of {draft.split.ranks} nodes"
    largest = max(sized.parts, key=lambda part: part.bytes)
    share = share_said(case.variant.engine_args, draft.engine)
    there = f"{max(0.0, room.at_most) / GIB:.0f} there"
    if share is not None and sized.spare:
        there += _less(sized, share, draft, room)
    elif share is not None:
        given = share * _shared(draft, room) / GIB
        there = f"and {share:g} of the memory, as the deployment says, is {given:.0f}"
    return Rejection(
        what=f"{split_words(draft.split)} on {draft.split.ranks} node{'s' if draft.split.ranks > 1 else ''}",
        reason=f"does not fit: {sized.needs.mid / GIB:.0f} GiB needed on {where}"
        f" ({largest.bytes / GIB:.0f} of them {largest.name}), {there}",
        why="memory",
    )


def _less(sized: Sized, share: float, draft: Draft, room: Room) -> str:
    """The share of the memory that there would be room for, where it is enough."""
    over = sized.needs.mid - room.at_most
    most = math.floor(100 * (share - over / draft.pool.site.memory_total)) / 100
    words = f" ({share:g} of the memory, as the deployment says"
    return f"{words}; {most:g} would fit)" if 0 < over <= sized.spare and most > 0 else f"{words})"


def split_words(split: Split) -> str:
    """`TP=2 EP=2`."""
    parts = [f"TP={split.tp}"]
    parts += [f"PP={split.pp}"] if split.pp > 1 else []
    parts += [f"EP={split.ep}"] if split.ep > 1 else []
    return " ".join(parts)
