"""Reasons for the proposals of a variant that were not chosen, by their numbers next to the choice's. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sparkfleet.perf.prediction import Split
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.capacity.sizing import Proposal, VariantContext, size
from sparkfleet.planner.search.enumerate import ProposalEnumerator
from sparkfleet.planner.search.judge import Evaluation
from sparkfleet.planner.search.objective import total
from sparkfleet.planner.search.rung_builder import because, tps_alone
from sparkfleet.planner.search.spread import line, stays
from sparkfleet.planner.types.plan import Rejection
from sparkfleet.specs.deployment import EngineName, Method

Left = Sequence[tuple[Proposal, Evaluation | None]]
"""Proposals that were not chosen, the best first, with their evaluations if they were judged."""


class Alternatives:
    """Compares the rest with the choice.

    Args:
        case: the variant.
        ledger: the nodes' memory.
        drafts: its proposals; reasons are added to its account and its rejections.
    """

    def __init__(self, case: VariantContext, ledger: MemoryLedger, drafts: ProposalEnumerator) -> None:
        self._case = case
        self._ledger = ledger
        self._drafts = drafts
        self._rejected = drafts.rejected

    def other_sizes(self, choice: Evaluation, others: Iterable[Evaluation]) -> Iterator[str]:
        """Lines with the rate of one request on other numbers of nodes: on fewer, and on more if they are faster."""
        if self._case.objective != "interactive" or self._case.variant.parallel is not None:
            return
        ranks, ours = choice.draft.split.ranks, tps_alone(choice)
        for other in others:
            split, tps = other.draft.split, tps_alone(other)
            why = stays(self._case, choice, other) if split.ranks > ranks else ""
            if split.ranks < ranks or (split.ranks > ranks and tps > ours):
                yield line(split, tps, ours) + (f" ({why})" if why else "")
        for pool, split in self._drafts.kept[:1]:
            wider = choice.draft._replace(pool=pool, split=split)
            tps = self._promised(wider)
            if tps > ours:
                yield f"{line(split, tps, ours)} (the other nodes are kept for the other deployments)"

    def note_slower(self, choice: Evaluation, left: Left) -> None:
        """Reasons for the rest: the best of each shape and engine, by its numbers."""
        noted: set[tuple[Split, EngineName]] = set()
        compared: set[tuple[EngineName, Method]] = set()
        for draft, earlier in left:
            if (draft.split, draft.engine) in noted:
                pair = (draft.engine, draft.speculation.method)
                if pair not in compared:  # the best of each, as `left` is in that order
                    compared.add(pair)
                    self._drafts.account.judged(*pair, self._compared(choice, draft, earlier), "slower")
                continue
            noted.add((draft.split, draft.engine))
            self._rejected.append(self._slower(choice, draft, earlier))

    def _slower(self, choice: Evaluation, draft: Proposal, judged: Evaluation | None) -> Rejection:
        slow = judged.slowed_by[0].rule if judged and judged.slowed_by else None
        plain = f"{self._drafts.first(draft).name} · {draft.speculation}"
        return Rejection(
            what=f"{draft.split} · {judged.rung.candidate.how if judged and judged.rung else plain}",
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
        return f"{tps:.3g} tok/s for one user against {best:.3g}{because(draft, choice, tps, best, case)}"

    def _total(self, draft: Proposal, groups: int) -> float:
        """Tokens per second of all requests, distributed over so many groups."""
        case, settings = self._case, self._drafts.settings(draft)
        context = size(case, draft, self._ledger.best(draft.pool), settings).context
        return total(case, draft, settings, context, groups)

    def note_replicas(self, choice: Evaluation, left: Left) -> None:
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
        alone = (
            "no faster for one request" if ranks == 1 else f"{self._promised(single):.3g} tok/s for one user"
        )
        reason = (
            f"{alone}; {self._total(single, copies):.0f} tok/s instead of {self._total(choice.draft, 1):.0f} for"
            f" {case.concurrency} requests together; to choose it: `replicas: {copies}`"
        )
        what = f"{copies} × {single.split} · {self._drafts.first(single).name} · {single.speculation}"
        self._rejected.append(Rejection(what=what, reason=reason, why="slower"))

    def _promised(self, draft: Proposal) -> float:
        """Speed of a proposal alone, as far as it is known before judging."""
        settings = self._drafts.settings(draft)
        sized = size(self._case, draft, self._ledger.best(draft.pool), settings)
        return self._case.outlook.rates(draft.split, settings, sized.context, 1).decode_tps_per_request.mid
