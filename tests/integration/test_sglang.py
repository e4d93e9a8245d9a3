"""Real SGLang on the CPU: alone, beside vLLM under one name, and with its ranks on two simulated Sparks."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import box_image
import httpx
import openai
import pytest
import yaml
from lab_fleet import CHECKOUT, LabFleet, lab_of
from live_fleet import Fleet
from unchanged_answers import REQUESTS, Side, answers_of_both, joined, without_own

from sparkfleet.engines.registry import engine_by_name
from sparkfleet.gateway.access.keys import engine_token
from sparkfleet.group.probe import sum_series

PYTHON = Path(os.environ.get("SPARKFLEET_SGLANG_PYTHON") or CHECKOUT / ".venv-sglang/bin/python")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.opt_in,
    pytest.mark.sglang,
    pytest.mark.skipif(
        not PYTHON.exists(), reason="no SGLang: scripts/setup-sglang, or set SPARKFLEET_SGLANG_PYTHON"
    ),
]

ENGINES = {"vllm": {"python": sys.executable}, "sglang": {"python": str(PYTHON)}}
ONE = "name: tiny\nmodel: builtin:tiny\nengine: sglang\ncontext: 512\nconcurrency: 4\n"
ALONE = ONE + "nodes: [spark1]\n"
PAIR = ONE + "parallel: {tp: 2}\n"
BOTH = """
name: mixed
variants:
  - {model: builtin:tiny, engine: vllm}
  - {model: builtin:tiny, engine: sglang}
