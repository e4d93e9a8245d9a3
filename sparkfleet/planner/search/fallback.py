"""The ladder of one variant: proposals ranked by predicted speed, judged best first, placed if there is room. Pure.

Proposals that a rule rejects would have been better than the choice; the others are rejected by their predictions.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import count

from sparkfleet.perf.memory.demand import fits
from sparkfleet.perf.prediction import Band, Speculation
from sparkfleet.perf.predictor import Split
from sparkfleet.planner.capacity.headroom import lowered
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.capacity.sizing import Proposal, Sizing, VariantContext, size, split_words
from sparkfleet.planner.place.fleet_map import Pool
from sparkfleet.planner.search.enumerate import ProposalEnumerator
from sparkfleet.planner.search.judge import Evaluation, assess
from sparkfleet.planner.search.method_account import Fate, Stage
from sparkfleet.planner.search.objective import worth
from sparkfleet.planner.search.rung_builder import (
    ServedVariant,
    because,
    moved,
    needs_of,
    nodes_and_bytes_of,
    nth,
    rung_of,
    tps_alone,
)
from sparkfleet.planner.search.suggestions import NodeKind, joined, nearest
from sparkfleet.planner.types.plan import GroupPlan, Rejection, Rung, Why
from sparkfleet.specs.deployment import EngineName, Method
from sparkfleet.units import GIB

LADDER = 5
"""Rungs of a ladder: more would take an hour to fail."""
JUDGED = 40
"""Most proposals that are judged per variant; the rest are shown with their predictions only."""
SHARE_GAIN = 1.1
"""Replicas have to bring at least this much to be taken without being asked for."""


class VariantPlanner:
    """Ranks and judges the drafts of one variant, and places its groups."""

    def __init__(
        self, case: VariantContext, ledger: MemoryLedger, runs_on: Sequence[tuple[str, ...]]
    ) -> None:
        self._case = case
        self._ledger = ledger
        self._runs_on = runs_on
        self._drafts = ProposalEnumerator(case, ledger)
        self._rejected = self._drafts.rejected  # one list, in the order in which plans show it
        self._order = count()

    def groups(self, number: int) -> ServedVariant:
        """The groups of the variant, with what was rejected and what would be nearest.

        Every speculative method of every engine is in a ladder or among the rejected.
        """
        groups, _, near = self._served(number)
        rungs = [rung.candidate for group in groups for rung in group.ladder]
        taken = {(candidate.engine, candidate.speculation.method) for candidate in rungs}
        self._rejected += self._drafts.account.unmentioned(taken, self._rejected)
        return groups, self._rejected, near

    def _served(self, number: int) -> ServedVariant:
        heap = [self._ranked(draft, sized) for draft, sized in self._drafts.sized()]
        heapq.heapify(heap)
        ladder, nodes, left = self._climb(heap)
        if not ladder:
            return [], self._rejected, list(self._nearest())
        self._tell_slower(ladder[0], left)
        self._tell_replicas(ladder[0], left)
        groups = [self._settle(ladder, nodes, number)]
        for replica in range(1, self._replicas(ladder[0])):
            more = self._place(max(map(needs_of, ladder), key=lambda band: band.mid), ladder[0], replica)
            if more is not None:
                groups.append(self._settle(ladder, more, number))
                continue
            what, reason = f"replica {replica + 1}", f"no nodes have room for more than {replica}"
            self._rejected.append(Rejection(what=what, reason=reason, why="memory"))
            if self._case.variant.replicas is None:
                break
            for group in groups:
                self._ledger.take_back(self._case.spec.name, *nodes_and_bytes_of(group))
            return [], self._rejected, [f"fits with `replicas: {replica}`", *self._nearest()]
        return groups, self._rejected, []

    def _settle(self, ladder: Sequence[Evaluation], nodes: tuple[str, ...], number: int) -> GroupPlan:
        """One group on its nodes, counted there with the largest of its rungs."""
        beside = self._ledger.beside(nodes)
        objective = self._case.objective
        rungs = [rung_of(judged, at, ladder, objective) for at, judged in enumerate(ladder)]
        rungs = [self._with_sizes(judged, rung) for judged, rung in zip(ladder, rungs, strict=True)]
        group = GroupPlan(ladder=tuple(moved(rung, nodes, beside) for rung in rungs), variant=number)
        self._ledger.put(self._case.spec.name, *nodes_and_bytes_of(group))
        return group

    def _with_sizes(self, judged: Evaluation, rung: Rung) -> Rung:
        """The rung with a note on the sizes that were reduced, and the reason."""
        draft = judged.draft
        said = lowered(self._case, draft, self._drafts.settings(draft), self._ledger.best(draft.pool), rung)
        return rung.model_copy(update={"notes": (*rung.notes, said)}) if said else rung

    def _ranked(self, draft: Proposal, sized: Sizing) -> tuple[float, int, Proposal, Evaluation | None]:
        settings = self._drafts.settings(draft)
        promise = worth(self._case, draft, settings, sized.context) * self._drafts.first(draft).evidence
        return (-promise, next(self._order), draft, None)

    # judging

    def _climb(
        self, heap: list[tuple[float, int, Proposal, Evaluation | None]]
    ) -> tuple[list[Evaluation], tuple[str, ...], list[tuple[Proposal, Evaluation | None]]]:
        """Judge the best first; the first that passes and has room takes its nodes, others follow on the same nodes."""
        ladder: list[Evaluation] = []
        nodes: tuple[str, ...] = ()
        left: list[tuple[Proposal, Evaluation | None]] = []
        too_few: tuple[Evaluation, tuple[str, ...]] | None = None
        judged_so_far = 0
        while heap:
            value, _, draft, judged = heapq.heappop(heap)
            if ladder and (judged_so_far >= JUDGED or not self._may_follow(draft, ladder)):
                left.append((draft, judged))
                continue
            if judged is None:
                judged_so_far += 1
                judged = self._assessed(draft)
                self._rejected += _about(draft, judged.rejected)
                if judged.rung is None:
                    continue
                if judged.worth < -value * 0.999:  # slower than estimated: others may be better now
                    heapq.heappush(heap, (-judged.worth, next(self._order), draft, judged))
                    continue
            if ladder:
                if self._has_room(nodes, judged):
                    ladder.append(judged)
                else:
                    self._met(draft, "no room beside the other rungs on the nodes of the choice", "memory")
                continue
            found = self._place(needs_of(judged), judged, 0)
            if found is None:
                self._met(draft, f"no node has {needs_of(judged).mid / GIB:.1f} GiB left", "memory")
                continue
            if self._holds(draft.pool, needs_of(judged)):
                nodes = found
                ladder.append(judged)
                continue
            too_few = too_few or (judged, found)
            self._rejected.append(self._fewer(judged))
        if not ladder and too_few is not None:  # refused by the replicas that have no room
            return [too_few[0]], too_few[1], left
        return ladder, nodes, left

    def _met(self, draft: Proposal, reason: str, why: Why) -> None:
        """Note the result of a proposal that was judged."""
        self._drafts.account.note(draft.engine, (draft.speculation.method,), Fate(Stage.JUDGED, reason, why))

    def _assessed(self, draft: Proposal) -> Evaluation:
        return assess(self._case, draft, self._drafts.stacks[draft.engine], self._ledger.best(draft.pool))

    def _may_follow(self, draft: Proposal, ladder: Sequence[Evaluation]) -> bool:
        """A rung below has to be another way to speculate or another engine, with the same split on the same nodes."""
        if draft.split != ladder[0].draft.split or draft.pool.site != ladder[0].draft.pool.site:
            return False
        if len(ladder) >= LADDER:
            return False
        last = len(ladder) == LADDER - 1
        plain = any(one.draft.speculation.method == "none" for one in ladder)
        return not last or plain or draft.speculation == Speculation()

    def _fewer(self, judged: Evaluation) -> Rejection:
        how = judged.rung.candidate.how if judged.rung else ""
        what = f"{split_words(judged.draft.split)} · {how}"
        reason = f"no room for {self._case.variant.replicas} replicas"
        only = judged.draft
        return Rejection(
            what=what, reason=reason, why="memory", engine=only.engine, methods=(only.speculation.method,)
        )

    def _has_room(self, nodes: Sequence[str], judged: Evaluation) -> bool:
        needs = needs_of(judged)
        here = all(fits(needs, self._ledger.room(name), edge=self._case.edge) != "no" for name in nodes)
        return here and self._holds(judged.draft.pool, needs)

    def _place(self, needs: Band, judged: Evaluation, replica: int) -> tuple[str, ...] | None:
        prefer = nth(self._runs_on, replica)
        pools = self._drafts.pools[judged.draft.pool.site]
        for pool in sorted(pools, key=lambda pool: set(pool.nodes) != set(prefer)):
            nodes = self._ledger.place(pool, needs, prefer, edge=self._case.edge)
            if nodes is not None:
                return nodes
        return None

    def _replicas(self, judged: Evaluation) -> int:
        case = self._case
        if case.variant.replicas is not None or case.objective != "throughput":
            return case.variant.replicas or 1
        most = case.groups(judged.draft.split.ranks)

        def total(groups: int) -> float:
            return self._total(judged.draft, groups)

        best = max(range(1, most + 1), key=lambda groups: (total(groups), -groups))
        return best if total(best) >= SHARE_GAIN * total(1) else 1

    # reasons

    def _tell_slower(self, choice: Evaluation, left: Sequence[tuple[Proposal, Evaluation | None]]) -> None:
        """Reasons for the rest: the best of each shape and engine, by its numbers."""
        told: set[tuple[Split, EngineName]] = set()
        wider: set[int] = {choice.draft.split.ranks}
        compared: set[tuple[EngineName, Method]] = set()
        for draft, earlier in left:
            if (draft.split, draft.engine) in told:
                pair = (draft.engine, draft.speculation.method)
                if pair not in compared:  # the best of each, as `left` is in that order
                    compared.add(pair)
                    self._met(draft, self._compared(choice, draft, earlier), "slower")
                continue
            told.add((draft.split, draft.engine))
            judged = earlier
            if judged is None and draft.split.ranks not in wider:
                # The best of every other number of nodes is judged too: people ask about it.
                wider.add(draft.split.ranks)
                judged = self._assessed(draft)
                if judged.rung is None:
                    self._rejected += _about(draft, judged.rejected)
                    continue
            self._rejected.append(self._slower(choice, draft, judged))

    def _slower(self, choice: Evaluation, draft: Proposal, judged: Evaluation | None) -> Rejection:
        slow = judged.slowed_by[0].rule if judged and judged.slowed_by else None
        plain = f"{self._drafts.first(draft).name} · {draft.speculation}"
        return Rejection(
            what=f"{split_words(draft.split)} · {judged.rung.candidate.how if judged and judged.rung else plain}",
            reason=self._compared(choice, draft, judged),
            why="slower",
            tps=round(tps_alone(judged) if judged else self._promised(draft), 2),
            rule=slow.id if slow else "",
            source=slow.sources[0] if slow else "",
            engine=draft.engine,
            methods=(draft.speculation.method,),
        )

    def _compared(self, choice: Evaluation, draft: Proposal, judged: Evaluation | None) -> str:
        """The objective's numbers for the proposal and for the choice, and the cause of the difference."""
        case = self._case
        if case.objective == "throughput":
            groups = case.groups(draft.split.ranks)
            copies = f" ({groups} groups)" if groups > 1 else ""
            total, ours = (
                self._total(draft, groups),
                self._total(choice.draft, case.groups(choice.draft.split.ranks)),
            )
            return f"{total:.0f} tok/s{copies} for {case.concurrency} requests together against {ours:.0f}"
        tps, best = tps_alone(judged) if judged else self._promised(draft), tps_alone(choice)
        return f"{tps:.3g} tok/s alone against {best:.3g}{because(draft, choice, tps, best, case)}"

    def _total(self, draft: Proposal, groups: int) -> float:
        """Tokens per second of all requests, distributed over so many groups."""
        case, settings = self._case, self._drafts.settings(draft)
        context = size(case, draft, self._ledger.best(draft.pool), settings).context
        each = case.outlook.rates(draft.split, settings, context, -(-case.concurrency // groups))
        return groups * each.decode_tps_aggregate.mid

    def _tell_replicas(self, choice: Evaluation, left: Sequence[tuple[Proposal, Evaluation | None]]) -> None:
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
        alone = "no faster for one request" if ranks == 1 else f"{self._promised(single):.3g} tok/s alone"
        reason = (
            f"{alone}; {self._total(single, copies):.0f} tok/s instead of {self._total(choice.draft, 1):.0f} for"
            f" {case.concurrency} requests together; to choose it: `replicas: {copies}`"
        )
        what = f"{copies} × {split_words(single.split)} · {self._drafts.first(single).name} · {single.speculation}"
        self._rejected.append(Rejection(what=what, reason=reason, why="slower"))

    def _promised(self, draft: Proposal) -> float:
        """Speed of a proposal alone, as far as it is known before judging."""
        settings = self._drafts.settings(draft)
        sized = size(self._case, draft, self._ledger.best(draft.pool), settings)
        return self._case.outlook.rates(draft.split, settings, sized.context, 1).decode_tps_per_request.mid

    def _nearest(self) -> tuple[str, ...]:
        pools = self._case.fleet.pools(1, self._case.variant.nodes)
        kinds = [NodeKind(pool.site, *self._ledger.emptiest(pool), self._ledger.best(pool)) for pool in pools]
        if not self._drafts.pools and kinds:
            return joined(self._case, list(self._drafts.apart(max(kinds, key=lambda kind: kind.empty))))
        if not any(one.why == "memory" for one in self._rejected):
            return ()
        return nearest(self._case, self._drafts.places, kinds, self._holds)

    def _holds(self, pool: Pool, needs: Band) -> bool:
        """True if all requested replicas fit, each rank taking so much."""
        name, wanted = self._case.spec.name, self._case.variant.replicas or 1
        if wanted == 1:  # it is placed before it is asked
            return True
        placed: list[tuple[str, ...]] = []
        while len(placed) < wanted:
            found = (
                self._ledger.place(one, needs, edge=self._case.edge) for one in self._drafts.pools[pool.site]
            )
            nodes = next((one for one in found if one is not None), None)
            if nodes is None:
                break
            self._ledger.put(name, nodes, needs.mid)
            placed.append(nodes)
        for nodes in placed:
            self._ledger.take_back(name, nodes, needs.mid)
        return len(placed) == wanted


def _about(draft: Proposal, rejected: Sequence[Rejection]) -> Iterator[Rejection]:
    """Rejections of a proposal, with its engine and method."""
    for one in rejected:
        yield one.model_copy(update={"engine": draft.engine, "methods": (draft.speculation.method,)})
