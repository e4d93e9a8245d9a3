"""The ladder of one variant: drafts ranked by what they promise, judged best first, placed where there is room. Pure.

What is judged and rejected is what would have been better than the choice; the rest is told by its predictions.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count

from sparkfleet.knowledge.images import images_of
from sparkfleet.planning.candidates import (
    ENGINES,
    Stack,
    drafting_for,
    in_order,
    splits_for,
    stacks_for,
)
from sparkfleet.planning.evaluate import Judged, assess, worth
from sparkfleet.planning.fleet import GROUP_SIZES, Pool, SiteClass
from sparkfleet.planning.nearest import nearest
from sparkfleet.planning.outlook import Settings, Split
from sparkfleet.planning.pack import Ledger
from sparkfleet.planning.pinned import foreign
from sparkfleet.planning.plan import ENGINE_LABELS, Band, GroupPlan, Rejection, Rung, Speculation
from sparkfleet.planning.sizing import (
    Case,
    Draft,
    Sized,
    quant_of,
    settings_of,
    size,
    split_words,
    too_large,
)
from sparkfleet.spec.deployment import EngineName, Objective, Variant

LADDER = 5
"""Rungs of a ladder: more would take an hour to fail."""
JUDGED = 40
"""Drafts that are judged at most per variant; the rest are told by their predictions."""
SHARE_GAIN = 1.1
"""Replicas have to bring at least this much to be taken without being asked for."""

OBJECTIVES: dict[Objective, str] = {
    "interactive": "answers one request soonest",
    "throughput": "yields most for all requests together",
    "context": "holds the longest context",
}
"""What the choice is best at, as plans say it."""

Served = tuple[list[GroupPlan], list[Rejection], list[str]]
"""Groups; what was rejected; the nearest things that would fit, where there are no groups."""


def nth(items: Sequence[tuple[str, ...]], at: int) -> tuple[str, ...]:
    """The item, () where there is none."""
    return items[at] if at < len(items) else ()


class Chooser:
    """Ranks and judges the drafts of one variant, and places its groups."""

    def __init__(self, case: Case, ledger: Ledger, runs_on: Sequence[tuple[str, ...]]) -> None:
        self._case = case
        self._ledger = ledger
        self._runs_on = runs_on
        self._rejected: list[Rejection] = []
        self._pools: dict[SiteClass, list[Pool]] = defaultdict(list)
        self._stacks: dict[EngineName, tuple[Stack, ...]] = {}
        self._widest = Split()
        self._order = count()

    def groups(self, number: int) -> Served:
        """The groups of the variant, with what was rejected and what would be nearest."""
        heap = [self._ranked(draft, sized) for draft, sized in self._sized_drafts()]
        heapq.heapify(heap)
        ladder, nodes, left = self._climb(heap)
        if not ladder:
            return [], self._rejected, list(self._nearest())
        self._tell_slower(ladder[0], left)
        self._tell_replicas(ladder[0], left)
        groups = [self._settle(ladder, nodes, number)]
        for replica in range(1, self._replicas(ladder[0])):
            more = self._place(max(map(_needs, ladder), key=lambda band: band.mid), ladder[0], replica)
            if more is None:
                what, reason = f"replica {replica + 1}", f"no nodes have room for more than {replica}"
                self._rejected.append(Rejection(what=what, reason=reason, why="memory"))
                break
            groups.append(self._settle(ladder, more, number))
        return groups, self._rejected, []

    def _settle(self, ladder: Sequence[Judged], nodes: tuple[str, ...], number: int) -> GroupPlan:
        """One group on its nodes, counted there with the largest of its rungs."""
        beside = self._ledger.beside(nodes)
        objective = self._case.objective
        rungs = tuple(_rung(judged, at, ladder, objective) for at, judged in enumerate(ladder))
        moved = tuple(_moved(rung, nodes, beside) for rung in rungs)
        self._ledger.put(self._case.spec.name, nodes, _largest(moved))
        return GroupPlan(ladder=moved, variant=number)

    # drafts

    def _sized_drafts(self) -> Iterator[tuple[Draft, Sized]]:
        engines = self._engines()
        enough = 0
        for pool, split in self._shapes():
            if enough and split.ranks > max(enough, self._case.share):
                what = f"{split_words(split)} on {split.ranks} nodes"
                reason = f"{enough} will do, and other deployments need nodes too"
                self._rejected.append(Rejection(what=what, reason=reason, why="node"))
                continue
            best = self._ledger.best(pool)
            drafts = [draft for engine in engines for draft in self._drafts(pool, split, engine)]
            sized = [(draft, size(self._case, draft, best, self._settings(draft))) for draft in drafts]
            fitting = any(found.verdict != "no" for _, found in sized)
            # Of a share of the memory that is too large rules may know better than sizes why.
            able = [(draft, found) for draft, found in sized if found.verdict != "no" or found.spare]
            enough = enough or (split.ranks if fitting else 0)
            yield from able
            if sized and not able:  # one line per shape: engines and drafters differ by little
                draft, least = min(sized, key=lambda item: item[1].needs.mid)
                self._rejected.append(too_large(self._case, draft, least, best))

    def _engines(self) -> tuple[EngineName, ...]:
        variant, quant = self._case.variant, quant_of(self._case)
        nodes = [n for n in self._case.fleet.nodes if not variant.nodes or n.name in variant.nodes]
        for engine in ENGINES if variant.engine == "auto" else (variant.engine,):
            found = stacks_for(variant, engine, quant, nodes)
            self._rejected += found.rejected
            if found.options:
                self._stacks[engine] = found.options
        if not self._stacks:
            self._rejected.append(_no_engine(variant, quant))
        self._keep_to_arguments(variant)
        return tuple(self._stacks)

    def _keep_to_arguments(self, variant: Variant) -> None:
        """Arguments are one engine's: the others are out, from the first rung to the last."""
        alone = variant.engine != "auto" or variant.image is not None
        for engine in tuple(self._stacks):
            reason = foreign(variant.engine_args, engine, alone=alone)
            if reason:
                del self._stacks[engine]
                self._rejected.append(Rejection(what=ENGINE_LABELS[engine], reason=reason, why="wanted"))

    def _shapes(self) -> Iterator[tuple[Pool, Split]]:
        """Sites that are there and ways to cut the model that fit them, each once per class of site."""
        variant, outlook = self._case.variant, self._case.outlook
        for ranks in GROUP_SIZES:
            splits = splits_for(variant, outlook, ranks)
            for pool in self._case.fleet.pools(ranks, variant.nodes) if splits else ():
                self._pools[pool.site].append(pool)
        for site, pools in self._pools.items():
            best = max(pools, key=lambda pool: self._ledger.best(pool).careful)
            for split in splits_for(variant, outlook, site.ranks):
                if split.ranks > self._widest.ranks:
                    self._widest = split
                yield best, split
        if not self._pools:
            self._rejected.append(self._no_site())

    def _no_site(self) -> Rejection:
        wanted = self._case.variant.parallel
        asked = f"TP={wanted.tp or 1} PP={wanted.pp or 1}" if wanted else "any shape"
        among = f" among {', '.join(self._case.variant.nodes)}" if self._case.variant.nodes else ""
        return Rejection(
            what=asked, why="node",
            reason=f"needs as many linked nodes{among} as it has ranks, and heads that can be divided so; there are none",
        )  # fmt: skip

    def _drafts(self, pool: Pool, split: Split, engine: EngineName) -> Iterator[Draft]:
        case = self._case
        alone = 1 if case.objective != "throughput" else case.concurrency
        drafting = drafting_for(case.variant, case.outlook.checkpoint, engine, alone)
        self._rejected += drafting.rejected
        for speculation in drafting.options:
            # Nothing but plain decoding has been published over a pipeline.
            if split.pp == 1 or speculation.method in ("none", case.variant.speculation.method):
                yield Draft(split, pool, engine, speculation)

    def _first(self, draft: Draft) -> Stack:
        """The stack that a draft is told by before it is judged."""
        return in_order(self._stacks[draft.engine], draft.speculation.method)[0]

    def _settings(self, draft: Draft) -> Settings:
        return settings_of(self._case, draft, self._first(draft))

    def _ranked(self, draft: Draft, sized: Sized) -> tuple[float, int, Draft, Judged | None]:
        settings = self._settings(draft)
        promise = worth(self._case, draft, settings, sized.context) * self._first(draft).evidence
        return (-promise, next(self._order), draft, None)

    # judging

    def _climb(
        self, heap: list[tuple[float, int, Draft, Judged | None]]
    ) -> tuple[list[Judged], tuple[str, ...], list[tuple[Draft, Judged | None]]]:
        """Judge the best first; the first that passes and has room decides where, others on the same nodes follow."""
        ladder: list[Judged] = []
        nodes: tuple[str, ...] = ()
        left: list[tuple[Draft, Judged | None]] = []
        judged_so_far = 0
        while heap:
            value, _, draft, judged = heapq.heappop(heap)
            if ladder and (judged_so_far >= JUDGED or not self._may_follow(draft, ladder)):
                left.append((draft, judged))
                continue
            if judged is None:
                judged_so_far += 1
                judged = self._assessed(draft)
                self._rejected += judged.rejected
                if judged.rung is None:
                    continue
                if judged.worth < -value * 0.999:  # slower than promised: others may be better now
                    heapq.heappush(heap, (-judged.worth, next(self._order), draft, judged))
                    continue
            if ladder:
                if self._has_room(nodes, judged):
                    ladder.append(judged)
                continue
            found = self._place(_needs(judged), judged, 0)
            if found is not None:
                nodes = found
                ladder.append(judged)
        return ladder, nodes, left

    def _assessed(self, draft: Draft) -> Judged:
        return assess(self._case, draft, self._stacks[draft.engine], self._ledger.best(draft.pool))

    def _may_follow(self, draft: Draft, ladder: Sequence[Judged]) -> bool:
        """A rung below has to be another way to speculate or another engine, cut in the same way on the same nodes."""
        if draft.split != ladder[0].draft.split or draft.pool.site != ladder[0].draft.pool.site:
            return False
        if len(ladder) >= LADDER:
            return False
        last = len(ladder) == LADDER - 1
        plain = any(one.draft.speculation.method == "none" for one in ladder)
        return not last or plain or draft.speculation == Speculation()

    def _has_room(self, nodes: Sequence[str], judged: Judged) -> bool:
        return all(self._ledger.room(name).verdict(_needs(judged)) != "no" for name in nodes)

    def _place(self, needs: Band, judged: Judged, replica: int) -> tuple[str, ...] | None:
        prefer = nth(self._runs_on, replica)
        pools = self._pools[judged.draft.pool.site]
        for pool in sorted(pools, key=lambda pool: set(pool.nodes) != set(prefer)):
            nodes = self._ledger.place(pool, needs, prefer)
            if nodes is not None:
                return nodes
        return None

    def _replicas(self, judged: Judged) -> int:
        case = self._case
        if case.variant.replicas is not None or case.objective != "throughput":
            return case.variant.replicas or 1
        most = case.groups(judged.draft.split.ranks)

        def total(groups: int) -> float:
            return self._total(judged.draft, groups)

        best = max(range(1, most + 1), key=lambda groups: (total(groups), -groups))
        return best if total(best) >= SHARE_GAIN * total(1) else 1

    # telling

    def _tell_slower(self, choice: Judged, left: Sequence[tuple[Draft, Judged | None]]) -> None:
        """Why the rest was not taken: the best of each shape and engine, by its numbers."""
        told: set[tuple[Split, EngineName]] = set()
        wider: set[int] = {choice.draft.split.ranks}
        for draft, earlier in left:
            if (draft.split, draft.engine) in told:
                continue
            told.add((draft.split, draft.engine))
            judged = earlier
            if judged is None and draft.split.ranks not in wider:
                # The best of every other number of nodes is judged too: that is what people ask about.
                wider.add(draft.split.ranks)
                judged = self._assessed(draft)
                if judged.rung is None:
                    self._rejected += judged.rejected
                    continue
            self._rejected.append(self._slower(choice, draft, judged))

    def _slower(self, choice: Judged, draft: Draft, judged: Judged | None) -> Rejection:
        slow = judged.slowed_by[0].rule if judged and judged.slowed_by else None
        plain = f"{self._first(draft).name} · {draft.speculation}"
        return Rejection(
            what=f"{split_words(draft.split)} · {judged.rung.candidate.how if judged and judged.rung else plain}",
            reason=self._compared(choice, draft, judged),
            why="slower",
            tps=round(_alone(judged) if judged else self._promised(draft), 2),
            rule=slow.id if slow else "",
            source=slow.sources[0] if slow else "",
        )

    def _compared(self, choice: Judged, draft: Draft, judged: Judged | None) -> str:
        """The numbers that the objective looks at, of the draft and of the choice, and what makes the difference."""
        case = self._case
        if case.objective == "throughput":
            groups = case.groups(draft.split.ranks)
            copies = f" ({groups} groups)" if groups > 1 else ""
            total, ours = (
                self._total(draft, groups),
                self._total(choice.draft, case.groups(choice.draft.split.ranks)),
            )
            return f"{total:.0f} tok/s{copies} for {case.concurrency} requests together against {ours:.0f}"
        tps, best = _alone(judged) if judged else self._promised(draft), _alone(choice)
        return f"{tps:.3g} tok/s alone against {best:.3g}{_because(draft, choice, tps, best, case)}"

    def _total(self, draft: Draft, groups: int) -> float:
        """Tokens per second of all requests, dealt out to so many groups."""
        case, settings = self._case, self._settings(draft)
        context = size(case, draft, self._ledger.best(draft.pool), settings).context
        each = case.outlook.rates(draft.split, settings, context, -(-case.concurrency // groups))
        return groups * each.decode_tps_aggregate.mid

    def _tell_replicas(self, choice: Judged, left: Sequence[tuple[Draft, Judged | None]]) -> None:
        """Independent copies on the nodes that there are, against the one group that was chosen."""
        case, ranks = self._case, choice.draft.split.ranks
        copies = min(max(ranks, 2), case.share, case.concurrency)
        single = (
            choice.draft if ranks == 1 else next((draft for draft, _ in left if draft.split.ranks == 1), None)
        )
        if (
            case.objective != "interactive"
            or case.variant.replicas is not None
            or copies < 2
            or single is None
        ):
            return
        alone = "no request is answered sooner" if ranks == 1 else f"{self._promised(single):.3g} tok/s alone"
        reason = (
            f"{alone}; {self._total(single, copies):.0f} tok/s instead of {self._total(choice.draft, 1):.0f} for"
            f" {case.concurrency} requests together: `replicas: {copies}` takes it"
        )
        what = f"{copies} × {split_words(single.split)} · {self._first(single).name} · {single.speculation}"
        self._rejected.append(Rejection(what=what, reason=reason, why="slower"))

    def _promised(self, draft: Draft) -> float:
        """What a draft would do alone, as far as that can be told without judging it."""
        settings = self._settings(draft)
        sized = size(self._case, draft, self._ledger.best(draft.pool), settings)
        return self._case.outlook.rates(draft.split, settings, sized.context, 1).decode_tps_per_request.mid

    def _nearest(self) -> tuple[str, ...]:
        pools = self._case.fleet.pools(1, self._case.variant.nodes)
        if not pools or not any(one.why == "memory" for one in self._rejected):
            return ()
        room = max((self._ledger.best(pool) for pool in pools), key=lambda room: room.at_most)
        return nearest(self._case, room, self._widest)


def _no_engine(variant: Variant, quant: str) -> Rejection:
    if variant.image is None:
        what = ENGINE_LABELS.get(variant.engine, "any engine")
        return Rejection(
            what=what,
            reason=f"no image is known to serve {quant} with it; name one as `image:`",
            why="wanted",
        )
    inside = (
        "holds another engine"
        if images_of(variant.image)
        else "is not known; say which engine it holds as `engine:`"
    )
    return Rejection(what=variant.image, reason=inside, why="wanted")


def _needs(judged: Judged) -> Band:
    assert judged.rung is not None
    return judged.rung.prediction.memory_bytes_per_rank


def _alone(judged: Judged) -> float:
    assert judged.rung is not None
    band = judged.rung.prediction.decode_tps_per_request
    return band.mid if band else 0.0


def _because(draft: Draft, choice: Judged, tps: float, ours: float, case: Case) -> str:
    """What makes a shape of more nodes the worse one."""
    ranks, other = draft.split.ranks, choice.draft.split.ranks
    if draft.split.ep > 1 and choice.draft.split[:2] == draft.split[:2]:
        return ": experts dealt out instead of cut move the same bytes"
    if ranks <= other:
        return ""
    if tps > 1.05 * ours:
        return f": {tps / ours:.2g} times as fast is not worth {ranks // other if other else ranks} times the nodes"
    if tps >= ours:
        return f": hardly faster on {ranks // other if other else ranks} times the nodes"
    blocks = case.outlook.arch.layers.blocks + case.outlook.arch.layers.mixers
    link = draft.pool.site.link
    if draft.split.tp > 1 and link is not None:
        return f": {blocks} all-reduces a step over {link.latency_us:.0f} µs links cost more than the smaller reads save"
    return ""


def _largest(rungs: Sequence[Rung]) -> float:
    """A place has to do for every rung of its ladder."""
    return max(rung.prediction.memory_bytes_per_rank.mid for rung in rungs)


def _rung(judged: Judged, at: int, ladder: Sequence[Judged], objective: Objective) -> Rung:
    """The rung with the reason why it stands where it does."""
    assert judged.rung is not None
    promising = [rung for rung in ladder if objective == "interactive" and _alone(rung) > _alone(ladder[0])]
    if at == 0:
        proven = ", of what has been seen to work best" if promising else ""
        return judged.rung.model_copy(update={"reason": OBJECTIVES[objective] + proven})
    before = ladder[at - 1].rung
    assert before is not None
    more = "; promises more than the choice, on less evidence" if judged in promising else ""
    return judged.rung.model_copy(update={"reason": f"where {before.candidate.how} does not start{more}"})


def _moved(rung: Rung, nodes: tuple[str, ...], beside: Sequence[str]) -> Rung:
    shape = rung.candidate.shape.model_copy(update={"nodes": nodes})
    update: dict[str, object] = {"candidate": rung.candidate.model_copy(update={"shape": shape})}
    if beside:
        shared = f"shares memory bandwidth with {', '.join(beside)}: while both are busy each is slower than predicted"
        update["notes"] = (*rung.notes, shared)
    return rung.model_copy(update=update)
