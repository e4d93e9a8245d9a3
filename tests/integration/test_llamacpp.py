"""Real llama.cpp on the CPU: a fleet of one node that serves the built-in tiny model from a GGUF file."""

import json
import os
import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import psutil
import pytest
import yaml
from builtin_gguf import (
    metadata_of,
    tensors_of,
    write_builtin_gguf,
    write_builtin_head,
    write_builtin_target,
    write_gguf,
)
from lab_fleet import CHECKOUT
from live_fleet import Fleet
from unchanged_answers import REQUESTS, Side, answers_of_both, joined, without_own

from sparkfleet.checkpoints.gguf.gguf_files import GgufFiles
from sparkfleet.engines.base import RankContext
from sparkfleet.engines.llamacpp import PROGRAM
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.gateway.access.keys import engine_token
from sparkfleet.group.probe import sum_series
from sparkfleet.perf.prediction import Speculation
from sparkfleet.planner.types.plan import Candidate, GroupShape
from sparkfleet.tiny_models.cache import ensure

HOME = Path(os.environ.get("SPARKFLEET_LLAMACPP") or CHECKOUT / ".venv-llamacpp")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.full,
    pytest.mark.skipif(
        not (HOME / "bin" / PROGRAM).exists(),
        reason="no llama-server: scripts/setup-llamacpp, or set SPARKFLEET_LLAMACPP to its environment",
    ),
]

