from __future__ import annotations

import pytest
from pydantic import ValidationError

from sparkfleet.errors import SpecError
from sparkfleet.tiny_models import corpus
from sparkfleet.tiny_models.recipes import (
    DRAFT,
    MOE,
    RECIPES,
    TINY,
    DamagedRecipe,
    Head,
    Recipe,
    named,
    trained,
)


def test_a_recipe_is_found_by_its_name():
    assert named("tiny") is TINY


@pytest.mark.parametrize("name", ["", "Tiny", "../tiny", "tiny\n", "builtin:tiny", "moe"])
def test_an_unknown_name_is_an_error_that_names_the_known_ones(name):
    with pytest.raises(SpecError) as caught:
        named(name)
    assert f"Known: {', '.join(sorted(RECIPES))}." in caught.value.do


def test_a_near_miss_is_corrected():
    with pytest.raises(SpecError) as caught:
        named("tinny")
    assert 'Did you mean "tiny"?' in caught.value.do


def test_a_recipe_is_frozen():
    with pytest.raises(ValidationError):
        TINY.vocabulary = 1  # type: ignore[misc] # that it is refused is the test


TRAINED = [recipe for recipe in RECIPES.values() if isinstance(recipe, Recipe)]
DERIVED = [recipe for recipe in RECIPES.values() if not isinstance(recipe, Recipe)]


def by_name(recipe) -> str:
    return recipe.name


@pytest.mark.parametrize("recipe", TRAINED, ids=by_name)
def test_every_recipe_keeps_what_engines_need(recipe: Recipe):
    config = recipe.config
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    assert head_dim >= 32, "vLLM's CPU attention runs no smaller one"
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    assert recipe.vocabulary % 64 == 0


@pytest.mark.parametrize("recipe", TRAINED, ids=by_name)
def test_every_recipe_can_be_split_in_two(recipe: Recipe):
    split = {name for name in recipe.config if name.startswith("linear_num_") or "intermediate_size" in name}
    for name in split | {"num_attention_heads", "num_key_value_heads", "hidden_size"}:
        assert recipe.config[name] % 2 == 0, name


@pytest.mark.parametrize("recipe", TRAINED, ids=by_name)
def test_every_recipe_has_text_and_a_budget_that_ends(recipe: Recipe):
    found = corpus.load(recipe.text)
    assert found.conversations
    assert found.passages
    assert 0 <= recipe.budget.opening_steps < recipe.budget.steps


@pytest.mark.parametrize("recipe", DERIVED, ids=by_name)
def test_a_derived_recipe_has_a_trained_base(recipe: DamagedRecipe | Head):
    assert isinstance(trained(recipe.of), Recipe)
    assert recipe.name.startswith("tiny-")


def test_a_derived_recipe_cannot_be_a_base():
    with pytest.raises(SpecError, match="derived from builtin:tiny"):
        trained("tiny-corrupt")


def test_experts_can_be_divided_among_ranks():
    assert MOE.config["num_experts"] >= 4
    assert MOE.config["num_experts"] % 2 == 0
    assert MOE.config["num_experts_per_tok"] < MOE.config["num_experts"]


def test_a_draft_model_reads_and_writes_what_its_model_does():
    assert (DRAFT.vocabulary, DRAFT.text) == (TINY.vocabulary, TINY.text), "the same tokenizer"
    assert DRAFT.config["hidden_size"] < TINY.config["hidden_size"]
    assert DRAFT.config["num_hidden_layers"] < TINY.config["num_hidden_layers"]


def test_an_eagle_head_of_a_model_of_two_layers():
    """The layers that EAGLE-3 and DFlash heads name in their configuration are those of a model with two."""
    drafted_for = {recipe.of for recipe in DERIVED if isinstance(recipe, Head)}
    assert {trained(name).config["num_hidden_layers"] for name in drafted_for} == {2}
