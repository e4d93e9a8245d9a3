from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from sparkfleet.engines.fake import APIS, FakeEngine, InjectedFault, Pace, main
from sparkfleet.runtime.ports import free_port

PACED = Pace(ttft_s=0.03, itl_s=0.005, tokens=5)


async def post(engine: FakeEngine, path: str, **body: Any) -> tuple[int, bytes]:
    headers = {"authorization": f"Bearer {engine.token}"}
    async with aiohttp.request("POST", engine.url + path, json=body, headers=headers) as answer:
        return answer.status, await answer.read()


async def get(engine: FakeEngine, path: str) -> tuple[int, str]:
    async with aiohttp.request("GET", engine.url + path) as answer:
        return answer.status, await answer.text()


async def test_a_stream_keeps_its_pace() -> None:
    loop = asyncio.get_running_loop()
    async with FakeEngine(pace=PACED) as engine, aiohttp.ClientSession() as http:
        sent = loop.time()
        async with http.post(
            engine.url + "/v1/completions", json={"model": "fake", "stream": True}
        ) as answer:
            await answer.content.readany()
            first = loop.time() - sent
            await answer.read()
        whole = loop.time() - sent
    assert first >= 0.03
    assert whole >= 0.03 + 4 * 0.005


@pytest.mark.parametrize(("asked", "given"), [({}, 5), ({"max_tokens": 3}, 3), ({"max_tokens": 99}, 5)])
async def test_how_many_tokens(asked: dict[str, int], given: int) -> None:
    async with FakeEngine(pace=PACED) as engine:
        _, body = await post(engine, "/v1/completions", model="fake", prompt="a b", **asked)
        usage = json.loads(body)["usage"]
    assert usage == {"prompt_tokens": 2, "completion_tokens": given, "total_tokens": 2 + given}
    assert (engine.generated, engine.prompted, engine.finished, engine.running) == (given, 2, 1, 0)


@pytest.mark.parametrize("wanted", [True, False])
async def test_a_stream_has_its_usage_only_on_request(wanted: bool) -> None:
    async with FakeEngine() as engine:
        options = {"include_usage": wanted}
        _, body = await post(
            engine, "/v1/chat/completions", model="fake", stream=True, stream_options=options
        )
    assert (b'"usage"' in body) is wanted
    assert body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("path", sorted(APIS))
async def test_a_stream_is_made_of_events_of_json(path: str) -> None:
    async with FakeEngine() as engine:
        _, body = await post(engine, path, model="fake", stream=True)
    for event in body.decode().strip().split("\n\n"):
        data = event.rpartition("data: ")[2]
        assert data == "[DONE]" or json.loads(data)


async def test_requests_are_checked_before_an_answer() -> None:
    async with FakeEngine(model="tiny", token="secret") as engine:
        assert (await post(engine, "/v1/completions", model="tiny"))[0] == 200
        assert (await post(engine, "/v1/completions", model="huge"))[0] == 404
        async with aiohttp.request("POST", engine.url + "/v1/completions", data=b"{") as answer:
            assert answer.status == 401
        headers = {"authorization": "Bearer secret"}
        for nonsense in (b"{", b"[]"):
            async with aiohttp.request(
                "POST", engine.url + "/v1/completions", data=nonsense, headers=headers
            ) as bad:
                assert bad.status == 400
        assert (await get(engine, "/v1/models"))[0] == 401
        assert (await get(engine, "/health"))[0] == 401
        assert (await get(engine, "/metrics"))[0] == 401


async def test_its_metrics_have_the_names_of_vllm() -> None:
    async with FakeEngine(model="tiny", pace=PACED) as engine:
        await post(engine, "/v1/completions", model="tiny", prompt="a b c")
        _, text = await get(engine, "/metrics")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines())
    assert values['vllm:generation_tokens_total{model_name="tiny"}'] == "5"
    assert values['vllm:prompt_tokens_total{model_name="tiny"}'] == "3"
    assert values['vllm:num_requests_running{model_name="tiny"}'] == "0"


async def test_embeddings_and_models() -> None:
    async with FakeEngine(model="tiny") as engine:
        _, body = await post(engine, "/v1/embeddings", model="tiny", input=["a b", "c"])
        _, models = await get(engine, "/v1/models")
    assert len(json.loads(body)["data"]) == 2
    assert json.loads(body)["usage"]["prompt_tokens"] == 3
    assert json.loads(models)["data"][0]["id"] == "tiny"


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_that_hangs_up_stops_it(streaming: bool) -> None:
    async with FakeEngine(pace=Pace(ttft_s=3600)) as engine:
        asking = asyncio.create_task(post(engine, "/v1/completions", model="fake", stream=streaming))
        async with asyncio.timeout(5):
            await engine.until(lambda e: e.running == 1)
            asking.cancel()
            await engine.until(lambda e: e.aborted == 1 and e.running == 0)
    assert engine.finished == 0