SPEC = "name: {name}\nmodel: {model}\nengine: llama.cpp\ncontext: 512\nconcurrency: 4\n"
DRAFTED = SPEC + "speculation: {{method: {method}, tokens: 3, draft: {draft}}}\n"
PROMPTS = ("What is a rail?", "A rail is one half of the port. A rail is one half of the", "Once upon a time")
UNCHANGED = [name for name in REQUESTS if name not in ("an image", "three answers", "logprobs of a prompt")]
"""Requests that a model without images takes, and that llama.cpp answers twice alike: samples of one seed differ. It refuses
`echo`."""
TIMINGS = re.compile(rb',"timings":\{[^}]*\}')
"""llama.cpp's own field, with the milliseconds of each answer."""
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"node": {"type": "string", "maxLength": 8}},
            "required": ["node"],
        },
    },
}
NAN = b"\xc0\x7f"
"""A weight in BF16 that is no number."""
BEGUN = '<tool_call>\n{"name": "look", "arguments": '
"""The beginning of a call: a model of this size writes none by itself."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A directory per GGUF file: a good one, one of damaged weights, and half of one."""
    home, checkpoint = tmp_path_factory.mktemp("gguf"), ensure("tiny")
    for name in ("good", "damaged", "half"):
        (home / name).mkdir()
    good = write_builtin_gguf(checkpoint, home / "good" / "tiny-BF16.gguf")
    broken = [
        one._replace(data=NAN * (len(one.data) // 2)) if "ffn_down" in one.name else one
        for one in tensors_of(checkpoint / "model.safetensors")
    ]
    write_gguf(home / "damaged" / "tiny-BF16.gguf", metadata_of(checkpoint), broken)
    whole = good.read_bytes()
    (home / "half" / "tiny-BF16.gguf").write_bytes(whole[: len(whole) // 2])
    return home


@pytest.fixture(scope="module")
def drafts(tmp_path_factory):
    """Directories with a target that gives out all of its layers, and its drafts, by method."""
    home, tiny = tmp_path_factory.mktemp("drafts"), ensure("tiny")
    found = {name: home / name for name in ("target", "draft", "eagle3", "dflash")}
    for directory in found.values():
        directory.mkdir()
    write_builtin_target(tiny, found["target"] / "target-BF16.gguf")
    write_builtin_gguf(ensure("tiny-draft"), found["draft"] / "draft-BF16.gguf")
    for method in ("eagle3", "dflash"):
        write_builtin_head(ensure(f"tiny-{method}"), tiny, found[method] / f"{method}-tiny-BF16.gguf")
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory, files):
    """A fleet that serves `tiny` by llama.cpp."""
    fleet = Fleet(tmp_path_factory.mktemp("llamacpp"))
    node = {"address": "local", "engines": {"llama.cpp": {"python": str(HOME / "bin" / "python")}}}
    inventory = {"fleet": "test", "head": "this", "nodes": {"this": node}, "gateway": {"port": 0}}
    fleet.write("inventory.yaml", yaml.safe_dump(inventory))
    try:
        fleet.apply(fleet.write("tiny.yaml", SPEC.format(name="tiny", model=files / "good")))
        yield fleet
    finally:
        code, out, err = fleet.run("down")
        left = fleet.everything()
        assert code == 0, f"{out}\n{err}"
        assert left == [], left


@pytest.fixture
def client(here):
    with openai.OpenAI(base_url=here.endpoint, api_key=here.key, max_retries=0) as client:
        yield client


def group(here, name="tiny"):
    (found,) = here.deployment(name)["groups"]
    return found


def own_token(here):
    """The token of the engine of `tiny`."""
    found = group(here)
    name = f"tiny/g{found['generation']}/{found['replica']}"
    return engine_token(here.paths.read_engine_secret().encode(), name)


def engine(here):
    """The process of `tiny`, and its own port behind the forwarder."""
    found = psutil.Process(group(here)["ranks"][0]["pid"])
    servers = [one for one in (found, *found.children(recursive=True)) if one.name() == PROGRAM]
    words = servers[0].cmdline()
    return servers[0], int(words[words.index("--port") + 1])


def gauges(here, *names):
    return sum_series(here.engine_page(group(here)["url"]), names)


def idle(here):
    return not any(gauges(here, "llamacpp:requests_processing", "llamacpp:requests_deferred").values())


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"speculation": Speculation(method="mtp", tokens=3), "kv_dtype": "q8_0", "batch_tokens": 512},
        {"gguf": GgufFiles(model="m.gguf", mmproj="mmproj-F16.gguf"), "runtime": "container"},
        {"speculation": Speculation(method="ngram", tokens=8)},
        *(
            {
                "speculation": Speculation(method=method, tokens=7, draft="/d"),
                "gguf_draft": GgufFiles(model="d.gguf"),
            }
            for method in ("draft", "eagle3", "dflash", "dflash2", "dspark", "mtp")
        ),
    ],
    ids=["plain", "all", "tower", "ngram", "draft", "eagle3", "dflash", "dflash2", "dspark", "mtp apart"],
)
def test_the_program_takes_every_flag(fields):
    """Its own parser handles them in order, and ends at the last one. A build for CPUs has no CUDA0."""
    known = {
        "model": "/m",
        "engine": "llama.cpp",
        "engine_version": "b11434",
        "context": 512,
        "concurrency": 2,
    }
    one = Candidate(
        shape=GroupShape(nodes=("this",)), **{"gguf": GgufFiles(model="m.gguf"), **known, **fields}
    )
    context = RankContext(
        rank=0,
        python="python3",
        model_path="/m",
        draft_path="/d",
        served_name="m",
        host="127.0.0.1",
        port=4321,
    )
    argv = engine_by_name("llama.cpp").launch(one, context).argv
    words = ["none" if word == "CUDA0" else word for word in argv[1:]]
    for extra, code in ((), 0), (("--no-such-flag",), 1):
        done = subprocess.run(
            [HOME / "bin" / PROGRAM, *words, *extra, "--version"], capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr


def test_it_passed_the_canary_with_perplexities(here):
    found = group(here)
    assert (found["engine"], found["phase"]) == ("llama.cpp", "ready")
    assert 1 < found["measured"]["text_perplexity"] < 5
    assert found["measured"]["own_agreement"] > 0.9
    assert found["measured"]["decode_tps"] > 0
    assert here.start_phases() >= {"loading", "warming", "up"}


def test_a_question_is_answered(here):
    assert "QSFP" in here.ok("ask", "tiny", "What is a rail?")


def test_a_chat_streams(client):
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "What is a rail?"}],
        max_tokens=32,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "QSFP" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage.completion_tokens > 1


