"""Plans every published checkpoint by its name, each alone on an idle fleet: the models that it can serve. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.fleet.planning.gguf_offers import MOST_TRIED
from sparkfleet.fleet.planning.published_names import is_published
from sparkfleet.knowledge.engines.launch_recipes import recommended_models
from sparkfleet.knowledge.models.fewer_bits import published_models
from sparkfleet.knowledge.models.known_models import checkpoint_if_known, ggufs_of, is_base
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.search.rung_builder import ALIKE
from sparkfleet.planner.types.plan import DeploymentPlan, Rung
from sparkfleet.specs.deployment import Deployment, Objective, TextKind
from sparkfleet.values import Value

_NAME = "suggested"
LEAST_BITS = 4.0
"""Mean bits per weight below which a checkpoint is suggested only if no other one of the model fits. The perplexity of
Llama 2 70B rises by 1.2 % in 4.8 bits (Q4_K_M), by 4.7 % in 3.9 (Q3_K_M), by 8.8 % in 3.4 (Q2_K): llama.cpp, pull request
3340."""


class ModelRequirements(Value):
    """Fields of a deployment that every suggested model has to meet."""

    objective: Objective = "interactive"
    context: int | None = None
    concurrency: int | None = None
    content: TextKind = "mixed"
    needs: tuple[Literal["vision", "tools"], ...] = ()
    license: Literal["open", "any"] = "any"


class Suggestion(Value):
    """A model that a fleet can serve, with a checkpoint of it."""

    model: str
    """The checkpoint: its Hub id."""
    parameters: int
    """Of the model without heads for drafts."""
    active_parameters: int
    """Those that one token reads."""
    bytes_on_disk: int
    bits: float
    """Mean bits per weight."""
    rung: Rung
    """The choice of its plan."""
    groups: int
    """Engines of the plan, each at that rung or a like one."""
    tps: float
    """Predicted under the objective: of one request, or of all together; 0: not predicted."""

    @property
    def is_wrong(self) -> bool:
        """True if it is known to compute wrong results, without a published cure: the others of its model come first."""
        return bool(self.rung.uncured)


class Suggestions(Value):
    """The models that a fleet can serve, the largest first, and those that it cannot."""

    found: tuple[Suggestion, ...]
    not_served: tuple[str, ...]
    """The smallest published checkpoint of each model of which none can be served as requested."""


def suggestions(
    fleet: Fleet,
    wanted: ModelRequirements,
    *,
    every: bool = False,
    on_model: Callable[[int, int], None] = lambda _done, _all: None,
) -> Suggestions:
    """The models that a fleet can serve, each as if nothing else ran.

    Args:
        fleet: its nodes.
        wanted: what each has to meet.
        every: each published checkpoint of a model, not the best one alone; base models, too.
        on_model: called with the number of models that are planned, and of all.
    """
    models = {
        name: kept
        for name, ids in published_models().items()
        if (kept := tuple(one for one in ids if every or not is_base(one)))
    }
    found: list[list[Suggestion]] = []
    not_served: list[str] = []
    for done, ids in enumerate(models.values()):
        if options := _options(fleet, wanted, ids):
            found.append(_ranked(options, 1.0 if wanted.objective == "context" else ALIKE))
        else:
            not_served.append(_smallest(ids))
        on_model(done + 1, len(models))
    found.sort(key=lambda options: (-max(one.parameters for one in options), -options[0].tps))
    shown = tuple(one for options in found for one in (options if every else options[:1]))
    return Suggestions(found=shown, not_served=tuple(not_served))


def _ranked(options: Sequence[Suggestion], alike: float) -> list[Suggestion]:
    """A model's checkpoints in the order in which a plan would take them as variants: by worth, with its discounts for what
    nobody has published. Of those whose worth is within this factor of the first's, one with a published rate leads, else
    one that NVIDIA's recipes serve and whose bits are known."""
    ranked = sorted(options, key=lambda one: (one.is_wrong, -one.rung.worth, one.bytes_on_disk))
    best = ranked[0]
    close = [
        one for one in ranked if one.rung.worth * alike >= best.rung.worth and one.is_wrong == best.is_wrong
    ]
    published = [one for one in close if one.rung.published.exactly]
    recommended = [one for one in close if one.model in recommended_models() and is_published(one.model)]
    leads = (*published, *recommended, best)[0]
    return [leads, *(one for one in ranked if one is not leads)]


def _options(fleet: Fleet, wanted: ModelRequirements, ids: Sequence[str]) -> list[Suggestion]:
    """Plans of a model's checkpoints and GGUFs; of those in fewer than 4 bits only if no other one can be served."""
    known = [one for id_ in ids if (one := checkpoint_if_known(id_)) is not None]
    known += ggufs_of(known[0])[:MOST_TRIED] if known else []
    enough = [one for one in known if _bits(one) >= LEAST_BITS]
    found = list(_plans(fleet, wanted, enough))
    return found or list(_plans(fleet, wanted, [one for one in known if one not in enough]))


def _smallest(ids: Sequence[str]) -> str:
    known = [one for id_ in ids if (one := checkpoint_if_known(id_)) is not None]
    return min(known, key=lambda one: one.bytes_on_disk).id if known else ids[0]


def _bits(checkpoint: Checkpoint) -> float:
    """Mean bits per weight."""
    return 8 * checkpoint.bytes_on_disk / max(1, checkpoint.total_parameters)


def _plans(
    fleet: Fleet, wanted: ModelRequirements, checkpoints: Sequence[Checkpoint]
) -> Iterator[Suggestion]:
    for checkpoint in checkpoints:
        spec = Deployment(name=_NAME, model=checkpoint.id, **wanted.model_dump())
        plan = plan_fleet([spec], fleet, {checkpoint.id: checkpoint}).of(_NAME)
        if plan is not None:
            yield _suggestion(checkpoint, plan)


def _suggestion(checkpoint: Checkpoint, plan: DeploymentPlan) -> Suggestion:
    return Suggestion(
        model=checkpoint.id,
        parameters=checkpoint.total_parameters,
        active_parameters=checkpoint.active_parameters,
        bytes_on_disk=checkpoint.bytes_on_disk,
        bits=_bits(checkpoint),
        rung=plan.groups[0].choice,
        groups=len(plan.groups),
        tps=plan.tps or 0.0,
    )
