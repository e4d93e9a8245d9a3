"""NVIDIA's own launch lines for Sparks, and how plans differ from them: `recipes.yaml`, checked on load."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from sparkfleet.knowledge.data_file import DataFile, Date, Entries, Sources, pairs
from sparkfleet.specs.deployment import Method
from sparkfleet.values import Value

Flag = Annotated[str, Field(pattern=r"^--[a-z0-9-]+(=.+)?$")]
Pairs = Annotated[tuple[tuple[str, str | int], ...], BeforeValidator(pairs)]

DRAFTS_OF_VLLM: Mapping[str, str] = {"dflash2": "dflash"}
"""Method → vLLM's word in --speculative-config, if it has another one."""


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

    def settings(self) -> dict[str, str]:
        """Every setting by its name: a flag, a variable as `$NAME`, a key of the speculation as `speculation.key`."""
        found = {"image": self.image, "--gpu-memory-utilization": f"{self.memory:g}"}
        found |= {flag.partition("=")[0]: flag.partition("=")[2] for flag in self.flags}
        found |= {f"${name}": value for name, value in self.env}
        if self.method == "none":
            return found | {"speculation.method": "none"}
        found["speculation.method"] = DRAFTS_OF_VLLM.get(self.method, self.method)
        found["speculation.num_speculative_tokens"] = str(self.tokens)
        if self.draft:
            found["speculation.model"] = self.draft
        return found | {f"speculation.{key}": str(value) for key, value in self.speculation}


class Difference(Value):
    """A setting of recipes that plans launch otherwise, with the reason."""

    setting: str
    """As `LaunchRecipe.settings` names it."""
    recipes: tuple[str, ...] = ()
    """Their ids; none: every recipe that has the setting."""
    reason: Annotated[str, Field(min_length=20)]


class RecipeBook(Value):
    """All recipes and all known differences."""

    recipes: Entries[LaunchRecipe]
    differences: tuple[Difference, ...]

    @model_validator(mode="after")
    def _differences_of_recipes(self) -> RecipeBook:
        known = {one.id for one in self.recipes}
        for one in self.differences:
            if unknown := sorted(set(one.recipes) - known):
                raise ValueError(f"{one.setting}: recipes: {unknown[0]} is no recipe")
        return self

    def explained(self, recipe: str, setting: str) -> tuple[Difference, ...]:
        """The entries that explain a difference."""
        return tuple(
            one
            for one in self.differences
            if one.setting == setting and (not one.recipes or recipe in one.recipes)
        )


RECIPES = DataFile("engines/recipes.yaml", RecipeBook)


def settings_of(image: str, argv: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """The settings of a vLLM command line, by the names of `LaunchRecipe.settings`."""
    found = {"image": image.partition("@")[0], "speculation.method": "none"}
    found |= {f"${name}": value for name, value in env.items()}
    for flag, value in _flags(argv):
        if flag == "--speculative-config":
            found |= {f"speculation.{key}": str(one) for key, one in json.loads(value).items()}
        else:
            found[flag] = value
    return found


def _flags(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each flag with its value; "" if it has none."""
    for at, word in enumerate(argv):
        if not word.startswith("--"):
            continue
        flag, given, value = word.partition("=")
        following = argv[at + 1] if at + 1 < len(argv) else ""
        yield flag, value if given else "" if following.startswith("--") else following
