"""Reasons for the proposals of a variant that were not chosen, by their numbers next to the choice's. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sparkfleet.perf.prediction import Speculation, Split
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.capacity.proposal import Proposal, VariantCase
from sparkfleet.planner.capacity.sizing import size_proposal
from sparkfleet.planner.search.enumerate import ProposalEnumerator
from sparkfleet.planner.search.evaluate import Evaluation
from sparkfleet.planner.search.objective import SizedProposal, total
from sparkfleet.planner.search.rung_builder import because, tps_alone
from sparkfleet.planner.search.spread import alternative_line, published_contrast, reason_to_stay
from sparkfleet.planner.types.plan import Rejection
from sparkfleet.specs.deployment import EngineName
from sparkfleet.units import three_digits

Left = Sequence[tuple[Proposal, Evaluation | None]]
"""Proposals that were not chosen, the best first, with their evaluations if there are any."""


class Alternatives:
    """Compares the rest with the choice.

    Args:
        case: the variant.
        ledger: the nodes' memory.
        proposals: of the variant; reasons are added to their account and their rejections.
    """

    def __init__(self, case: VariantCase, ledger: MemoryLedger, proposals: ProposalEnumerator) -> None:
        self._case = case
        self._ledger = ledger
        self._proposals = proposals
        self._rejected = proposals.rejected

    def other_sizes(self, choice: Evaluation, others: Iterable[Evaluation]) -> Iterator[str]:
        """Lines with the rate of one request on other numbers of nodes: on fewer, if still fewer are slower, and on more if
        they are faster than the choice.

        For many requests, their number, if the deployment leaves it open.
        """
        if self._case.is_load_open:
            yield f"ranked for {self._case.concurrency} requests at once per Spark: `concurrency: N` for N in all"
        if self._case.objective != "interactive" or self._case.variant.parallel is not None:
            return
        ranks, ours = choice.proposal.split.ranks, tps_alone(choice)
        fastest = 0.0
        for other in others:  # the fewest first
            split, tps = other.proposal.split, tps_alone(other)
            why = reason_to_stay(self._case, choice, other) if split.ranks > ranks else ""
            least = ours if split.ranks > ranks else fastest
            if split.ranks != ranks and tps > least:
                published = other.rung.published.figure
                yield alternative_line(split, tps, ours, published) + (f" ({why})" if why else "")
                few, many = sorted((choice, other), key=lambda one: one.proposal.split.ranks)
                if contrast := published_contrast(few, many):
                    yield contrast
            fastest = max(fastest, tps)
        for pool, split in self._proposals.kept[:1]:
            wider = choice.proposal._replace(pool=pool, split=split)
            tps = self._promised(wider)
            if tps > ours:
                beside = self._case.others(split.ranks)
                yield f"{alternative_line(split, tps, ours)} (the other nodes are kept for the other {beside})"

    def note_slower(self, choice: Evaluation, left: Left) -> None:
        """A reason for each of the rest, by its numbers; nodes of another kind are another place, not another way."""
        noted: set[tuple[Split, EngineName, Speculation]] = set()
        for proposal, earlier in left:
            way = (proposal.split, proposal.engine, proposal.speculation)
            if way not in noted:  # the best of each, as `left` is in that order
                noted.add(way)
                self._rejected.append(self._slower(choice, proposal, earlier))

    def _slower(self, choice: Evaluation, proposal: Proposal, evaluation: Evaluation | None) -> Rejection:
        slow = evaluation.slowed_by[0].rule if evaluation and evaluation.slowed_by else None
        tps = tps_alone(evaluation) if evaluation else self._promised(proposal)
        plain = f"{self._proposals.first(proposal).name} · {proposal.speculation}"
        return Rejection(
            what=f"{proposal.split} · {evaluation.rung.candidate.how if evaluation else plain}",
            reason=self._compared(choice, proposal, tps),
            why="slower",
            tps=round(tps, 2),
            rule=slow.id if slow else "",
            source=slow.sources[0] if slow else "",
            engine=proposal.engine,
            methods=(proposal.speculation.method,),
        )

    def _compared(self, choice: Evaluation, proposal: Proposal, tps: float) -> str:
        """The objective's numbers for the proposal and for the choice, and the cause of the difference."""
        case = self._case
        if case.objective == "throughput":
            groups = case.groups(proposal.split.ranks)
            copies = f" ({groups} groups)" if groups > 1 else ""
            total, ours = (
                self._total(proposal, groups),
                self._total(choice.proposal, case.groups(choice.proposal.split.ranks)),
            )
            load = f"{case.concurrency} requests {'per Spark' if case.is_load_open else 'together'}"
            return f"{total:.0f} tok/s{copies} for {load} against {ours:.0f}"
        best = tps_alone(choice)
        why = because(proposal, choice, tps, best, case)
        return f"{three_digits(tps)} tok/s for one user against {three_digits(best)}{why}"

    def _total(self, proposal: Proposal, groups: int) -> float:
        """Tokens per second of all requests, distributed over so many groups."""
        case, settings = self._case, self._proposals.settings(proposal)
        sizes = size_proposal(case, proposal, self._ledger.best(proposal.pool), settings).sizes
        return total(SizedProposal(case, proposal, settings, sizes), groups)

    def note_replicas(self, choice: Evaluation, left: Left) -> None:
        """Independent copies on the nodes that there are, against the one group that was chosen."""
        case, ranks = self._case, choice.proposal.split.ranks
        copies = min(max(ranks, 2), case.share, case.concurrency)
        single = (
            choice.proposal
            if ranks == 1
            else next((proposal for proposal, _ in left if proposal.split.ranks == 1), None)
        )
        if (
            case.objective != "interactive"
            or case.variant.replicas is not None
            or copies < 2
            or single is None
        ):
            return
        alone = (
            "no faster for one request"
            if ranks == 1
            else f"{three_digits(self._promised(single))} tok/s for one user"
        )
        reason = (
            f"{alone}; {self._total(single, copies):.0f} tok/s instead of {self._total(choice.proposal, 1):.0f} for"
            f" {case.concurrency} requests together; to choose it: `replicas: {copies}`"
        )
        what = f"{copies} × {single.split} · {self._proposals.first(single).name} · {single.speculation}"
        self._rejected.append(Rejection(what=what, reason=reason, why="slower"))

    def _promised(self, proposal: Proposal) -> float:
        """Speed of a proposal alone, as far as it is known before judging."""
        settings = self._proposals.settings(proposal)
        sized = size_proposal(self._case, proposal, self._ledger.best(proposal.pool), settings)
        return self._case.predictor.rates(
            proposal.split, settings, sized.context, 1
        ).decode_tps_per_request.mid
