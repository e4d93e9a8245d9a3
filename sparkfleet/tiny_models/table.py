"""The table of built models in docs/builtin.md, from recipes and the facts that builds have stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sparkfleet.tiny_models import cache
from sparkfleet.tiny_models.criterion import AT_LEAST, WORDS, BuildFacts, Criterion, Measure
from sparkfleet.tiny_models.recipes import RECIPES, AnyRecipe, Head, Recipe

HEAD = ("name", "criterion", "measured", "steps", "trained weights", "on disk", "CPU time to build")
NOT_BUILT = "not built here"


def lines(directory: Path | None = None) -> Iterator[str]:
    """Markdown, a line per recipe; one that is not built in the cache `directory` has only its criterion."""
    yield _row(HEAD)
    yield _row(["---"] * len(HEAD))
    for name, recipe in RECIPES.items():
        facts = cache.facts(name, directory)
        measured = _measured(facts, cache.path(name, directory)) if facts else (NOT_BUILT, "", "", "", "")
        yield _row((f"`{name}`", criterion_words(recipe), *measured))


def criterion_words(recipe: AnyRecipe) -> str:
    """Each limit of a recipe's criterion, e.g. "own tokens chosen again ≥ 0.95"."""
    if not isinstance(recipe, Recipe | Head):
        return f"made of `{recipe.of}`"
    return ", ".join(f"{WORDS[name]} {_side(name)} {limit:g}" for name, limit in _limits(recipe.criterion))


def _limits(criterion: Criterion) -> Iterator[tuple[Measure, float]]:
    yield from criterion.limits().items()


def _side(name: Measure) -> str:
    return "≥" if name in AT_LEAST else "≤"


def _measured(facts: BuildFacts, directory: Path) -> tuple[str, str, str, str, str]:
    values = [f"{value:.3g}" for name in WORDS if (value := getattr(facts.quality, name)) is not None]
    size = sum(file.stat().st_size for file in directory.iterdir()) / 1e6
    steps, weights = (str(facts.steps), f"{facts.weights / 1e6:.1f} M") if facts.steps else ("", "")
    return ", ".join(values), steps, weights, f"{size:.1f} MB", f"{facts.cpu_s:.0f} s"


def _row(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"