# Faults


async def test_an_error_on_demand_and_only_so_often() -> None:
    async with FakeEngine(fault=InjectedFault(kind="status", status=503, times=2)) as engine:
        seen = [(await post(engine, "/v1/completions", model="fake"))[0] for _ in range(3)]
    assert seen == [503, 503, 200]


async def test_tokens_of_a_model_that_computes_wrongly() -> None:
    async with FakeEngine(fault=InjectedFault(kind="garble", times=1)) as engine:
        status, body = await post(engine, "/v1/completions", model="fake", max_tokens=3)
        assert (status, json.loads(body)["choices"][0]["text"]) == (200, "! ! ! ")
        _, body = await post(engine, "/v1/completions", model="fake", max_tokens=3)
        assert "!" not in json.loads(body)["choices"][0]["text"]


@pytest.mark.parametrize(("after", "words"), [(0, 0), (2, 2)])
async def test_a_stream_that_is_dropped(after: int, words: int) -> None:
    async with FakeEngine(pace=PACED, fault=InjectedFault(kind="drop", after=after)) as engine:
        with pytest.raises(aiohttp.ClientError):
            await post(engine, "/v1/completions", model="fake", stream=True)
        await engine.until(lambda e: e.running == 0)
        assert engine.generated == words
        assert (await get(engine, "/health"))[0] == 200


@pytest.mark.parametrize("kind", ["die", "drop"])
async def test_half_a_whole_answer(kind: str) -> None:
    async with FakeEngine(fault=InjectedFault.model_validate({"kind": kind, "after": 1})) as engine:
        with pytest.raises(aiohttp.ClientPayloadError):
            await post(engine, "/v1/completions", model="fake")


async def test_death_takes_every_connection_and_the_port() -> None:
    async with FakeEngine(pace=Pace(ttft_s=3600)) as engine:
        bystander = asyncio.create_task(post(engine, "/v1/completions", model="fake"))
        await engine.until(lambda e: e.running == 1)
        engine.pace, engine.fault = PACED, InjectedFault(kind="die", after=1)
        with pytest.raises(aiohttp.ClientError):
            await post(engine, "/v1/completions", model="fake", stream=True)
        with pytest.raises(aiohttp.ClientError):
            await bystander
        with pytest.raises(aiohttp.ClientConnectorError):
            await get(engine, "/health")


async def test_hanging_is_silence() -> None:
    async with (
        FakeEngine(fault=InjectedFault(kind="hang", after=1)) as engine,
        aiohttp.ClientSession() as http,
    ):
        async with http.post(
            engine.url + "/v1/completions", json={"model": "fake", "stream": True}
        ) as answer:
            await answer.content.readany()
            assert (await get(engine, "/health"))[0] == 200
            assert (engine.generated, engine.running) == (1, 1)
            answer.close()
        async with asyncio.timeout(5):
            await engine.until(lambda e: e.aborted == 1)


async def test_faults_are_set_over_http() -> None:
    async with FakeEngine() as engine, aiohttp.ClientSession() as http:
        url = engine.url + "/fake/fault"
        assert (await http.put(url, json={"kind": "status", "status": 500})).status == 204
        assert (await post(engine, "/v1/completions", model="fake"))[0] == 500
        assert (await http.delete(url)).status == 204
        assert (await post(engine, "/v1/completions", model="fake"))[0] == 200
        for nonsense in (b"{", b'{"kind": "explode"}', b'{"kind": "die", "surprise": 1}'):
            assert (await http.put(url, data=nonsense)).status == 400


