"""Groups of which no answer can be used are named, after a while and until one can be."""

from __future__ import annotations

import pytest

from sparkfleet.gateway.policy.circuit import OPEN_S
from sparkfleet.gateway.policy.unusable_answers import UnusableAnswers, names_model


def test_it_takes_a_while_and_no_good_answer_in_it() -> None:
    found = UnusableAnswers()
    for at in (0.0, 1.0):
        found.note("app", "tiny/g1/0", "it answered 404", "Mend it.", at)
    assert found.lasting() == ()
    found.note("app", "tiny/g1/0", "it answered 404", "Mend it.", OPEN_S)
    assert found.lasting() == (
        "tiny/g1/0 counts as ready, and requests fail there: it answered 404, 3 times in a row. Mend it.",
    )
    found.end("app")
    found.note("app", "tiny/g1/0", "it answered 404", "Mend it.", 10 * OPEN_S)
    assert found.lasting() == ()
    found.note("app", "tiny/g1/0", "it answered 404", "Mend it.", 20 * OPEN_S)
    assert found.lasting()
    found.keep({"other"})
    assert found.lasting() == ()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("The model `tiny` does not exist.", True),
        ("model 'tiny' not found", True),
        ('model "tiny" not found, try pulling it first', True),
        ("The model `tiny-2` does not exist.", False),
        ("The model `gpt-4` does not exist.", False),
        ("The model `org/tiny` does not exist.", False),
        ("Response resp_tiny not found.", False),
        ("tiny is not here", False),
    ],
)
def test_a_message_about_the_name_that_the_gateway_sent(message: str, expected: bool) -> None:
    assert names_model(message, "tiny") is expected