def test_streams_one_after_another_lose_no_request(client):
    """The engine closes each connection behind a stream, although it announces the opposite."""

    def ask(_):
        for _ in range(10):
            stream = client.completions.create(model="tiny", prompt="A rail is", max_tokens=3, stream=True)
            assert len(list(stream)) >= 3
        return True

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, range(3))) == [True] * 3


@pytest.mark.parametrize("name", UNCHANGED)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_answer_is_the_engines_own(here, name, stream):
    """Ids and times aside, byte for byte; a stream without the borders between its events."""
    path, body = REQUESTS[name]
    body = {"model": "tiny", **body, "stream": stream}
    gateway = Side(here.endpoint.removesuffix("/v1"), here.key)
    direct, through = answers_of_both(Side(group(here)["url"], own_token(here)), gateway, path, body)
    assert direct[0] == 200, direct
    assert (through[0], through[1]) == direct[:2]
    same = joined if stream else without_own
    assert same(TIMINGS.sub(b"", through[2])) == same(TIMINGS.sub(b"", direct[2]))


def test_tools_are_called(client):
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "What is a rail?"}, {"role": "assistant", "content": BEGUN}],
        tools=[LOOK],
        tool_choice="required",
        max_tokens=200,
        temperature=0,
    )
    call, *_ = answer.choices[0].message.tool_calls  # it may go on with more
    assert call.function.name == "look"
    assert set(json.loads(call.function.arguments)) == {"node"}


def test_probabilities_come_with_a_chat(client):
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "What is a rail?"}],
        max_tokens=8,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 8
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 3 for token in tokens)


def test_anthropics_clients_are_served(here):
    headers = {"x-api-key": here.key, "anthropic-version": "2023-06-01"}
    body = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "What is a rail?"}]}
    answer = httpx.post(f"{here.endpoint}/messages", json=body, headers=headers, timeout=60)
    assert answer.json()["content"][0]["text"].startswith("A rail")
    del body["max_tokens"]
    counted = httpx.post(f"{here.endpoint}/messages/count_tokens", json=body, headers=headers, timeout=60)
    assert counted.json()["input_tokens"] > 5


def test_a_client_that_leaves_ends_its_stream(here):
    """An id of a conversation, by which llama.cpp would generate on, does not reach it.

    A whole answer is not tried: its thread looks for its client only after a second in which the engine has no result.
    """
    headers = {"authorization": f"Bearer {here.key}", "x-conversation-id": "mine"}
    body = {"model": "tiny", "max_tokens": 500, "stream": True, "ignore_eos": True}
    prompts = {"prompt": ["A rail is"] * 400}  # on 4 slots for many seconds
    with httpx.stream(
        "POST", f"{here.endpoint}/completions", headers=headers, json=body | prompts, timeout=30
    ) as answer:
        next(answer.iter_bytes())
    here.until(lambda: idle(here), timeout=60, every=0.1)
    assert "cancel task" in here.ok("logs", "tiny", "--tail", "200")


def test_the_engine_itself_refuses_a_wrong_key(here):
    """Paths that it answers without one are behind the forwarder, which asks for the token on every path."""
    process, port = engine(here)
    url = f"http://127.0.0.1:{port}"
    wrong = {"authorization": "Bearer wrong"}
    body = {"prompt": "A rail is", "max_tokens": 1}
    for path in ("/v1/models", "/metrics", "/props"):
        assert httpx.get(url + path, headers=wrong, timeout=30).status_code == 401
    for path in ("/v1/completions", "/v1/chat/completions", "/completion", "/tokenize", "/slots/0"):
        assert httpx.post(url + path, json=body, headers=wrong, timeout=30).status_code == 401
    assert httpx.get(url + "/health", timeout=30).status_code == 200
    forwarded = group(here)["url"]
    for path in ("/health", "/v1/health", "/", "/v1/models", "/metrics"):
        assert httpx.get(forwarded + path, timeout=30).status_code == 401
    assert own_token(here) not in " ".join(process.cmdline())


