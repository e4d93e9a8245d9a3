"""Greedy streams whose group is lost: continued on another one if the text is provably the same, or ended honestly."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from sparkfleet.engines.fake import FakeEngine, InjectedFault, Pace
from sparkfleet.engines.fake.engine import WORDS
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.engine.replay import StreamRecord, continuable_request, with_token_ids
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from conftest import Door, OpenDoor

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PATHS = (CHAT, COMPLETIONS)
PACE = Pace(ttft_s=0.001, itl_s=0.001, tokens=40)
GREEDY: dict[str, Any] = {"stream": True, "temperature": 0, "max_tokens": 20}


def engine(after: int | None = None, kind: str = "die") -> FakeEngine:
    fault = None if after is None else InjectedFault.model_validate({"kind": kind, "after": after})
    return FakeEngine(model="tiny", pace=PACE, fault=fault, token="internal-token")


def tiny(*weights: str, replay: bool = True, **more: Any) -> ModelEntry:
    groups = tuple(GroupEntry(app=f"app-{at}", weights=mark) for at, mark in enumerate(weights))
    return ModelEntry(name="tiny", deployment="engine", state="ready", groups=groups, replay=replay, **more)


def events(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]


def text_of(body: bytes) -> str:
    found = ""
    for one in events(body):
        for choice in one.get("choices", ()):
            found += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return found


def words(count: int) -> str:
    return "".join(WORDS[place % len(WORDS)] + " " for place in range(count))


def failed(body: bytes) -> bool:
    last = events(body)[-1]
    return last.get("error", {}).get("code") == "engine_lost" and b"[DONE]" not in body


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", ["die", "drop"])
@pytest.mark.parametrize("after", [1, 7, 19])
async def test_a_lost_stream_goes_on_from_its_last_token(
    open_door: OpenDoor, path: str, kind: str, after: int
) -> None:
    door = await open_door(engines=[engine(after, kind), engine()], models=[tiny("w", "w")])
    status, _, body = await door.post(path, **GREEDY)
    assert (status, text_of(body)) == (200, words(20))
    assert body.endswith(b"data: [DONE]\n\n")
    assert len({(one["id"], one["created"]) for one in events(body)}) == 1, "one stream, one name"
    assert b'_ids":[' not in body.replace(b" ", b""), "the client did not ask for ids"
    assert not any(one.get("usage") for one in events(body)), "nor for the usage"
    rest = json.loads(door.engines[1].bodies[0])
    assert rest["max_tokens"] == 20 - after
    if path == COMPLETIONS:
        assert rest["prompt"][-after:] == [place % len(WORDS) for place in range(after)]
    else:
        assert rest["messages"][-1] == {"role": "assistant", "content": words(after)}
        assert (rest["continue_final_message"], rest["add_generation_prompt"]) == (True, False)
    value = door.value
    assert value("sparkfleet_replays_total", model="tiny", outcome="continued") == 1
    assert not value("sparkfleet_errors_total", model="tiny", kind="engine_lost")
    assert value("sparkfleet_requests_total", model="tiny", path=path, status="200") == 1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("asks", [True, False], ids=["asked", "not asked"])
async def test_the_client_is_charged_once_for_the_whole_answer(
    open_door: OpenDoor, path: str, asks: bool
) -> None:
    door = await open_door(engines=[engine(5), engine()], models=[tiny("w", "w")])
    options = {"stream_options": {"include_usage": True}} if asks else {}
    _, _, body = await door.post(path, **GREEDY, **options)
    usages = [one["usage"] for one in events(body) if one.get("usage")]
    whole = {"prompt_tokens": 3, "completion_tokens": 20, "total_tokens": 23}
    assert usages == ([whole] if asks else [])
    (row,) = door.gateway.usage.totals()
    assert (row.requests, row.uncounted, row.input, row.output) == (1, 0, 3, 20)
    assert door.value("sparkfleet_tokens_total", model="tiny", kind="output") == 20


async def test_the_group_that_continues_may_be_lost_as_well(open_door: OpenDoor) -> None:
    door = await open_door(engines=[engine(3), engine(4), engine()], models=[tiny("w", "w", "w")])
    _, _, body = await door.post(COMPLETIONS, **GREEDY)
    assert text_of(body) == words(20)
    assert [json.loads(one.bodies[0])["max_tokens"] for one in door.engines] == [20, 17, 13]
    assert door.value("sparkfleet_replays_total", model="tiny", outcome="continued") == 2


async def test_after_two_continuations_it_ends_with_an_error(open_door: OpenDoor) -> None:
    """A request that kills engines must not reach them all."""
    door = await open_door(engines=[*(engine(2) for _ in range(3)), engine()], models=[tiny(*"wwww")])
    _, _, body = await door.post(COMPLETIONS, **GREEDY)
    assert failed(body)
    assert text_of(body) == words(6)
    assert not door.engines[3].requests
    assert door.value("sparkfleet_replays_total", model="tiny", outcome="failed") == 1


async def test_tries_before_the_first_byte_and_for_the_rest_are_three_together(open_door: OpenDoor) -> None:
    door = await open_door(engines=[engine(), engine(2), engine(2), engine()], models=[tiny(*"wwww")])
    await door.engines[0].aclose()
    _, _, body = await door.post(COMPLETIONS, **GREEDY)
    assert failed(body)
    assert [len(one.requests) for one in door.engines[1:]] == [1, 1, 0]


async def test_one_engine_that_fails_at_the_rest_is_enough(open_door: OpenDoor) -> None:
    engines = [engine(5), engine(0, "drop"), engine()]
    door = await open_door(engines=engines, models=[tiny("w", "w", "w")])
    _, _, body = await door.post(COMPLETIONS, **GREEDY)
    assert failed(body)
    assert not engines[2].requests


async def test_an_engine_that_is_gone_is_passed_over(open_door: OpenDoor) -> None:
    engines = [engine(5), engine(), engine()]
    door = await open_door(engines=engines, models=[tiny("w", "w", "w")])
    await engines[1].aclose()
    _, _, body = await door.post(COMPLETIONS, **GREEDY)
    assert text_of(body) == words(20)
    assert door.value("sparkfleet_retries_total", model="tiny") == 1


async def test_what_another_group_takes_over_is_no_measure_of_its_speed(open_door: OpenDoor) -> None:
    door = await open_door(engines=[engine(5), engine()], models=[tiny("w", "w")])
    await door.post(COMPLETIONS, **GREEDY)
    assert door.gateway.proxy.observed.learned.factors("app-1") == (1.0, 1.0)
    assert (door.gateway.proxy.observed.held("app-1"), door.gateway.proxy.observed.pending("app-1")) == (0, 0)


@pytest.mark.parametrize(
    ("weights", "replay"),
    [(("w", "w"), False), (("w", "v"), True), (("w", ""), True), (("", ""), True), (("w",), True)],
    ids=["switched off", "other weights", "no ids there", "no ids", "no other group"],
)
async def test_without_such_a_group_it_ends_with_an_error(
    open_door: OpenDoor, weights: Sequence[str], replay: bool
) -> None:
    engines = [engine(5), *(engine() for _ in weights[1:])]
    door = await open_door(engines=engines, models=[tiny(*weights, replay=replay)])
    _, _, body = await door.post(CHAT, **GREEDY)
    assert failed(body)
    assert text_of(body) == words(5)
    assert not any(one.requests for one in door.engines[1:])
    counted = door.value("sparkfleet_replays_total", model="tiny", outcome="failed")
    assert counted == bool(replay and weights[0]), "only where one was promised"
    assert door.value("sparkfleet_errors_total", model="tiny", kind="engine_lost") == 1


NOT_THE_SAME: dict[str, dict[str, Any]] = {
    "sampled": {"temperature": 0.7},
    "no temperature": {"temperature": None},
    "two choices": {"n": 2},
    "the better of two": {"best_of": 2},
    "stop string": {"stop": ["x"]},
    "log probabilities": {"logprobs": True},
    "penalty of the answer": {"presence_penalty": 0.5},
    "structured": {"response_format": {"type": "json_object"}},
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "a field that is not known": {"made_up": 1},
    "no whole number": {"n": True},
}


@pytest.mark.parametrize("more", NOT_THE_SAME.values(), ids=NOT_THE_SAME)
async def test_what_would_not_be_the_same_text_is_not_continued(
    open_door: OpenDoor, more: dict[str, Any]
) -> None:
    door = await open_door(engines=[engine(5), engine()], models=[tiny("w", "w")])
    _, _, body = await door.post(CHAT, **{**GREEDY, **more})
    assert failed(body)
    assert not door.engines[1].requests
    assert b"return_token_ids" not in door.engines[0].bodies[0]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "a"}),
        (COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 5}),
        (COMPLETIONS, {"prompt": [], "max_tokens": 5}),
        (CHAT, {"messages": []}),
        (CHAT, {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5}),
        ("/v1/responses", {"input": "a"}),
    ],
)
def test_requests_whose_rest_cannot_be_asked_for(path: str, body: dict[str, Any]) -> None:
    asked = {"model": "tiny", "stream": True, "temperature": 0, **body}
    assert continuable_request(path, RequestBody(json.dumps(asked).encode())) is None


def test_neutral_fields_change_nothing() -> None:
    neutral = {"n": 1, "stop": None, "tools": [], "presence_penalty": 0, "top_p": 1, "seed": 3, "user": "me"}
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], **GREEDY, **neutral}
    assert continuable_request(CHAT, RequestBody(json.dumps(asked).encode())) is not None


async def test_a_continuation_of_another_text_is_not_passed_on(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chat template may put the sent text together in another way."""
    door = await open_door(engines=[engine(5), engine()], models=[tiny("w", "w")])
    job = door.engines[1]._job

    def other(body: dict[str, Any]) -> Any:
        made = job(body)
        return type(made)(
            id=made.id,
            model=made.model,
            prompt_tokens=made.prompt_tokens,
            words=made.words,
            has_usage=made.has_usage,
            has_ids=True,
            prompt_ids=(*made.prompt_ids, 999),
            ids=made.ids,
        )

    monkeypatch.setattr(door.engines[1], "_job", other)
    _, _, body = await door.post(CHAT, **GREEDY)
    assert failed(body)
    assert text_of(body) == words(5)
    assert len(door.engines[1].requests) == 1


