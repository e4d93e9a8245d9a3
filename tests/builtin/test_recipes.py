from __future__ import annotations

import pytest
from pydantic import ValidationError

from sparkfleet.builtin import corpus
from sparkfleet.builtin.recipes import RECIPES, TINY, Recipe, named
from sparkfleet.errors import SpecError


def test_a_recipe_is_found_by_its_name():
    assert named("tiny") is TINY


@pytest.mark.parametrize("name", ["", "Tiny", "../tiny", "tiny\n", "builtin:tiny", "moe"])
def test_an_unknown_name_is_an_error_that_names_the_known_ones(name):
    with pytest.raises(SpecError) as caught:
        named(name)
    assert "Known: tiny." in caught.value.do


def test_a_near_miss_is_corrected():
    with pytest.raises(SpecError) as caught:
        named("tinny")
    assert 'Did you mean "tiny"?' in caught.value.do


def test_a_recipe_is_frozen():
    with pytest.raises(ValidationError):
        TINY.vocabulary = 1  # type: ignore[misc] # that it is refused is the test


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=str)
def test_every_recipe_keeps_what_engines_need(recipe: Recipe):
    config = recipe.config
    assert config["head_dim"] >= 32, "vLLM's CPU attention runs no smaller one"
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    assert config["num_key_value_heads"] % 2 == 0, "TP=2 splits them"
    assert recipe.vocabulary % 64 == 0


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=str)
def test_every_recipe_has_text_and_a_budget_that_ends(recipe: Recipe):
    found = corpus.load(recipe.text)
    assert found.conversations
    assert found.passages
    assert 0 <= recipe.budget.opening_steps < recipe.budget.steps
