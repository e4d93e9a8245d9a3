"""Paths of built-in models on this machine. `up` does not install the code that builds them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparkfleet.errors import FactError

if TYPE_CHECKING:  # staging's programs on nodes need the paths alone, and start often
    from sparkfleet.planner.types.cpu_model import CpuModel
    from sparkfleet.specs.deployment import Method

PREFIX = "builtin:"


def builtin_path(name: str, cache: Path | None = None) -> Path:
    """The directory of a built-in model's checkpoint, built or not.

    Args:
        name: of the recipe, with or without `builtin:`.
        cache: the directory of all built checkpoints; None: the user's own.

    Raises:
        SpecError: there is no such recipe.
        FactError: this environment has no built-in models, or the user has no home.
    """
    try:
        from sparkfleet.tiny_models.cache import path
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("sparkfleet."):
            raise
        raise FactError(
            f"{PREFIX}{name.removeprefix(PREFIX)} cannot be built here: this environment has no built-in models.",
            means="`sparkfleet up` installs only what serving needs; built-in models need a checkout of sparkfleet.",
            do="Serve a model of the Hub or a directory, or set an `environment:` with all of sparkfleet in the inventory.",
        ) from None
    return path(name.removeprefix(PREFIX), cache)


def builtin_model(name: str) -> CpuModel:
    """Capabilities of a built-in model, by its recipe, built or not.

    Args:
        name: of the recipe, with or without `builtin:`.

    Raises:
        SpecError: there is no such recipe; its name and the known ones are in the message.
        FactError: this environment has no built-in models.
    """
    builtin_path(name, Path("/"))
    from sparkfleet.planner.types.cpu_model import CpuModel
    from sparkfleet.tiny_models.recipes import Head, Recipe, Vision, named

    recipe = named(name.removeprefix(PREFIX))
    base = recipe
    while not isinstance(base, Recipe):
        base = named(base.of)
    own: tuple[Method, ...] = ("mtp",) if isinstance(recipe, Head) and recipe.method == "mtp" else ()
    return CpuModel(
        positions=int(base.config["max_position_embeddings"]), vision=isinstance(recipe, Vision), heads=own
    )


def builtin_directory(cache: Path | None) -> Path | None:
    """The directory of all built checkpoints; None if this environment has no built-in models."""
    try:
        return builtin_path("tiny", cache).parent
    except FactError:
        return None
