"""Commands that serve what was planned by its name, or a published GGUF of it: the last lines of a plan."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sparkfleet.cli.options import DEFAULT_INVENTORY, INVENTORY_VARIABLE
from sparkfleet.cli.planning.model_options import NO_OPTIONS, ModelOptions, field_lines
from sparkfleet.fleet.planning.gguf_offers import GgufOffer, speed_of
from sparkfleet.fleet.planning.plan import FleetPlan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.inventory import Inventory
from sparkfleet.specs.load import deployment_of

Offers = Mapping[str, Sequence[GgufOffer]]
"""GGUFs that a plan offers, by the names of deployments, the fastest first."""


def next_lines(
    files: Sequence[Path],
    planned: FleetPlan,
    inventory: Path | Inventory,
    offers: Offers,
    options: ModelOptions = NO_OPTIONS,
) -> Iterator[str]:
    """The commands that serve models that were planned by their names, and a file for those who add fields."""
    pending = {one.spec.name for one in planned.decision.pending}
    specs = [one for one in map(deployment_of, files) if one is not None and one.name in pending]
    steps = []
    if specs:
        models, names = " ".join(str(one.model) for one in specs), ", ".join(one.name for one in specs)
        served = "it" if len(specs) == 1 else "them"
        steps.append(f"`{_apply(inventory)} {models}{options.words}` serves {served} as {names}")
    steps += _gguf_steps(files, planned, inventory, offers, options)
    if steps and not isinstance(inventory, Path) and not _usual_inventory().exists():
        steps.insert(0, "`sparkfleet init HOST…` lists your Sparks in inventory.yaml")
    steps += [f"as a file, for further fields: {_as_file(one, options)}" for one in specs]
    yield from _below("next", steps)


def _as_file(spec: Deployment, options: ModelOptions) -> str:
    fields = {"name": spec.name, "model": spec.model, **options.fields}
    return ", ".join(f"`{line}`" for line in field_lines(fields))


def instead_lines(
    files: Sequence[Path],
    planned: FleetPlan,
    inventory: Path | Inventory,
    offers: Offers,
    options: ModelOptions = NO_OPTIONS,
) -> Iterator[str]:
    """The commands that serve GGUFs in place of models that `apply` was given by their names."""
    yield from _below("instead", list(_gguf_steps(files, planned, inventory, offers, options)))


def _below(label: str, steps: Sequence[str]) -> Iterator[str]:
    for number, step in enumerate(steps):
        yield f"  {'' if number else label:<12}{step}"


def _gguf_steps(
    files: Sequence[Path],
    planned: FleetPlan,
    inventory: Path | Inventory,
    offers: Offers,
    options: ModelOptions,
) -> Iterator[str]:
    """One for each model that would be started, or that fits in no other way, with the fastest of its GGUFs."""
    specs = [one for one in map(deployment_of, files) if one is not None and offers.get(one.name)]
    if not specs:
        return
    starts = {one.spec.name for one in planned.decision.pending}
    starts.update(one.name for one in planned.decision.plan.refused)
    for best in (offers[one.name][0] for one in specs if one.name in starts):
        fits = "" if best.gain else ", which fits"
        gain = f", {best.gain:.1f}×" if best.gain else ""
        yield f"`{_apply(inventory)} {best.model}{options.words}` serves a GGUF of it{fits}: {speed_of(best)}{gain}"


def _apply(inventory: Path | Inventory) -> str:
    of = "" if is_default(inventory) else f" -i {shlex.quote(str(inventory))}"
    return f"sparkfleet apply{of}"


def is_default(inventory: Path | Inventory) -> bool:
    """True if a command line without `--inventory` means the same one, or if `--sparks` replaces it."""
    return not isinstance(inventory, Path) or inventory == _usual_inventory()


def _usual_inventory() -> Path:
    """The inventory of a command line without `--inventory`."""
    return Path(os.environ.get(INVENTORY_VARIABLE) or DEFAULT_INVENTORY)
