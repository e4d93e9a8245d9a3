import math

import pytest

from sparkfleet.control.canary import Sanity, Score, agreement, perplexity


def scores(*own, best=None):
    return tuple(Score(own=one, best=one if best is None else best) for one in own)


def test_perplexity_is_that_of_the_tokens():
    assert perplexity(scores(*[math.log(0.25)] * 10)) == pytest.approx(4.0)
    assert perplexity(scores(-1e9, *[-1.0] * 10)) > 1e300, "large, and still a number"


def test_a_few_tokens_tell_nothing():
    assert perplexity(scores(-20.0, -20.0)) is None
    assert agreement(scores(-20.0, -20.0)) is None


def test_agreement_counts_the_tokens_that_the_model_would_choose_again():
    said = (*scores(*[-0.1] * 6), *scores(*[-3.0] * 4, best=-0.05))
    assert agreement(said) == 0.6


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Sanity(text_perplexity=50_000.0), "plain English is noise"),
        (Sanity(text_perplexity=8.0, own_perplexity=300.0), "own answer improbable"),
        (Sanity(text_perplexity=8.0, own_perplexity=9.0, own_agreement=0.3), "30% of its own tokens"),
        (Sanity(text_perplexity=8.0, own_perplexity=2.0, accepted_share=0.001), "draft tokens"),
    ],
)
def test_what_is_wrong_is_said(found, words):
    assert words in found.complaint()


def test_what_is_sane_or_not_known_is_no_complaint():
    sane = Sanity(text_perplexity=12.0, own_perplexity=1.4, own_agreement=0.98, accepted_share=0.6)
    assert sane.complaint() == ""
    assert Sanity().complaint() == ""
    assert Sanity().values() == {}
    assert sane.values()["own_agreement"] == 0.98
