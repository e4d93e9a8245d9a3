"""Acceptance of drafts on a deployment's own requests: as evidence for plans, and as advice for its file. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparkfleet.perf.draft_methods import as_counted, at_depth, speed_method
from sparkfleet.perf.latency.acceptance import EVEN
from sparkfleet.perf.latency.local_acceptance import CLEARLY, ENOUGH_STEPS, LocalAcceptance, chances_of
from sparkfleet.perf.prediction import DepthPrediction, Prediction, Speculation
from sparkfleet.planner.report.explain.layout import lines_of
from sparkfleet.planner.types.plan import Candidate, DeploymentPlan, Rung
from sparkfleet.specs.deployment import Objective
from sparkfleet.units import three_digits
from sparkfleet.values import Value

if TYPE_CHECKING:  # slow imports, for groups that run
    from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus
    from sparkfleet.controlplane.state.tables.draft_traffic import DraftTraffic


class DepthOption(Value):
    """Another depth of a draft, or no speculation, with its predicted speed on the deployment's own requests."""

    speculation: Speculation
    tps: float
    """Of one request, or of all together for `throughput`."""

    @property
    def choice(self) -> str:
        """Line of a deployment that chooses it."""
        wanted = self.speculation
        if wanted.method == "none":
            return "speculation: none"
        draft = f", draft: {wanted.draft}" if wanted.draft else ""
        return f"speculation: {{method: {wanted.method}, tokens: {wanted.tokens}{draft}}}"


class SpeculationAdvice(Value):
    """Tokens per step of a deployment's own requests, and the speed with other depths of its draft."""

    speculation: Speculation
    """As it runs."""
    measured: float
    """Tokens per step: the mean of all that were counted with these settings, or as expected by those with alike ones."""
    steps: int
    """Steps that were counted."""
    enough: bool
    """True if plans use it."""
    published: float | None = None
    """Tokens per step by published acceptance; None if the plan has none."""
    now: float | None = None
    """Predicted tok/s as it runs, with the counted acceptance; None if nothing is predicted."""
    shared_by: int = 1
    """Requests at once that the speeds are those of."""
    options: tuple[DepthOption, ...] = ()
    """The fastest depth and no speculation, the faster first; () if there is not enough."""

    @property
    def best(self) -> DepthOption | None:
        """The option that is clearly faster than what runs; None if there is none."""
        first = self.options[0] if self.options else None
        return first if first and self.now and first.tps >= CLEARLY * self.now else None

    def without(self, option: DepthOption) -> SpeculationAdvice:
        """The same without an option that the fleet cannot serve."""
        return self.model_copy(update={"options": tuple(one for one in self.options if one != option)})


def acceptances_of(status: FleetStatus | None) -> dict[str, tuple[LocalAcceptance, ...]]:
    """Acceptance on each deployment's own requests, as far as enough steps were counted."""
    found = {
        one.name: tuple(
            local_acceptance(each) for each in one.drafts if round(each.counts.steps) >= ENOUGH_STEPS
        )
        for one in (status.deployments if status else ())
    }
    return {name: each for name, each in found.items() if each}


def local_acceptance(traffic: DraftTraffic) -> LocalAcceptance:
    """Acceptance by what was counted; methods have the names of the speed model."""
    setup, counts = traffic.setup, traffic.counts
    wanted = setup.speculation
    return LocalAcceptance(
        model=setup.model,
        method=speed_method(wanted.method),
        draft=wanted.draft,
        tokens=wanted.tokens,
        steps=traffic.steps,
        chances=chances_of(
            wanted,
            steps=counts.steps,
            proposed=counts.proposed,
            accepted=counts.accepted,
            by_position=counts.by_position,
        ),
    )


def advice_for(
    deployment: DeploymentStatus, planned: DeploymentPlan | None = None
) -> tuple[SpeculationAdvice, ...]:
    """Advice for each draft with which a deployment's groups run and that was counted.

    Args:
        deployment: as it runs.
        planned: its present plan; a running group has its predictions if the plan has the same candidate: plans that an
            earlier release stored have no depths. None: the stored predictions.
    """
    fresh = {rung.candidate: rung for group in (planned.groups if planned else ()) for rung in group.ladder}
    found: dict[Candidate, SpeculationAdvice] = {}
    objective = deployment.plan.objective if deployment.plan else "interactive"
    for rung in running_rungs(deployment):
        one = fresh.get(rung.candidate, rung)
        if (traffic := _traffic_of(deployment, rung.candidate)) is not None:
            found[rung.candidate] = _advice(one, traffic, objective)
    return tuple({(one.speculation, one.steps): one for one in found.values()}.values())


def running_rungs(deployment: DeploymentStatus) -> Iterator[Rung]:
    """The rungs of a deployment's groups, once each; those that are planned if none of them reports."""
    reported = [rung for report in deployment.groups if (rung := deployment.rung_of(report)) is not None]
    planned = [group.choice for group in deployment.plan.groups] if deployment.plan else []
    seen: list[Candidate] = []
    for rung in reported or planned:
        if rung.candidate not in seen:
            seen.append(rung.candidate)
            yield rung


