"""NVIDIA's own launch lines for Sparks, and how plans differ from them: `recipes.yaml`, checked on load."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from sparkfleet.knowledge.data_file import DataFile, Date, Sources, UniqueEntries, pairs
from sparkfleet.specs.deployment import Method
from sparkfleet.values import Value

Flag = Annotated[str, Field(pattern=r"^--[a-z0-9-]+(=.+)?$")]
Pairs = Annotated[tuple[tuple[str, str | int], ...], BeforeValidator(pairs)]


class LaunchRecipe(Value):
    """One launch line: a checkpoint on a number of Sparks."""

    id: str
    model: str
    """Hub id."""
    nodes: Literal[1, 2, 4]
    image: str
    method: Method | Literal["none"]
    tokens: int | None = None
    """Draft tokens per step."""
    draft: str = ""
    """Hub id of the draft; "": in the checkpoint."""
    speculation: Pairs = ()
    """Further keys of --speculative-config."""
    memory: Annotated[float, Field(gt=0, lt=1)]
    """Share of the memory."""
    context: int | None = None
    """Tokens of one request; None: the engine's own choice, or its largest."""
    concurrency: int | None = None
    flags: tuple[Flag, ...]
    env: Annotated[tuple[tuple[str, str], ...], BeforeValidator(pairs)] = ()
    sources: Sources
    date: Date


class Difference(Value):
    """A setting of recipes that plans launch otherwise, with the reason."""

    setting: str
    """A flag, a variable as `$NAME`, a key of the speculation as `speculation.key`."""
    recipes: tuple[str, ...] = ()
    """Their ids; none: every recipe that has the setting."""
    reason: Annotated[str, Field(min_length=20)]


class RecipeBook(Value):
    """All recipes and all known differences."""

    recipes: UniqueEntries[LaunchRecipe]
    differences: tuple[Difference, ...]

    @model_validator(mode="after")
    def _differences_of_recipes(self) -> RecipeBook:
        known = {one.id for one in self.recipes}
        for one in self.differences:
            if unknown := sorted(set(one.recipes) - known):
                raise ValueError(f"{one.setting}: recipes: {unknown[0]} is no recipe")
        return self


RECIPES = DataFile("engines/recipes.yaml", RecipeBook)


@cache
def recommended_models() -> Mapping[str, tuple[int, ...]]:
    """Hub ids of the checkpoints that recipes serve, each with its numbers of Sparks."""
    found: dict[str, tuple[int, ...]] = {}
    for one in RECIPES.content.recipes:
        found[one.model] = tuple(sorted({*found.get(one.model, ()), one.nodes}))
    return found
