"""Commands that serve what was planned by its name, or the best published variant of it: the last lines of a plan."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from sparkfleet.cli.options import DEFAULT_INVENTORY, INVENTORY_VARIABLE
from sparkfleet.cli.planning.model_options import NO_OPTIONS, ModelOptions, field_lines
from sparkfleet.fleet.planning.fewer_bits import FewerBits, best_variant, speed_words
from sparkfleet.fleet.planning.gguf_offers import GgufOffer, basis_of, speed_of
from sparkfleet.fleet.planning.plan import FleetPlan
from sparkfleet.planner.search.spread import sparks_words
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.inventory import Inventory
from sparkfleet.specs.load import deployment_of


class Variants(NamedTuple):
    """Published checkpoints of the same models that a plan offers, by the names of deployments."""

    ggufs: Mapping[str, Sequence[GgufOffer]] = MappingProxyType({})
    """The best first."""
    fewer_bits: Mapping[str, Sequence[FewerBits]] = MappingProxyType({})
    """The best first."""


def next_lines(
    files: Sequence[Path],
    planned: FleetPlan,
    inventory: Path | Inventory,
    variants: Variants,
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
    steps += _variant_steps(files, planned, inventory, variants, options)
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
    variants: Variants,
    options: ModelOptions = NO_OPTIONS,
) -> Iterator[str]:
    """The commands that serve variants in place of models that `apply` was given by their names."""
    yield from _below("instead", list(_variant_steps(files, planned, inventory, variants, options)))


def _below(label: str, steps: Sequence[str]) -> Iterator[str]:
    for number, step in enumerate(steps):
        yield f"  {'' if number else label:<12}{step}"


def _variant_steps(
    files: Sequence[Path],
    planned: FleetPlan,
    inventory: Path | Inventory,
    variants: Variants,
    options: ModelOptions,
) -> Iterator[str]:
    """Commands for each model that would be started, or that fits in no other way: its best variant, and the GGUF with the
    maker's own bits if that is another one."""
    if not variants.ggufs and not variants.fewer_bits:
        return
    starts = {one.spec.name for one in planned.decision.pending}
    starts.update(one.name for one in planned.decision.plan.refused)
    for spec in map(deployment_of, files):
        if spec is None or spec.name not in starts:
            continue
        ggufs, fewer = variants.ggufs.get(spec.name, ()), variants.fewer_bits.get(spec.name, ())
        best = best_variant(ggufs, fewer)
        same = next((one for one in ggufs if one.same_bits and one is not best), None)
        for one in (best, same):
            if one is not None:
                yield f"`{_apply(inventory)} {one.model}{options.words}` serves {_served(one)}"


def _served(variant: GgufOffer | FewerBits) -> str:
    """`a GGUF of it, which fits: 37.8 tok/s for one user, predicted`."""
    fits = "" if variant.gain else ", which fits"
    gain = f", {variant.gain:.1f}×" if variant.gain else ""
    if isinstance(variant, FewerBits):
        return f"it in {variant.format.upper()}{fits}: {speed_words(variant)}{gain}"
    saved = f", on {sparks_words(variant.nodes)}" if variant.nodes_saved else ""
    return f"a GGUF of it{fits}: {speed_of(variant)} {basis_of(variant)}{gain}{saved}"


def _apply(inventory: Path | Inventory) -> str:
    of = "" if is_default(inventory) else f" -i {shlex.quote(str(inventory))}"
    return f"sparkfleet apply{of}"


def is_default(inventory: Path | Inventory) -> bool:
    """True if a command line without `--inventory` means the same one, or if `--sparks` replaces it."""
    return not isinstance(inventory, Path) or inventory == _usual_inventory()


def _usual_inventory() -> Path:
    """The inventory of a command line without `--inventory`."""
    return Path(os.environ.get(INVENTORY_VARIABLE) or DEFAULT_INVENTORY)
