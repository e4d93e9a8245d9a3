"""Real Prometheus and Alertmanager on a real fleet: every panel's query and every recording rule returns data."""

import re
import socket
import subprocess
import sys
import time

import httpx
import pytest
from on_demand_spec import on_demand
from shown import ONLY_REAL, ONLY_SPARKS, OUTSIDE, substituted, without_data

from sparkfleet.telemetry.dashboards.boards import DASHBOARDS
from sparkfleet.telemetry.recording import RECORDING

START_S = 20
MORE = """speculation: {{method: ngram, tokens: 3}}
external: [{{url: "http://127.0.0.1:9/v1", model: a}}, {{url: "{url}/v1", model: b}}]
"""
"""Drafts, and endpoints outside the fleet: at the first one nobody listens."""
PROMPT = "A rail is one half of a QSFP cable: one network device. What is a rail?"
"""It is answered in words that it holds itself, of which drafts are made."""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def outside():
    """URL of an endpoint that belongs to no fleet."""
    argv = [sys.executable, "-m", "sparkfleet.engines.fake", "--model", "b"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as engine:
        yield engine.stdout.readline().split()[-1]
        engine.terminate()


class Watched:
    """Prometheus and Alertmanager with the files of `observe config`, but every second instead of every ten."""

    def __init__(self, fleet, directory):
        self._ports = free_port(), free_port()
        self._processes = []
        fleet.ok("observe", "config", str(directory))
        for path in (directory / "prometheus.yml", *(directory / "rules").iterdir()):
            text = re.sub(r"(interval: |for: )\d+[sm]\b", r"\g<1>1s", path.read_text())
            path.write_text(text.replace("127.0.0.1:9093", f"127.0.0.1:{self._ports[1]}"))
        self._run(
            directory, "prometheus", "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{self._ports[0]}",
            f"--storage.tsdb.path={directory}/data",
        )  # fmt: skip
        self._run(
            directory, "prometheus-alertmanager", "--config.file=alertmanager.yml", "--cluster.listen-address=",
            f"--web.listen-address=127.0.0.1:{self._ports[1]}", f"--storage.path={directory}/alerts",
        )  # fmt: skip

    def _run(self, directory, name, *args):
        with (directory / f"{name}.log").open("w") as log:
            self._processes.append(
                subprocess.Popen(
                    [name, *args], cwd=directory, stdout=log, stderr=log, stdin=subprocess.DEVNULL
                )
            )

    def query(self, expr):
        """Values of an expression; [] for none."""
        answer = self._get(0, "/api/v1/query", query=expr)
        assert answer["status"] == "success", (expr, answer)
        return answer["data"]["result"]

    def targets(self):
        return self._get(0, "/api/v1/targets")["data"]["activeTargets"]

    def alerts(self):
        """Names of the alerts that Alertmanager has."""
        return {one["labels"]["alertname"] for one in self._get(1, "/api/v2/alerts", active="true")}

    def _get(self, which, path, **params):
        transport = httpx.HTTPTransport(retries=5)
        with httpx.Client(transport=transport, timeout=20) as client:
            for _ in range(50):
                try:
                    answer = client.get(f"http://127.0.0.1:{self._ports[which]}{path}", params=params)
                except httpx.ConnectError:  # it starts
                    time.sleep(0.2)
                    continue
                if answer.status_code != 503:
                    return answer.json()
                time.sleep(0.2)
        raise AssertionError(f"{path}: no answer")

    def end(self):
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(20)


@pytest.fixture(scope="module")
def watched(fleet, outside, tmp_path_factory):
    """A fleet that serves `tiny` with drafts, and sends elsewhere what it cannot serve, watched."""
    fleet.apply(fleet.write("tiny.yaml", fleet.spec(MORE.format(url=outside))))
    fleet.until(lambda: len(fleet.deployment()["groups"]) == 1)  # the one before takes some seconds to leave
    one = Watched(fleet, tmp_path_factory.mktemp("observe"))
    yield one
    one.end()


def load(fleet, name="tiny"):
    """One streamed and one whole answer, and a refusal."""
    # Greedy: vLLM's CPU build cannot sample while it verifies drafts (docs/builtin.md).
    body = {
        "model": name,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 30,
        "temperature": 0,
    }
    headers = {"authorization": f"Bearer {fleet.key}"}
    for stream in (True, False):
        answer = httpx.post(
            f"{fleet.endpoint}/chat/completions", json={**body, "stream": stream}, headers=headers, timeout=60
        )
        assert answer.status_code == 200, answer.text
    refused = httpx.post(
        f"{fleet.endpoint}/chat/completions", json={"model": "no"}, headers=headers, timeout=60
    )
    assert refused.status_code == 404, refused.text


def go_outside(fleet):
    """One request while the group is drained: it leaves the fleet, and the second endpoint answers."""
    (one,) = fleet.deployment()["groups"]
    group = f"tiny/g{one['generation']}/{one['replica']}"
    fleet.ok("drain", "--yes", group)
    try:
        answer = httpx.post(
            f"{fleet.endpoint}/chat/completions",
            json={"model": "tiny", "messages": [{"role": "user", "content": PROMPT}]},
            headers={"authorization": f"Bearer {fleet.key}"},
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
    finally:
        fleet.ok("undrain", group)


@pytest.fixture
def swapped(fleet, watched):
    """A model on demand that a request has started, and that was unloaded, once its series were seen at 0."""
    fleet.apply(fleet.write("eyes.yaml", on_demand("eyes", free_port(), "memory: 1 GiB\n")))
    for name in ("sparkfleet_start_wait_seconds_count", "sparkfleet_unloads_total"):
        fleet.until(lambda name=name: watched.query(f'{{__name__="{name}"}}'), timeout=60)
    fleet.ok("ask", "eyes", "Hello")
    fleet.ok("unload", "eyes")
    yield
    fleet.ok("delete", "--yes", "eyes")


def test_every_panel_and_every_rule_has_data(fleet, watched, swapped):
    absent = ONLY_SPARKS if fleet.real else ONLY_SPARKS | ONLY_REAL

    def complete():
        load(fleet)
        go_outside(fleet)
        return not without_data(watched.query, absent)

    try:
        fleet.until(complete, timeout=120, every=1)
    finally:
        assert without_data(watched.query, absent) == []


def test_what_this_fleet_cannot_show_the_other_shows():
    assert not (ONLY_REAL | OUTSIDE) & ONLY_SPARKS
    names = {panel.title for board in DASHBOARDS for panel in board.panels}
    names |= {rule.record for group in RECORDING for rule in group.rules}
    assert names >= ONLY_SPARKS | ONLY_REAL | OUTSIDE


def test_every_target_answers_and_every_query_is_one(fleet, watched):
    try:
        fleet.until(lambda: {one["health"] for one in watched.targets()} == {"up"}, timeout=30)
    finally:
        assert [one for one in watched.targets() if one["health"] != "up"] == []
    assert {one["labels"]["job"] for one in watched.targets()} == {"gateway", "controller", "vllm"}
    for board in DASHBOARDS:
        for panel in board.panels:
            for query in panel.queries:
                watched.query(substituted(query.expr))  # raises if Prometheus refuses it


def test_a_new_group_is_scraped_and_its_alert_reaches_alertmanager_and_clears(fleet, watched):
    """A group that starts is a group that is not ready: with the alert's wait cut to a second, it fires and clears."""
    spec = (
        fleet.spec()
        .replace("name: tiny", "name: slow")
        .replace("FAKE_START_S: '0'", f"FAKE_START_S: '{START_S}'")
    )
    applying = fleet.popen("apply", "--yes", fleet.write("slow.yaml", spec))
    try:
        fleet.until(lambda: "SparkfleetGroupDown" in watched.alerts(), timeout=60)
        fleet.until(lambda: watched.query('sparkfleet_group_start_phase{deployment="slow"} == 1'), timeout=20)
        assert applying.wait(200) == 0
        fleet.until(lambda: watched.query('vllm:num_requests_running{deployment="slow"}'), timeout=60)
        fleet.until(lambda: not watched.query('ALERTS{alertname="SparkfleetGroupDown"}'), timeout=60)
    finally:
        applying.communicate(timeout=200)
        fleet.ok("delete", "--yes", "slow")
    fleet.until(lambda: not watched.query('sparkfleet_group_state{deployment="slow"}'), timeout=60)
