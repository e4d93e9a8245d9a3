"""Enumerates the proposals of one variant: engines and images, splits, speculative methods, if they have room. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from sparkfleet.knowledge.engines.engine_flags import may_have_others
from sparkfleet.knowledge.engines.images import images_of
from sparkfleet.knowledge.engines.method_support import support_of
from sparkfleet.perf.draft_methods import at_depth, deepest
from sparkfleet.perf.engine_settings import EngineSettings
from sparkfleet.perf.latency.local_acceptance import CLEARLY
from sparkfleet.perf.memory.demand import MemoryBudget
from sparkfleet.perf.prediction import Speculation, Split
from sparkfleet.perf.workload import PROMPT
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.capacity.proposal import Proposal, Sizing, VariantCase
from sparkfleet.planner.capacity.sizing import quant_of, settings_of, size_proposal
from sparkfleet.planner.capacity.too_large import too_large
from sparkfleet.planner.engine_args.flag_engines import foreign
from sparkfleet.planner.place.drafting import METHODS, Drafts, SpeculationOptions, drafting_for
from sparkfleet.planner.place.fleet_map import GROUP_SIZES, Pool, SiteClass
from sparkfleet.planner.place.stacks import Stack, in_order, splits_for, stacks_for, unable
from sparkfleet.planner.place.weight_containers import engines_for, other_engines, wrong_container
from sparkfleet.planner.search.constraints import impossible_split, open_ring
from sparkfleet.planner.search.method_account import Fate, MethodAccount, Stage, rejection_of
from sparkfleet.planner.search.nearest_fits import NearestPlacement, NodeKind, linked
from sparkfleet.planner.types.plan import ENGINE_LABELS, Rejection
from sparkfleet.specs.deployment import EngineName, Variant
from sparkfleet.specs.parallel import Parallel


class ProposalEnumerator:
    """Proposals of one variant, and the options that were excluded before judging."""

    def __init__(self, case: VariantCase, ledger: MemoryLedger) -> None:
        self._case = case
        self._ledger = ledger
        self.rejected: list[Rejection] = []
        """Excluded options, in the order of discovery; the ladder appends to it."""
        self.account = MethodAccount(engines_for(case.predictor.checkpoint))
        """The result of every method on every engine."""
        self._drafting: dict[tuple[EngineName, int], SpeculationOptions] = {}
        self.stacks: dict[EngineName, tuple[Stack, ...]] = {}
        """Images to try, by engine."""
        self.pools: dict[SiteClass, list[Pool]] = defaultdict(list)
        """The nodes of each kind that there are."""
        self.places: list[NearestPlacement] = []
        """The proposal with the least need, for every shape and engine."""
        self.kept: list[tuple[Pool, Split]] = []
        """Shapes on more nodes than there are for this variant beside the other deployments."""

    def sized(self) -> Iterator[tuple[Proposal, Sizing]]:
        """The proposals that have room, or would have with another share of the memory, with their sizes."""
        engines = self._engines()
        enough = 0
        missing: list[tuple[float, Proposal, Rejection]] = []
        for pool, split in self._shapes():
            if enough and split.ranks > max(enough, self._case.share_of_group):
                self._keep_for_others(pool, split, enough)
                continue
            best = self._ledger.best(pool)
            proposals = [proposal for engine in engines for proposal in self._each(pool, split, engine)]
            sized = [(proposal, self._size(proposal, best)) for proposal in proposals]
            fitting = any(found.verdict != "no" for _, found in sized)
            # If a share of the memory is too large, rules may have a better reason than sizes.
            able = [(proposal, found) for proposal, found in sized if found.verdict != "no" or found.spare]
            enough = enough or (split.ranks if fitting else 0)
            yield from able
            if not sized:
                continue
            proposal, least = min(sized, key=lambda item: item[1].needs.mid)
            self.places += self._least_of(sized, best)
            if not able:  # one line per shape: engines and drafters differ by little
                self.rejected.append(too_large(self._case, proposal, least, best))
            kept = {proposal for proposal, _ in able}
            missing += (
                (found.needs.mid - best.at_most, proposal, too_large(self._case, proposal, found, best))
                for proposal, found in sized
                if proposal not in kept
            )
        # Of each method the first is kept: the one that lacks least.
        missing.sort(key=lambda one: one[0])
        for _, proposal, rejection in missing:
            self._note(proposal, rejection)

    def _keep_for_others(self, pool: Pool, split: Split, enough: int) -> None:
        beside = split.ranks > self._case.share
        what = f"{split} on {split.ranks} nodes"
        fits_on = f"{enough} node{'s' if enough > 1 else ''}"
        others = self._case.others(split.ranks) if beside else "replicas"
        reason = f"fits on {fits_on}; the others are kept for the other {others}"
        self.rejected.append(Rejection(what=what, reason=reason, why="node"))
        if beside:
            self.kept.append((pool, split))

    def _size(self, proposal: Proposal, room: MemoryBudget) -> Sizing:
        """Sizes on the first stack; if the model's tables leave no room, on one that keeps them on the disk."""
        found = size_proposal(self._case, proposal, room, self.settings(proposal))
        if found.verdict != "no" or not self._case.predictor.shape.table_bytes:
            return found
        able = (
            stack
            for stack in in_order(self.stacks[proposal.engine], proposal.speculation)
            if stack.disk_tables(self._case.predictor.checkpoint)
        )
        stack = next(able, None)
        return (
            found
            if stack is None
            else size_proposal(self._case, proposal, room, settings_of(self._case, proposal, stack))
        )

    def _note(self, proposal: Proposal, reason: Rejection) -> None:
        where = f"{proposal.split}: {reason.reason}"
        self.account.note(
            proposal.engine, (proposal.speculation.method,), Fate(Stage.SIZED, where, reason.why)
        )

    def first(self, proposal: Proposal) -> Stack:
        """The stack that names a proposal before it is evaluated."""
        return in_order(self.stacks[proposal.engine], proposal.speculation)[0]

    def settings(self, proposal: Proposal) -> EngineSettings:
        """Engine settings of a proposal on that stack."""
        return settings_of(self._case, proposal, self.first(proposal))

    def apart(self, kind: NodeKind) -> Iterator[NearestPlacement]:
        """The pinned shape on as many nodes of a kind as it needs, were they linked."""
        wanted = self._case.variant.parallel or Parallel()
        ranks = (wanted.tp or wanted.dcp or 1) * (wanted.pp or 1)
        for split in (
            splits_for(self._case.variant, self._case.predictor, ranks) if ranks in GROUP_SIZES else ()
        ):
            for engine, stacks in self.stacks.items():
                for proposal in self._each(linked(kind, ranks), split, engine):
                    yield NearestPlacement(proposal, stacks, self.settings(proposal), kind.empty)

    def _least_of(
        self, sized: Sequence[tuple[Proposal, Sizing]], room: MemoryBudget
    ) -> Iterator[NearestPlacement]:
        """The proposal that needs least, of every engine."""
        for engine, stacks in self.stacks.items():
            own = [item for item in sized if item[0].engine == engine]
            if own:
                proposal, _ = min(own, key=lambda item: item[1].needs.mid)
                yield NearestPlacement(proposal, stacks, self.settings(proposal), room)

    def _engines(self) -> tuple[EngineName, ...]:
        variant, quant = self._case.variant, quant_of(self._case)
        nodes = [n for n in self._case.fleet.nodes if not variant.nodes or n.name in variant.nodes]
        checkpoint = self._case.predictor.checkpoint
        able = engines_for(checkpoint)
        if variant.engine != "auto" and (wrong := wrong_container(checkpoint, variant.engine)):
            self.rejected.append(wrong)
            return ()
        if variant.engine == "auto" and (others := other_engines(checkpoint)):
            self.rejected.append(others)
        for engine in able if variant.engine == "auto" else (variant.engine,):
            found = stacks_for(variant, engine, quant, nodes)
            self.rejected += found.rejected
            if found.options:
                self.stacks[engine] = found.options
            else:
                self.account.note(
                    engine, METHODS, Fate(Stage.ENGINE, _no_engine(variant, quant).reason, "engine")
                )
        self._leave_out(variant)
        if not self.stacks:
            self.rejected.append(_no_engine(variant, quant))
        self._keep_to_arguments(variant, alone=len(able) == 1)
        return tuple(self.stacks)

    def _leave_out(self, variant: Variant) -> None:
        """Excludes the engines that the deployment does not name."""
        if variant.engine != "auto":
            fate = Fate(Stage.ENGINE, f"the deployment sets `engine: {variant.engine}`", "engine")
            for engine in engines_for(self._case.predictor.checkpoint):
                if engine != variant.engine:
                    self.account.note(engine, METHODS, fate)

    def _keep_to_arguments(self, variant: Variant, *, alone: bool) -> None:
        """Arguments are one engine's: the others are out, from the first rung to the last."""
        alone = alone or variant.engine != "auto" or variant.image is not None
        for engine, stacks in tuple(self.stacks.items()):
            newer = all(may_have_others(engine, stack.version) for stack in stacks)
            reason = foreign(variant.engine_args, engine, alone=alone, newer=newer)
            if reason:
                del self.stacks[engine]
                self.rejected.append(rejection_of(engine, METHODS, reason, "wanted"))

    def _shapes(self) -> Iterator[tuple[Pool, Split]]:
        """Sites of the fleet with the splits that suit them, each once per class of site."""
        variant, predictor = self._case.variant, self._case.predictor
        for ranks in GROUP_SIZES:
            if self._case.below is not None and ranks >= self._case.below:
                break
            splits = splits_for(variant, predictor, ranks)
            for pool in self._pools(ranks) if splits else ():
                self.pools[pool.site].append(pool)
            if splits and self._case.fleet.open_rings(ranks, variant.nodes):
                self.rejected.append(open_ring(ranks))
        for site, pools in self.pools.items():
            best = max(pools, key=lambda pool: self._ledger.best(pool).careful)
            for split in splits_for(variant, predictor, site.ranks):
                yield best, split
        if not self.pools:
            self.rejected.append(self._no_site())
        if (variant.replicas or 0) > 1:
            self._add_larger()

    def _add_larger(self) -> None:
        """Adds to the nodes of each kind those that only have more memory: replicas run there with the same sizes."""
        found = {site: tuple(pools) for site, pools in self.pools.items()}
        for site, pools in found.items():
            own = {node for pool in pools for node in pool.nodes}
            for other, larger in found.items():
                level = other.model_copy(update={"memory_total": site.memory_total})
                if other.memory_total > site.memory_total and level == site:
                    self.pools[site] += [pool for pool in larger if not own.issuperset(pool.nodes)]

    def _pools(self, ranks: int) -> Iterator[Pool]:
        """Pools of so many ranks; the fast cables of a switch only if the deployment loses no group by them."""
        pools = self._case.fleet.pools(ranks, self._case.variant.nodes)
        groups = self._case.groups(ranks)
        for pool in pools:
            alike = (
                len(one.nodes)
                for one in pools
                if one.site.memory_total == pool.site.memory_total and set(pool.nodes) <= set(one.nodes)
            )
            if min(groups, max(alike) // ranks) <= len(pool.nodes) // ranks:
                yield pool

    def _no_site(self) -> Rejection:
        wanted = self._case.variant.parallel
        asked = f"TP={wanted.tp or wanted.dcp or 1} PP={wanted.pp or 1}" if wanted else "any shape"
        asked += f" DCP={wanted.dcp}" if wanted and wanted.dcp else ""
        nodes = self._case.variant.nodes
        among = f" among {', '.join(nodes)}" if nodes else ""
        ranks = (wanted.tp or wanted.ep or wanted.dcp or 1) * (wanted.pp or 1) if wanted else 1
        count = len(nodes or self._case.fleet.nodes)
        if wanted is not None and (
            mistake := impossible_split(wanted, self._case.predictor.checkpoint, max(1, count))
        ):
            return Rejection(what=asked, reason=mistake, why="wanted")
        reason = (
            f"needs {ranks} linked nodes{among}; {count} available"
            if count < ranks
            else f"needs a linked node{among} per rank, and heads divisible by TP: not met by this fleet or model"
        )
        return Rejection(what=asked, reason=reason, why="node")

    def _each(self, pool: Pool, split: Split, engine: EngineName) -> Iterator[Proposal]:
        for speculation in self._methods(engine, self._case.load(split.ranks)):
            reason = self._impossible(split, engine, speculation)
            if reason:
                self.account.note(engine, (speculation.method,), Fate(Stage.EXCLUDED, reason, "engine"))
            else:
                yield self._best_depth(Proposal(split, pool, engine, speculation))

    def _methods(self, engine: EngineName, requests: int) -> tuple[Speculation, ...]:
        """The methods to try on an engine under so many requests at once; the others are noted with their reasons."""
        known = self._drafting.get((engine, requests))
        if known is None:
            case = self._case
            facts = Drafts(case.predictor.checkpoint, case.predictor.drafts, case.spec.license == "open")
            known = drafting_for(case.variant, facts, engine, requests)
            self._drafting[engine, requests] = known
            for one in known.excluded:
                self.account.note(engine, (one.method,), Fate(Stage.EXCLUDED, one.reason, one.why))
        return known.options

    def _best_depth(self, proposal: Proposal) -> Proposal:
        """The proposal with the depth that is fastest under the objective, if the acceptance of its draft was counted on the
        deployment's requests, its depth is open and the gain is clear: published depths are the best for other texts."""
        case, wanted = self._case, proposal.speculation
        is_open = case.variant.speculation.tokens is None and wanted.topk == 1
        if not is_open or case.predictor.acceptance(wanted) is None:
            return proposal
        requests = case.load(proposal.split.ranks) if case.objective == "throughput" else 1

        def speed(one: Proposal) -> float:
            rates = case.predictor.rates(one.split, self.settings(one), 2 * PROMPT, requests)
            return rates.decode_tps_aggregate.mid

        depths = (_with_depth(wanted, k) for k in range(1, deepest(wanted) + 1))
        best = max((proposal._replace(speculation=one) for one in depths), key=speed)
        return best if speed(best) >= CLEARLY * speed(proposal) else proposal

    def _impossible(self, split: Split, engine: EngineName, speculation: Speculation) -> str:
        """Reason why a method is not proposed for a split; "" if it is."""
        method, edge = speculation.method, self._case.edge
        if method == "none":
            return ""
        support = support_of(engine, method)
        if split.pp > 1 and (support is None or not support.pipeline):
            return f"{ENGINE_LABELS[engine]} runs {method.upper()} without a pipeline (PP) only"
        # Nothing but plain decoding has been published over a pipeline, and a drafter needs memory of its own.
        if (edge or split.pp > 1) and method != self._case.variant.speculation.method:
            return "at the edge of the memory only plain decoding is tried" if edge else _NO_PIPELINE
        stacks = self.stacks[engine]
        return "" if in_order(stacks, speculation) else unable(stacks[0], speculation)


def _with_depth(speculation: Speculation, tokens: int) -> Speculation:
    """The draft with another depth, and with no more than its own under load."""
    fixed = at_depth(speculation, tokens)
    if speculation.busy is None or speculation.busy >= tokens:
        return fixed
    return fixed.model_copy(update={"busy": speculation.busy, "busy_from": speculation.busy_from})


_NO_PIPELINE = "over a pipeline (PP) nothing but plain decoding is published; to try it, set `speculation`"


def _no_engine(variant: Variant, quant: str) -> Rejection:
    if variant.image is None:
        what = ENGINE_LABELS.get(variant.engine, "any engine")
        with_it = "" if variant.engine == "auto" else " with this engine"
        return Rejection(
            what=what,
            reason=f"no known image serves {quant}{with_it}; set `image:`",
            why="wanted",
        )
    inside = (
        "contains another engine"
        if images_of(variant.image)
        else "unknown image; set `engine:` to the engine in it"
    )
    return Rejection(what=variant.image, reason=inside, why="wanted")