def _traffic_of(deployment: DeploymentStatus, candidate: Candidate) -> DraftTraffic | None:
    """Returns the counts of a candidate's draft and depth: of just these settings, or with another depth under load or
    another engine. Those of another draft, as of an earlier file, are not its."""
    wanted = candidate.speculation
    alike = [
        one
        for one in deployment.drafts
        if one.setup.model == candidate.model
        and one.setup.speculation.tokens == wanted.tokens
        and local_acceptance(one).of(as_counted(wanted))
    ]
    return max(alike, key=lambda one: (_is_exactly(one, candidate), one.steps), default=None)


def _is_exactly(traffic: DraftTraffic, candidate: Candidate) -> bool:
    setup = traffic.setup
    return (setup.engine, setup.speculation) == (candidate.engine, candidate.speculation)


def _advice(rung: Rung, traffic: DraftTraffic, objective: Objective) -> SpeculationAdvice:
    wanted, prediction = rung.candidate.speculation, rung.prediction
    local, enough = local_acceptance(traffic), round(traffic.counts.steps) >= ENOUGH_STEPS
    depths = prediction.depths
    many = objective == "throughput"
    speeds = _speeds(prediction, depths, wanted, local, many=many) if depths and enough else []
    load = (prediction.concurrency or 1) if many else 1
    present = wanted.at(load).tokens
    mean = 1.0 + traffic.counts.accepted / traffic.counts.steps
    return SpeculationAdvice(
        speculation=wanted,
        measured=mean if _is_exactly(traffic, rung.candidate) else local.tokens_per_step(wanted.tokens),
        steps=traffic.steps,
        enough=enough,
        published=depths.published if depths else prediction.accepted,
        now=speeds[present] if speeds else None,
        shared_by=load,
        options=tuple(_options(speeds, wanted, present)),
    )


def _options(speeds: list[float], wanted: Speculation, present: int) -> list[DepthOption]:
    """No speculation, and the fastest other depth, the faster first. A beam's acceptance is not that of its chains."""
    found = [DepthOption(speculation=Speculation(), tps=speeds[0])] if speeds else []
    others = [k for k in range(1, len(speeds)) if k != present and wanted.topk == 1]
    if others:
        best = max(others, key=lambda k: speeds[k])
        found.append(DepthOption(speculation=at_depth(wanted, best), tps=speeds[best]))
    return sorted(found, key=lambda one: -one.tps)


def _speeds(
    prediction: Prediction,
    depths: DepthPrediction,
    wanted: Speculation,
    local: LocalAcceptance,
    *,
    many: bool,
) -> list[float]:
    """Predicted tok/s with 0, 1, … draft tokens, of one request or of all together; [] if none is predicted.

    What makes the plan's own speed another than the modelled one, such as a measurement, applies to each depth alike.
    """
    alone, together = prediction.decode_tps_per_request, prediction.decode_tps_aggregate
    tokens = [local.tokens_per_step(k) for k in range(len(depths.steps_alone))]
    if not many:
        if alone is None or not prediction.accepted:
            return []
        level = alone.mid / (prediction.accepted * depths.steps_alone[wanted.at(1).tokens])
        return [level * step * each for step, each in zip(depths.steps_alone, tokens, strict=True)]
    load = prediction.concurrency or 1
    if together is None:
        return []
    share = EVEN if load > 1 else 1.0
    step = 1 / (depths.steps_loaded[wanted.at(load).tokens] * depths.accepted_loaded)
    waits = max(0.0, share * load / together.mid - step)  # seconds of each token's prefills of others
    return [
        (share if k else 1.0) * load / (waits + 1 / (depths.steps_loaded[k] * each))
        for k, each in enumerate(tokens)
    ]


def advice_lines(advice: tuple[SpeculationAdvice, ...]) -> list[str]:
    """Lines of a plan about its draft on the deployment's own requests."""
    return lines_of("speculation", *advice_words(advice)) if advice else []


def advice_words(advice: tuple[SpeculationAdvice, ...]) -> tuple[str, ...]:
    """`MTP k=3, your traffic: 1.42 tokens per step …; for 1.27× in the file: …`, one for each draft."""
    return tuple(map(_words, advice))


def _traffic_words(one: SpeculationAdvice) -> str:
    """`your traffic: 1.41 tokens per step over 12,400 steps (published 2.81)`."""
    published = f" (published {one.published:.2f})" if one.published else ""
    return f"your traffic: {one.measured:.2f} tokens per step over {one.steps:,} steps{published}"


def _words(one: SpeculationAdvice) -> str:
    words = f"{one.speculation}, {_traffic_words(one)}"
    if not one.enough:
        return f"{words}; plans use it from {ENOUGH_STEPS:,} steps on"
    if one.now is None and one.published:
        return f"{words}; `sparkfleet plan` with its file has the speed of other depths"
    if one.now is None:
        return f"{words}; no speed is predicted here, so other depths are not compared"
    shared = f" shared by {one.shared_by}" if one.shared_by > 1 else ""
    others = [f"{option.speculation} {three_digits(option.tps)}" for option in one.options]
    speeds = ", ".join([f"now {three_digits(one.now)} tok/s{shared}", *others])
    best = one.best
    if best is None:
        return f"{words}: {speeds} (predicted); nothing is {CLEARLY:g}× as fast"
    return f"{words}: {speeds} (predicted); for {best.tps / one.now:.2f}× in the file: `{best.choice}`"
