"""Published configurations of a model with their speeds, with which a plan's choice is compared. Pure.

    decisions_in(cases) -> PublishedDecision …        one per model, number of nodes and objective

A *configuration* has all settings: engine, image, checkpoint, method with its k, TP and PP. A *combination* has those that
a plan decides: engine, method, format of the weights and nodes. The speed of a configuration is the median of its rows;
that of a combination is its best configuration's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple, get_args

from sparkfleet.accuracy.rows import PublishedCase
from sparkfleet.knowledge.models.model_names import plain
from sparkfleet.specs.deployment import Objective, PlannedEngine
from sparkfleet.values import Value

LEAST_CONFIGURATIONS = 3
"""Fewer leave little to choose from."""
LEAST_REQUESTS = 4
"""Requests at once from which a row counts for throughput."""
LONGEST = 8192
"""Most tokens before the answer: plans are made for short prompts."""
SHORTEST = 16
"""Fewest tokens of a prompt: less is a single word."""
NEAR = 2**0.5
"""Largest ratio of requests at once between rows of the same load."""
SERVABLE = frozenset(get_args(PlannedEngine))
"""Engines that a deployment can have."""
OF_GGUF = frozenset(("llama.cpp",))
"""Those whose checkpoints are GGUF: a deployment that names safetensors cannot have them, so its decisions are among the
others; `plan` offers a GGUF beside its choice (decision 146)."""
LEVELS = (4, 8, 16, 32, 64)
"""Loads of a throughput decision: the one with the most published configurations is used."""
OBJECTIVES: tuple[Objective, ...] = ("interactive", "throughput")


class Combination(NamedTuple):
    """A plan's decision in the vocabulary of rows: NEXTN is MTP."""

    engine: str
    method: str
    format: str
    nodes: int
    """Of one group."""

    def __str__(self) -> str:
        return f"{self.engine} · {self.method} · {self.format}" + (
            f" · {self.nodes} nodes" * (self.nodes > 1)
        )


class PublishedRun(NamedTuple):
    """One row as it counts for a decision."""

    combination: Combination
    configuration: tuple[object, ...]
    """All settings."""
    checkpoint: tuple[str, str]
    """Name as published, format."""
    requests: int
    speed: float
    """tok/s: of the single request, or of all."""
    source: str = ""


class PublishedDecision(Value):
    """A model on a number of Sparks for one objective, with several published configurations."""

    model: str
    """Without owner, format and version of its post-training."""
    nodes: int
    objective: Objective
    concurrency: int
    configurations: int
    """Published on exactly these nodes, under this load."""
    runs: tuple[PublishedRun, ...]
    """On these nodes or fewer, under any load."""
    siblings: tuple[PublishedRun, ...] = ()
    """Runs of other models of its shapes on these nodes or fewer: as fast, but for the acceptance of drafts."""
    ran: frozenset[Combination] = frozenset()
    """Everything that was published on these nodes or fewer, for any objective, of the model or of its siblings."""
    families: frozenset[str] = frozenset()
    """Shapes of its checkpoints, by `ModelShape.family`."""

    @property
    def checkpoints(self) -> tuple[tuple[str, str], ...]:
        """Checkpoints to choose from: published names with their formats, the most often measured first."""
        return tuple(one for one, _ in Counter(run.checkpoint for run in self.runs).most_common())

    @property
    def authors_of_best(self) -> frozenset[str]:
        """Sources of the configuration that is the best published one under this load."""
        here = [run for run in self.runs if _same_load(run, self.concurrency)]
        of_each: dict[tuple[object, ...], list[PublishedRun]] = defaultdict(list)
        for run in here:
            of_each[run.configuration].append(run)
        best = max(of_each.values(), key=lambda same: median(run.speed for run in same))
        return frozenset(run.source for run in best)

    def speeds(self, requests: int | None = None) -> dict[Combination, float]:
        """tok/s of every combination under a load (None: that of the decision)."""
        return speeds_of(self.runs, requests or self.concurrency)

    def sibling_speeds(self, requests: int | None = None) -> dict[Combination, float]:
        """The same of other models of its shapes."""
        return speeds_of(self.siblings, requests or self.concurrency)