def chunk(text: str, ids: list[int] | None, **more: Any) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": None, "token_ids": ids, **more}
    return b"data: " + json.dumps({"id": "a", "created": 1, "choices": [choice]}).encode() + b"\n\n"


@asynccontextmanager
async def raw(answer: bytes) -> AsyncIterator[str]:
    """An "engine" that answers with these bytes and a whole end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(answer), answer))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def with_dying(open_door: OpenDoor, answer: bytes, **more: Any) -> tuple[Door, bytes]:
    async with raw(answer) as url:
        door = await open_door(engines=[engine(), engine()], models=[tiny("w", "w")])
        door.picker.targets[0] = EngineEndpoint(url=url, app="app-0")
        _, _, body = await door.post(COMPLETIONS, **{**GREEDY, **more})
    return door, body


async def test_an_engine_that_reports_its_own_end_is_lost_too(open_door: OpenDoor) -> None:
    """vLLM sends an error and [DONE] when its workers have died."""
    died = b'data: {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}\n\n'
    answer = chunk("the ", [0], prompt_token_ids=[50, 51]) + chunk("spark ", [1]) + died + b"data: [DONE]\n\n"
    door, body = await with_dying(open_door, answer)
    assert text_of(body) == words(20)
    assert b"EngineCore" not in body
    assert json.loads(door.engines[1].bodies[0])["prompt"] == [50, 51, 0, 1]


async def test_a_fault_of_the_request_is_the_clients_to_read(open_door: OpenDoor) -> None:
    refused = (
        b'data: {"error": {"message": "no", "type": "BadRequestError", "code": 400}}\n\ndata: [DONE]\n\n'
    )
    door, body = await with_dying(open_door, chunk("the ", [0], prompt_token_ids=[50]) + refused)
    assert body.endswith(refused)
    assert not door.engines[1].requests


def record_of(*chunks: bytes) -> tuple[StreamRecord, bytes]:
    asked = {"model": "tiny", "prompt": "a", **GREEDY}
    plan = continuable_request(COMPLETIONS, RequestBody(json.dumps(asked).encode()))
    assert plan is not None
    record = StreamRecord(plan)
    return record, b"".join(map(record.feed, chunks))


def test_tokens_without_text_are_generated_again() -> None:
    """The first half of a character has no text: the client has not got it."""
    record, passed = record_of(chunk("a", [7], prompt_token_ids=[1, 2]), chunk("", [8]))
    assert json.loads(record.continuation() or b"")["prompt"] == [1, 2, 7]
    assert json.loads(record.continuation() or b"")["max_tokens"] == 19
    assert passed.count(b'"token_ids":null') == 2
    assert b'"prompt_token_ids":null' in passed
    record.feed(chunk("\u00e9", [9]))
    assert json.loads(record.continuation() or b"")["prompt"] == [1, 2, 7, 8, 9]


@pytest.mark.parametrize(
    "chunks",
    [
        (chunk("a", None, prompt_token_ids=[1]),),
        (chunk("a", [7]),),
        (chunk("a", [7], prompt_token_ids=[1]), chunk("b", [8], finish_reason="stop")),
        (chunk("a", [7], prompt_token_ids=[1]), b"data: {\n\n"),
        (chunk("a", list(range(20)), prompt_token_ids=[1]),),
    ],
    ids=["no ids", "no ids of the prompt", "at its end", "no JSON", "nothing is left of the limit"],
)
def test_a_stream_that_cannot_be_continued(chunks: Sequence[bytes]) -> None:
    assert record_of(*chunks)[0].continuation() is None


def test_events_may_be_cut_anywhere() -> None:
    whole = chunk("a", [7], prompt_token_ids=[1]) + chunk("b", [8])
    expected = record_of(whole)
    for place in range(len(whole)):
        record, passed = record_of(whole[:place], whole[place:])
        assert (record.continuation(), passed) == (expected[0].continuation(), expected[1])


def test_reasoning_is_not_continued() -> None:
    """A parser that starts in the middle may take the rest for reasoning, or for the answer."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], **GREEDY}
    plan = continuable_request(CHAT, RequestBody(json.dumps(body).encode()))
    assert plan is not None
    record = StreamRecord(plan)
    for delta in ({"role": "assistant", "content": ""}, {"reasoning": "hm"}, {"content": "a"}):
        one = {"id": "a", "choices": [{"delta": delta, "token_ids": [1]}], "prompt_token_ids": [5]}
        record.feed(b"data: " + json.dumps(one).encode() + b"\n\n")
    assert record.continuation() is None


def test_the_ids_are_asked_for_in_the_first_place_of_the_body() -> None:
    asked = with_token_ids(RequestBody(b' {"model": "tiny"}'))
    assert asked.whole() == b' {"return_token_ids":true,"model": "tiny"}'
