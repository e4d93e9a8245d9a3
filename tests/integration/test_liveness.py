"""Hung and living engines are distinguished, with one real vLLM whose core is stopped as one that hangs in a kernel is."""

import json
import os
import shutil
import signal
import threading
import time

import httpx
import pytest
from live_fleet import Fleet

from sparkfleet.specs.timeouts import Timeouts

pytestmark = [pytest.mark.integration, pytest.mark.full]

USUAL = Timeouts()

CHUNK = 4
"""Tokens of a prompt that the engine takes in one step: a long prefill on a model that has none."""
TINY = f"""
name: tiny
model: builtin:tiny
context: 2048
concurrency: 4
engine_args: [--max-num-batched-tokens, "{CHUNK}"]
"""
LONG = 2000
"""Tokens of a prompt: 500 chunks, two to four seconds of work; on a busy machine more pass in a window."""
START_S = 240.0
"""Enough for an engine of this size to be started again on two processors that others use, too."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    fleet = Fleet(tmp_path_factory.mktemp("liveness"))
    try:
        fleet.apply(fleet.write("tiny.yaml", TINY))
        yield fleet
    finally:
        code, out, err = fleet.run("down")
        shutil.rmtree(fleet.paths.run, ignore_errors=True)
        assert code == 0, f"{out}\n{err}"


class Question(threading.Thread):
    """One completion, asked in a thread: `status`, `text` and `took_s` when it has ended."""

    def __init__(self, fleet, **body):
        super().__init__()
        self._url, self._key = fleet.endpoint + "/completions", fleet.key
        self._body = {"model": "tiny", "max_tokens": 8, "temperature": 0, **body}
        self.status, self.text, self.took_s = None, "", 0.0
        self.start()

    def run(self):
        began = time.monotonic()
        headers = {"authorization": f"Bearer {self._key}"}
        try:
            response = httpx.post(self._url, json=self._body, headers=headers, timeout=600)
            self.status, self.text = response.status_code, response.text
        except httpx.HTTPError as error:
            self.status = repr(error)
        self.took_s = time.monotonic() - began


def group(fleet):
    return fleet.deployment()["groups"][0]


def is_ready(fleet):
    found = fleet.deployment()
    return found is not None and found["state"] == "ready"


def core(fleet):
    """The process of the engine that computes; the server before it goes on answering without."""
    (pid,) = (process.pid for process in fleet.ranks() if "EngineCore" in process.command)
    return pid


def generated(fleet):
    """Tokens that the engine has generated, by its own page."""
    page = fleet.engine_page(group(fleet)["url"])
    lines = (line for line in page.splitlines() if line.startswith("vllm:generation_tokens_total{"))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_a_long_prefill_is_no_death(fleet):
    """Its tokens move no more for longer than a question for one would be waited for; its cache fills, slowly."""
    before, pid, since = core(fleet), group(fleet)["ranks"][0]["pid"], generated(fleet)
    os.kill(before, signal.SIGSTOP)
    long = Question(fleet, prompt=[100 + n % 150 for n in range(LONG)])
    until = time.monotonic() + USUAL.stuck_s + USUAL.proof_s + 20
    try:
        while time.monotonic() < until:
            time.sleep(3)
            os.kill(before, signal.SIGCONT)
            time.sleep(0.02)  # a few chunks
            os.kill(before, signal.SIGSTOP)
        moved = generated(fleet) - since
    finally:
        os.kill(before, signal.SIGCONT)
    long.join(120)
    assert long.status == 200, (long.status, long.text)
    assert json.loads(long.text)["usage"]["prompt_tokens"] == LONG
    assert moved == 0, "the prefill went on all the time"
    assert group(fleet)["ranks"][0]["pid"] == pid
    assert core(fleet) == before


def test_an_engine_that_hangs_while_it_is_idle_is_replaced_and_clients_are_told(fleet):
    """Its own figures say that there is nothing to do, before and after: they are written by what hangs."""
    assert answers(fleet) == 200
    pid, stuck = group(fleet)["ranks"][0]["pid"], core(fleet)
    os.kill(stuck, signal.SIGSTOP)
    time.sleep(3)
    asked = Question(fleet, prompt="A rail is")
    asked.join(USUAL.idle_s + USUAL.proof_s + 30)
    assert not asked.is_alive(), (
        "it is told within the time that an idle engine has, and the time for a proof"
    )
    assert asked.status != 200 or json.loads(asked.text)["usage"]["completion_tokens"], asked.text
    fleet.until(lambda: is_ready(fleet) and group(fleet)["ranks"][0]["pid"] != pid, timeout=START_S)
    assert answers(fleet) == 200
    words = fleet.ok("describe", "tiny")
    assert "generates no tokens" in words


def answers(fleet):
    question = Question(fleet, prompt="A rail is")
    question.join(60)
    return question.status
