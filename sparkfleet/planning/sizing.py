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
from sparkfleet.planning.outlook import Outlook, Settings, Split
from sparkfleet.planning.pack import Room
from sparkfleet.planning.plan import Band, MemoryPart, Rejection, Shape, Speculation, Verdict
from sparkfleet.planning.situate import checkpoint_situation
from sparkfleet.planning.speed import CHUNK
from sparkfleet.spec.deployment import Deployment, EngineName, Objective, Variant

GIB = 1 << 30

DEFAULT_CONTEXT = 32_768
LEAST_CONTEXT = 2048
DEFAULT_CONCURRENCY = {"interactive": 4, "throughput": 16, "context": 1}
"""Where the deployment does not say: a person or a few agents; many clients; one long document."""

MEMORY_FLAGS = {"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static"}
KV_FLAGS = "--kv-cache-dtype"
KV_SMALL = {"vllm": "fp8", "sglang": "fp8_e4m3", "trtllm": "fp8"}
BATCH_FLAGS = {"vllm": "--max-num-batched-tokens", "sglang": "--chunked-prefill-size"}
EAGER_FLAGS = {"vllm": "--enforce-eager", "sglang": "--disable-cuda-graph", "trtllm": ""}


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
        needs, parts = case.outlook.memory(draft.split, settings._replace(kv_dtype=kv), context, concurrency)
        return Sized(context, concurrency, kv, needs, parts, room.verdict(needs))

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
        kv_dtype=flags.get(KV_FLAGS, "auto"),
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
    if MEMORY_FLAGS.get(engine, "-") in parse_flags(case.variant.engine_args):
        return None
    total = draft.pool.site.memory_total
    return min(0.95, math.ceil(100 * sized.needs.mid / total) / 100)


def too_large(case: Case, draft: Draft, sized: Sized, room: Room) -> Rejection:
    """The rejection of a draft that does not fit, with its numbers."""
    where = "one node" if draft.split.ranks == 1 else f"each of {draft.split.ranks} nodes"
    largest = max(sized.parts, key=lambda part: part.bytes)
    return Rejection(
        what=f"{split_words(draft.split)} on {draft.split.ranks} node{'s' if draft.split.ranks > 1 else ''}",
        reason=f"does not fit: {sized.needs.mid / GIB:.0f} GiB needed on {where}"
        f" ({largest.bytes / GIB:.0f} of them {largest.name}), {max(0.0, room.at_most) / GIB:.0f} there",
        why="memory",
    )


def split_words(split: Split) -> str:
    """`TP=2 EP=2`."""
    parts = [f"TP={split.tp}"]
    parts += [f"PP={split.pp}"] if split.pp > 1 else []
    parts += [f"EP={split.ep}"] if split.ep > 1 else []
    return " ".join(parts)