@pytest.mark.parametrize("stream", [True, False])
async def test_one_that_hangs_moves_no_figure(stream: bool) -> None:
    """A counter that moves counts as a sign of life, even during a probe of a suspected hang."""
    async with FakeEngine(fault=InjectedFault(kind="hang")) as engine:
        asked = asyncio.create_task(
            post(engine, "/v1/completions", model="fake", prompt="a b", stream=stream)
        )
        await engine.until(lambda engine: engine.running == 1)
        await asyncio.sleep(0.05)
        assert (engine.generated, engine.prompted) == (0, 0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


# As a program


@asynccontextmanager
async def program(*arguments: str, **env: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    argv = (sys.executable, "-m", "sparkfleet.engines.fake", *arguments)
    child = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, env={**os.environ, **env}
    )
    assert child.stdout is not None
    try:
        yield child, (await child.stdout.readline()).decode().split()[-1]
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def test_the_program_serves_and_stops() -> None:
    async with program("--model", "tiny", "--tokens", "2", "--token-env", "T", T="secret") as (child, url):
        headers = {"authorization": "Bearer secret"}
        body = {"model": "tiny"}
        async with aiohttp.request("POST", url + "/v1/completions", json=body, headers=headers) as answer:
            assert (await answer.json())["choices"][0]["text"] == "the spark "
        async with aiohttp.request("GET", url + "/v1/models") as answer:
            assert answer.status == 401
        child.send_signal(signal.SIGTERM)
        assert await child.wait() == 0


@asynccontextmanager
async def group_of_two() -> AsyncIterator[tuple[asyncio.subprocess.Process, str, asyncio.subprocess.Process]]:
    """Rank 0, if it listens, and rank 1, which is started first: it waits."""
    meet = ("--ranks", "2", "--meet", f"127.0.0.1:{free_port('127.0.0.1')}")
    argv = (sys.executable, "-m", "sparkfleet.engines.fake", "--rank", "1", *meet)
    other = await asyncio.create_subprocess_exec(*argv)
    try:
        async with program("--model", "tiny", "--tokens", "2", *meet) as (child, url):
            yield child, url, other
    finally:
        if other.returncode is None:
            other.kill()
        await other.wait()


async def completed(url: str) -> str:
    async with aiohttp.request("POST", url + "/v1/completions", json={"model": "tiny"}) as answer:
        return str((await answer.json())["choices"][0]["text"])


async def test_ranks_of_a_group_answer_as_one_and_end_with_the_first() -> None:
    async with group_of_two() as (child, url, other):
        assert await completed(url) == "the spark "
        child.send_signal(signal.SIGTERM)
        assert await child.wait() == 0
        assert await asyncio.wait_for(other.wait(), 20) == 1


async def test_a_group_stands_still_with_any_rank_and_dies_with_it() -> None:
    async with group_of_two() as (child, url, other):
        other.send_signal(signal.SIGSTOP)
        asked = asyncio.create_task(completed(url))
        done, _ = await asyncio.wait({asked}, timeout=0.5)
        assert not done
        other.send_signal(signal.SIGCONT)
        assert await asyncio.wait_for(asked, 20) == "the spark "
        other.kill()
        await other.wait()
        with pytest.raises(aiohttp.ClientError):
            await completed(url)
        assert await child.wait() == 1


async def test_the_program_dies_on_demand() -> None:
    async with program("--fault", "die:1") as (child, url):
        with pytest.raises(aiohttp.ClientError):
            async with aiohttp.request("POST", url + "/v1/completions", json={"model": "fake"}) as answer:
                await answer.read()
        assert await child.wait() == 1


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--fault", "explode"], '"explode" is not KIND[:AFTER]'),
        (["--fault", "die:x"], '"die:x" is not KIND[:AFTER]'),
        (["--token-env", "SPARKFLEET_NOT_SET"], "SPARKFLEET_NOT_SET is not set"),
        (["--port", "x"], "invalid int"),
        (["--ranks", "2"], "--ranks: more than one rank needs --meet"),
        (["--meet", "nowhere"], '"nowhere" is not HOST:PORT'),
    ],
)
def test_wrong_arguments_are_refused(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(argv)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", "0"), ("127.0.0.1", "99999")])
def test_an_address_that_cannot_be_bound_is_reported(
    host: str, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--host", host, "--port", port]) == 1
    assert f"cannot listen on {host} port {port}" in capsys.readouterr().err


async def test_values_of_its_metrics_can_be_replaced() -> None:
    async with FakeEngine() as engine, aiohttp.ClientSession() as http:
        url = engine.url + "/fake/metrics"
        async with http.put(url, json={"vllm:num_requests_waiting": 9, "vllm:more_total": 1.5}) as answer:
            assert answer.status == 204
        async with http.get(engine.url + "/metrics") as answer:
            text = await answer.text()
        async with http.put(url, json={"vllm:more_total": "many"}) as answer:
            assert answer.status == 400
    assert 'vllm:num_requests_waiting{model_name="fake"} 9' in text
    assert 'vllm:more_total{model_name="fake"} 1.5' in text
    assert 'vllm:num_requests_running{model_name="fake"} 0' in text