def test_its_load_is_seen_while_it_generates(here, client):
    runner = engine_by_name("llama.cpp")
    names = (runner.running_metric, *runner.step_metrics)
    seen = threading.Event()

    def generate():
        while not seen.is_set():
            client.completions.create(
                model="tiny", prompt="Hello", max_tokens=450, extra_body={"ignore_eos": True}
            )

    before = gauges(here, *names)
    with ThreadPoolExecutor(1) as pool:
        generating = pool.submit(generate)
        try:
            here.until(
                lambda: (now := gauges(here, *names))[names[0]] == 1 and now[names[1]] > before[names[1]],
                timeout=60,
                every=0.05,
            )
        finally:
            seen.set()
        generating.result()
    assert gauges(here, runner.tokens_metric)[runner.tokens_metric] >= 450


def test_no_prompt_and_no_answer_is_in_its_log(here, client):
    client.completions.create(model="tiny", prompt="xylophone quartz", max_tokens=8, temperature=0)
    log = here.ok("logs", "tiny", "--tail", "2000")
    assert "print_timing" in log
    assert "xylophone" not in log
    assert "QSFP" not in log


def test_a_prompt_beyond_the_context_is_refused_and_not_cut(client):
    with pytest.raises(openai.BadRequestError, match="context"):
        client.completions.create(model="tiny", prompt="A rail is one half. " * 200, max_tokens=4)


def test_a_killed_engine_is_replaced(here, client):
    process, _ = engine(here)
    before = group(here)["ranks"][0]["pid"]
    process.kill()
    here.until(lambda: (now := group(here))["phase"] == "ready" and now["ranks"][0]["pid"] != before)
    here.until(lambda: client.completions.create(model="tiny", prompt="A rail is", max_tokens=4).choices)


@pytest.mark.parametrize("method", ["draft", "eagle3", "dflash", "ngram"])
def test_drafts_change_no_answer_and_are_accepted(here, client, drafts, method):
    """Greedy, against the same model without drafts; some are accepted and some are not."""
    name, runner = f"tiny-{method}", engine_by_name("llama.cpp")
    fields = {"name": name, "model": drafts["target"], "method": method, "draft": drafts.get(method, "null")}
    here.apply(here.write(f"{name}.yaml", DRAFTED.format(**fields)))
    try:
        same, plain = (
            [
                client.completions.create(
                    model=model, prompt=prompt, max_tokens=48, temperature=0, extra_body={"ignore_eos": True}
                )
                .choices[0]
                .text
                for prompt in PROMPTS
            ]
            for model in (name, "tiny")
        )
        assert same == plain
        page = here.engine_page(group(here, name)["url"])
        counted = runner.drafts(sum_series(page, runner.draft_metrics), 3)
        assert 0 < counted.accepted < counted.proposed
        log = here.ok("logs", name, "--tail", "2000")
        assert "failed to initialize speculative decoding" not in log
    finally:
        here.ok("delete", "--yes", name)
        here.until(lambda: here.deployment(name) is None)


def test_a_draft_is_no_model_of_its_own(here, drafts):
    code, out, err = here.run(
        "apply", "--yes", here.write("head.yaml", SPEC.format(name="head", model=drafts["eagle3"]))
    )
    assert code != 0
    assert "is a draft" in " ".join((out + err).split())


@pytest.mark.parametrize(
    ("name", "words"),
    [("damaged", "its output is wrong"), ("half", "that its header declares")],
)
def test_a_bad_file_does_not_serve(here, files, name, words):
    spec = here.write(f"{name}.yaml", SPEC.format(name=name, model=files / name))
    code, out, err = here.run("apply", "--yes", spec)
    assert code != 0
    assert words in " ".join((out + err).split())
    if here.deployment(name) is not None:  # half a file is refused before anything starts
        here.ok("delete", "--yes", name)
        here.until(lambda: here.deployment(name) is None)
