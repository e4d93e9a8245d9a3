"""Chooses the ladder of one variant: proposals ranked by predicted speed, evaluated best first, if there is room. Pure.

Proposals that a rule rejects would have been better than the choice; the others are rejected by their predictions.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from sparkfleet.knowledge.published.evidence import EvidenceLevel
from sparkfleet.perf.prediction import Speculation
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.capacity.proposal import Proposal, Sizing, VariantCase
from sparkfleet.planner.search.alternatives import Alternatives
from sparkfleet.planner.search.enumerate import ProposalEnumerator
from sparkfleet.planner.search.evaluate import Evaluation, evaluate
from sparkfleet.planner.search.node_finder import NodeFinder
from sparkfleet.planner.search.objective import SizedProposal, is_less, proof_of, published_factor, worth
from sparkfleet.planner.search.rung_builder import ALIKE, without_advisory_first
from sparkfleet.planner.search.spread import is_alike, reason_to_stay, weighed_with
from sparkfleet.planner.types.plan import Rejection
from sparkfleet.units import gib

LADDER = 5
"""Rungs of a ladder: more would take an hour to fail."""
MOST_EVALUATED = 40
"""Most proposals that are evaluated per variant; the rest are shown with their predictions only."""
UNEQUAL = 0.97
"""Factor on a group over nodes of unequal memory: cables that are measured 1 to 2 % apart do not choose it."""

LOOKUPS = frozenset(("ngram",))
"""Methods whose drafts are looked up in the text itself."""
REPEATING = frozenset(("code", "edits", "agent"))
"""Kinds of text that repeat what the prompt has."""
LOOKUP_REJECTED = Rejection(
    what="NGRAM as first choice",
    reason="drafts that are looked up in the text pay only if it repeats; if it does: `content: agent`, `edits` or `code`",
    why="wanted",
)


def lookup_pays(case: VariantCase) -> bool:
    """True if drafts looked up in the text may be the first choice.

    The deployment sets text that repeats, asks for the method, or somebody has measured it on this fleet.
    """
    measured = any(one.method in LOOKUPS for one in case.predictor.measurements)
    return measured or case.spec.content in REPEATING or case.variant.speculation.method in LOOKUPS


class RankedProposal(NamedTuple):
    """A proposal in the order of its promise."""

    negative: float
    """Worth, promised or evaluated, negative: a heap has the least first."""
    order: int
    proposal: Proposal
    evaluation: Evaluation | None


@dataclass
class RankSearch:
    """Search among the proposals on one number of ranks."""

    heap: list[RankedProposal]
    """Proposals that wait for their turn."""
    first: Evaluation | None = None
    """The best that passes and has room."""
    nodes: tuple[str, ...] = ()
    """Its nodes."""
    crowded: tuple[Evaluation, tuple[str, ...]] | None = None
    """The best whose replicas would share nodes, while nodes of less memory are left over."""
    too_few: tuple[list[Evaluation], tuple[str, ...]] | None = None
    """The best that has room for fewer replicas than the deployment sets."""
    evaluated: int = 0
    """Number of proposals that were evaluated."""
    left: list[RankedProposal] = field(default_factory=list)
    """Proposals that cannot follow the first on its ladder."""


class ChosenLadder(NamedTuple):
    """The choice and the rungs below it, on its nodes."""

    rungs: list[Evaluation]
    nodes: tuple[str, ...]
    others: tuple[str, ...] = ()
    """Lines with the choices on other numbers of nodes."""


class LadderSearch:
    """Ranks and evaluates the proposals of one variant.

    Args:
        case: the variant.
        ledger: the nodes' memory; unchanged by the search.
        proposals: of the variant; reasons are added to their account and their rejections.
        nodes: finds nodes for groups.
    """

    def __init__(
        self, case: VariantCase, ledger: MemoryLedger, proposals: ProposalEnumerator, nodes: NodeFinder
    ) -> None:
        self._case = case
        self._ledger = ledger
        self._proposals = proposals
        self._rejected = proposals.rejected
        self._nodes = nodes
        self._order = count()

    def choose(self) -> ChosenLadder | None:
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
            if not reason_to_stay(self._case, best.first, search.first):
                fewer = best.first
                search.first = weighed_with(fewer, search.first)
                best = search
        if best is None or best.first is None:  # refused by the replicas that have no room
            short = next((search for search in searches if search.too_few is not None), None)
            return None if short is None or short.too_few is None else ChosenLadder(*short.too_few)
        ladder = self._climb(best, best.first)
        if fewer is not None:
            ladder = self._led_by_worth([ladder[0], *(weighed_with(fewer, one) for one in ladder[1:])])
        if self._case.objective != "context":
            ladder = without_advisory_first(ladder, lambda one: self._may_lead(one.proposal))
        others = self._note_alternatives(ladder[0], best, searches)
        return ChosenLadder(ladder, best.nodes, others)

    def _led_by_worth(self, ladder: list[Evaluation]) -> list[Evaluation]:
        """The ladder with another rung first if that is worth clearly more, now that evidence from fewer nodes counts."""
        best = max((one for one in ladder if self._may_lead(one.proposal)), key=lambda one: one.worth)
        if self._case.objective != "context" and best.worth <= ALIKE * ladder[0].worth:
            return ladder
        return [best, *(one for one in ladder if one is not best)]

    def _searches(self) -> list[RankSearch]:
        """The proposals by number of ranks, the fewest first."""
        by_ranks: dict[int, list[RankedProposal]] = defaultdict(list)
        for proposal, sized in self._proposals.sized():
            by_ranks[proposal.split.ranks].append(self._ranked(proposal, sized))
        for heap in by_ranks.values():
            heapq.heapify(heap)
        return [RankSearch(heap) for _, heap in sorted(by_ranks.items())]

    def _ranked(self, proposal: Proposal, sized: Sizing) -> RankedProposal:
        settings, stack = self._proposals.settings(proposal), self._proposals.first(proposal)
        busy = self._case.objective == "throughput"
        discount = stack.evidence * proof_of(self._case, proposal).discount(busy=busy)
        discount *= UNEQUAL if self._case.fleet.is_unequal(proposal.pool) else 1.0
        ranked = SizedProposal(self._case, proposal, settings, sized.sizes)
        promise = worth(ranked, published_factor(ranked), discount)
        return RankedProposal(-promise, next(self._order), proposal, None)

    def _search(self, search: RankSearch) -> None:
        """Evaluates the best first, until one passes and has room."""
        postponed: list[RankedProposal] = []
        while search.heap and search.first is None:
            one = heapq.heappop(search.heap)
            if not self._may_lead(one.proposal):
                postponed.append(one)
                continue
            evaluation = self._confirmed(search, one)
            if evaluation is not None:
                self._take(search, evaluation)
        for one in postponed:
            heapq.heappush(search.heap, one)
        if search.first is None and search.crowded is not None:
            search.first, search.nodes = search.crowded

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
        evaluation = one.evaluation or self._evaluate(search, one.proposal)
        if evaluation is None:
            return
        nodes, search.first = search.nodes, None
        if weighed_with(fewer, evaluation).worth > weighed_with(fewer, first).worth:
            self._take(search, evaluation)
        loser = evaluation if search.first is None else first
        if search.first is None:
            search.first, search.nodes = first, nodes
        heapq.heappush(search.heap, RankedProposal(-loser.worth, next(self._order), loser.proposal, loser))

    def _may_lead(self, proposal: Proposal) -> bool:
        """False for drafts that are looked up in the text, unless it repeats or they are wanted."""
        return proposal.speculation.method not in LOOKUPS or lookup_pays(self._case)

    def _confirmed(self, search: RankSearch, one: RankedProposal) -> Evaluation | None:
        """The evaluation of a proposal, if it is as good as it promised; else it waits for its turn, or is out."""
        if one.evaluation is not None:
            return one.evaluation
        evaluation = self._evaluate(search, one.proposal)
        if evaluation is None:
            return None
        if is_less(
            self._case, evaluation.worth, -one.negative
        ):  # slower than estimated: others may be better
            heapq.heappush(
                search.heap, RankedProposal(-evaluation.worth, next(self._order), one.proposal, evaluation)
            )
            return None
        return evaluation

    def _evaluate(self, search: RankSearch, proposal: Proposal) -> Evaluation | None:
        """The evaluation of a proposal on the first stack that the rules let pass."""
        search.evaluated += 1
        stacks, room = self._proposals.stacks[proposal.engine], self._ledger.best(proposal.pool)
        evaluation, rejected = evaluate(self._case, proposal, stacks, room)
        self._rejected += _about(proposal, rejected)
        return evaluation

    def _take(self, search: RankSearch, evaluation: Evaluation) -> None:
        """Nodes for the first choice of so many ranks, if all its replicas have room."""
        found = self._nodes.find(evaluation.proposal.pool.site, evaluation.needs, 0)
        if found is None:
            self._no_room(evaluation.proposal, f"no node has {gib(evaluation.needs.mid, exact=True)} left")
            return
        if self._nodes.crowds(evaluation.proposal.pool, evaluation.needs):
            search.crowded = search.crowded or (evaluation, found)
        elif self._nodes.fits_all(evaluation.proposal.pool, evaluation.needs):
            search.first, search.nodes = evaluation, found
        else:
            self._lack(search, evaluation, found)

    def _lack(self, search: RankSearch, evaluation: Evaluation, found: tuple[str, ...]) -> None:
        """Notes a proposal that has room for fewer replicas than the deployment sets."""
        search.too_few = search.too_few or ([evaluation], found)
        self._rejected.append(self._fewer(evaluation))

    def _climb(self, search: RankSearch, first: Evaluation) -> list[Evaluation]:
        """The first choice and the rungs below it, on its nodes."""
        ladder = [first]
        while search.heap:
            one = heapq.heappop(search.heap)
            if search.evaluated >= MOST_EVALUATED or not self._may_follow(one.proposal, ladder):
                search.left.append(one)
                continue
            evaluation = self._confirmed(search, one)
            if evaluation is None:
                continue
            if self._nodes.fits_on(search.nodes, evaluation.proposal.pool, evaluation.needs):
                ladder.append(evaluation)
            else:
                self._no_room(one.proposal, "no room beside the other rungs on the nodes of the choice")
        return ladder

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

    def _note_alternatives(
        self, choice: Evaluation, best: RankSearch, searches: Sequence[RankSearch]
    ) -> tuple[str, ...]:
        """Notes reasons for everything that was not chosen. Returns lines with the choices on other numbers of nodes."""
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
        others = tuple(alternatives.other_sizes(choice, firsts))
        rest = [(one.proposal, one.evaluation) for one in left]
        alternatives.note_slower(choice, rest)
        alternatives.note_replicas(choice, rest)
        if not lookup_pays(self._case) and any(
            proposal.speculation.method in LOOKUPS for proposal, _ in rest
        ):
            self._rejected.append(LOOKUP_REJECTED)
        return others

    def _no_room(self, proposal: Proposal, reason: str) -> None:
        self._proposals.account.no_room(proposal.engine, proposal.speculation.method, reason)

    def _fewer(self, evaluation: Evaluation) -> Rejection:
        proposal = evaluation.proposal
        return Rejection(
            what=f"{proposal.split} · {evaluation.rung.candidate.how}",
            reason=f"no room for {self._case.variant.replicas} replicas",
            why="memory",
            engine=proposal.engine,
            methods=(proposal.speculation.method,),
        )


def _about(proposal: Proposal, rejected: Sequence[Rejection]) -> Iterator[Rejection]:
    """Rejections of a proposal, with its engine and method."""
    for one in rejected:
        yield one.model_copy(update={"engine": proposal.engine, "methods": (proposal.speculation.method,)})