context: 512
concurrency: 4
"""
QUESTION = {"model": "tiny", "prompt": "A rail is", "max_tokens": 40, "temperature": 0}
UNCHANGED = [name for name in REQUESTS if name not in ("a named tool", "an image", "three answers")]
"""Requests that a model without tools and images takes, and that SGLang answers twice alike: samples of one seed differ."""
RAILS = ("enp1s0f1np1", "enP2p1s0f1np1")
LAN = "enP7s7"


START_S = 900
"""Longest start: SGLang alone needs 50 s of two idle processors, and 3 minutes of busy ones."""


class Here(Fleet):
    """A fleet of one node whose verbs may take longer."""

    def ok(self, *args, timeout=START_S):
        return super().ok(*args, timeout=timeout)


class Sparks(LabFleet):
    """A fleet of several nodes whose verbs may take longer."""

    def ok(self, *args, timeout=START_S):
        return super().ok(*args, timeout=timeout)


@pytest.fixture(scope="class")
def here(tmp_path_factory):
    """A fleet that serves `tiny` by SGLang, until the last test deletes it."""
    fleet = Here(tmp_path_factory.mktemp("sglang"))
    node = {"address": "local", "engines": ENGINES}
    inventory = {"fleet": "test", "head": "this", "nodes": {"this": node}, "gateway": {"port": 0}}
    fleet.write("inventory.yaml", yaml.safe_dump(inventory))
    try:
        fleet.apply(fleet.write("tiny.yaml", ONE))
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


@pytest.fixture(scope="class")
def sparks(tmp_path_factory):
    """Two Sparks that have both engines."""
    with lab_of(2, shares=(*Sparks.shares(), PYTHON.parent.parent)) as lab:
        fleet = Sparks(lab, tmp_path_factory.mktemp("sglang"))
        inventory = yaml.safe_load(lab.inventory())
        for node in inventory["nodes"].values():
            node["engines"] = ENGINES
        fleet.write("inventory.yaml", yaml.safe_dump({**inventory, "environment": sys.executable}))
        fleet.bring()
        fleet.ok("up")
        yield fleet
        fleet.ok("down")
        assert {node.name: fleet.processes(node.name) for node in lab.nodes} == {
            "spark1": [],
            "spark2": [],
        }


class TestOneNode:
    """On this machine, in an environment that holds nothing of sparkfleet."""

    def test_it_passed_the_canary_with_perplexities(self, here):
        (group,) = here.deployment()["groups"]
        assert (group["engine"], group["phase"]) == ("sglang", "ready")
        assert 1 < group["measured"]["text_perplexity"] < 5
        assert group["measured"]["own_agreement"] > 0.9
        assert group["measured"]["decode_tps"] > 0

    def test_a_chat_streams(self, client):
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

    @pytest.mark.parametrize("name", UNCHANGED)
    @pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
    def test_an_answer_is_the_engines_own(self, here, name, stream):
        """Ids and times aside, byte for byte; a stream without the borders between its events."""
        (group,) = here.deployment()["groups"]
        token = engine_token(
            here.paths.read_engine_secret().encode(), f"tiny/g{group['generation']}/{group['replica']}"
        )
        path, body = REQUESTS[name]
        body = {"model": "tiny", **body, "stream": stream}
        gateway = Side(here.endpoint.removesuffix("/v1"), here.key)
        direct, through = answers_of_both(Side(group["url"], token), gateway, path, body)
        assert direct[0] == 200, direct
        assert (through[0], through[1]) == direct[:2]
        same = joined if stream else without_own
        assert same(through[2]) == same(direct[2])

    def test_its_load_and_its_tokens_are_seen_while_it_generates(self, here, client):
        (group,) = here.deployment()["groups"]
        engine = engine_by_name("sglang")
        names = (engine.running_metric, engine.waiting_metric, engine.tokens_metric)

        def read():
            return sum_series(here.engine_page(group["url"], engine.metrics_path), names)

        seen = threading.Event()

        def generate():  # an answer takes a second, and a busy machine may not read the page in it
            while not seen.is_set():
                client.completions.create(
                    model="tiny", prompt="Hello", max_tokens=450, extra_body={"ignore_eos": True}
                )

        before = read()
        assert before[engine.running_metric] == 0
        with ThreadPoolExecutor(1) as pool:
            generating = pool.submit(generate)
            try:
                here.until(
                    lambda: (
                        (now := read())[engine.running_metric] == 1
                        and now[engine.tokens_metric] > before[engine.tokens_metric]
                    ),
                    timeout=30,
                    every=0.05,
                )
            finally:
                seen.set()
            generating.result()

    def test_the_next_step_of_claude_code_finds_its_prompt_in_the_cache(self, here):
        """SGLang keeps the line with a hash of each request that Claude Code opens its system prompt with."""
        (group,) = here.deployment()["groups"]
        system = "What is a rail of a Spark? " * 6

        def cached():
            return sum_series(here.engine_page(group["url"]), ("sglang:cached_tokens_total",))[
                "sglang:cached_tokens_total"
            ]

        def step(hash_):
            line = (
                f"x-anthropic-billing-header: cc_version=2.1.245.{hash_[:3]}; cc_entrypoint=cli; cch={hash_};"
            )
            body = {
                "model": "tiny",
                "max_tokens": 4,
                "system": [{"type": "text", "text": line}, {"type": "text", "text": system}],
                "messages": [{"role": "user", "content": "Go on."}],
            }
            headers = {"x-api-key": here.key, "anthropic-version": "2023-06-01"}
            answer = httpx.post(f"{here.endpoint}/messages", json=body, headers=headers, timeout=120)
            assert answer.status_code == 200, answer.text
            return answer.json()["usage"]["input_tokens"]

        tokens = step("fa690")
        before = cached()
        step("97bd6")
        assert cached() - before > 0.8 * tokens

    def test_two_unlike_engines_answer_under_one_name(self, here, client):
        here.apply(here.write("mixed.yaml", BOTH))
        here.until(lambda: [group["phase"] for group in here.deployment("mixed")["groups"]] == ["ready"] * 2)
        assert sorted(group["engine"] for group in here.deployment("mixed")["groups"]) == ["sglang", "vllm"]

        def ask(_):
            answer = client.completions.create(
                model="mixed", prompt="A rail is", max_tokens=24, temperature=0
            )
            # The field is SGLang's own: answers reach the client as the engine has written them.
            return answer.choices[0].text, "matched_stop" in answer.choices[0].model_extra

        with ThreadPoolExecutor(4) as pool:
            answers = set(pool.map(ask, range(24)))
        assert {by_sglang for _, by_sglang in answers} == {True, False}
        assert len({text for text, _ in answers}) == 1, "both compute the same"

    def test_groups_that_are_deleted_leave_nothing(self, here):
        here.ok("delete", "--yes", "mixed")
        here.ok("delete", "--yes", "tiny")
        here.until(lambda: here.ranks() == [])


class TestTwoNodes:
    """Over two simulated Sparks."""

    def test_two_ranks_say_what_one_says_and_talk_over_the_rails(self, sparks):
        sparks.apply(ALONE)
        alone = _says(sparks)
        sparks.ok("delete", "--yes", "tiny")
        sparks.apply(PAIR)
        (group,) = sparks.deployment()["groups"]
        assert (group["engine"], [rank["node"] for rank in group["ranks"]]) == (
            "sglang",
            ["spark1", "spark2"],
        )
        before = sparks.traffic("spark2")
        assert _says(sparks) == alone
        after = sparks.traffic("spark2")
        moved = {name: after[name] - before[name] for name in (*RAILS, LAN)}
        assert max(moved[name] for name in RAILS) > 50_000, "all-reduces of 40 tokens"
        assert moved[LAN] < 20_000

    def test_two_containers_say_what_one_process_says(self, sparks):
        """The same engine from an image, in rootless podman; it is brought to the second node first."""
        alone = _says(sparks)  # of the two ranks: as one says it
        prefix = PYTHON.parent.parent
        for node in sparks.lab.nodes:
            box_image.settle(sparks.lab, node.name, prefix)
        image = box_image.lay(sparks.lab, "spark1", "localhost/sparkfleet-test-sglang-cpu", prefix=prefix)
        if reason := box_image.refused(sparks.lab, "spark1", image):
            pytest.skip(f"podman runs nothing in a lab here: {reason}")
        sparks.ok("delete", "--yes", "tiny")
        sparks.apply(PAIR + f"runtime: container\nimage: {image}\n")
        before = sparks.traffic("spark2")
        assert _says(sparks) == alone
        after = sparks.traffic("spark2")
        moved = {name: after[name] - before[name] for name in (*RAILS, LAN)}
        assert max(moved[name] for name in RAILS) > 50_000, "all-reduces of 40 tokens"
        assert moved[LAN] < 20_000
        listed = {
            node.name: sparks.lab.exec(node.name, ["podman", "ps", "--quiet"]).stdout.split()
            for node in sparks.lab.nodes
        }
        assert [len(found) for found in listed.values()] == [1, 1]
        sparks.ok("delete", "--yes", "tiny")
        sparks.apply(PAIR)

    def test_a_rank_that_dies_ends_the_group_and_it_is_replaced_as_a_whole(self, sparks):
        before = _pids(sparks)
        sparks.lab.exec("spark2", ["kill", "-9", str(before[1])])
        sparks.until(lambda: not sparks.is_ready(), timeout=60)
        sparks.until(sparks.is_ready, timeout=START_S)
        assert all(new != old for new, old in zip(_pids(sparks), before, strict=True))
        assert _says(sparks)


def _says(fleet):
    return fleet.ask("/completions", QUESTION)["choices"][0]["text"]


def _pids(fleet):
    return [rank["pid"] for rank in fleet.deployment()["groups"][0]["ranks"]]
