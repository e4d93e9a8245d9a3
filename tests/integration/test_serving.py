"""Real clients against the real engine through the real gateway."""

import asyncio
import contextlib
import json
import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request

import anthropic
import httpx
import openai
import pytest

from sparkfleet.fleet.demo.demo import deployment_file

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True, scope="module")
def demo(fleet):
    """Output of README's first command, which replaces what the file before served: all tests ask its engine, real vLLM."""
    out = fleet.ok("demo")
    fleet.take_key(out)
    fleet.apply(str(deployment_file()))
    fleet.until(lambda: fleet.deployment()["state"] == "ready" and len(fleet.deployment()["groups"]) == 1)
    return out


@pytest.fixture
def client(fleet):
    with openai.OpenAI(base_url=fleet.endpoint, api_key=fleet.key, max_retries=0) as client:
        yield client


def get(fleet, url, key=None, data=None, headers=None):
    """(status, headers, body) of a plain request."""
    headers = {**({"authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
    request = urllib.request.Request(url, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def chat(fleet, key, **body):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, **body}
    return get(fleet, f"{fleet.endpoint}/chat/completions", key, json.dumps(body).encode(),
               {"content-type": "application/json"})  # fmt: skip


def test_a_chat_answers_in_words(client):
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Who are you?"}], max_tokens=40, temperature=0
    )
    words = answer.choices[0].message.content.split()
    assert len(words) >= 4
    assert sum(word.strip(".,!?'\"").isalpha() for word in words) > len(words) / 2
    assert answer.usage.completion_tokens > 0


def test_a_chat_streams(client):
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "What is a rail?"}],
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices).strip()
    assert chunks[-1].usage.completion_tokens > 1


def test_a_completion(client):
    answer = client.completions.create(model="tiny", prompt="The DGX Spark", max_tokens=8)
    assert answer.choices[0].text


def test_a_response(client):
    answer = client.responses.create(model="tiny", input="Hello", max_output_tokens=16)
    assert answer.output_text


def test_an_anthropic_message(fleet):
    base = fleet.endpoint.removesuffix("/v1")
    with anthropic.Anthropic(base_url=base, api_key=fleet.key, max_retries=0) as client:
        message = client.messages.create(
            model="tiny", max_tokens=16, messages=[{"role": "user", "content": "Hello"}]
        )
        assert message.content[0].text
        with client.messages.stream(
            model="tiny", max_tokens=16, messages=[{"role": "user", "content": "Hello"}]
        ) as stream:
            assert "".join(stream.text_stream)


def test_its_speed_is_measured_over_the_endpoint_and_kept(fleet):
    code, out, err = fleet.run("bench", "tiny", "--concurrency", "1", "--concurrency", "4", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [(load["concurrency"], load["rounds"]) for load in found["loads"]] == [(1, 3), (4, 3)]
    assert all(min(load["ttft_ms"], load["request_tps"], load["group_tps"]) > 0 for load in found["loads"])
    assert (found["kept"], found["disturbed"]) == (True, "")
    _, described, _ = fleet.run("describe", "tiny")
    assert (
        len(re.findall(r"bench \d{4}-\d\d-\d\d, prompts of \d+ tokens, (alone|4 at once): TTFT", described))
        == 2
    )


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_a_task_that_this_model_lacks_is_refused_in_words_about_it(client):
    with pytest.raises(openai.NotFoundError, match='The model "tiny" makes no embeddings') as caught:
        client.embeddings.create(model="tiny", input="Hello")
    assert caught.value.code == "unsupported_by_model"
    with pytest.raises(openai.NotFoundError, match='The model "tiny" transcribes no speech'):
        client.audio.transcriptions.create(model="tiny", file=("speech.wav", b"RIFF", "audio/wav"))
    with pytest.raises(openai.NotFoundError, match="stores no files"):
        client.files.list()
    with pytest.raises(openai.NotFoundError, match="has no batches"):
        client.batches.list()


async def test_sixteen_streams_at_once(fleet):
    async def one(client, number):
        stream = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": f"Question {number}: what is a link?"}],
            max_tokens=24,
            stream=True,
            extra_body={"ignore_eos": True},
            stream_options={"include_usage": True},
        )
        return [chunk async for chunk in stream][-1].usage.completion_tokens

    async with openai.AsyncOpenAI(base_url=fleet.endpoint, api_key=fleet.key, max_retries=0) as client:
        counts = await asyncio.gather(*(one(client, n) for n in range(16)))
    assert counts == [24] * 16


def engine_metric(fleet, name):
    """A number from the engine's own metrics page."""
    page = fleet.engine_page(fleet.deployment()["groups"][0]["url"])
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name + "{"))


def test_a_client_that_hangs_up_stops_the_generation(fleet):
    """A long generation is cut short in the engine, not merely no longer read."""
    before = engine_metric(fleet, "vllm:generation_tokens_total")
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 1900, "stream": True, "ignore_eos": True}
    headers = {"authorization": f"Bearer {fleet.key}"}
    with httpx.stream(
        "POST", f"{fleet.endpoint}/completions", json=body, headers=headers, timeout=60
    ) as response:
        next(response.iter_raw())
    fleet.until(lambda: engine_metric(fleet, "vllm:num_requests_running") == 0, timeout=20, every=0.1)
    assert engine_metric(fleet, "vllm:generation_tokens_total") - before < 1900


