"""`sparkfleet scale`: numbers that it refuses."""

import pytest


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        ("0", "`sparkfleet delete tiny` stops it"),
        ("1025", "Expected 1 to 1024."),
        ("-1", "No such option"),
        ("two", "`sparkfleet scale assistant 2`"),
    ],
)
def test_a_number_that_cannot_be_has_the_command(sparkfleet, replicas, words):
    """0 was "greater than or equal to 1", without the verb that stops a deployment."""
    code, out, err = sparkfleet("scale", "tiny", replicas)
    assert (code, out) == (1, "")
    assert words.lower() in err.lower()
