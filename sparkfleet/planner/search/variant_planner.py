"""The ladder of one variant: proposals ranked by predicted speed, evaluated best first, placed if there is room. Pure.

Proposals that a rule rejects would have been better than the choice; the others are rejected by their predictions.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

from sparkfleet.knowledge.published.evidence import EvidenceLevel
from sparkfleet.perf.memory.demand import fits
from sparkfleet.perf.prediction import Band, Speculation
from sparkfleet.planner.capacity.headroom import lowered
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.capacity.sizing import Proposal, Sizes, Sizing, VariantContext
from sparkfleet.planner.place.fleet_map import Pool
from sparkfleet.planner.search.alternatives import Alternatives
from sparkfleet.planner.search.enumerate import ProposalEnumerator
from sparkfleet.planner.search.evaluate import Evaluation, evaluate
from sparkfleet.planner.search.objective import (
    SizedProposal,
    best_groups,
    proof_of,
    published_factor,
    total,
    worth,
)
from sparkfleet.planner.search.rank_search import RankedProposal, RankSearch
from sparkfleet.planner.search.rung_builder import (
    ServedVariant,
    moved,
    nodes_and_bytes_of,
    rung_of,
    without_advisory_first,
)
from sparkfleet.planner.search.spread import beside, is_alike, stays
from sparkfleet.planner.search.suggestions import NodeKind, joined, nearest
from sparkfleet.planner.types.group_share import shared
from sparkfleet.planner.types.plan import GroupPlan, Rejection, Rung
from sparkfleet.units import gib

LADDER = 5
"""Rungs of a ladder: more would take an hour to fail."""
MOST_EVALUATED = 40
"""Most proposals that are evaluated per variant; the rest are shown with their predictions only."""
SHARE_GAIN = 1.1
"""Replicas have to bring at least this much to be taken without being asked for."""


LOOKUPS = frozenset(("ngram",))
"""Methods whose drafts are looked up in the text itself."""
REPEATING = frozenset(("code", "edits", "agent"))
"""Kinds of text that repeat what the prompt has."""
LOOKUP_REJECTED = Rejection(
    what="NGRAM as first choice",
    reason="drafts that are looked up in the text pay only if it repeats; if it does: `content: agent`, `edits` or `code`",
    why="wanted",
)


def lookup_pays(case: VariantContext) -> bool:
    """True if drafts looked up in the text may be the first choice.

    The deployment sets text that repeats, asks for the method, or somebody has measured it on this fleet.
    """
    measured = any(one.method in LOOKUPS for one in case.predictor.measurements)
    return measured or case.spec.content in REPEATING or case.variant.speculation.method in LOOKUPS


class VariantPlanner:
    """Ranks and evaluates the proposals of one variant, and places its groups."""

    def __init__(
        self, case: VariantContext, ledger: MemoryLedger, runs_on: Sequence[tuple[str, ...]]
    ) -> None:
        self._case = case
        self._ledger = ledger
        self._runs_on = runs_on
        self._proposals = ProposalEnumerator(case, ledger)
        self._rejected = self._proposals.rejected  # one list, in the order in which plans show it
        self._order = count()
        self._others: tuple[str, ...] = ()
        """Lines with the choices on other numbers of nodes."""

    def groups(self, number: int) -> ServedVariant:
        """The groups of the variant, with what was rejected and what would be nearest.

        Every speculative method of every engine is in a ladder or among the rejected.
        """
        served = self._served(number)
        rungs = [rung.candidate for group in served.groups for rung in group.ladder]
        taken = {(candidate.engine, candidate.speculation.method) for candidate in rungs}
        self._rejected += self._proposals.account.unmentioned(taken, self._rejected)
        return served

    def _served(self, number: int) -> ServedVariant:
        found = self._choose()
        if found is None:
            return ServedVariant([], self._rejected, self._nearest())
        ladder, nodes = found
        groups = [self._settle(ladder, nodes, number)]
        for replica in range(1, self._replicas(ladder[0])):
            more = self._place(
                max((one.needs for one in ladder), key=lambda band: band.mid), ladder[0], replica
            )
            if more is not None:
                groups.append(self._settle(ladder, more, number))
                continue
            what, reason = f"replica {replica + 1}", f"no nodes have room for more than {replica}"
            self._rejected.append(Rejection(what=what, reason=reason, why="memory"))
            if self._case.variant.replicas is None:
                break
            for group in groups:
                self._ledger.take_back(self._case.spec.name, *nodes_and_bytes_of(group))
            fewer = [f"fits with `replicas: {replica}`"] if self._fits_with(replica, number) else []
            return ServedVariant([], self._rejected, [*fewer, *self._nearest()])
        return ServedVariant(groups, self._rejected)

    def _fits_with(self, replicas: int, number: int) -> bool:
        """True if fewer replicas have room: each has a larger share of the requests that the deployment sets."""
        case = self._case
        if case.variant.concurrency is None or case.each is not None:
            return True
        fewer = replace(case, variant=case.variant.model_copy(update={"replicas": replicas}))
        found = VariantPlanner(fewer, self._ledger, self._runs_on).groups(number).groups
        for group in found:
            self._ledger.take_back(case.spec.name, *nodes_and_bytes_of(group))
        return bool(found)

    def _settle(self, ladder: Sequence[Evaluation], nodes: tuple[str, ...], number: int) -> GroupPlan:
        """One group on its nodes, counted there with the largest of its rungs."""
        beside = self._ledger.beside(nodes)
        objective = self._case.objective
        rungs = [
            rung_of(evaluation, at, ladder, objective, self._others) for at, evaluation in enumerate(ladder)
        ]
        rungs = [self._with_sizes(evaluation, rung) for evaluation, rung in zip(ladder, rungs, strict=True)]
        group = GroupPlan(
            ladder=tuple(moved(rung, nodes, beside) for rung in rungs),
            variant=number,
            shared_concurrency=shared(self._case.variant.concurrency, rungs[0].candidate.concurrency),
        )
        self._ledger.put(self._case.spec.name, *nodes_and_bytes_of(group))
        return group

    def _with_sizes(self, evaluation: Evaluation, rung: Rung) -> Rung:
        """The rung with a note on the sizes that were reduced, and the reason."""
        proposal = evaluation.proposal
        lowering = lowered(
            self._case, proposal, self._proposals.settings(proposal), self._ledger.best(proposal.pool), rung
        )
        return rung.model_copy(update={"notes": (*rung.notes, lowering)}) if lowering else rung

    def _ranked(self, proposal: Proposal, sized: Sizing) -> RankedProposal:
        settings, stack = self._proposals.settings(proposal), self._proposals.first(proposal)
        busy = self._case.objective == "throughput"
        discount = stack.evidence * proof_of(self._case, proposal).discount(busy=busy)
        ranked = SizedProposal(self._case, proposal, settings, sized.sizes)
        promise = worth(ranked, published_factor(ranked)) * discount
        return RankedProposal(-promise, next(self._order), proposal, None)

    # choosing

    def _choose(self) -> tuple[list[Evaluation], tuple[str, ...]] | None:
        """The ladder of the best number of nodes, with its nodes; None if nothing can serve the variant.

        More nodes are taken if they are worth it (`spread.py`), beginning with the fewest.
        """
        searches = self._searches()
        best: RankSearch | None = None
        fewer: Evaluation | None = None
        for search in searches:
            self._search(search)
            if search.first is None:
                continue
            if best is None or best.first is None:
                best = search
                continue
            self._weigh_alike(search, best.first)
            if not stays(self._case, best.first, search.first):
                fewer = best.first
                search.first = beside(fewer, search.first)
                best = search
        if best is None or best.first is None:  # refused by the replicas that have no room
            short = next((search for search in searches if search.too_few is not None), None)
            return None if short is None or short.too_few is None else ([short.too_few[0]], short.too_few[1])
        ladder = self._climb(best, best.first)
        if fewer is not None:
            ladder = [ladder[0], *(beside(fewer, one) for one in ladder[1:])]
        if self._case.objective != "context":
            ladder = without_advisory_first(ladder, lambda one: self._may_lead(one.proposal))
        self._note_alternatives(ladder[0], best, searches)
        return ladder, best.nodes

    def _searches(self) -> list[RankSearch]:
        """The proposals by number of ranks, the fewest first."""
        by_ranks: dict[int, list[RankedProposal]] = defaultdict(list)
        for proposal, sized in self._proposals.sized():
            by_ranks[proposal.split.ranks].append(self._ranked(proposal, sized))
        for heap in by_ranks.values():
            heapq.heapify(heap)
        return [RankSearch(ranks, heap) for ranks, heap in sorted(by_ranks.items())]

    def _search(self, search: RankSearch) -> None:
        """Evaluates the best first, until one passes and has room."""
        postponed: list[RankedProposal] = []
        while search.heap and search.first is None:
            one = heapq.heappop(search.heap)
            if not self._may_lead(one.proposal):
                postponed.append(one)
                continue
            evaluation = self._evaluated(search, one)
            if evaluation is not None:
                self._take(search, evaluation)
        for one in postponed:
            heapq.heappush(search.heap, one)

    def _weigh_alike(self, search: RankSearch, fewer: Evaluation) -> None:
        """Makes the engine and method of the best on fewer nodes the first of a search, if that is the best beside it."""
        first = search.first
        if first is None or is_alike(first.proposal, fewer.proposal):
            return
        one = min((one for one in search.heap if is_alike(one.proposal, fewer.proposal)), default=None)
        if one is None:
            return
        search.heap.remove(one)
        heapq.heapify(search.heap)
        evaluation = one.evaluation or self._evaluation(search, one.proposal)
        if evaluation is None:
            return
        nodes, search.first = search.nodes, None
        if beside(fewer, evaluation).worth > beside(fewer, first).worth:
            self._take(search, evaluation)
        loser = evaluation if search.first is None else first
        if search.first is None:
            search.first, search.nodes = first, nodes
        heapq.heappush(search.heap, RankedProposal(-loser.worth, next(self._order), loser.proposal, loser))

    def _may_lead(self, proposal: Proposal) -> bool:
        """False for drafts that are looked up in the text, unless it repeats or they are wanted."""
        return proposal.speculation.method not in LOOKUPS or lookup_pays(self._case)

    def _evaluated(self, search: RankSearch, one: RankedProposal) -> Evaluation | None:
        """The evaluation of a proposal, if it is as good as it promised; else it waits for its turn, or is out."""
        if one.evaluation is not None:
            return one.evaluation
        evaluation = self._evaluation(search, one.proposal)
        if evaluation is None:
            return None
        if evaluation.worth < -one.negative * 0.999:  # slower than estimated: others may be better now
            heapq.heappush(
                search.heap, RankedProposal(-evaluation.worth, next(self._order), one.proposal, evaluation)
            )
            return None
        return evaluation

    def _evaluation(self, search: RankSearch, proposal: Proposal) -> Evaluation | None:
        """The evaluation of a proposal on the first stack that the rules let pass."""
        search.evaluated += 1
        stacks, room = self._proposals.stacks[proposal.engine], self._ledger.best(proposal.pool)
        evaluation, rejected = evaluate(self._case, proposal, stacks, room)
        self._rejected += _about(proposal, rejected)
        return evaluation

    def _take(self, search: RankSearch, evaluation: Evaluation) -> None:
        """Nodes for the first choice of so many ranks, if all its replicas have room."""
        found = self._place(evaluation.needs, evaluation, 0)
        if found is None:
            self._no_room(evaluation.proposal, f"no node has {gib(evaluation.needs.mid, exact=True)} left")
            return
        if self._holds(evaluation.proposal.pool, evaluation.needs):
            search.first, search.nodes = evaluation, found
            return
        search.too_few = search.too_few or (evaluation, found)
        self._rejected.append(self._fewer(evaluation))

    def _climb(self, search: RankSearch, first: Evaluation) -> list[Evaluation]:
        """The first choice and the rungs below it, on its nodes."""
        ladder = [first]
        while search.heap:
            one = heapq.heappop(search.heap)
            if search.evaluated >= MOST_EVALUATED or not self._may_follow(one.proposal, ladder):
                search.left.append(one)
                continue
            evaluation = self._evaluated(search, one)
            if evaluation is None:
                continue
            if self._has_room(search.nodes, evaluation):
                ladder.append(evaluation)
            else:
                self._no_room(one.proposal, "no room beside the other rungs on the nodes of the choice")
        return ladder

    def _note_alternatives(
        self, choice: Evaluation, best: RankSearch, searches: Sequence[RankSearch]
    ) -> None:
        """Reasons for everything that was not chosen."""
        left = list(best.left)
        for other in searches:
            if other is best:
                continue
            left += other.heap
            if other.first is not None:
                one = other.first
                left.append(RankedProposal(-one.worth, next(self._order), one.proposal, one))
        left.sort()
        alternatives = Alternatives(self._case, self._ledger, self._proposals)
        firsts = (search.first for search in searches if search.first is not None)
        self._others = tuple(alternatives.other_sizes(choice, firsts))
        rest = [(one.proposal, one.evaluation) for one in left]
        alternatives.note_slower(choice, rest)
        alternatives.note_replicas(choice, rest)
        if not lookup_pays(self._case) and any(
            proposal.speculation.method in LOOKUPS for proposal, _ in rest
        ):
            self._rejected.append(LOOKUP_REJECTED)

    def _no_room(self, proposal: Proposal, reason: str) -> None:
        self._proposals.account.evaluated(proposal.engine, proposal.speculation.method, reason, "memory")

    def _may_follow(self, proposal: Proposal, ladder: Sequence[Evaluation]) -> bool:
        """A rung below has to be another way to speculate or another engine, with the same split on the same nodes."""
        if proposal.split != ladder[0].proposal.split or proposal.pool.site != ladder[0].proposal.pool.site:
            return False
        if len(ladder) >= LADDER:
            return False
        last = len(ladder) == LADDER - 1
        plain = any(one.proposal.speculation.method == "none" for one in ladder)
        # Drafts that are looked up in the text follow only if somebody measured a gain.
        lookup = proposal.speculation.method in LOOKUPS and not lookup_pays(self._case)
        if lookup and proof_of(self._case, proposal).level > EvidenceLevel.SIBLING:
            return False
        return not last or plain or proposal.speculation == Speculation()

    def _fewer(self, evaluation: Evaluation) -> Rejection:
        proposal = evaluation.proposal
        return Rejection(
            what=f"{proposal.split} · {evaluation.rung.candidate.how}",
            reason=f"no room for {self._case.variant.replicas} replicas",
            why="memory",
            engine=proposal.engine,
            methods=(proposal.speculation.method,),
        )

    def _has_room(self, nodes: Sequence[str], evaluation: Evaluation) -> bool:
        needs = evaluation.needs
        here = all(fits(needs, self._ledger.room(name), edge=self._case.edge) != "no" for name in nodes)
        return here and self._holds(evaluation.proposal.pool, needs)

    def _place(self, needs: Band, evaluation: Evaluation, replica: int) -> tuple[str, ...] | None:
        prefer = self._runs_on[replica] if replica < len(self._runs_on) else ()
        pools = self._proposals.pools[evaluation.proposal.pool.site]
        for pool in sorted(pools, key=lambda pool: set(pool.nodes) != set(prefer)):
            nodes = self._ledger.place(pool, needs, prefer, edge=self._case.edge)
            if nodes is not None:
                return nodes
        return None

    def _replicas(self, evaluation: Evaluation) -> int:
        case = self._case
        if case.variant.replicas is not None or case.objective != "throughput":
            return case.variant.replicas or 1
        proposal, settings = evaluation.proposal, self._proposals.settings(evaluation.proposal)
        sizes = Sizes(evaluation.rung.candidate.context, evaluation.rung.candidate.concurrency)
        sized = SizedProposal(case, proposal, settings, sizes)
        best = best_groups(sized)
        gain = total(sized, best) / total(sized, 1)
        return best if gain >= SHARE_GAIN else 1

    def _nearest(self) -> tuple[str, ...]:
        pools = self._case.fleet.pools(1, self._case.variant.nodes)
        kinds = [NodeKind(pool.site, *self._ledger.emptiest(pool), self._ledger.best(pool)) for pool in pools]
        if not self._proposals.pools and kinds:
            return joined(self._case, list(self._proposals.apart(max(kinds, key=lambda kind: kind.empty))))
        if not any(one.why == "memory" for one in self._rejected):
            return ()
        return nearest(self._case, self._proposals.places, kinds, self._holds)

    def _holds(self, pool: Pool, needs: Band) -> bool:
        """True if all requested replicas fit, each rank taking so much."""
        name, wanted = self._case.spec.name, self._case.variant.replicas or 1
        if wanted == 1:  # it is placed before it is asked
            return True
        placed: list[tuple[str, ...]] = []
        while len(placed) < wanted:
            found = (
                self._ledger.place(one, needs, edge=self._case.edge)
                for one in self._proposals.pools[pool.site]
            )
            nodes = next((one for one in found if one is not None), None)
            if nodes is None:
                break
            self._ledger.put(name, nodes, needs.mid)
            placed.append(nodes)
        for nodes in placed:
            self._ledger.take_back(name, nodes, needs.mid)
        return len(placed) == wanted


def _about(proposal: Proposal, rejected: Sequence[Rejection]) -> Iterator[Rejection]:
    """Rejections of a proposal, with its engine and method."""
    for one in rejected:
        yield one.model_copy(update={"engine": proposal.engine, "methods": (proposal.speculation.method,)})