def test_its_processes_are_not_put_behind_all_others(fleet):
    """Ray would give its workers, and engines that they start, the niceness 15."""
    found = set()
    for process in fleet.everything():
        with contextlib.suppress(ProcessLookupError):  # it may end meanwhile
            found.add(os.getpriority(os.PRIO_PROCESS, process.pid))
    assert found == {os.getpriority(os.PRIO_PROCESS, 0)}


def test_nobody_goes_around_the_gateway(fleet):
    url = fleet.deployment()["groups"][0]["url"]
    for path in ("/v1/models", "/tokenize", "/metrics", "/health"):
        assert get(fleet, url + path, key=fleet.key)[0] == 401


def test_a_missing_key(fleet):
    status, headers, body = chat(fleet, None)
    assert status == 401
    assert "Bearer" in headers["www-authenticate"]
    assert json.loads(body)["error"]["message"]


def test_a_wrong_key(fleet):
    assert chat(fleet, "sk-sf-wrong")[0] == 401


def test_an_unknown_model_names_those_that_exist(fleet):
    status, _, body = chat(fleet, fleet.key, model="nope")
    assert status == 404
    assert "tiny" in json.loads(body)["error"]["message"]


def test_bad_json(fleet):
    status, _, body = get(fleet, f"{fleet.endpoint}/chat/completions", fleet.key, b"{nope")
    assert status == 400
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_a_body_that_is_too_large(fleet):
    status, _, _ = get(fleet, f"{fleet.endpoint}/chat/completions", fleet.key, b"x" * 33_000_000)
    assert status == 413


def test_a_request_that_the_engine_refuses_is_passed_on(fleet):
    status, _, body = chat(fleet, fleet.key, max_tokens=100_000)
    assert status == 400
    assert json.loads(body)["error"]["message"]


def test_a_revoked_key_is_worthless_at_once(fleet):
    key = fleet.json("keys", "create", "guest")["key"]
    assert chat(fleet, key)[0] == 200, "the gateways knew it when `create` returned"
    (row,) = (one for one in fleet.json("keys", "list")["keys"] if one["name"] == "guest")
    assert row["may_use"] == ["tiny"]
    fleet.until(
        lambda: any(one["used"] for one in fleet.json("keys", "list")["keys"] if one["name"] == "guest")
    )
    fleet.ok("keys", "revoke", "guest")
    assert chat(fleet, key)[0] == 401, "no gateway accepted it when `revoke` returned"


def test_metrics_of_gateway_controller_and_engine_are_found_by_prometheus(fleet):
    """The target list leads to three pages, and each counts what has happened."""
    assert chat(fleet, fleet.key)[0] == 200
    api = json.loads(fleet.paths.address.read_text())["api"]
    targets = {
        group["labels"]["job"]: group["targets"][0]
        for group in httpx.get(api + "/targets", timeout=60).json()
    }
    pages = {job: fleet.engine_page(f"http://{target}") for job, target in targets.items()}
    assert httpx.get(f"http://{targets['vllm']}/metrics", timeout=60).status_code == 401
    assert (
        'sparkfleet_requests_total{model="tiny",path="/v1/chat/completions",status="200"}' in pages["gateway"]
    )
    assert "sparkfleet_ttft_seconds_bucket" in pages["gateway"]
    assert 'sparkfleet_tokens_total{kind="output",model="tiny"}' in pages["gateway"]
    assert 'sparkfleet_starts_total{deployment="tiny",outcome=' in pages["controller"]
    assert "vllm:generation_tokens_total" in pages["vllm"]


def test_the_key_is_nowhere_in_the_state_directory(fleet):
    secret = fleet.key.encode()
    contents = {}
    for path in fleet.paths.root.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # it may be replaced meanwhile
            if path.is_file():
                contents[path] = path.read_bytes()
    assert contents
    assert [path for path, content in contents.items() if secret in content] == []


def test_describe_and_logs_say_what_happened(fleet):
    said = fleet.ok("describe", "tiny")
    assert "ready" in said
    assert re.search(
        r"canary: perplexity of a known text [\d.]+, of its own answer 1\.\d+, 100% of the answer's tokens chosen again",
        said,
    )
    assert fleet.json("describe", "tiny")["deployment"]["groups"][0]["measured"]["ttft_ms"] > 0
    assert fleet.ok("logs", "tiny", "--tail", "5").strip()


def test_logs_follow(fleet):
    with fleet.popen("logs", "tiny", "--follow", "--tail", "0") as process:
        deadline = time.monotonic() + 60
        line = threading.Thread(target=process.stdout.readline)
        line.start()
        while line.is_alive() and time.monotonic() < deadline:
            assert chat(fleet, fleet.key)[0] == 200
            time.sleep(0.5)
        assert not line.is_alive()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


def test_the_demo_serves_its_model_and_asks_it(fleet, demo):
    words = " ".join(demo.split())
    assert re.search(r"starting the engine .+ first token .+ Time: \d", words), demo
    assert fleet.start_phases() >= {"loading", "warming", "up"}, (
        "of the engine's own log, by which a start is shown"
    )
    assert not re.search(r"\(APIServer|EngineCore|\bWARNING\b", demo), "no line of an engine's log"
    assert re.search(
        r'ask tiny "What is a DGX Spark\?" .*[a-z]{3,} [a-z]{2,}.* First answer after \d+ s: installing 0 s, apply \d+ s',
        words,
    ), demo
    before = fleet.deployment()
    key = (fleet.paths.root / "demo.key").read_text().strip()
    assert chat(fleet, key)[0] == 200, "with the key that its curl line reads"
    assert "First answer after" in fleet.ok("demo")
    assert fleet.deployment()["generation"] == before["generation"], "again changes nothing"
