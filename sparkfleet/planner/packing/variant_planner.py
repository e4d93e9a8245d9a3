"""Places the groups of one variant: its ladder on the nodes that the search chose, and again for every replica. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sparkfleet.planner.capacity.headroom import lowered
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.capacity.proposal import Sizes, VariantCase
from sparkfleet.planner.capacity.unequal_nodes import (
    equal_reason,
    group_note,
    rank_fractions,
    replicas_note,
    share_note,
)
from sparkfleet.planner.engine_args.engine_args import share_given
from sparkfleet.planner.packing.served_variant import ServedVariant, nodes_and_bytes_of, noted
from sparkfleet.planner.search.enumerate import ProposalEnumerator
from sparkfleet.planner.search.evaluate import Evaluation
from sparkfleet.planner.search.ladder_search import ChosenLadder, LadderSearch
from sparkfleet.planner.search.nearest_fits import NodeKind, joined, nearest
from sparkfleet.planner.search.node_finder import NodeFinder
from sparkfleet.planner.search.objective import SizedProposal, best_groups, total
from sparkfleet.planner.search.rung_builder import moved, rung_of
from sparkfleet.planner.types.group_share import shared
from sparkfleet.planner.types.plan import GroupPlan, Rejection, Rung

SHARE_GAIN = 1.1
"""Replicas have to bring at least this much to be taken without being asked for."""


class VariantPlanner:
    """Plans the groups of one variant, and counts them in the ledger.

    Args:
        case: the variant.
        ledger: the nodes' memory.
        runs_on: nodes of each group that runs now.
    """

    def __init__(self, case: VariantCase, ledger: MemoryLedger, runs_on: Sequence[tuple[str, ...]]) -> None:
        self._case = case
        self._ledger = ledger
        self._runs_on = runs_on
        self._proposals = ProposalEnumerator(case, ledger)
        self._rejected = self._proposals.rejected  # one list, in the order in which plans show it
        self._nodes = NodeFinder(case, ledger, self._proposals.pools, runs_on)

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
        found = LadderSearch(
            self._case, self._ledger, self._proposals, self._nodes, self._on_fewer_nodes()
        ).choose()
        if found is None:
            return ServedVariant([], self._rejected, self._nearest())
        choice = found.rungs[0]
        groups = [self._settle(found, found.nodes, number)]
        largest = max((one.needs for one in found.rungs), key=lambda band: band.mid)
        for replica in range(1, self._replicas(choice)):
            more = self._nodes.find(choice.proposal.pool.site, largest, replica)
            if more is not None:
                groups.append(self._settle(found, more, number))
                continue
            what, reason = f"replica {replica + 1}", f"no nodes have room for more than {replica}"
            self._rejected.append(Rejection(what=what, reason=reason, why="memory"))
            if self._case.variant.replicas is None:
                break
            for group in groups:
                self._ledger.take_back(self._case.spec.name, *nodes_and_bytes_of(group))
            fewer = [f"fits with `replicas: {replica}`"] if self._fits_with(replica, number) else []
            return ServedVariant([], self._rejected, [*fewer, *self._nearest()])
        note = replicas_note(groups, self._case.fleet.totals)
        return ServedVariant([noted(group, note) for group in groups] if note else groups, self._rejected)

    def _on_fewer_nodes(self) -> Evaluation | None:
        """The choice on fewer nodes than the split that the deployment sets; None if it sets none, or if fewer do not fit.

        Without a split the search has it: a plan's line for another number of nodes has to be what that line then gives.
        """
        case, split = self._case, self._case.variant.parallel
        ranks = (split.tp or 1) * (split.pp or 1) if split else 1
        if (
            ranks == 1 or case.objective == "throughput"
        ):  # for many requests nothing is carried over (`spread`)
            return None
        free = replace(case, variant=case.variant.model_copy(update={"parallel": None}), below=ranks)
        proposals = ProposalEnumerator(free, self._ledger)
        nodes = NodeFinder(free, self._ledger, proposals.pools, self._runs_on)
        found = LadderSearch(free, self._ledger, proposals, nodes).choose()
        return found.rungs[0] if found else None

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

    def _settle(self, ladder: ChosenLadder, nodes: tuple[str, ...], number: int) -> GroupPlan:
        """One group on its nodes, counted there with the largest of its rungs."""
        beside = self._ledger.beside(nodes)
        rungs = [
            self._with_sizes(one, rung_of(one, at, ladder.rungs, self._case.objective, ladder.others))
            for at, one in enumerate(ladder.rungs)
        ]
        group = GroupPlan(
            ladder=tuple(
                self._on_nodes(one, moved(rung, nodes, beside), at)
                for at, (one, rung) in enumerate(zip(ladder.rungs, rungs, strict=True))
            ),
            variant=number,
            shared_concurrency=shared(self._case.variant.concurrency, rungs[0].candidate.concurrency),
        )
        self._ledger.put(self._case.spec.name, *nodes_and_bytes_of(group))
        return group

    def _on_nodes(self, evaluation: Evaluation, rung: Rung, at: int) -> Rung:
        """The rung with the shares of its ranks, and with notes on nodes of unequal memory."""
        candidate, fleet = rung.candidate, self._case.fleet
        nodes, site = candidate.shape.nodes, evaluation.proposal.pool.site
        own = share_given(self._case.variant.engine_args, candidate.engine) is not None
        sizes = [fleet.totals[node] for node in nodes]
        shares = () if own else rank_fractions(candidate, sizes, site.memory_total)
        notes = [group_note(nodes, fleet.totals)]
        if own and notes[0]:
            free = {node: self._ledger.room(node).at_most for node in nodes}
            notes.append(share_note(candidate, fleet.totals, free))
        equal = (
            "" if at else equal_reason(nodes, fleet.totals, fleet.neighbours(nodes, self._case.variant.nodes))
        )
        return rung.model_copy(
            update={
                "candidate": candidate.model_copy(update={"memory_fractions": shares}),
                "notes": (*rung.notes, *filter(None, notes)),
                "reason": f"{rung.reason}; {equal}" if equal else rung.reason,
            }
        )

    def _with_sizes(self, evaluation: Evaluation, rung: Rung) -> Rung:
        """The rung with a note on the sizes that were reduced, and the reason."""
        proposal = evaluation.proposal
        lowering = lowered(
            self._case, proposal, self._proposals.settings(proposal), self._ledger.best(proposal.pool), rung
        )
        return rung.model_copy(update={"notes": (*rung.notes, lowering)}) if lowering else rung

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
        return nearest(self._case, self._proposals.places, kinds, self._nodes.fits_all)
