"""The table in docs/builtin.md is the one that the build prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparkfleet.tiny_models import __main__ as main
from sparkfleet.tiny_models import cache, table
from sparkfleet.tiny_models.criterion import BuildFacts, Quality
from sparkfleet.tiny_models.recipes import RECIPES, TINY, Head, Recipe, named

DOC = Path(__file__).parents[2] / "docs" / "builtin.md"
BEGIN = f"| {' | '.join(table.HEAD)} |"


def rows(text):
    """Cells of the table's rows, by name."""
    body = text[text.index(BEGIN) :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in body]
    return {row[0].strip("`"): row[1:] for row in cells}


@pytest.fixture
def built(tmp_path):
    directory = cache.path("tiny", tmp_path)
    directory.mkdir(parents=True)
    facts = BuildFacts(
        name="tiny",
        steps=520,
        cpu_s=91.2,
        weights=1_500_000,
        quality=Quality(text_perplexity=1.26, own_agreement=1.0),
    )
    (directory / cache.FACTS).write_text(facts.model_dump_json())
    return tmp_path


def test_a_built_model_is_shown_with_its_facts(built, capsys):
    assert main.main(["table", "--cache", str(built)]) == 0
    shown = rows(capsys.readouterr().out)
    assert shown["tiny"][1:] == ["1.26, 1", "520", "1.5 M", "0.0 MB", "91 s"]
    assert shown["tiny-moe"][1] == table.NOT_BUILT
    assert "≤ 2.5" in shown["tiny"][0]


def test_the_document_names_the_command_and_every_criterion():
    text = DOC.read_text("utf-8")
    assert "python -m sparkfleet.tiny_models table" in text
    shown = rows(text)
    assert list(shown) == list(RECIPES)
    for name, (criterion, *_) in shown.items():
        assert criterion == table.criterion_words(named(name)), name


@pytest.mark.parametrize(
    "name", [name for name, recipe in RECIPES.items() if isinstance(recipe, Recipe | Head)]
)
def test_numbers_in_the_document_are_those_of_a_build(name):
    """The document has those of one machine, the cache has this one's. Both meet the criterion, with as many weights."""
    recipe, (_, measured, steps, weights, *_) = named(name), rows(DOC.read_text("utf-8"))[name]
    if measured == table.NOT_BUILT:
        return
    values = [float(value) for value in re.findall(r"[0-9.]+", measured)]
    limits = recipe.criterion.limits()
    assert recipe.criterion.missed(Quality(**dict(zip(limits, values, strict=True)))) == ()
    assert int(steps) >= recipe.budget.steps
    if (stored := cache.facts(name)) is not None:
        assert recipe.criterion.missed(stored.quality) == ()
        assert f"{stored.weights / 1e6:.1f} M" == weights


def test_a_missing_checkpoint_has_no_facts(tmp_path):
    assert cache.facts(TINY.name, tmp_path) is None
