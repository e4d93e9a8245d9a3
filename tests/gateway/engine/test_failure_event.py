"""An engine's report, inside a stream, that it failed."""

from __future__ import annotations

import pytest

from sparkfleet.gateway.engine.failure_event import FailureWatch

CHUNK = b'data: {"choices": [{"text": "the \\"error\\""}]}\n\n'
REPORT = b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\n'
REFUSAL = b'data: {"error": {"message": "too long", "code": 400}}\n\n'
DONE = b"data: [DONE]\n\n"


def passed(*chunks: bytes) -> tuple[bytes, bool]:
    watch = FailureWatch()
    text = b"".join(map(watch.feed, chunks)) + watch.rest()
    return text, watch.failed


def test_nothing_behind_a_report_is_passed_on_wherever_the_bytes_are_cut() -> None:
    whole = CHUNK + REFUSAL + REPORT + DONE
    expected = CHUNK + REFUSAL + REPORT
    for place in range(len(whole)):
        assert passed(whole[:place], whole[place:]) == (expected, True)
    assert passed(*(bytes([byte]) for byte in whole)) == (expected, True)


@pytest.mark.parametrize(
    "event",
    [
        CHUNK,
        REFUSAL,
        b'data: {"error": null, "id": 1}\n\n',
        b'data: {"error": {"message": broken}}\n\n',
        b'data: {"error": "in words"}\n\n',
        b": a comment of 40 characters without an end",
        b'data: {"error": {"message": "' + b"x" * 100_000,
    ],
)
def test_everything_else_passes_as_it_is(event: bytes) -> None:
    for chunks in ((event, DONE), (event[:7], event[7:], DONE)):
        assert passed(CHUNK, *chunks) == (CHUNK + event + DONE, False)


def test_a_line_is_not_held_back_longer_than_it_may_be_a_report() -> None:
    watch = FailureWatch()
    assert watch.feed(b'data: {"er') == b""
    assert watch.feed(b'go": "a text that goes on') == b'data: {"ergo": "a text that goes on'
    assert watch.feed(CHUNK) is CHUNK
