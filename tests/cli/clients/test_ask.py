"""The line under an answer."""

import pytest

from sparkfleet.cli.clients.ask import _line
from sparkfleet.fleet.clients.endpoint import AnswerSpeed


@pytest.mark.parametrize(
    ("speed", "line"),
    [
        (AnswerSpeed(tokens=1), "1 tokens: too few to measure a rate"),
        (
            AnswerSpeed(tokens=39, ttft_ms=188.2),
            "39 tokens · TTFT 188 ms · all arrived at once: no rate (measured here)",
        ),
        (
            AnswerSpeed(tokens=39, ttft_ms=188.2, decode_tps=786.93),
            "39 tokens · TTFT 188 ms · 786.9 tok/s (measured here)",
        ),
        (
            AnswerSpeed(tokens=39, ttft_ms=5188.2, decode_tps=786.93, with_start=True),
            "39 tokens · TTFT 5188 ms with its start · 786.9 tok/s (measured here)",
        ),
    ],
    ids=["one token", "at once", "measured", "started for it"],
)
def test_the_speed_of_an_answer(speed, line):
    assert _line(speed) == line


@pytest.mark.parametrize("question", ["", " \n"])
def test_an_empty_question_is_refused_before_the_fleet_is_asked(sparkfleet, question):
    """It was sent, and the model answered something."""
    code, out, err = sparkfleet("ask", "tiny", question)
    assert (code, out) == (1, "")
    assert err.splitlines() == ["error: The question is empty.", '`sparkfleet ask tiny "What is a rail?"`']
