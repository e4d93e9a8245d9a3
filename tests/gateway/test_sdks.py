"""The official clients of OpenAI and Anthropic, as their users call them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anthropic
import openai
import pytest

from sparkfleet.engines.fake import InjectedFault, Pace

if TYPE_CHECKING:
    from conftest import Door, OpenDoor

PACED = Pace(ttft_s=0.005, itl_s=0.001, tokens=6)
TEXT = "the spark hums and two cables "
ASKED = {"role": "user", "content": "one two three"}


@pytest.fixture
async def paced(open_door: OpenDoor) -> Door:
    return await open_door(pace=PACED)


@pytest.fixture
async def client(paced: Door):  # type: ignore[no-untyped-def]
    async with openai.AsyncOpenAI(base_url=paced.url + "/v1", api_key=paced.key, max_retries=0) as client:
        yield client


@pytest.fixture
async def claude(paced: Door):  # type: ignore[no-untyped-def]
    async with anthropic.AsyncAnthropic(base_url=paced.url, api_key=paced.key, max_retries=0) as client:
        yield client


async def test_openai_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="tiny", messages=[ASKED])
    assert answer.choices[0].message.content == TEXT
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    assert answer._request_id is not None
    assert answer._request_id.startswith("req-")


async def test_openai_chat_as_a_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="tiny", messages=[ASKED], stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 3


async def test_openai_completion_embeddings_and_models(client: openai.AsyncOpenAI) -> None:
    assert (await client.completions.create(model="tiny", prompt="hi", max_tokens=2)).choices[
        0
    ].text == "the spark "
    assert (
        len((await client.embeddings.create(model="tiny", input=["a", "b"], encoding_format="float")).data)
        == 2
    )
    assert [model.id async for model in client.models.list()] == ["tiny"]
    assert (await client.models.retrieve("tiny")).created == 1700000000


async def test_openai_responses(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model="tiny", input="one two three")
    assert answer.output_text == TEXT
    stream = await client.responses.create(model="tiny", input="one two three", stream=True)
    events = [event async for event in stream]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == TEXT
    assert events[-1].type == "response.completed"


async def test_openai_errors_are_of_their_kind(paced: Door, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="Available: tiny") as caught:
        await client.chat.completions.create(model="huge", messages=[ASKED])
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    async with openai.AsyncOpenAI(base_url=paced.url + "/v1", api_key="sk-wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError, match="API key is unknown"):
            await stranger.models.list()


async def test_openai_waits_and_tries_again_where_it_is_told_to(open_door: OpenDoor) -> None:
    door = await open_door(pace=PACED)
    ready = door.gateway.table
    starting = door.gateway.table.models["tiny"].model_copy(update={"state": "starting", "retry_after_s": 0})
    door.gateway.table = ready.model_copy(update={"version": 2, "models": {"tiny": starting}})
    seen: list[int] = []

    async def becomes_ready(response: object) -> None:
        seen.append(response.status_code)  # type: ignore[attr-defined]
        door.gateway.table = ready

    http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [becomes_ready]})
    async with openai.AsyncOpenAI(base_url=door.url + "/v1", api_key=door.key, http_client=http) as client:
        answer = await client.chat.completions.create(model="tiny", messages=[ASKED])
    assert answer.choices[0].message.content == TEXT
    assert seen == [503, 200]


async def test_openai_raises_when_an_engine_dies_in_a_stream(paced: Door, client: openai.AsyncOpenAI) -> None:
    paced.engine.fault = InjectedFault(kind="die", after=3)
    stream = await client.chat.completions.create(model="tiny", messages=[ASKED], stream=True)
    seen: list[str] = []
    with pytest.raises(openai.APIError, match="failed while answering"):
        seen.extend([chunk.choices[0].delta.content async for chunk in stream])
    assert paced.engine.generated == 3


async def test_anthropic_message(claude: anthropic.AsyncAnthropic) -> None:
    answer = await claude.messages.create(model="tiny", max_tokens=100, messages=[ASKED])
    assert answer.content[0].text == TEXT
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (3, 6)


async def test_anthropic_message_as_a_stream(paced: Door, claude: anthropic.AsyncAnthropic) -> None:
    async with claude.messages.stream(model="tiny", max_tokens=100, messages=[ASKED]) as stream:
        assert "".join([text async for text in stream.text_stream]) == TEXT
        assert (await stream.get_final_message()).usage.output_tokens == 6
    await paced.gateway.drain(5)
    assert paced.value("sparkfleet_tokens_total", model="tiny", kind="output") == 6
    assert paced.value("sparkfleet_tokens_total", model="tiny", kind="input") == 3


async def test_anthropic_errors_are_of_their_kind(paced: Door, claude: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="Available: tiny"):
        await claude.messages.create(model="huge", max_tokens=1, messages=[ASKED])
    paced.engine.fault = InjectedFault(kind="die", after=3)
    with pytest.raises(anthropic.APIError, match="failed while answering"):
        async with claude.messages.stream(model="tiny", max_tokens=100, messages=[ASKED]) as stream:
            await stream.get_final_message()
