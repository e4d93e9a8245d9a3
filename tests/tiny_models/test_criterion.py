from __future__ import annotations

import pytest

from sparkfleet.group.canary import ACCEPTED_FLOOR, OWN_AGREEMENT, OWN_PERPLEXITY, TEXT_PERPLEXITY
from sparkfleet.tiny_models.criterion import Criterion, Quality
from sparkfleet.tiny_models.recipes import RECIPES, Head, Recipe

LIMITS = Criterion(text_perplexity=6, own_agreement=0.95)
JUDGED = [recipe for recipe in RECIPES.values() if isinstance(recipe, Recipe | Head)]


def test_limits_that_are_met_are_met_exactly():
    assert LIMITS.missed(Quality(text_perplexity=6.0, own_agreement=0.95)) == ()


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Quality(text_perplexity=7.1, own_agreement=1.0), "perplexity of the known text 7.1 (at most 6)"),
        (Quality(text_perplexity=3.0, own_agreement=0.9), "own tokens chosen again 0.9 (at least 0.95)"),
        (Quality(text_perplexity=3.0), "own tokens chosen again unknown (at least 0.95)"),
    ],
)
def test_a_missed_limit_is_reported_with_its_number(found, words):
    assert LIMITS.missed(found) == (words,)


def test_nan_meets_nothing():
    assert LIMITS.missed(Quality(text_perplexity=float("nan"), own_agreement=1.0))


@pytest.mark.parametrize("recipe", JUDGED, ids=lambda recipe: recipe.name)
def test_every_criterion_is_stricter_than_the_canary_by_far(recipe):
    limits = recipe.criterion.limits()
    if isinstance(recipe, Head):
        assert limits["drafts_agreed"] >= 2 * ACCEPTED_FLOOR[recipe.method]
        return
    assert limits["text_perplexity"] <= TEXT_PERPLEXITY / 50
    assert limits["own_perplexity"] <= OWN_PERPLEXITY / 5
    assert limits["own_agreement"] >= OWN_AGREEMENT + 0.3