def decisions_in(cases: Iterable[PublishedCase]) -> tuple[PublishedDecision, ...]:
    """The decisions that have at least three published configurations, by model, nodes and objective."""
    runs: dict[str, list[PublishedRun]] = defaultdict(list)
    by_shapes: dict[str, dict[str, list[PublishedRun]]] = defaultdict(lambda: defaultdict(list))
    ran: dict[str, set[Combination]] = defaultdict(set)
    families: dict[str, set[str]] = defaultdict(set)
    for case in cases:
        if case.setup.engine in OF_GGUF:
            continue
        families[plain(case.model)].add(case.setup.shape.family)
        ran[case.setup.shape.family].add(combination_of(case))
        run = None if is_upper_bound(case) else run_of(case)
        if run is not None:
            runs[plain(case.model)].append(run)
            by_shapes[case.setup.shape.family][plain(case.model)].append(run)
    found = (
        _decision(
            model,
            nodes,
            objective,
            [run for run in of_model if run.combination.nodes <= nodes],
            frozenset().union(*(ran[family] for family in families[model])),
        )
        for model, of_model in sorted(runs.items())
        for nodes in sorted({run.combination.nodes for run in of_model})
        for objective in OBJECTIVES
    )
    return tuple(
        one.model_copy(
            update={
                "families": frozenset(families[one.model]),
                "siblings": tuple(
                    run
                    for family in sorted(families[one.model])
                    for model, of_model in by_shapes[family].items()
                    for run in of_model
                    if model != one.model and run.combination.nodes <= one.nodes
                ),
            }
        )
        for one in found
        if one is not None
    )


def is_upper_bound(case: PublishedCase) -> bool:
    """True for counting and lists, of which nearly every draft token is accepted."""
    return case.speculative and case.workload.content == "structured"


def run_of(case: PublishedCase) -> PublishedRun | None:
    """The row as it counts for decisions; None if it does not: other engines, replicas, a word, long prompts, DCP.

    Plans do not choose DCP (decision 156), so its rates are none of what they choose between.
    """
    setup, load = case.setup, case.workload
    asked = load.prompt + load.depth
    if setup.dcp > 1:
        return None
    if setup.engine not in SERVABLE or case.replicas > 1 or asked > LONGEST or 0 < asked < SHORTEST:
        return None
    measured = dict(case.measured)
    total = measured.get("decode_tps_aggregate")
    speed = (measured.get("decode_tps_per_request") or total) if load.concurrency == 1 else total
    if not speed:
        return None
    combination = combination_of(case)
    build = (setup.release, setup.tp, setup.pp, setup.ep, case.image)
    return PublishedRun(
        combination,
        (combination, case.model, case.quant, setup.k, build),
        (case.model, setup.format),
        load.concurrency,
        speed,
        case.source,
    )


def combination_of(case: PublishedCase) -> Combination:
    """The combination that a row measured."""
    setup = case.setup
    return Combination(setup.engine, setup.method, setup.format, case.nodes)


def _decision(
    model: str,
    nodes: int,
    objective: Objective,
    runs: Sequence[PublishedRun],
    ran: Iterable[Combination],
) -> PublishedDecision | None:
    here = [run for run in runs if run.combination.nodes == nodes]

    def configurations(requests: int) -> int:
        return len({run.configuration for run in here if _same_load(run, requests)})

    level = 1 if objective == "interactive" else max(LEVELS, key=lambda each: (configurations(each), -each))
    if configurations(level) < LEAST_CONFIGURATIONS:
        return None
    return PublishedDecision(
        model=model,
        nodes=nodes,
        objective=objective,
        concurrency=level,
        configurations=configurations(level),
        runs=tuple(runs),
        ran=frozenset(one for one in ran if one.nodes <= nodes),
    )


def _same_load(run: PublishedRun, requests: int) -> bool:
    if requests == 1:
        return run.requests == 1
    return run.requests > 1 and requests / NEAR <= run.requests <= requests * NEAR


def speeds_of(runs: Iterable[PublishedRun], requests: int) -> dict[Combination, float]:
    """tok/s of every combination under a load: that of its best configuration."""
    each: dict[Combination, list[float]] = defaultdict(list)
    values: dict[tuple[object, ...], list[PublishedRun]] = defaultdict(list)
    for run in runs:
        if _same_load(run, requests):
            values[run.configuration].append(run)
    for same in values.values():
        each[same[0].combination].append(median(run.speed for run in same))
    return {combination: max(speeds) for combination, speeds in each.items()}
