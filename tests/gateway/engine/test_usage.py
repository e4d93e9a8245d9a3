from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.engines.fake import APIS, Api, FakeEngine, Job, Pace
from sparkfleet.gateway.engine.usage import Usage, UsageMeter

if TYPE_CHECKING:
    from conftest import OpenDoor

TRAP = 'he said "usage": {"prompt_tokens": 999, "completion_tokens": 999} and\n\ndata: left'


def job(words: int = 4, *, has_usage: bool = True) -> Job:
    return Job(id="j", model="m", prompt_tokens=11, words=("w ", TRAP) * (words // 2), has_usage=has_usage)


def frames(api: Api, job: Job) -> list[bytes]:
    """All events of a stream, in order."""
    return [*api.opening(job), *(api.token(job, i) for i in range(len(job.words))), *api.closing(job)]


def metered(*chunks: bytes) -> UsageMeter:
    meter = UsageMeter(0.0)
    for chunk in chunks:
        meter.feed(chunk)
    meter.settle()
    return meter


@pytest.mark.parametrize("path", sorted(APIS))
@pytest.mark.parametrize("words", [2, 2000])
def test_the_usage_of_a_stream_is_found_in_every_api(path: str, words: int) -> None:
    chunks = frames(APIS[path], job(words))
    assert metered(*chunks).usage() == Usage(input=11, output=words)


@pytest.mark.parametrize("path", sorted(APIS))
@pytest.mark.parametrize("words", [2, 2000])
def test_the_usage_of_a_whole_answer_is_found_in_every_api(path: str, words: int) -> None:
    body = json.dumps(APIS[path].whole(job(words))).encode()
    assert metered(body).usage() == Usage(input=11, output=words)


def test_a_stream_that_does_not_say_has_no_usage() -> None:
    chunks = frames(APIS["/v1/chat/completions"], job(has_usage=False))
    assert metered(*chunks).usage() == Usage()


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        ('{"usage": {"prompt_tokens": 3, "total_tokens": 3}, "data": []}', Usage(input=3)),
        ('{"usage":{"prompt_tokens":3,"completion_tokens":0}}', Usage(input=3, output=0)),
        (
            '{"usage": {"input_tokens": 1, "output_tokens": 2, "x": {"y": [1, {"z": "}"}]}}}',
            Usage(input=1, output=2),
        ),
        ('{"usage": null}', Usage()),
        ('{"usage": {"prompt_tokens": true, "completion_tokens": -1}}', Usage()),
        ('{"usage": {"prompt_tokens": "7"}}', Usage()),
        ('{"usage": {"prompt_tokens": 7', Usage()),
        ('{"usage": {"type": "integer"}, "x": {"usage": {"input_tokens": 5}}}', Usage(input=5)),
        ('{"usage": ' + '{"usage": ' * 3000, Usage()),
        ("", Usage()),
    ],
)
def test_odd_reports(body: str, usage: Usage) -> None:
    assert metered(body.encode()).usage() == usage


def test_running_totals_are_not_added_up() -> None:
    chunks = [
        b'data: {"usage": {"prompt_tokens": 9, "completion_tokens": %d}}\n\n' % i for i in range(1, 2000)
    ]
    assert metered(*chunks).usage() == Usage(input=9, output=1999)


@given(data=st.data(), path=st.sampled_from(sorted(APIS)), words=st.sampled_from([2, 40, 400]))
def test_how_a_stream_is_cut_changes_nothing(data: st.DataObject, path: str, words: int) -> None:
    stream = b"".join(frames(APIS[path], job(words)))
    whole = metered(stream)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=30).map(sorted))
    parts = [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]
    cut = metered(*parts)
    assert (cut.usage(), cut.events, cut.size) == (whole.usage(), whole.events, len(stream))
    assert cut.ends_between_events


@given(st.lists(st.binary(max_size=40), max_size=40))
def test_any_bytes_are_survived(chunks: list[bytes]) -> None:
    meter = metered(*chunks)
    meter.usage()
    assert meter.size == sum(map(len, chunks))
    assert meter.events == (b"\n" + b"".join(chunks)).count(b"\ndata:")


def test_events_are_counted_however_lines_end() -> None:
    assert metered(b"data: 1\r\n\r\nda", b"ta: 2\r\n\r\n", b": comment\n\ndata:3\n\n").events == 3


def test_times_are_those_of_the_clock() -> None:
    ticks = iter([10.5, 10.6, 11.0])
    gaps: list[float] = []
    meter = UsageMeter(10.0, gaps.extend, lambda: next(ticks))
    for chunk in (b"a", b"b", b"c"):
        meter.feed(chunk)
        meter.settle()
    assert meter.first_s == pytest.approx(0.5)
    assert gaps == pytest.approx([0.1, 0.4])
    assert meter.chunks == 3


@pytest.mark.parametrize(
    ("chunks", "between"),
    [
        ([], True),
        ([b"data: 1\n\n"], True),
        ([b"data: 1\n", b"\n"], True),
        ([b"data: 1\r\n\r\n"], True),
        ([b"data: 1\n"], False),
        ([b"data: {"], False),
    ],
)
def test_whether_an_event_was_cut(chunks: list[bytes], between: bool) -> None:
    assert metered(*chunks).ends_between_events is between


def test_little_is_kept_of_a_long_answer() -> None:
    meter = metered(*[b"x" * 1000] * 5000, b"y" * 3_000_000)
    assert len(meter._tail) <= 40 << 10
    assert len(meter._head) <= 4 << 10


# By key and model


async def test_usage_is_counted_by_key_and_model(open_door: OpenDoor) -> None:
    door = await open_door(pace=Pace(tokens=10))
    assert (await door.post())[0] == 200
    assert (await door.post(stream=True, stream_options={"include_usage": True}))[0] == 200
    assert (await door.post(stream=True))[0] == 200
    assert (await door.post(model="huge"))[0] == 404
    (row,) = door.gateway.usage.totals()
    assert (row.key, row.model, row.requests, row.uncounted) == ("alice", "tiny", 3, 0)
    assert (row.input, row.output) == (9, 30)


async def test_what_an_engine_refuses_is_no_usage(open_door: OpenDoor) -> None:
    door = await open_door(engines=[FakeEngine(model="other")])
    assert (await door.post())[0] == 404
    assert door.gateway.usage.totals() == ()
